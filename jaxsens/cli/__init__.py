"""The command line: tyro over frozen dataclasses, one line per mistake."""

import contextlib
import io
import signal
import sys
from typing import Annotated

import tyro

from jaxsens.cli import decide, inspect, sample
from jaxsens.cli.decide import Decide
from jaxsens.cli.inspect import Doctor, Merge, Plot, Regenerate, Show
from jaxsens.cli.sample import Sample

_RUNNERS = {
    Sample: sample.run,
    Decide: decide.run,
    Show: inspect.show,
    Plot: inspect.plot,
    Merge: inspect.merge,
    Regenerate: inspect.regenerate,
    Doctor: inspect.doctor,
}
Command = (
    Annotated[Sample, tyro.conf.subcommand("sample")]
    | Annotated[Decide, tyro.conf.subcommand("decide")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Plot, tyro.conf.subcommand("plot")]
    | Annotated[Merge, tyro.conf.subcommand("merge")]
    | Annotated[Regenerate, tyro.conf.subcommand("regenerate")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


_HEADLINES = (
    "missing subcommand",
    "parsing error",
    "value error",
    "unrecognized options",
    "required options",
)


def _fail(message: str) -> int:
    print("jaxsens: " + " ".join(message.split()), file=sys.stderr)
    return 2


def _one_line(box: str) -> str:
    """The text of tyro's error box as one line, without the frame and the pointer to --help."""
    inner = [line.strip("╭╮╰╯─│ ") for line in box.splitlines()]
    kept = []
    for line in inner:
        if line.startswith(("For full helptext", "Perhaps you meant", "Argument helptext")):
            break
        if line and line.lower() not in _HEADLINES:
            kept.append(line.removeprefix("Error parsing "))
    return " ".join(kept) or "cannot parse the arguments; see jaxsens --help"


def _parse(arguments: list[str]):
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                Command,  # pyright: ignore[reportArgumentType]
                prog="jaxsens",
                description="What do random transformers compute? Exact sampling on all strings.",
                args=arguments,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(_one_line(errors.getvalue())) from None


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``jaxsens``: exit code 0 done, 2 bad arguments, 130 interrupted."""
    # A preempted job gets SIGTERM: stop as after Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        command = _parse(sys.argv[1:] if arguments is None else arguments)
        code = _RUNNERS[type(command)](command)
    except ValueError as error:
        code = _fail(str(error))
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = 0
        sys.stderr.close()
    except OSError as error:
        code = _fail(f"cannot write: {error.strerror or error}")
    sys.exit(code)
