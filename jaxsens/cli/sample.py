"""``jaxsens sample``: run the sampler on disk."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import tyro

from jaxsens import inits
from jaxsens.cli.signals import interruptible
from jaxsens.montecarlo.sampler import TOLERANCE, Progress
from jaxsens.transformer.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class Sample:
    """Draw random transformers, evaluate each on every string, count, and save as it goes.

    Finished models are saved chunk by chunk in --out. Ctrl-C, SIGTERM or a crash lose at most the
    chunk in flight: the same command goes on from there, and a larger --models computes only what
    is missing.
    """

    config: Annotated[TransformerConfig, tyro.conf.arg(name="")]
    out: str
    """Run directory (made if need be)."""
    models: int
    """Number of models: indices 0 to models - 1."""
    init: str = "uniform"
    """Init law: uniform, normal, truncated_normal, xavier_uniform, xavier_normal, kaiming, gpt2,
    orthogonal, constant, zeros, ones."""
    scale: float | None = None
    """The law's number: half-width, standard deviation or gain; by default the published one
    (10 for uniform and normal, 0.02 for gpt2, gain 1 otherwise)."""
    group_law: tuple[str, ...] = ()
    """Replace the law of tensor groups, each GROUP=LAW or GROUP=LAW:NUMBER, e.g. biases=zeros
    norm_gain=ones embedding=normal:1. Groups: embedding, positions, attention, mlp, slope, biases,
    norm_gain, norm_bias, readout."""
    group_scale: tuple[str, ...] = ()
    """Multiply what is drawn for tensor groups, each GROUP=FACTOR, e.g. embedding=4."""
    draw: Literal["float32", "float64"] = "float32"
    """Base draw of the law: 23 or 52 random bits a number."""
    seed: int = 0
    """Root seed, 0 to 2^32 - 1."""
    keep: Literal["models", "sums"] = "models"
    """Save per-model integers, or only their sums and the indices of notable models."""
    tolerance: float = TOLERANCE
    """A model whose smallest |logit| is below this times its largest is settled in float64."""
    dtype: Literal["float32", "float64"] = "float32"
    """Evaluate in this precision."""
    shard: str = "0/1"
    """i/n: this process does the i-th of n equal index ranges (i from 0) of one run."""
    chunk: int | None = None
    """Models saved together. Execution only: never changes the integers."""
    batch: int | None = None
    """Models in one compiled call. Execution only."""
    devices: int | None = None
    """Devices to use, by default all. Execution only."""
    cpu_devices: int | None = None
    """Split the CPU into this many devices, by default one a core. Execution only."""
    compile_cache: str | None = None
    """Directory of a persistent compile cache. Off by default."""
    progress: bool = True
    """Show a bar (only on a terminal)."""


def law_of(args: Sample) -> inits.InitLaw:
    """The init law that the flags describe; raises ``ValueError`` with one line."""
    law = inits.by_name(args.init, args.scale)
    for item in args.group_law:
        group, _, rest = item.partition("=")
        name, _, number = rest.partition(":")
        if not name:
            raise ValueError(f"group-law: {item!r} given; it must be GROUP=LAW or GROUP=LAW:NUMBER")
        number = _number("group-law", item, number) if number else None
        law = law.with_group(group, inits.by_name(name, number))
    for item in args.group_scale:
        group, _, factor = item.partition("=")
        law = law.scaled(group, _number("group-scale", item, factor))
    return law.drawn_in(args.draw)


def _number(flag: str, item: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{flag}: {item!r} given; {text!r} is not a number") from None


def shard_range(shard: str, models: int) -> tuple[int, int]:
    """Index range [start, stop) of shard ``i/n`` of ``models`` models."""
    i, slash, n = shard.partition("/")
    if not (slash and shard.isascii() and i.isdigit() and n.isdigit() and int(i) < int(n)):
        raise ValueError(f"shard: {shard!r} given; it must be i/n with 0 <= i < n, e.g. 0/4")
    start, stop = (models * int(i)) // int(n), (models * (int(i) + 1)) // int(n)
    if start == stop:
        raise ValueError(f"shard: {shard!r} of {models} models is empty; take n <= {models}")
    return start, stop


def configure_backend(cpu_devices: int | None, compile_cache: str | None) -> None:
    """Sets what must be set before jax starts: CPU devices and the compile cache."""
    import jax

    chosen = cpu_devices is not None
    if cpu_devices is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        cpu_devices = min(cores or 1, 64)
    if cpu_devices < 1:
        raise ValueError(f"cpu-devices: {cpu_devices} given; it must be at least 1")
    try:
        jax.config.update("jax_num_cpu_devices", cpu_devices)
    except RuntimeError:
        # The backend of this process has started already (main called from Python).
        if chosen:
            raise ValueError(
                f"cpu-devices: {cpu_devices} given; jax has started with another number"
            ) from None
    if compile_cache is not None:
        jax.config.update("jax_compilation_cache_dir", compile_cache)


@contextlib.contextmanager
def _bar(show: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A progress bar on stderr, drawn from the host loop; nothing where it is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)
    if not (show and console.is_terminal):
        yield None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"))
    with RichProgress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("models", total=None, state="compiling")

        def update(progress: Progress) -> None:
            p = progress.summary.estimates()["p_zero_sensitivity"]
            rate = progress.done / progress.seconds if progress.seconds else 0.0
            state = f"{rate:,.0f}/s  P(K_0>=1) in [{p.low:.5f}, {p.high:.5f}]"
            bar.update(
                task,
                total=progress.wanted,
                completed=progress.done,
                state=state if progress.done else "compiling",
            )

        yield update


def _saved(out: str) -> int:
    """Models on disk, the shard included that was finished as the interrupt came."""
    from jaxsens.montecarlo.store import Run

    try:
        return sum(stop - start for start, stop in Run.open(out).ranges())
    except ValueError:
        return 0


def run(args: Sample) -> int:
    """Runs the command; returns the exit code."""
    from rich.console import Console

    from jaxsens import report
    from jaxsens.montecarlo.sampler import sample

    if args.models < 1:
        raise ValueError(f"models: {args.models} given; it must be an integer of at least 1")
    law = law_of(args)
    start, stop = shard_range(args.shard, args.models)
    configure_backend(args.cpu_devices, args.compile_cache)
    states: list[Progress] = []

    def note(progress: Progress) -> None:
        if not states and progress.held:
            left = f"{progress.wanted:,} to do" if progress.wanted else "nothing to do"
            p = progress.summary.estimates()["p_zero_sensitivity"]
            print(
                f"{args.out} holds {progress.held:,} models, "
                f"P(K_0 >= 1) in [{p.low:.6g}, {p.high:.6g}]; {left}",
                flush=True,
            )
        states[:] = [progress]

    try:
        with interruptible() as check, _bar(args.progress) as bar:

            def on_progress(progress: Progress) -> None:
                note(progress)
                if bar is not None:
                    bar(progress)
                check()

            result = sample(
                args.config,
                law,
                models=stop - start,
                seed=args.seed,
                out=args.out,
                keep=args.keep,
                start=start,
                tolerance=args.tolerance,
                dtype=args.dtype,
                chunk=args.chunk,
                batch=args.batch,
                devices=args.devices,
                on_progress=on_progress,
            )
    except KeyboardInterrupt:
        saved = _saved(args.out)
        print(
            f"interrupted: {args.out} holds {saved:,} finished models; "
            "run the same command again to go on",
            flush=True,
        )
        return 130
    Console().print(report.estimates_table(result.summary))
    print(f"{result.summary.models:,} models in {args.out}; see: jaxsens show {args.out}")
    return 0
