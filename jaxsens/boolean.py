"""Named Boolean functions: truth tables, and sensitivity profiles in closed form.

The sensitivity of ``f`` at a string ``x`` of length ``n`` is the number of single bits whose flip
changes ``f(x)``; the profile counts strings by it, ``profile[k] = #{x : s(x, f) = k}``, so that
``sum(profile) == 2**n`` and ``K_0 = profile[0]``. Tables use the bit order of
:mod:`jaxsens.strings`; bits are counted from 0, left to right.

======================  =====================================================================
``constant(value)``     ``value``, 0 or 1
``parity``              the number of ones is odd
``sparse_parity(m)``    parity of the first ``m`` bits, ``0 <= m <= n``
``first``               the first bit
``dictator(i)``         bit ``i``, ``0 <= i < n``
``majority``            ``2 * weight > n`` (a tie is 0)
``threshold(k)``        ``weight >= k``, ``0 <= k <= n + 1``
``and``, ``or``         all bits, any bit
``inner_product``       ``x[:n/2] . x[n/2:]`` modulo 2, ``n`` even
``address(k)``          ``k`` address bits, most significant first, select one of ``2**k`` data
                        bits that follow; ``n = k + 2**k``
``tribes(width)``       OR over consecutive blocks of ``width`` bits of the AND of each block
``equality``            the first half equals the second half, ``n`` even
``exactly(k)``          ``weight == k``, ``0 <= k <= n``
``mod3``                the weight is a multiple of 3
``random(seed)``        uniform over all ``2**(2**n)`` functions; no closed form
======================  =====================================================================
"""

import inspect
from collections.abc import Callable
from math import comb
from typing import Any, NamedTuple

import numpy as np

from jaxsens.strings import check_length

#: Rows evaluated at a time: bounds the temporaries whatever the length.
_CHUNK_ROWS = 2**20


class _Function(NamedTuple):
    """One function at one length: row numbers -> values, and the profile where one is known."""

    evaluate: Callable[[np.ndarray], np.ndarray] | None
    profile: Callable[[], list[int]] | None


def truth_table(name: str, n: int, **kw: Any) -> np.ndarray:
    """The truth table of a named function.

    Args:
      name: one of :func:`names`.
      n: length of the strings, 1 to 30.
      **kw: the arguments of the function, as in the table above.

    Returns:
      bool array ``(2**n,)``; entry ``r`` is the value on the string that spells ``r``, first bit
      most significant.

    Raises:
      ValueError: unknown name, missing, unexpected or wrong argument, or no such function at
        this length.
    """
    n = check_length(n)
    function = _lookup(name, n, kw)
    if function.evaluate is None:
        # One draw per table, so that the table does not depend on the chunk size.
        return np.random.default_rng(kw["seed"]).integers(0, 2, size=2**n, dtype=bool)
    table = np.empty(2**n, dtype=bool)
    for start in range(0, 2**n, _CHUNK_ROWS):
        rows = np.arange(start, min(start + _CHUNK_ROWS, 2**n), dtype=np.int64)
        table[start : start + rows.size] = function.evaluate(rows)
    return table


def profile(name: str, n: int, **kw: Any) -> list[int]:
    """The sensitivity profile of a named function, in closed form and exact at any length.

    Args:
      name: one of :func:`names` except ``random``.
      n: length of the strings, at least 1; no table is built, so 200 or 1000 is fine.
      **kw: the arguments of the function, as in the table above.

    Returns:
      List of ``n + 1`` Python ints that sum to ``2**n``; entry ``k`` counts the strings of
      sensitivity ``k``.

    Raises:
      ValueError: as :func:`truth_table`, and where no closed form is known (``random``).
    """
    function = _lookup(name, _integer("length", n, 1, None), kw)
    if function.profile is None:
        raise ValueError(f"profile: {name!r} given; it has no closed form, count its truth table")
    return function.profile()


def names() -> list[str]:
    """The names that :func:`truth_table` knows."""
    return list(_REGISTRY)


