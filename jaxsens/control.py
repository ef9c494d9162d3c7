"""The control: what a uniformly random Boolean function would show.

``f`` is uniform over all ``2**(2**n)`` functions of ``n`` bits, so the values on the strings are
independent fair coins. ``K_0`` is the number of zero-sensitivity strings, those whose ``n``
neighbours all share their value: each string is one with probability ``2**-n``. The limit of
``P(K_0 >= 1)`` is ``1 - 1/e``, but at small ``n`` it is off by up to 0.13 and not monotone, so up
to ``n = 5`` everything here is counted over all functions; beyond, ``K_0`` is Poisson(1) within
the bound of :func:`poisson_bound`.

Derivations: moments from the pair counts of the hypercube; the bound is the Chen-Stein bound for
dissociated indicators (Arratia, Goldstein and Gordon, 1989).
"""

from fractions import Fraction
from functools import cache
from math import comb, factorial, ldexp
from typing import Any, Literal, NamedTuple

import numpy as np

#: Longest strings for which all functions are enumerated.
MAX_ENUMERATED = 5


class ControlProbability(NamedTuple):
    """A probability under the control, with what is known about its error.

    Attributes:
      value: the probability.
      error_bound: the true probability is within this of ``value``; 0.0 where it is exact.
      method: ``"enumeration"`` over all functions, or the ``"poisson"`` limit.
    """

    value: float
    error_bound: float
    method: Literal["enumeration", "poisson"]


def zero_sensitivity_histogram(n: int) -> dict[int, int]:
    """Number of functions of ``n`` bits by their number of zero-sensitivity strings.

    Counted over all ``2**(2**n)`` truth tables, held as the low ``2**n`` bits of a word. For
    ``n = 5`` the function is a pair ``(g, h)`` of functions of four bits, one per value of the
    first bit: ``x`` has zero sensitivity in ``g``'s half iff it has in ``g`` and
    ``g(x) = h(x)``. A symmetry of the 4-cube, or complementing both, keeps ``K_0``; so ``g``
    runs over the 222 classes of those symmetries, ``h`` over everything.

    Args:
      n: 1 to 5.

    Returns:
      Dict from ``k`` to the number of functions with ``K_0 = k``, increasing in ``k``, without
      empty entries; the numbers sum to ``2**(2**n)``.

    Raises:
      ValueError: ``n`` is not an integer from 1 to 5.
    """
    n = _length(n, MAX_ENUMERATED)
    return {k: count for k, count in enumerate(_histogram(n)) if count}


def mean_K_0(n: int) -> Fraction:
    """Expected number of zero-sensitivity strings: ``2**n * 2**-n = 1`` at every length."""
    _length(n)
    return Fraction(1)


