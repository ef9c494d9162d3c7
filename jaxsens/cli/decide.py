"""``jaxsens decide``: K_0 >= 1 by witnesses, without a truth table where one is found."""

import dataclasses
import json
import os
import pathlib
from typing import Annotated, Any

import tyro

from jaxsens.cli import backend, laws
from jaxsens.cli.signals import interruptible
from jaxsens.montecarlo.decide import DecideProgress
from jaxsens.montecarlo.sampler import TOLERANCE
from jaxsens.montecarlo.verdicts import Counts, Decisions


@dataclasses.dataclass(frozen=True)
class Decide:
    """Decide for random transformers whether they have a zero-sensitivity string (K_0 >= 1).

    One string whose N neighbours all have its answer, a witness, settles a model; a model without
    one after --max-probes is evaluated on every string. Where that is too many strings it stays
    unknown, and the figure is a certified lower bound: --length may then be in the hundreds.
    Model i of --seed is that of jaxsens sample. Nothing is saved without --out, and no run is
    resumed; --start goes on where another command stopped.
    """

    config: laws.Config
    models: int
    """Number of models: indices start to start + models - 1."""
    init: laws.Init = "uniform"
    scale: laws.Scale = None
    group_law: laws.GroupLaw = ()
    group_scale: laws.GroupScale = ()
    draw: laws.Draw = "float32"
    seed: laws.Seed = 0
    start: int = 0
    """First index."""
    max_probes: int = 64
    """Most probes of a model, each of one string and its N neighbours."""
    enumerate: Annotated[
        tyro.conf.DisallowNone[bool | None],
        tyro.conf.arg(
            help="Evaluate models without a witness on every string; by default where N <= 20 and "
            "memory suffices."
        ),
    ] = None
    tolerance: float = TOLERANCE
    """A witness whose smallest |logit| is below twice this times the largest is checked in
    float64."""
    batch: backend.Batch = None
    devices: backend.Devices = None
    cpu_devices: backend.CpuDevices = None
    compile_cache: backend.CompileCache = None
    progress: backend.ShowProgress = True
    json: bool = False
    """Print one JSON object instead of tables."""
    out: str | None = None
    """New .npz file for a row a model: index, verdict, how, probes, witness."""


def _check_out(out: str) -> pathlib.Path:
    """The file to write; found out before hours of work that it cannot be."""
    path = pathlib.Path(out)
    if path.suffix != ".npz" or "\0" in out:
        raise ValueError(f"out: {out!r} given; it must be the name of an .npz file")
    if os.path.lexists(path):
        raise ValueError(f"out: {out!r} given; it exists, name a new file")
    trial = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ValueError(f"out: {out!r} given; it cannot be written ({error.strerror})") from None
    return path


def _write(path: pathlib.Path, decisions: Decisions, about: dict[str, Any]) -> None:
    """Writes the rows, and what they are about as JSON in ``meta``: whole or not at all."""
    import numpy as np

    from jaxsens.montecarlo.shards import write_atomically

    arrays = {
        name: getattr(decisions, name) for name in ("index", "verdict", "how", "probes", "witness")
    }
    meta = np.array(json.dumps(about, allow_nan=False))
    try:
        write_atomically(path, lambda file: np.savez_compressed(file, meta=meta, **arrays))
    except OSError as error:
        raise ValueError(
            f"out: {str(path)!r} given; it cannot be written ({error.strerror})"
        ) from None


def _about(args: Decide, described: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, as JSON values."""
    from jaxsens.montecarlo.store import versions

    return {
        "length": args.config.length,
        "config": described["config"],
        "law": described["init"],
        "seed": args.seed,
        "start": args.start,
        "max_probes": args.max_probes,
        "enumerate": args.enumerate,
        "tolerance": args.tolerance,
        "versions": versions(),
    }


def _print(
    args: Decide, described: dict[str, Any], counts: Counts, rounds: tuple[tuple[int, int], ...]
) -> None:
    """Prints tables or JSON; ``rounds`` are empty where the command was interrupted."""
    from rich.console import Console

    from jaxsens import report
    from jaxsens.cli.inspect import describe

    if args.json:
        values = report.decisions_json(counts)
        values |= {"rounds": rounds, "interrupted": not rounds} | _about(args, described)
        print(json.dumps(values, allow_nan=False), flush=True)
        return
    console = Console()
    console.print(describe(described), highlight=False)
    console.print(report.decisions_table(counts, args.config.length))
    note = report.lower_bound_note(counts)
    if note is not None:
        console.print(note, highlight=False)
    if rounds:
        console.print(report.rounds_table(rounds))


def run(args: Decide) -> int:
    """Runs the command; returns the exit code.

    Raises:
      ValueError: a flag is out of range; one line names it, its value and what would be right.
    """
    from jaxsens.model import transformer_model
    from jaxsens.montecarlo.decide import decide

    law = laws.law_of(args.init, args.scale, args.group_law, args.group_scale, args.draw)
    out = None if args.out is None else _check_out(args.out)
    backend.configure_backend(args.cpu_devices, args.compile_cache)
    model = transformer_model(args.config, law)
    described = json.loads(model.description)
    states = [DecideProgress(0, args.models, 0.0, Counts(*[0] * len(Counts._fields)))]
    try:
        with interruptible() as check, backend.progress_bar(args.progress) as bar:

            def on_progress(progress: DecideProgress) -> None:
                states[:] = [progress]
                if bar is not None:
                    p = progress.counts.estimate()
                    bar(progress.done, progress.wanted, progress.seconds, p)
                check()

            decisions = decide(
                model,
                models=args.models,
                seed=args.seed,
                start=args.start,
                max_probes=args.max_probes,
                enumerate=args.enumerate,
                tolerance=args.tolerance,
                batch=args.batch,
                devices=args.devices,
                on_progress=on_progress,
            )
    except KeyboardInterrupt:
        done, counts = states[0].done, states[0].counts
        _print(args, described, counts, ())
        if not args.json:
            kept = "" if out is None else f"{args.out} is not written; "
            print(
                f"interrupted: {done:,} of {args.models:,} models decided; {kept}"
                f"--start {args.start + done} --models {args.models - done} does the rest",
                flush=True,
            )
        return 130
    try:
        if out is not None:
            _write(out, decisions, _about(args, described))
    finally:
        _print(args, described, decisions.counts, decisions.rounds)
    return 0
