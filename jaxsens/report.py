"""A run as a table and as JSON, with its control beside it; what was decided, likewise."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from jaxsens import control
from jaxsens.estimate import Proportion, clopper_pearson
from jaxsens.montecarlo.summary import Summary
from jaxsens.montecarlo.verdicts import Counts

LABELS = {
    "p_zero_sensitivity": "P(K_0>=1)",
    "p_zero_sensitivity_nonconstant": "P(K_0>=1|nonconst)",
    "p_constant": "P(constant)",
    "mean_sensitivity_over_n": "mean of as(f)/N",
}


def _proportion_json(p: Proportion) -> dict[str, Any]:
    return p._asdict() | {"range": list(p.range)} if p.range is not None else p._asdict()


def one_sided_bounds(summary: Summary, level: float = 0.95) -> dict[str, dict[str, float]]:
    """One-sided exact bounds of every proportion, each of the given level by itself.

    ``lower`` takes unresolved models for misses, ``upper`` for hits. Which side one looks at has to
    be chosen before the run; together they are an interval of level 2 ``level`` - 1 only.
    """
    bounds = {}
    for name, p in summary.estimates(level).items():
        if p.method == "clopper-pearson":
            bounds[name] = {
                "level": level,
                "lower": clopper_pearson(p.count, p.of, level, "lower").low,
                "upper": clopper_pearson(p.count + p.undecided, p.of, level, "upper").high,
            }
    return bounds


def control_values(n: int) -> dict[str, dict[str, Any]]:
    """The estimates' values for a uniformly random Boolean function of n bits."""
    p, constant = control.p_zero_sensitivity(n), control.p_constant(n)
    varies = control.p_zero_sensitivity_nonconstant(n)
    given = {"error_bound": p.error_bound, "method": p.method}
    return {
        "p_zero_sensitivity": {"value": p.value} | given,
        "p_zero_sensitivity_nonconstant": {"value": varies} | given,
        "p_constant": {"value": constant, "error_bound": 0.0, "method": "closed form"},
        "mean_sensitivity_over_n": {"value": 0.5, "error_bound": 0.0, "method": "closed form"},
    }


def summary_json(summary: Summary, level: float = 0.95) -> dict[str, Any]:
    """Everything that ``jaxsens show --json`` prints about the models of a run."""
    estimates = summary.estimates(level)
    return {
        "models": summary.models,
        "undecided": summary.undecided,
        "unresolved": summary.unresolved,
        "length": summary.length,
        "profile": list(summary.profile),
        "k0_histogram": {str(k): count for k, count in summary.k0_histogram.items()},
        "estimates": {name: _proportion_json(p) for name, p in estimates.items()},
        "one_sided": one_sided_bounds(summary, level),
        "control": control_values(summary.length),
        "census": {
            label: {which: _proportion_json(p) for which, p in pair.items()}
            for label, pair in summary.census_estimates(level).items()
        },
    }


def _number(x: float | None) -> str:
    if x is None:
        return "-"
    return f"{x:.4g}"


def _counts(count: int, of: int) -> str:
    return f"{count:,} /{chr(10) if of >= 10**6 else ' '}{of:,}"


def estimates_table(summary: Summary, level: float = 0.95) -> Table:
    """Estimates with intervals, beside the exact control."""
    title = f"{summary.models:,} models on all 2^{summary.length} strings"
    controls = control_values(summary.length)
    bound = controls["p_zero_sensitivity"]["error_bound"]
    limit = f"; Poisson limit, error <= {min(bound, 1):.1g}" if bound else ", exact"
    caption = (
        "intervals: exact (Clopper-Pearson), for the mean Student's t\n"
        f"control: a uniformly random Boolean function{limit}"
    )
    table = Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("quantity", no_wrap=True)
    # At 80 columns only the interval may be broken over two lines, and long counts before "of".
    interval = f"{100 * level:.4g} % interval"
    for heading in ("count / of", "estimate", interval, "control"):
        table.add_column(heading, justify="right", no_wrap=heading != interval)
    for name, p in summary.estimates(level).items():
        c = controls[name]
        estimate = _number(p.estimate)
        if p.undecided and p.range[0] != p.range[1]:
            estimate = f"{_number(p.range[0])} to {_number(p.range[1])}"
        is_mean = name == "mean_sensitivity_over_n"
        table.add_row(
            LABELS[name],
            "" if is_mean else _counts(p.count, p.of),
            estimate,
            f"[{_number(p.low)}, {_number(p.high)}]",
            _number(c["value"]),
        )
    return table