def variance_K_0(n: int) -> Fraction:
    """Variance of the number of zero-sensitivity strings, exact.

    ``Var K_0 = 1 + 2**-n (n(n+1)/2 - 1)``: strings at distance 1 or 2 are positively correlated,
    others are independent.

    Raises:
      ValueError: ``n`` is not an integer of at least 1.
    """
    n = _length(n)
    return 1 + Fraction(n * (n + 1) // 2 - 1, 2**n)


def poisson_bound(n: int) -> Fraction:
    """Upper bound on the total variation distance between ``K_0`` and Poisson(1).

    Chen-Stein: ``2**-n (1 + 3 n + 3 C(n, 2))``. At least 1, so empty, up to ``n = 6``.

    Raises:
      ValueError: ``n`` is not an integer of at least 1.
    """
    n = _length(n)
    return Fraction(1 + 3 * n + 3 * comb(n, 2), 2**n)


def p_zero_sensitivity(n: int) -> ControlProbability:
    """Probability that a random function has a zero-sensitivity string, ``P(K_0 >= 1)``.

    Exact up to ``n = 5``; beyond, ``1 - 1/e`` with the smaller of 1 and :func:`poisson_bound` as
    its error bound.

    Raises:
      ValueError: ``n`` is not an integer of at least 1.
    """
    n = _length(n)
    if n <= MAX_ENUMERATED:
        functions = 2 ** (2**n)
        return ControlProbability((functions - _histogram(n)[0]) / functions, 0.0, "enumeration")
    return ControlProbability(-float(np.expm1(-1.0)), min(1.0, float(poisson_bound(n))), "poisson")


def k0_pmf(n: int, max_k: int) -> np.ndarray:
    """Probability mass of ``K_0`` at ``0 .. max_k``: exact up to ``n = 5``, else Poisson(1).

    Returns:
      float64 array ``(max_k + 1,)``.

    Raises:
      ValueError: ``n`` is not an integer of at least 1, or ``max_k`` not one of at least 0.
    """
    n = _length(n)
    if isinstance(max_k, bool) or not isinstance(max_k, (int, np.integer)) or max_k < 0:
        raise ValueError(f"max_k: {max_k!r} given; it must be an integer of at least 0")
    pmf = np.zeros(int(max_k) + 1)
    if n <= MAX_ENUMERATED:
        exact = [count / 2 ** (2**n) for count in _histogram(n)][: pmf.size]
        pmf[: len(exact)] = exact
    else:
        terms = min(pmf.size, 170)  # 1/k! underflows beyond
        pmf[:terms] = [np.exp(-1.0) / factorial(k) for k in range(terms)]
    return pmf


def expected_profile_fractions(n: int) -> np.ndarray:
    """Expected share of strings by sensitivity: ``E[K_k] / 2**n = C(n, k) / 2**n``.

    For a fixed string each of its ``n`` neighbours differs independently with probability 1/2,
    so its sensitivity is Binomial(n, 1/2).

    Returns:
      float64 array ``(n + 1,)`` that sums to 1.

    Raises:
      ValueError: ``n`` is not an integer of at least 1.
    """
    n = _length(n)
    return np.array([comb(n, k) / 2**n for k in range(n + 1)])


def p_zero_sensitivity_nonconstant(n: int) -> float:
    """P(K_0 >= 1 | f is not constant) of a uniformly random function.

    Constant functions have K_0 = 2^n, so this is (P(K_0 >= 1) - c) / (1 - c) with c =
    :func:`p_constant`. The error bound is that of :func:`p_zero_sensitivity`, over 1 - c.
    """
    constant = p_constant(n)
    return (p_zero_sensitivity(n).value - constant) / (1 - constant)


def p_constant(n: int) -> float:
    """Probability that a random function is constant, ``2**(1 - 2**n)``; 0.0 from ``n = 11`` on.

    Raises:
      ValueError: ``n`` is not an integer of at least 1.
    """
    n = _length(n)
    return ldexp(1.0, 1 - 2 ** min(n, 11))


def _length(n: Any, high: int | None = None) -> int:
    if (
        isinstance(n, bool)
        or not isinstance(n, (int, np.integer))
        or n < 1
        or (high is not None and n > high)
    ):
        wanted = "of at least 1" if high is None else f"from 1 to {high}"
        raise ValueError(f"length: {n!r} given; it must be an integer {wanted}")
    return int(n)


def _flip(tables: np.ndarray, n: int, place: int) -> np.ndarray:
    """Exchanges, in packed tables, the rows whose numbers differ in the bit of value 2**place."""
    step = 2**place
    low_rows = sum(1 << row for row in range(2**n) if not row & step)
    low = tables.dtype.type(low_rows)
    return ((tables & low) << step) | ((tables >> step) & low)


def _zero_sensitivity_rows(tables: np.ndarray, n: int) -> np.ndarray:
    """Packed: bit ``r`` is 1 iff row ``r`` agrees with its ``n`` neighbours."""
    agree = np.full_like(tables, 2 ** (2**n) - 1)
    for place in range(n):
        agree &= ~(tables ^ _flip(tables, n, place))
    return agree


@cache
def _histogram(n: int) -> tuple[int, ...]:
    """Entry ``k`` is the number of functions with ``K_0 = k``, ``0 <= k <= 2**n``."""
    if n <= 4:
        tables = np.arange(2 ** (2**n), dtype=np.uint16)
        zeros = np.bitwise_count(_zero_sensitivity_rows(tables, n))
        return tuple(np.bincount(zeros, minlength=2**n + 1).tolist())
    halves = np.arange(2**16, dtype=np.uint16)
    zeros = _zero_sensitivity_rows(halves, 4)
    totals = [0] * 33
    for g, size in zip(*np.unique(_symmetry_classes(halves), return_counts=True), strict=True):
        equal = ~(halves ^ g)
        k_0 = np.bitwise_count(zeros & equal) + np.bitwise_count(zeros[g] & equal)
        for k, count in enumerate(np.bincount(k_0, minlength=33).tolist()):
            totals[k] += int(size) * count
    return tuple(totals)


def _symmetry_classes(tables: np.ndarray) -> np.ndarray:
    """The smallest table reached from each 4-bit table by cube symmetries and complement."""
    images = [~tables] + [_flip(tables, 4, place) for place in range(4)]
    rows = np.arange(16)
    for place in range(3):  # exchange two adjacent bits of the strings
        differ = ((rows >> place) ^ (rows >> (place + 1))) & 1
        moved = rows ^ differ * (3 << place)
        image = np.zeros_like(tables)
        for row, target in zip(rows.tolist(), moved.tolist(), strict=True):
            image |= ((tables >> row) & 1) << target
        images.append(image)
    smallest = tables
    while True:
        best = smallest
        for image in images:
            best = np.minimum(best, best[image])
        if np.array_equal(best, smallest):
            return best
        smallest = best
