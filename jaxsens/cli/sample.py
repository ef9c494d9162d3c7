"""``jaxsens sample``: run the sampler on disk."""

import dataclasses
from typing import TYPE_CHECKING, Literal

from jaxsens.cli import backend, laws
from jaxsens.cli.signals import interruptible
from jaxsens.montecarlo.sampler import TOLERANCE, Progress

if TYPE_CHECKING:
    from jaxsens.model import Model
    from jaxsens.montecarlo.execution import Tuning


@dataclasses.dataclass(frozen=True)
class Sample:
    """Draw random transformers, evaluate each on every string, count, and save as it goes.

    Finished models are saved chunk by chunk in --out. Ctrl-C, SIGTERM or a crash lose at most the
    chunk in flight: the same command goes on from there, and a larger --models computes only what
    is missing.
    """

    config: laws.Config
    out: str
    """Run directory (made if need be)."""
    models: int
    """Number of models: indices 0 to models - 1."""
    init: laws.Init = "uniform"
    scale: laws.Scale = None
    group_law: laws.GroupLaw = ()
    group_scale: laws.GroupScale = ()
    draw: laws.Draw = "float32"
    seed: laws.Seed = 0
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
    batch: backend.Batch = None
    devices: backend.Devices = None
    width: int | None = None
    """Models vmapped together on a device. Execution only."""
    tile_bits: int | None = None
    """log2 of the strings worked on together. Execution only."""
    tune: Literal["auto", "always", "never"] = "auto"
    """Measure the fastest --width and --tile-bits on this machine first, and keep the result in
    the user's cache directory: always, never, or for runs of more than about ten minutes."""
    cpu_devices: backend.CpuDevices = None
    compile_cache: backend.CompileCache = None
    progress: backend.ShowProgress = True


def shard_range(shard: str, models: int) -> tuple[int, int]:
    """Index range [start, stop) of shard ``i/n`` of ``models`` models."""
    i, slash, n = shard.partition("/")
    if not (slash and shard.isascii() and i.isdigit() and n.isdigit() and int(i) < int(n)):
        raise ValueError(f"shard: {shard!r} given; it must be i/n with 0 <= i < n, e.g. 0/4")
    start, stop = (models * int(i)) // int(n), (models * (int(i) + 1)) // int(n)
    if start == stop:
        raise ValueError(f"shard: {shard!r} of {models} models is empty; take n <= {models}")
    return start, stop


def _saved(out: str) -> int:
    """Models on disk, the shard included that was finished as the interrupt came."""
    from jaxsens.montecarlo.store import Run

    try:
        return sum(stop - start for start, stop in Run.open(out).ranges())
    except ValueError:
        return 0


def _tuning(args: Sample, model: "Model", models: int) -> "Tuning | None":
    """Width and tile: as given, as measured here, or ``None`` for the default."""
    from jaxsens.montecarlo import tuning

    given = {name: getattr(args, name) for name in ("width", "tile_bits")}
    given = {name: value for name, value in given.items() if value is not None}
    measured = tuning.default_tuning(model, args.devices)
    long = tuning.worth_measuring(model, models)
    if len(given) < 2 and (args.tune == "always" or (args.tune == "auto" and long)):
        measured = tuning.tune(model, devices=args.devices, cache=tuning.cache_directory())
    return measured._replace(**given)


def run(args: Sample) -> int:
    """Runs the command; returns the exit code."""
    from rich.console import Console

    from jaxsens import report
    from jaxsens.model import transformer_model
    from jaxsens.montecarlo.sampler import sample

    if args.models < 1:
        raise ValueError(f"models: {args.models} given; it must be an integer of at least 1")
    law = laws.law_of(args.init, args.scale, args.group_law, args.group_scale, args.draw)
    start, stop = shard_range(args.shard, args.models)
    backend.configure_backend(args.cpu_devices, args.compile_cache)
    model = transformer_model(args.config, law)
    tuning = _tuning(args, model, stop - start)
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
        with interruptible() as check, backend.progress_bar(args.progress) as bar:

            def on_progress(progress: Progress) -> None:
                note(progress)
                if bar is not None:
                    p = progress.summary.estimates()["p_zero_sensitivity"]
                    bar(progress.done, progress.wanted, progress.seconds, p)
                check()

            result = sample(
                model,
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
                tuning=tuning,
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