def profile_table(summary: Summary) -> Table:
    """Share of (model, string) pairs of every sensitivity, beside Binomial(N, 1/2)."""
    table = Table(title="Pooled sensitivity profile", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("sensitivity", "strings", "share", "control"):
        table.add_column(heading, justify="right")
    total = max(1, sum(summary.profile))
    expected = control.expected_profile_fractions(summary.length)
    for k, (count, share) in enumerate(zip(summary.profile, expected, strict=True)):
        table.add_row(str(k), f"{count:,}", _number(count / total), _number(float(share)))
    return table


def census_table(summary: Summary) -> Table | None:
    """Named functions that were hit, each with its complement counted apart."""
    hits = {label: pair for label, pair in summary.census.items() if sum(pair)}
    if not hits:
        return None
    table = Table(title="Named functions found", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("function", "models", "complement"):
        table.add_column(heading, justify="left" if heading == "function" else "right")
    for label, (function, complement) in sorted(hits.items(), key=lambda item: -sum(item[1])):
        table.add_row(label, f"{function:,}", f"{complement:,}")
    return table


def decisions_json(counts: Counts, level: float = 0.95) -> dict[str, Any]:
    """The counts of :func:`jaxsens.decide`, and P(K_0 >= 1) that follows from them.

    With ``lower_bound_only`` unknown models exist: nothing bounds P(K_0 >= 1) from above but what
    they may turn out to be.
    """
    return counts._asdict() | {
        "p_zero_sensitivity": _proportion_json(counts.estimate(level)),
        "lower_bound": counts.lower_bound(level),
        "lower_bound_only": counts.unknown > 0,
    }


def decisions_table(counts: Counts, length: int, level: float = 0.95) -> Table:
    """What was decided and how, and P(K_0 >= 1) with its exact interval."""
    table = Table(
        title=f"K_0 >= 1 decided for {counts.models:,} models, N = {length}",
        title_justify="left",
        caption="interval: exact (Clopper-Pearson)",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("quantity", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    p, percent = counts.estimate(level), f"{100 * level:.4g} %"
    estimate = _number(p.estimate)
    if p.undecided:
        estimate = f"{_number(p.range[0])} to {_number(p.range[1])}"
    decided = {
        "models": counts.models,
        "K_0 >= 1": counts.zero_sensitivity,
        "K_0 = 0": counts.no_zero_sensitivity,
        "unresolved (rounding decides)": counts.unresolved,
        "unknown (not every string evaluated)": counts.unknown,
    }
    by = {
        "decided by a witness in float32": counts.probed,
        "decided by a witness in float64": counts.confirmed,
        "evaluated on every string": counts.enumerated,
    }
    for name, count in decided.items():
        table.add_row(name, f"{count:,}")
    table.add_section()
    table.add_row(LABELS["p_zero_sensitivity"], estimate)
    table.add_row(f"{percent} interval", f"[{_number(p.low)}, {_number(p.high)}]")
    table.add_row(f"one-sided {percent} lower bound", _number(counts.lower_bound(level)))
    table.add_section()
    for name, count in by.items():
        table.add_row(name, f"{count:,}")
    table.add_row("probes a model", _number(counts.probes / max(1, counts.models)))
    return table


def lower_bound_note(counts: Counts, level: float = 0.95) -> str | None:
    """A sentence that says why the figure is a lower bound only; None where every model is known.

    Models that rounding leaves unresolved widen the interval, but were looked at.
    """
    if not counts.unknown:
        return None
    return (
        f"certified lower bound: {counts.unknown:,} of {counts.models:,} models are unknown (no "
        "witness found, not evaluated on every string). Whatever they are, P(K_0 >= 1) >= "
        f"{_number(counts.lower_bound(level))} at one-sided {100 * level:.4g} %."
    )


def rounds_table(rounds: tuple[tuple[int, int], ...]) -> Table:
    """How many models had no witness yet after so many probes of each."""
    table = Table(title="Rounds of probes", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("probes a model", "models left"):
        table.add_column(heading, justify="right")
    for probes, left in rounds:
        table.add_row(f"{probes:,}", f"{left:,}")
    return table
