import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxsens import estimate
from jaxsens.estimate import clopper_pearson, mean_in_unit_interval, proportion, wilson

GOLDEN = json.loads((Path(__file__).parent / "data" / "sensitivity.json").read_text())["intervals"]

LEVELS = st.sampled_from([0.5, 0.8, 0.95, 0.99, 0.9999999])


def close(value, rel=1e-10):
    return pytest.approx(value, rel=rel, abs=0)


@st.composite
def counts(draw, max_n=10**13):
    n = draw(st.one_of(st.integers(1, 50), st.integers(1, max_n)))
    return draw(st.one_of(st.integers(0, min(n, 30)), st.integers(0, n))), n


def test_golden_intervals():
    assert clopper_pearson(0, 1000) == (0.0, close(GOLDEN["k0_n1000_two_sided_95_upper"]))
    one_sided = clopper_pearson(0, 1000, sides="upper")
    assert one_sided == (0.0, close(GOLDEN["k0_n1000_one_sided_95_upper"]))
    assert estimate.rule_of_three(1000) == close(GOLDEN["k0_n1000_rule_of_three"])
    assert wilson(0, 1000) == (0.0, close(GOLDEN["k0_n1000_wilson_95_upper"]))
    low, high = GOLDEN["k1_n1000_two_sided_95"]
    assert clopper_pearson(1, 1000) == (close(low), close(high))
    assert clopper_pearson(1000, 1000) == (close(GOLDEN["k1000_n1000_two_sided_95_lower"]), 1.0)
    for n, key in ((10**6, "1e6"), (10**9, "1e9"), (5 * 10**12, "5e12")):
        assert clopper_pearson(0, n) == (0.0, close(GOLDEN[f"k0_n{key}_two_sided_95_upper"]))


def test_small_alpha_keeps_its_digits():
    # P30: 0.99999986 in statsmodels#9141.
    assert clopper_pearson(0, 1000, level=0.9999999).high == close(0.016670722431521, 3e-14)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [  # 60 digits, Newton on the incomplete beta integral (mpmath)
        (7, 10**3, 0.0028188587596205257, 0.014369194978918633),
        (500, 10**3, 0.46854917297179194, 0.53145082702820806),
        (1, 10**9, 2.531780798396938e-11, 5.5716433782031153e-9),
        (1000, 10**9, 9.3897304658956094e-7, 1.0639521019952884e-6),  # scipy 1.17: low 1.9e-6
        (1000, 10**13, 9.389730184105134e-11, 1.0639521360128999e-10),
        (10**6, 10**13, 9.9804098343800295e-8, 1.0019619118471441e-7),
        (5 * 10**12, 10**13, 0.49999969010243385, 0.50000030989756615),
    ],
)
def test_inner_counts(k, n, low, high):
    interval = clopper_pearson(k, n)
    assert interval == (close(low, 1e-11), close(high, 1e-11))
    width = high - low
    assert interval.high - interval.low == close(width, 1e-8)
    mirrored = clopper_pearson(n - k, n)
    assert mirrored == (close(1 - high, 1e-15), close(1 - low, 1e-15))