def symmetric_profile(values: list[int]) -> list[int]:
    """Profile of the function whose value on every string of weight ``w`` is ``values[w]``.

    A string of weight ``w`` has ``w`` neighbours of weight ``w - 1`` and ``n - w`` of weight
    ``w + 1``, so its sensitivity is ``w [v_w != v_(w-1)] + (n - w) [v_w != v_(w+1)]``, and there
    are ``C(n, w)`` such strings.

    Args:
      values: the values ``v_0 .. v_n``, length ``n + 1``.

    Returns:
      List of ``n + 1`` Python ints.
    """
    n = len(values) - 1
    counts = [0] * (n + 1)
    for w, value in enumerate(values):
        down = w if w > 0 and values[w - 1] != value else 0
        up = n - w if w < n and values[w + 1] != value else 0
        counts[down + up] += comb(n, w)
    return counts


def census_functions(n: int) -> dict[str, np.ndarray]:
    """Every named function at one length, for a census of truth tables.

    Labels are ``constant_0``, ``parity``, ``first``, ``majority``, ``and``, ``or``, ``mod3``,
    ``dictator_i`` (0 < i < n), ``sparse_parity_m`` (1 < m < n), ``threshold_k`` (1 < k < n),
    ``exactly_k`` (0 <= k <= n), ``tribes_w`` (proper divisors 1 < w < n) and, where the length
    allows, ``inner_product``, ``equality`` and ``address_k`` (k >= 1). Complements are left to
    the caller. Some labels name one function: ``exactly_n`` is ``and``, and a majority is a
    threshold.

    Returns:
      Dict from label to bool array ``(2**n,)``.

    Raises:
      ValueError: ``n`` is not an integer from 1 to 30.
    """
    n = check_length(n)
    entries: list[tuple[str, dict[str, int]]] = [("constant", {"value": 0})]
    entries += [(name, {}) for name in ("parity", "first", "majority", "and", "or", "mod3")]
    entries += [("dictator", {"i": i}) for i in range(1, n)]
    entries += [("sparse_parity", {"m": m}) for m in range(2, n)]
    entries += [("threshold", {"k": k}) for k in range(2, n)]
    entries += [("exactly", {"k": k}) for k in range(n + 1)]
    if n % 2 == 0:
        entries += [("inner_product", {}), ("equality", {})]
    entries += [("address", {"k": k}) for k in range(1, n) if k + 2**k == n]
    entries += [("tribes", {"width": w}) for w in range(2, n) if n % w == 0]
    return {
        "_".join([name, *map(str, kw.values())]): truth_table(name, n, **kw) for name, kw in entries
    }


def _lookup(name: str, n: int, kw: dict[str, Any]) -> _Function:
    maker = _REGISTRY.get(name) if isinstance(name, str) else None
    if maker is None:
        raise ValueError(
            f"Boolean function: {name!r} given; it must be one of {', '.join(names())}"
        )
    wanted = list(inspect.signature(maker).parameters)[1:]
    if set(kw) != set(wanted):
        given = ", ".join(kw) or "no arguments"
        raise ValueError(f"{name}: {given} given; it takes {', '.join(wanted) or 'no arguments'}")
    return maker(n, **kw)


def _integer(what: str, value: Any, low: int, high: int | None) -> int:
    if (
        isinstance(value, (bool, np.bool_))
        or not isinstance(value, (int, np.integer))
        or value < low
        or (high is not None and value > high)
    ):
        wanted = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{what}: {value!r} given; it must be an integer {wanted}")
    return int(value)


def _half(what: str, n: int) -> int:
    if n % 2:
        raise ValueError(f"{what}: n = {n} given; n must be even")
    return n // 2


def _junta(core: list[int], n: int) -> list[int]:
    """Profile of a function of ``len(core) - 1`` of the ``n`` bits: the others are free."""
    free = n - (len(core) - 1)
    return [count * 2**free for count in core] + [0] * free


def _symmetric(n: int, value: Callable[[int], int]) -> _Function:
    def values():
        return [int(value(w)) for w in range(n + 1)]

    return _Function(
        lambda rows: np.array(values(), dtype=bool)[np.bitwise_count(rows)],
        lambda: symmetric_profile(values()),
    )


def _constant(n: int, value: int) -> _Function:
    bit = int(value) if isinstance(value, (bool, np.bool_)) else _integer("value", value, 0, 1)
    return _symmetric(n, lambda w: bit)


