"""Figures: what is drawn is what was counted."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import jaxsens
from jaxsens import plot
from jaxsens.montecarlo.evaluate import DECIDED, UNDECIDED, UNRESOLVED, ModelArrays


def profile_of(table):
    """Sensitivity profile by flipping bits one by one."""
    n = len(table).bit_length() - 1
    counts = [0] * (n + 1)
    for row in range(2**n):
        counts[sum(table[row] != table[row ^ (1 << bit)] for bit in range(n))] += 1
    return counts


def summary_of(tables, status=None):
    n = len(tables[0]).bit_length() - 1
    arrays = ModelArrays(
        profile=np.array([profile_of(t) for t in tables], np.int32),
        ones=np.array([sum(t) for t in tables], np.int32),
        fingerprint=np.arange(1, len(tables) + 1, dtype=np.uint64),
        smallest_logit=np.ones(len(tables), np.float32),
        status=np.array(status or [DECIDED] * len(tables), np.uint8),
    )
    return jaxsens.Summary.of_models(arrays, n)


def parity(n):
    return [bin(row).count("1") % 2 for row in range(2**n)]


def conjunction(n):
    return [0] * (2**n - 1) + [1]


CASES = {
    "shortest strings": summary_of([[0, 0], [0, 1]]),
    "one model": summary_of([parity(4)]),
    "one constant": summary_of([[1] * 8]),
    "all constant": summary_of([[0] * 16, [1] * 16, [0] * 16]),
    "none constant": summary_of([parity(4), conjunction(4)]),
    "unresolved": summary_of(
        [parity(3), [0] * 8, conjunction(3), conjunction(3)],
        [DECIDED, UNRESOLVED, UNDECIDED, UNRESOLVED],
    ),
    "all unresolved": summary_of([[0] * 8, [0] * 8], [UNRESOLVED] * 2),
    "seven bits": summary_of([parity(7), conjunction(7), [0] * 128, [0] * 128]),
}
DRAWERS = [plot.profile, plot.k0_histogram, plot.headline]


@pytest.fixture
def ax():
    return Figure().subplots()


def heights(ax):
    return [p.get_height() for p in ax.patches if isinstance(p, Rectangle)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("draw", DRAWERS)
def test_returns_its_axes_and_renders(draw, name, ax, tmp_path):
    assert draw(ax, CASES[name]) is ax
    assert isinstance(ax, Axes)
    assert ax.get_xlabel() or ax.get_ylabel()
    ax.figure.savefig(tmp_path / "figure.png", dpi=40)


@pytest.mark.parametrize("name", CASES)
def test_profile_bars_are_shares_of_all_strings(name, ax):
    summary = CASES[name]
    plot.profile(ax, summary)
    strings = summary.models * 2**summary.length
    assert heights(ax) == pytest.approx([k / strings for k in summary.profile], abs=1e-15)
    # The control is a binomial: row of Pascal's triangle.
    row = [1]
    for _ in range(summary.length):
        row = [a + b for a, b in zip([0, *row], [*row, 0], strict=True)]
    (line,) = ax.lines
    assert list(line.get_ydata()) == pytest.approx([c / sum(row) for c in row])


@pytest.mark.parametrize("name", CASES)
def test_k0_bars_are_shares_of_models(name, ax):
    summary = CASES[name]
    plot.k0_histogram(ax, summary)
    # Bins 0, 1, 2-3, 4-7, ..., and 2^N alone.
    expected = [summary.k0_histogram.get(0, 0)]
    for j in range(summary.length):
        expected.append(sum(summary.k0_histogram.get(k, 0) for k in range(2**j, 2 ** (j + 1))))
    expected.append(summary.k0_histogram.get(2**summary.length, 0))
    assert heights(ax) == pytest.approx([count / summary.models for count in expected])
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert len(labels) == len(expected)
    assert (labels[0], labels[-1]) == ("0", str(2**summary.length))


@pytest.mark.parametrize("n", [2, 3])
def test_k0_control_is_a_count_over_all_functions(n, ax):
    shares = np.zeros(n + 2)
    for word in range(2 ** (2**n)):
        k0 = profile_of([word >> row & 1 for row in range(2**n)])[0]
        shares[k0.bit_length()] += 1 / 2 ** (2**n)
    plot.k0_histogram(ax, summary_of([parity(n)]))
    drawn = np.zeros(n + 2)
    for line in ax.lines:
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
            if len(line.get_xdata()) == np.count_nonzero(shares):
                drawn[int(x)] = y
    np.testing.assert_allclose(drawn, shares, rtol=1e-12)


def test_headline_bars(ax):
    # Four models: parity (K_0 = 0), AND (K_0 > 0), two constants.
    plot.headline(ax, CASES["seven bits"])
    assert heights(ax) == pytest.approx([3 / 4, 1 / 2, 1 / 2])
    texts = [text.get_text() for text in ax.texts]
    assert texts == ["0.75", "0.5", "0.5"]


def test_headline_leaves_out_what_has_no_estimate(ax):
    # Among non-constant models there is nothing to divide by.
    plot.headline(ax, CASES["all constant"])
    assert heights(ax) == pytest.approx([1, 1])


@pytest.mark.parametrize("name", CASES)
def test_run_figure_writes_a_png(name, tmp_path):
    figure = plot.run_figure(CASES[name], "a title")
    assert len(figure.axes) == 3
    target = tmp_path / "figure.png"
    figure.savefig(target, dpi=50)
    assert target.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    title = figure.get_suptitle()
    assert title.startswith("a title\n")
    assert f"{CASES[name].models:,} models" in title


def test_nothing_is_left_in_pyplot():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    plot.run_figure(CASES["one model"])
    assert plt.get_fignums() == before
