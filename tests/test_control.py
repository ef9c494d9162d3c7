import json
from fractions import Fraction
from itertools import product
from math import comb, exp, factorial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens import control

GOLDEN = json.loads((Path(__file__).parent / "data" / "sensitivity.json").read_text())[
    "random_function"
]

# All 2**32 tables of five bits, counted one by one by a separate C program.
FIVE = {0: 1843434662, 1: 1349020288, 2: 656429888, 3: 269904640, 4: 106957360, 5: 41173376}
FIVE |= {6: 16340960, 7: 6473600, 8: 2902920, 9: 1224960, 10: 588544, 11: 260992, 12: 134480}
FIVE |= {13: 55040, 14: 35840, 15: 11520, 16: 11984, 17: 1024, 18: 2880, 19: 1280, 20: 512}
FIVE |= {22: 480, 26: 64, 32: 2}


def test_histograms_are_the_golden_ones():
    for n, histogram in GOLDEN["K_0_histogram"].items():
        assert control.zero_sensitivity_histogram(int(n)) == {
            int(k): count for k, count in histogram.items()
        }
    assert control.zero_sensitivity_histogram(5) == FIVE


@pytest.mark.parametrize("n", [1, 2, 3])
def test_histogram_by_the_definition(n):
    counts = {}
    for f in product((0, 1), repeat=2**n):
        k_0 = sum(all(f[r] == f[r ^ (1 << i)] for i in range(n)) for r in range(2**n))
        counts[k_0] = counts.get(k_0, 0) + 1
    assert control.zero_sensitivity_histogram(n) == counts


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_moments_are_those_of_the_histogram(n):
    histogram = control.zero_sensitivity_histogram(n)
    total = 2 ** (2**n)
    assert sum(histogram.values()) == total
    mean = Fraction(sum(k * c for k, c in histogram.items()), total)
    assert mean == control.mean_K_0(n) == GOLDEN["mean_K_0"]
    square = Fraction(sum(k * k * c for k, c in histogram.items()), total)
    assert square - mean**2 == control.variance_K_0(n)
    assert histogram[2**n] == 2  # the constants
    assert control.p_constant(n) == 2 / total


def test_golden_fractions():
    for n, value in GOLDEN["variance_K_0"].items():
        assert control.variance_K_0(int(n)) == Fraction(*value)
    for n, value in GOLDEN["total_variation_to_poisson1_at_most"].items():
        assert control.poisson_bound(int(n)) == Fraction(*value)
    for n, value in GOLDEN["probability_K_0_at_least_1"].items():
        expected = control.ControlProbability(float(Fraction(*value)), 0.0, "enumeration")
        assert control.p_zero_sensitivity(int(n)) == expected


def test_p_zero_sensitivity():
    exact = control.p_zero_sensitivity(5)
    assert exact == (float(Fraction(1225766317, 2147483648)), 0.0, "enumeration")
    limit = GOLDEN["limit_probability_K_0_at_least_1"]
    for n in (6, 10, 20, 200):
        value, bound, method = control.p_zero_sensitivity(n)
        assert value == pytest.approx(limit, rel=1e-15)
        assert bound == min(1.0, float(control.poisson_bound(n)))
        assert method == "poisson"
    assert control.p_zero_sensitivity(20).error_bound == pytest.approx(6.0e-4, rel=0.01)


def test_p_zero_sensitivity_by_sampling():
    # n = 8 by Monte Carlo: the limit is within the bound, and near.
    n, functions = 8, 20_000
    tables = np.random.default_rng(0).integers(0, 2, size=(functions, 2**n), dtype=np.uint8)
    rows = np.arange(2**n)
    quiet = np.ones_like(tables, dtype=bool)
    for i in range(n):
        quiet &= tables == tables[:, rows ^ (1 << i)]
    share = quiet.any(axis=1).mean()
    value, bound, _ = control.p_zero_sensitivity(n)
    assert abs(share - value) < min(bound, 0.03)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_k0_pmf_is_exact_for_few_bits(n):
    pmf = control.k0_pmf(n, 40)
    assert pmf.shape == (41,)
    assert pmf.sum() == 1.0
    total = 2 ** (2**n)
    for k, count in control.zero_sensitivity_histogram(n).items():
        assert pmf[k] == count / total
    np.testing.assert_array_equal(control.k0_pmf(n, 0), pmf[:1])


def test_k0_pmf_is_poisson_beyond():
    pmf = control.k0_pmf(6, 300)
    assert pmf.dtype == np.float64
    assert pmf.shape == (301,)
    assert pmf.sum() == pytest.approx(1, abs=1e-15)
    for k in (0, 1, 2, 10, 50):
        assert pmf[k] == pytest.approx(exp(-1) / factorial(k), rel=1e-14)


@given(st.integers(1, 300))
def test_expected_profile_fractions(n):
    fractions = control.expected_profile_fractions(n)
    assert fractions.shape == (n + 1,)
    assert fractions.sum() == pytest.approx(1, abs=1e-13)
    np.testing.assert_array_equal(fractions, fractions[::-1])
    assert fractions[1] == float(Fraction(comb(n, 1), 2**n))


def test_expected_profile_is_the_average_over_all_functions():
    n = 2
    counts = np.zeros(n + 1)
    for f in product((0, 1), repeat=2**n):
        for r in range(2**n):
            counts[sum(f[r] != f[r ^ (1 << i)] for i in range(n))] += 1
    np.testing.assert_array_equal(counts / counts.sum(), control.expected_profile_fractions(n))


def test_p_constant():
    assert control.p_constant(5) == 2.0**-31
    assert control.p_constant(10) == 2.0**-1023
    assert control.p_constant(11) == 0.0
    assert control.p_constant(10**6) == 0.0


@pytest.mark.parametrize(
    "function",
    [
        control.zero_sensitivity_histogram,
        control.mean_K_0,
        control.variance_K_0,
        control.poisson_bound,
        control.p_zero_sensitivity,
        lambda n: control.k0_pmf(n, 3),
        control.expected_profile_fractions,
        control.p_constant,
    ],
)
@pytest.mark.parametrize("n", [0, -1, 2.0, True, "3", None])
def test_bad_lengths(function, n):
    with pytest.raises(ValueError, match="^length: .* given; it must be an integer [^\n]*$"):
        function(n)


def test_other_bad_arguments():
    with pytest.raises(ValueError, match="length: 6 given; .* from 1 to 5"):
        control.zero_sensitivity_histogram(6)
    for max_k in (-1, 1.5, True):
        with pytest.raises(ValueError, match="max_k: .* given"):
            control.k0_pmf(4, max_k)