def _threshold(n: int, k: int) -> _Function:
    k = _integer("threshold: k", k, 0, n + 1)
    return _symmetric(n, lambda w: w >= k)


def _exactly(n: int, k: int) -> _Function:
    k = _integer("exactly: k", k, 0, n)
    return _symmetric(n, lambda w: w == k)


def _sparse_parity(n: int, m: int) -> _Function:
    m = _integer("sparse_parity: m", m, 0, n)
    return _Function(
        lambda rows: np.bitwise_count(rows >> (n - m)) & 1 == 1,
        lambda: _junta([0] * m + [2**m], n),
    )


def _dictator(n: int, i: int) -> _Function:
    i = _integer("dictator: i", i, 0, n - 1)
    return _Function(lambda rows: (rows >> (n - 1 - i)) & 1 == 1, lambda: _junta([0, 2], n))


def _inner_product(n: int) -> _Function:
    # Flipping a bit changes the value iff its partner is 1: sensitivity = weight.
    m = _half("inner_product", n)
    return _Function(
        lambda rows: np.bitwise_count((rows >> m) & rows & (2**m - 1)) & 1 == 1,
        lambda: [comb(n, weight) for weight in range(n + 1)],
    )


def _address(n: int, k: int) -> _Function:
    k = _integer("address: k", k, 0, None)
    if k >= n.bit_length() or k + 2**k != n:  # the first test keeps 2**k small
        right = f"{k + 2**k}" if k < 64 else "k + 2**k"
        raise ValueError(f"address: n = {n}, k = {k} given; n must be k + 2**k = {right}")

    def evaluate(rows):
        data = 2**k
        return (rows >> (data - 1 - (rows >> data))) & 1 == 1

    def counts():
        # The addressed bit counts always, an address bit iff the two data bits differ.
        out = [0] * (n + 1)
        for j in range(k + 1):
            out[1 + j] = 2 ** (n - k) * comb(k, j)
        return out

    return _Function(evaluate, counts)


def _tribes(n: int, width: int) -> _Function:
    width = _integer("tribes: width", width, 1, n)
    if n % width:
        raise ValueError(f"tribes: width = {width} given; it must divide n = {n}")
    tribes = n // width

    def evaluate(rows):
        out = np.zeros(rows.shape, dtype=bool)
        for tribe in range(tribes):
            block = (2**width - 1) << (tribe * width)
            out |= rows & block == block
        return out

    def counts():
        out = [0] * (n + 1)
        others = 2**width - 1  # settings of a tribe that is not satisfied
        out[width] += tribes * others ** (tribes - 1)
        for j in range(tribes + 1):  # none satisfied, j of them one bit away
            out[j] += comb(tribes, j) * width**j * (others - width) ** (tribes - j)
        out[0] += 2**n - sum(out)  # two or more satisfied
        return out

    return _Function(evaluate, counts)


def _equality(n: int) -> _Function:
    m = _half("equality", n)

    def counts():
        out = [0] * (n + 1)
        out[n] += 2**m
        out[2] += m * 2**m  # halves that differ in one place; flip either of its two bits
        out[0] += 2**n - sum(out)
        return out

    return _Function(lambda rows: (rows >> m) == rows & (2**m - 1), counts)


def _random(n: int, seed: int) -> _Function:
    _integer("random: seed", seed, 0, None)
    return _Function(None, None)


_REGISTRY: dict[str, Callable[..., _Function]] = {
    "constant": _constant,
    "parity": lambda n: _symmetric(n, lambda w: w % 2),
    "sparse_parity": _sparse_parity,
    "first": lambda n: _dictator(n, 0),
    "dictator": _dictator,
    "majority": lambda n: _symmetric(n, lambda w: 2 * w > n),
    "threshold": _threshold,
    "and": lambda n: _symmetric(n, lambda w: w == n),
    "or": lambda n: _symmetric(n, lambda w: w > 0),
    "inner_product": _inner_product,
    "address": _address,
    "tribes": _tribes,
    "equality": _equality,
    "exactly": _exactly,
    "mod3": lambda n: _symmetric(n, lambda w: w % 3 == 0),
    "random": _random,
}