@pytest.mark.parametrize("n", [1, 2, 5, 30, 1000])
def test_ends_solve_their_equations(n):
    for k in {0, 1, n // 3, n // 2, n - 1, n}:
        low, high = clopper_pearson(k, n, 0.9)
        if k > 0:
            assert stats.binom.sf(k - 1, n, low) == close(0.05)
        if k < n:
            assert stats.binom.cdf(k, n, high) == close(0.05)


@given(st.integers(1, 60), st.floats(0, 1), LEVELS)
@settings(max_examples=80, deadline=None)
def test_exact_coverage(n, p, level):
    k = np.arange(n + 1)
    pmf = stats.binom.pmf(k, n, p)
    ends = {
        sides: np.array([clopper_pearson(i, n, level, sides) for i in range(n + 1)])
        for sides in ("two", "upper", "lower")
    }
    for interval in ends.values():
        covered = (interval[:, 0] <= p) & (p <= interval[:, 1])
        assert pmf[covered].sum() >= level - 1e-12


@given(counts(), LEVELS)
@settings(max_examples=100, deadline=None)
def test_order_symmetry_and_monotonicity(case, level):
    k, n = case
    low, high = clopper_pearson(k, n, level)
    assert 0 <= low <= k / n <= high <= 1
    assert (low == 0) == (k == 0)
    mirrored = clopper_pearson(n - k, n, level)
    assert mirrored == (pytest.approx(1 - high, abs=3e-16), pytest.approx(1 - low, abs=3e-16))
    wider = clopper_pearson(k, n, (1 + level) / 2)
    assert wider.low <= low
    assert high <= wider.high
    if k < n:
        above = clopper_pearson(k + 1, n, level)
        assert low <= above.low
        assert high <= above.high


@given(counts(), LEVELS)
@settings(max_examples=50, deadline=None)
def test_one_sided_is_two_sided_at_twice_alpha(case, alpha):
    k, n = case
    assume(alpha < 0.96)
    level = 1 - alpha / 4  # exact in binary and short in decimal for these
    two = clopper_pearson(k, n, 1 - alpha / 2)
    assert clopper_pearson(k, n, level, "upper") == (0.0, close(two.high))
    assert clopper_pearson(k, n, level, "lower") == (close(two.low), 1.0)


def test_the_expansion_meets_the_solver(monkeypatch):
    k, n = 2 * 10**10, 10**12
    expansion = clopper_pearson(k, n)
    monkeypatch.setattr(estimate, "_LARGE_COUNT", 10**15)
    assert clopper_pearson(k, n) == (close(expansion.low, 1e-13), close(expansion.high, 1e-13))


def test_huge_counts():
    n = 2**63
    for k in (0, 1, 10**6, 10**12, n // 2, n - 1, n):
        low, high = clopper_pearson(k, n)
        assert 0 <= low <= k / n <= high <= 1
    assert clopper_pearson(n // 2, n) == (close(0.5, 1e-9), close(0.5, 1e-9))


def test_numpy_integers_and_no_trials():
    assert clopper_pearson(np.int64(3), np.uint32(10)) == clopper_pearson(3, 10)
    assert clopper_pearson(0, 0) == wilson(0, 0) == (0.0, 1.0)
    assert clopper_pearson(3, 10, np.float64(0.95)) == clopper_pearson(3, 10)


def test_wilson():
    assert wilson(1000, 1000) == (close(1 - wilson(0, 1000).high), 1.0)
    for k, n in ((3, 10), (9, 10), (0, 1), (123, 10**6)):
        low, high = wilson(k, n)
        result = stats.binomtest(k, n).proportion_ci(0.95, "wilson")
        assert (low, high) == (pytest.approx(result.low, abs=1e-15), close(result.high))
        for p in (low, high):
            score = (k / n - p) ** 2 - stats.norm.ppf(0.975) ** 2 * p * (1 - p) / n
            assert score == pytest.approx(0, abs=1e-15)


@given(counts(), LEVELS)
@settings(max_examples=50, deadline=None)
def test_wilson_stays_in_the_unit_interval(case, level):
    k, n = case
    low, high = wilson(k, n, level)
    assert 0 <= low <= k / n <= high <= 1


def test_proportion():
    p = proportion(3, 10)
    assert p[:5] == (0.3, *clopper_pearson(3, 10), 0.95, "clopper-pearson")
    assert p[5:] == (3, 10, 0, (0.3, 0.3))
    # P32
    p = proportion(3, 10, undecided=2)
    assert p.range == (0.3, 0.5)
    assert (p.low, p.high) == (clopper_pearson(3, 10).low, clopper_pearson(5, 10).high)
    assert (p.estimate, p.count, p.of, p.undecided) == (0.3, 3, 10, 2)
    empty = proportion(0, 0)
    assert empty[:3] == (None, 0.0, 1.0)
    assert empty.range == (0.0, 1.0)
    assert json.loads(json.dumps(p._asdict()))["range"] == [0.3, 0.5]


@given(st.lists(st.integers(0, 16), min_size=2, max_size=30))
@settings(deadline=None)
def test_mean_is_the_t_interval(values):
    n, scale = len(values), 16
    p = mean_in_unit_interval(sum(values), sum(v * v for v in values), n, scale)
    mean = float(Fraction(sum(values), n * scale))
    assert p.estimate == mean
    assert 0 <= p.low <= mean <= p.high <= 1
    assert (p.count, p.of, p.undecided, p.range) == (sum(values), 16 * n, 0, (mean, mean))
    if len(set(values)) == 1:
        half = clopper_pearson(0, n).high
        assert p.method == "degenerate"
    else:
        x = np.array(values) / scale
        half = stats.t.ppf(0.975, n - 1) * x.std(ddof=1) / math.sqrt(n)
        assert p.method == "student-t"
    assert p.low == pytest.approx(max(0, mean - half), abs=1e-9)
    assert p.high == pytest.approx(min(1, mean + half), abs=1e-9)


def test_mean_of_large_sums_is_exact():
    # Values 2**30 - 1 and 2**30 alternate: a float64 sum of squares would lose the variance.
    n, scale = 10**10, 2**30
    total = n // 2 * (2 * scale - 1)
    squares = n // 2 * ((scale - 1) ** 2 + scale**2)
    p = mean_in_unit_interval(total, squares, n, scale)
    half = stats.norm.ppf(0.975) * 0.5 / scale / math.sqrt(n)
    assert p.method == "student-t"
    assert p.estimate == total / (n * scale)
    assert p.high - p.low == pytest.approx(2 * half, rel=0.2)  # half is near the spacing at 1


def test_mean_of_few_values():
    assert mean_in_unit_interval(0, 0, 0, 8)[:3] == (None, 0.0, 1.0)
    one = mean_in_unit_interval(3, 9, 1, 8)
    assert (one[:3], one.method) == ((0.375, 0.0, 1.0), "degenerate")
    zeros = mean_in_unit_interval(0, 0, 1000, 8)
    assert (zeros.low, zeros.high) == clopper_pearson(0, 1000)
    ones = mean_in_unit_interval(8000, 64000, 1000, 8)
    assert (ones.low, ones.high) == (close(clopper_pearson(1000, 1000).low, 1e-15), 1.0)


def test_mean_covers_at_about_its_level():
    rng = np.random.default_rng(1)
    values = rng.binomial(8, 0.3, size=(2000, 200))
    hits = 0
    for row in values:
        p = mean_in_unit_interval(int(row.sum()), int((row**2).sum()), 200, 8)
        hits += p.low <= 0.3 <= p.high
    assert abs(hits / 2000 - 0.95) < 0.02


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: clopper_pearson(-1, 10), "k: -1"),
        (lambda: clopper_pearson(11, 10), "k: 11 .* at most n = 10"),
        (lambda: clopper_pearson(True, 10), "k: True"),
        (lambda: clopper_pearson(1, True), "n: True"),
        (lambda: clopper_pearson(1.0, 10), "k: 1.0"),
        (lambda: clopper_pearson(0, 2**63 + 1), r"n: .* at most 2\*\*63"),
        (lambda: clopper_pearson(1, 10, 1.0), "level: 1.0"),
        (lambda: clopper_pearson(1, 10, 0), "level: 0"),
        (lambda: clopper_pearson(1, 10, math.nan), "level: nan"),
        (lambda: clopper_pearson(1, 10, "0.95"), "level: '0.95'"),
        (lambda: clopper_pearson(1, 10, True), "level: True"),
        (lambda: clopper_pearson(1, 10, sides="both"), "sides: 'both' .* 'lower'"),
        (lambda: wilson(11, 10), "k: 11"),
        (lambda: wilson(1, 10, 95), "level: 95"),
        (lambda: wilson(0, 0, 95), "level: 95"),
        (lambda: estimate.rule_of_three(0), "n: 0 .* at least 1"),
        (lambda: proportion(11, 10), "count: 11 .* of = 10"),
        (lambda: proportion(3, 10, 8), "undecided: 8 .* at most 7"),
        (lambda: proportion(3, 10, -1), "undecided: -1"),
        (lambda: mean_in_unit_interval(9, 81, 1, 8), r"total: 9 .* n \* scale = 8"),
        (lambda: mean_in_unit_interval(8, 15, 4, 8), "total_of_squares: 15 .* from 16 to 64"),
        (lambda: mean_in_unit_interval(8, 65, 4, 8), "total_of_squares: 65 .* from 16 to 64"),
        (lambda: mean_in_unit_interval(0, 0, 4, 0), "scale: 0 .* at least 1"),
        (lambda: mean_in_unit_interval(0, 0, 4, 8, 2), "level: 2"),
        (lambda: mean_in_unit_interval(1.5, 2, 4, 8), "total: 1.5"),
    ],
)
def test_bad_arguments_are_one_line(call, words):
    with pytest.raises(ValueError, match=f"^{words}[^\n]*$"):
        call()
