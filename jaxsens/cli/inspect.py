"""``jaxsens show``, ``plot``, ``merge``, ``regenerate`` and ``doctor``."""

import dataclasses
import json
import pathlib
from typing import Annotated

import tyro


@dataclasses.dataclass(frozen=True)
class Show:
    """Print a run: estimates with intervals beside the random-function control, profile, census."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    json: bool = False
    """Print one JSON object instead of tables."""
    level: float = 0.95
    """Confidence level of the intervals."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw a run as one PNG: pooled profile, K_0 histogram and shares, each beside its control."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    out: str | None = None
    """Image file, by default RUN/figure.png."""
    dpi: int = 150
    """Dots per inch."""


@dataclasses.dataclass(frozen=True)
class Merge:
    """Merge runs of one config over disjoint index ranges into a new run directory."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN ...")]
    """Run directories."""
    out: str
    """Directory of the merged run."""


@dataclasses.dataclass(frozen=True)
class Regenerate:
    """Write the parameters of one model of a run to an .npz file, under the flat names of arrays.

    (seed, index) name a model for ever, sampled in this run yet or not.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    index: int
    """Global index of the model."""
    out: str
    """The .npz file to write."""


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Print versions and devices, and check this device's truth tables against float64."""


def show(args: Show) -> int:
    """Runs ``jaxsens show``."""
    from rich.console import Console

    from jaxsens import report
    from jaxsens.estimate import check_level
    from jaxsens.montecarlo.store import Run

    check_level(args.level)
    run = Run.open(args.run)
    summary = run.summary()
    if args.json:
        values = report.summary_json(summary, args.level)
        values |= {"config": run.manifest["config"], "config_hash": run.hash}
        print(json.dumps(values, allow_nan=False))
        return 0
    console = Console()
    console.print(f"[bold]{run.path}[/bold]  seed {run.manifest['config']['seed']}")
    console.print(describe(run.manifest["config"]["model"]), highlight=False)
    console.print(report.estimates_table(summary, args.level))
    for name, bound in report.one_sided_bounds(summary, args.level).items():
        console.print(
            f"one-sided {100 * args.level:.4g} %: {report.LABELS[name]} >= {bound['lower']:.4g}, "
            f"or <= {bound['upper']:.4g}",
            highlight=False,
        )
    console.print(report.profile_table(summary))
    census = report.census_table(summary)
    if census is not None:
        console.print(census)
    console.print(
        f"undecided in float32 and settled in float64: {summary.undecided - summary.unresolved:,}; "
        f"unresolved: {summary.unresolved:,}",
        highlight=False,
    )
    return 0


def describe(model: dict) -> str:
    """One line that names what a run sampled."""
    if model["kind"] != "transformer":
        return f"{model['name']}, N={model['length']}"
    c, init = model["config"], model["init"]
    mask = "causal" if c["causal"] else "bidirectional"
    text = (
        f"N={c['length']}, {c['num_layers']} layers, D={c['d_model']}, {c['num_heads']} heads, "
        f"MLP {c['d_mlp']}, {c['norm']}-norm, eps={c['eps']:g}, {mask}, {c['activation']}"
    )
    if isinstance(init, dict):
        laws = {}
        for group, law in init["groups"].items():
            fan = {"none": "", "in": "/sqrt(fan_in)", "sum": "/sqrt(fan_in+fan_out)"}[law["fan"]]
            laws.setdefault(f"{law['kind']}({law['number']:.4g}{fan})", []).append(group)
        if len(laws) == 1:
            return f"{text}\ninit {next(iter(laws))} on every tensor"
        parts = (f"{law}: {', '.join(groups)}" for law, groups in laws.items())
        return text + "\ninit " + "; ".join(parts)
    return f"{text}\ninit {init}"


def plot(args: Plot) -> int:
    """Runs ``jaxsens plot``."""
    from jaxsens import plot as figures
    from jaxsens.montecarlo.store import Run, RunError

    run = Run.open(args.run)
    summary = run.summary()
    if not summary.models:
        raise RunError(f"run: {args.run!r} holds no models yet")
    target = pathlib.Path(args.out) if args.out is not None else run.path / "figure.png"
    if target.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"out: {args.out!r} given; it must end in .png, .pdf or .svg")
    if args.dpi < 10 or args.dpi > 1200:
        raise ValueError(f"dpi: {args.dpi} given; it must be from 10 to 1200")
    title = describe(run.manifest["config"]["model"])
    try:
        figures.run_figure(summary, title).savefig(target, dpi=args.dpi)
    except (OSError, ValueError) as error:
        raise ValueError(f"out: {str(target)!r} given; it cannot be written ({error})") from None
    print(target)
    return 0


def merge(args: Merge) -> int:
    """Runs ``jaxsens merge``."""
    from jaxsens.montecarlo.store import merge_runs

    merged = merge_runs(list(args.runs), args.out)
    print(f"{merged.summary().models:,} models in {args.out}")
    return 0


def regenerate(args: Regenerate) -> int:
    """Runs ``jaxsens regenerate``."""
    import numpy as np

    from jaxsens.montecarlo.regenerate import regenerate as draw_again
    from jaxsens.transformer import params_to_arrays

    arrays = params_to_arrays(draw_again(args.run, args.index))
    try:
        with open(args.out, "wb") as file:
            np.savez(file, **{name: np.asarray(a) for name, a in arrays.items()})  # pyright: ignore[reportArgumentType]
    except OSError as error:
        raise ValueError(
            f"out: {args.out!r} given; it cannot be written ({error.strerror})"
        ) from None
    print(args.out)
    return 0


def doctor(args: Doctor) -> int:
    """Runs ``jaxsens doctor``."""
    import jax

    import jaxsens
    from jaxsens.montecarlo import evaluate, keys, memory
    from jaxsens.montecarlo.sampler import TOLERANCE
    from jaxsens.montecarlo.store import versions

    keys.check_generator()
    print(", ".join(f"{name} {version}" for name, version in versions().items()))
    for device in jax.devices():
        print(f"device {device} ({device.device_kind})")
    free = memory.bytes_available()
    print(f"free memory: {'unknown' if free is None else f'{free / 2**30:.1f} GiB'}")
    cfg = jaxsens.TransformerConfig(length=8, num_layers=2, d_model=16, num_heads=2, d_mlp=32)
    model = jaxsens.transformer_model(cfg, jaxsens.inits.uniform(10.0))
    execution = evaluate.plan_execution(model, 64, devices=1)
    evaluate.self_check(model, 0, 0, 64, execution, tolerance=TOLERANCE)
    print("self-check: truth tables in float32 on this device equal those in float64 on the CPU")
    return 0
