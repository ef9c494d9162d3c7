"""Confidence intervals for counts of rare events, and for means of bounded integers.

The method of an interval is part of the result and does not depend on the data: the exact
(Clopper-Pearson, 1934) interval holds its level for every true proportion, also for 0 hits, where
the normal approximation has width 0. Bounds are accurate to about 1e-11 relative for every count
up to ``2**63``; scipy's inverse incomplete beta is not (scipy 1.17.1 returns twice the right lower
bound at k = 1000, n = 1e9), so its forward function is inverted here.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from scipy import optimize, special

#: What counts may be given as: Python or NumPy integers, never bools.
Count: TypeAlias = int | np.integer

#: From this count on the quantile expansion below is exact to rounding.
_LARGE_COUNT = 10**10


class Interval(NamedTuple):
    """Ends of a confidence interval, ``0 <= low <= high <= 1``."""

    low: float
    high: float


class Proportion(NamedTuple):
    """An estimate in [0, 1] with its confidence interval.

    Attributes:
      estimate: ``count / of``, None where ``of`` is 0. With undecided cases it is the lower end
        of ``range``.
      low: lower end of the interval.
      high: upper end of the interval.
      level: confidence level, two-sided.
      method: how the interval was made: ``"clopper-pearson"``, ``"student-t"`` or
        ``"degenerate"``.
      count: hits, or the sum of the values for a mean.
      of: number of cases, or ``n * scale`` for a mean: the largest possible ``count``.
      undecided: cases that may or may not be hits.
      range: ``(count / of, (count + undecided) / of)``, ``(0, 1)`` where ``of`` is 0.
    """

    estimate: float | None
    low: float
    high: float
    level: float
    method: str
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    of: int
    undecided: int
    range: tuple[float, float]


def clopper_pearson(
    k: Count, n: Count, level: float = 0.95, sides: Literal["two", "upper", "lower"] = "two"
) -> Interval:
    """The exact interval for a proportion of which ``k`` hits in ``n`` trials were seen.

    The lower end solves ``P(Binomial(n, p) >= k) = t``, the upper end
    ``P(Binomial(n, p) <= k) = t``, with ``t = (1 - level) / 2``; one-sided, ``t = 1 - level`` at
    that end and 0 or 1 at the other. For ``k = 0`` the upper end is
    ``-expm1(log(t) / n)``, near ``3.69 / n`` at 95 % two-sided and ``3.00 / n`` one-sided.
    Choose ``sides`` before looking at the data.

    Args:
      k: hits, ``0 <= k <= n``.
      n: trials, 0 to ``2**63``; with 0 trials the interval is (0, 1).
      level: confidence level in (0, 1).
      sides: ``"two"``, or ``"upper"`` / ``"lower"`` for a one-sided bound.

    Returns:
      :class:`Interval`; ``low`` is exactly 0 for ``k = 0``, ``high`` exactly 1 for ``k = n``.

    Raises:
      ValueError: an argument of another type or outside its range.
    """
    k, n = _counts(k, n)
    alpha = _alpha(level)
    if sides not in ("two", "upper", "lower"):
        raise ValueError(f"sides: {sides!r} given; it must be 'two', 'upper' or 'lower'")
    tail = alpha / 2 if sides == "two" else alpha
    # A bound near 1 is 1 minus the mirrored bound: no digits are lost, and mirroring is exact.
    if 2 * k > n:
        low = 0.0 if sides == "upper" else 1 - _upper(n - k, n, tail)
        high = 1.0 if sides == "lower" else 1 - _lower(n - k, n, tail)
    else:
        low = 0.0 if sides == "upper" else _lower(k, n, tail)
        high = 1.0 if sides == "lower" else _upper(k, n, tail)
    return Interval(low, high)


def wilson(k: Count, n: Count, level: float = 0.95) -> Interval:
    """The score interval (Wilson, 1927): proportions ``p`` within ``z`` standard errors of k/n.

    Its ends solve ``(k/n - p)**2 = z**2 p (1 - p) / n``. Shorter than the exact interval, it
    holds the level on average only; for contrast.

    Args:
      k: hits, ``0 <= k <= n``.
      n: trials, 0 to ``2**63``; with 0 trials the interval is (0, 1).
      level: two-sided confidence level in (0, 1).

    Raises:
      ValueError: an argument of another type or outside its range.
    """
    k, n = _counts(k, n)
    z2 = float(special.ndtri(_alpha(level) / 2)) ** 2
    if n == 0:
        return Interval(0.0, 1.0)
    if 2 * k > n:
        mirrored = wilson(n - k, n, level)
        return Interval(1 - mirrored.high, 1 - mirrored.low)
    p = k / n
    root = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n)))
    high = (p + z2 / (2 * n) + root) / (1 + z2 / n)
    # The product of the roots, not the difference that cancels; z2 = 0 only as level -> 0.
    low = p * p / ((1 + z2 / n) * high) if k else 0.0
    return Interval(low, high)


def rule_of_three(n: Count) -> float:
    """``3 / n``: about the 95 % *one-sided* upper bound after no hit in ``n`` trials.

    ``-log(0.05) = 2.996``; the two-sided constant is 3.69. Uncapped: above 1 for ``n < 3``.

    Raises:
      ValueError: ``n`` is not an integer of at least 1.
    """
    n = _integer("n", n)
    if n == 0:
        raise ValueError("n: 0 given; it must be an integer of at least 1")
    return 3 / n


def proportion(count: Count, of: Count, undecided: Count = 0, level: float = 0.95) -> Proportion:
    """A proportion, its exact interval, and what undecided cases may change.

    With ``u`` undecided cases the point estimate is the range ``[k/n, (k+u)/n]``, and the
    interval is that range widened by the sampling error at both ends: the lower
    Clopper-Pearson end of ``k`` and the upper one of ``k + u``. It holds the level whatever the
    undecided cases are.

    Args:
      count: decided hits ``k``.
      of: all cases ``n``, decided or not.
      undecided: ``u``, with ``k + u <= n``.
      level: two-sided confidence level in (0, 1).

    Raises:
      ValueError: an argument of another type or outside its range.
    """
    count, of = _counts(count, of, "count", "of")
    undecided = _integer("undecided", undecided)
    if count + undecided > of:
        raise ValueError(
            f"undecided: {undecided} given; with count = {count} of {of} it is at most {of - count}"
        )
    low = clopper_pearson(count, of, level).low
    high = clopper_pearson(count + undecided, of, level).high
    ends = (count / of, (count + undecided) / of) if of else (0.0, 1.0)
    estimate = ends[0] if of else None
    return Proportion(
        estimate, low, high, float(level), "clopper-pearson", count, of, undecided, ends
    )


def mean_in_unit_interval(
    total: Count, total_of_squares: Count, n: Count, scale: Count, level: float = 0.95
) -> Proportion:
    """Mean of ``n`` independent values ``v_i / scale`` in [0, 1], from exact integer sums.

    Student-t interval ``m +- t_(n-1) s / sqrt(n)``, clipped to [0, 1]; the variance
    ``s**2 = (n S2 - S1**2) / (n (n-1) scale**2)`` is formed in integers, so nothing cancels.
    Where the sample variance is 0 the interval would have no width; instead the mean is widened
    in each direction by the two-sided Clopper-Pearson upper bound for 0 of ``n``, since as large
    a share of other values may have stayed unseen.

    Args:
      total: ``S1 = sum(v_i)`` of integers ``0 <= v_i <= scale``.
      total_of_squares: ``S2 = sum(v_i**2)``.
      n: number of values, 0 to ``2**63``; below 2 the interval is (0, 1).
      scale: largest possible value, at least 1, such as ``2**N`` strings.
      level: two-sided confidence level in (0, 1).

    Returns:
      :class:`Proportion` with ``count = total``, ``of = n * scale``, no undecided cases, and
      method ``"student-t"``, or ``"degenerate"`` for ``n < 2`` and for variance 0.

    Raises:
      ValueError: an argument of another type or outside its range, or sums that no such values
        have.
    """
    level = check_level(level)
    total = _integer("total", total)
    squares = _integer("total_of_squares", total_of_squares)
    _, n = _counts(0, n)
    scale = _integer("scale", scale)
    if scale == 0:
        raise ValueError("scale: 0 given; it must be an integer of at least 1")
    of = n * scale
    if total > of:
        raise ValueError(f"total: {total} given; it is at most n * scale = {of}")
    # Cauchy-Schwarz below, v**2 <= scale * v above.
    if n * squares < total**2 or squares < total or squares > scale * total:
        least = max(total, -(-(total**2) // n) if n else 0)
        raise ValueError(
            f"total_of_squares: {squares} given; with total = {total} and n = {n} it is from "
            f"{least} to {scale * total}"
        )
    if n == 0:
        return Proportion(None, 0.0, 1.0, level, "degenerate", 0, 0, 0, (0.0, 1.0))
    mean = total / of
    spread = n * squares - total**2
    method = "student-t" if n > 1 and spread else "degenerate"
    if n == 1:
        half = 1.0
    elif spread:
        t = -float(special.stdtrit(n - 1, _alpha(level) / 2))
        half = t * math.sqrt(spread / (n * n * (n - 1) * scale**2))
    else:
        half = clopper_pearson(0, n, level).high
    low, high = max(0.0, mean - half), min(1.0, mean + half)
    return Proportion(mean, low, high, level, method, total, of, 0, (mean, mean))


def _integer(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise ValueError(f"{what}: {value!r} given; it must be an integer of at least 0")
    return int(value)


def _counts(k: Any, n: Any, k_name: str = "k", n_name: str = "n") -> tuple[int, int]:
    k, n = _integer(k_name, k), _integer(n_name, n)
    if n > 2**63:
        raise ValueError(f"{n_name}: {n} given; it must be at most 2**63")
    if k > n:
        raise ValueError(f"{k_name}: {k} given; it must be at most {n_name} = {n}")
    return k, n


def check_level(level: Any) -> float:
    """Returns a confidence level; raises ``ValueError`` unless it is a number in (0, 1)."""
    number = isinstance(level, (int, float, np.integer, np.floating))
    if isinstance(level, bool) or not number or not 0 < level < 1:
        raise ValueError(f"level: {level!r} given; it must be a number between 0 and 1")
    return float(level)


def _alpha(level: Any) -> float:
    """``1 - level`` of the decimal as written: 1e-7, not 9.9999999947e-8, for 0.9999999."""
    return float(1 - Decimal(repr(check_level(level))))


def _lower(k: int, n: int, tail: float) -> float:
    """Lower bound for ``2 k <= n``: ``P(Binomial(n, p) >= k) = I_p(k, n - k + 1) = tail``."""
    if k == 0:
        return 0.0
    if k >= _LARGE_COUNT:
        return _expansion(k, n - k + 1, float(special.ndtri(tail)))
    return _solve(lambda p: float(special.betainc(k, n - k + 1, p)) - tail)


def _upper(k: int, n: int, tail: float) -> float:
    """Upper bound for ``2 k <= n``: ``P(Binomial(n, p) <= k) = 1 - I_p(k + 1, n - k) = tail``."""
    if n == 0:
        return 1.0
    if k == 0:
        return -math.expm1(math.log(tail) / n)
    if k >= _LARGE_COUNT:
        return _expansion(k + 1, n - k, -float(special.ndtri(tail)))
    return _solve(lambda p: tail - float(special.betaincc(k + 1, n - k, p)))


def _solve(increasing: Callable[[float], float]) -> float:
    """Root in p of an increasing function, to rounding in log p."""
    root: Any = optimize.brentq(lambda x: increasing(math.exp(x)), -700.0, 0.0, xtol=1e-15)
    return math.exp(root)


def _expansion(a: int, b: int, z: float) -> float:
    """Cornish-Fisher quantile of Beta(a, b) up to skewness: relative error ``O(a**-1.5)``."""
    total = a + b
    mean = a / total
    deviation = math.sqrt(a / total * (b / total) / (total + 1))
    skewness = 2 * ((b - a) / (total + 2)) * math.sqrt((total + 1) / a / b)
    return mean + deviation * (z + skewness / 6 * (z * z - 1))
