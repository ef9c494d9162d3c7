"""Figures of a run. Every function draws on given Axes and returns them."""

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsens import control
from jaxsens.estimate import clopper_pearson
from jaxsens.montecarlo.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MODELS: dict[str, Any] = {"color": "#1f5f99"}
_CONTROL: dict[str, Any] = {"color": "#c4571b", "marker": "o", "ms": 4, "lw": 1, "ls": "--"}


def profile(ax: "Axes", summary: Summary) -> "Axes":
    """Pooled profile: share of (model, string) pairs of every sensitivity, log scale."""
    total = sum(summary.profile)
    k = np.arange(summary.length + 1)
    ax.bar(k, np.array(summary.profile) / total, label="sampled models", **_MODELS)
    expected = control.expected_profile_fractions(summary.length)
    ax.plot(k, expected, label="random function", **_CONTROL)
    ax.set_yscale("log")
    present = [count / total for count in summary.profile if count]
    ax.set_ylim(bottom=min([*present, float(np.min(expected))]) / 3, top=30)
    ax.set(xlabel="sensitivity of a string", ylabel="share of all strings")
    ax.set_title("Pooled profile")
    ax.legend(frameon=False, loc="upper right")
    return ax


def k0_histogram(ax: "Axes", summary: Summary) -> "Axes":
    """Histogram of K_0 in bins 0, 1, 2-3, 4-7, ..., beside the random-function control.

    Bars carry exact 95 % intervals; constant models (K_0 = 2^N) are set apart in the last bar.
    """
    n, models = summary.length, summary.models
    edges = [0, *(2**j for j in range(n + 1))]
    labels = ["0", *(f"{a}" if b - a == 1 else f"{a}-{b - 1}" for a, b in _pairs(edges[1:]))]
    labels.append(f"{2**n}")
    counts = np.zeros(len(labels), dtype=np.int64)
    for k0, count in summary.k0_histogram.items():
        counts[int(k0).bit_length()] += count
    share = counts / models
    intervals = [clopper_pearson(int(c), models) for c in counts]
    error = np.array([[s - i.low, i.high - s] for s, i in zip(share, intervals, strict=True)])
    x = np.arange(len(labels))
    ax.bar(x, share, yerr=np.clip(error.T, 0, None), ecolor="0.3", capsize=2, **_MODELS)
    pmf = control.k0_pmf(n, min(2**n, 64))
    expected = np.zeros(len(labels))
    for k0, probability in enumerate(pmf):
        expected[k0.bit_length()] += probability
    shown = expected > 1e-6
    ax.plot(x[shown], expected[shown], **_CONTROL)
    ax.set_xticks(x, labels, rotation=60 if n > 5 else 0, fontsize=8)
    ax.set(xlabel="$K_0$, zero-sensitivity strings", ylabel="share of models")
    ax.set_title("Zero-sensitivity strings")
    return ax


def _pairs(edges: list[int]) -> list[tuple[int, int]]:
    return list(zip(edges, edges[1:], strict=False))


def headline(ax: "Axes", summary: Summary) -> "Axes":
    """P(K_0 >= 1), the same among non-constant models, and P(constant), with exact intervals."""
    names = ("p_zero_sensitivity", "p_zero_sensitivity_nonconstant", "p_constant")
    labels = ("$K_0\\geq 1$", "$K_0\\geq 1$\nnot constant", "constant")
    estimates = summary.estimates()
    n = summary.length
    controls = (
        control.p_zero_sensitivity(n).value,
        control.p_zero_sensitivity_nonconstant(n),
        control.p_constant(n),
    )
    for i, (name, expected) in enumerate(zip(names, controls, strict=True)):
        e = estimates[name]
        if e.estimate is not None:
            low, high = e.estimate - e.low, e.high - e.estimate
            ax.bar(i, e.estimate, yerr=[[max(low, 0)], [max(high, 0)]], capsize=4, **_MODELS)
            text = f"{e.estimate:.4g}"
            ax.annotate(text, (i, e.high), ha="center", va="bottom", fontsize=9)
        ax.plot([i - 0.4, i + 0.4], [expected, expected], color=_CONTROL["color"], ls="--")
    ax.set_xticks(range(len(names)), labels)
    ax.set_ylim(0, 1.12)
    ax.set(ylabel="share of models")
    ax.set_title("Shares, 95 % intervals")
    return ax


def run_figure(summary: Summary, title: str = "") -> "Figure":
    """One figure for a run: pooled profile, K_0 histogram, shares; each beside its control."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    axes = figure.subplots(1, 3)
    profile(axes[0], summary)
    k0_histogram(axes[1], summary)
    headline(axes[2], summary)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    note = (
        f"{summary.models:,} models, all $2^{{{summary.length}}}$ strings; dashed: random function"
    )
    figure.suptitle(f"{title}\n{note}" if title else note, fontsize=10)
    return figure
