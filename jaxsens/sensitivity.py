r"""Boolean sensitivity of whole truth tables, batched over models.

For f on {0,1}^n, s(x, f) is the number of positions whose flip changes f(x). The *profile* counts
the strings of every sensitivity, ``profile[k] = #{x : s(x, f) = k}``, so ``K_0 = profile[0]`` is
the number of zero-sensitivity strings, and sum_k k profile[k] = 2^n as(f) with as the average
sensitivity (definitions as in arXiv:2606.08768).

Functions named ``*_packed`` take the 32-bit words of :func:`jaxsens.strings.pack`: neighbours
across the five low row bits are reached by shifts inside a word, the others by swapping words, and
counting is ``population_count``. All counts are exact int32. Leading axes are batch axes.
"""

import jax
import jax.numpy as jnp

from jaxsens import strings

# Row bits inside a word, and the bits of a word whose row bit j is 0.
_LOW_BITS = 5
_LOW_HALF = (0x55555555, 0x33333333, 0x0F0F0F0F, 0x00FF00FF, 0x0000FFFF)


def _valid_bits(n: int) -> jax.Array:
    """Mask of the word bits that hold rows: all of them from n = 5 on."""
    return jnp.uint32((1 << min(2**n, strings.WORD_BITS)) - 1)


def _neighbour(words: jax.Array, row_bit: int) -> jax.Array:
    """Words of g(r) = f(r ^ 2**row_bit)."""
    if row_bit < _LOW_BITS:
        shift, low = jnp.uint32(1 << row_bit), jnp.uint32(_LOW_HALF[row_bit])
        return ((words >> shift) & low) | ((words & low) << shift)
    stride = 1 << (row_bit - _LOW_BITS)
    pairs = words.reshape(*words.shape[:-1], words.shape[-1] // (2 * stride), 2, stride)
    return jnp.flip(pairs, axis=-2).reshape(words.shape)


def _count_ones(words: jax.Array) -> jax.Array:
    return jnp.sum(jax.lax.population_count(words).astype(jnp.int32), axis=-1, dtype=jnp.int32)


def ones_packed(words: jax.Array) -> jax.Array:
    """Number of strings with f(x) = 1: uint32 ``(..., words)`` to int32 ``(...)``."""
    return _count_ones(words)


def influences_packed(words: jax.Array, n: int) -> jax.Array:
    """Number of strings at which a flip of bit i changes f, for each i.

    Args:
      words: uint32 ``(..., num_words(n))``.
      n: length of the strings.

    Returns:
      int32 ``(..., n)``; entry i, divided by 2^n, is the influence Inf_i(f).
    """
    counts = [_count_ones(words ^ _neighbour(words, n - 1 - i)) for i in range(n)]
    return jnp.stack(counts, axis=-1)


def profile_packed(words: jax.Array, n: int) -> jax.Array:
    """Sensitivity profile from packed tables.

    The n difference words of each group of 32 strings are added in bit-sliced counters (plane p
    holds bit p of 32 sensitivities at once); one popcount per k then counts the strings whose
    counter equals k.

    Args:
      words: uint32 ``(..., num_words(n))``.
      n: length of the strings.

    Returns:
      int32 ``(..., n + 1)``; the last axis sums to 2^n.
    """
    # Tables side by side: a neighbour across a high row bit is another row of words, read whole.
    columns = words.reshape(-1, words.shape[-1]).T
    planes = tuple(jnp.zeros_like(columns) for _ in range(n.bit_length()))
    for row_bit in range(min(n, _LOW_BITS)):
        planes = _counted(planes, columns ^ _neighbour(columns, row_bit))
    row = jnp.arange(columns.shape[0], dtype=jnp.int32)

    # Loops, since unrolled every count would be compiled with all the planes inside it.
    def add(planes, bit):
        across = jnp.take(columns, row ^ jnp.left_shift(jnp.int32(1), bit), axis=0, mode="clip")
        return _counted(planes, columns ^ across), None

    if n > _LOW_BITS:
        planes, _ = jax.lax.scan(add, planes, jnp.arange(n - _LOW_BITS, dtype=jnp.int32))

    def count(k: jax.Array) -> jax.Array:
        equal = jnp.broadcast_to(_valid_bits(n), columns.shape)
        for p, plane in enumerate(planes):
            bit_is_zero = ((k >> p) & 1) == 0
            equal = equal & (plane ^ jnp.where(bit_is_zero, ~jnp.uint32(0), jnp.uint32(0)))
        return jnp.sum(jax.lax.population_count(equal).astype(jnp.int32), axis=0, dtype=jnp.int32)

    counts = jax.lax.map(count, jnp.arange(n + 1, dtype=jnp.int32))
    return counts.T.reshape(*words.shape[:-1], n + 1)


def _counted(planes: tuple[jax.Array, ...], carry: jax.Array) -> tuple[jax.Array, ...]:
    """Adds one bit to each of the counters whose binary digits are the planes."""
    added = []
    for plane in planes:
        added.append(plane ^ carry)
        carry = plane & carry
    return tuple(added)


def sensitivity_profile(table: jax.typing.ArrayLike) -> jax.Array:
    """Number of strings of each sensitivity.

    Args:
      table: bool ``(..., 2**n)``, row r = the string that spells r, first bit most significant.

    Returns:
      int32 ``(..., n + 1)``: entry k is #{x : s(x, f) = k}.

    Raises:
      ValueError: the last axis is not 2**n with n from 1 to 30.
    """
    n = strings.length_of_table(jnp.shape(table))
    return profile_packed(strings.pack(table), n)


def influences(table: jax.typing.ArrayLike) -> jax.Array:
    """Influence of every bit, Inf_i(f) = Pr_x[f(x) != f(x with bit i flipped)].

    bool ``(..., 2**n)`` to float ``(..., n)``; their sum is the average sensitivity.
    """
    n = strings.length_of_table(jnp.shape(table))
    return influences_packed(strings.pack(table), n) / 2**n


def zero_sensitivity(table: jax.typing.ArrayLike) -> jax.Array:
    """K_0, the number of strings at which no flip changes f: ``(..., 2**n)`` to int32 ``(...)``."""
    return sensitivity_profile(table)[..., 0]


def average_sensitivity(profile: jax.typing.ArrayLike) -> jax.Array:
    """as(f) = 2^-n sum_k k profile[k], from a profile ``(..., n + 1)`` to float ``(...)``."""
    profile = jnp.asarray(profile)
    n = profile.shape[-1] - 1
    # Dividing first keeps n * 2**n out of int32.
    share = profile / 2**n
    return jnp.sum(
        share * jnp.broadcast_to(jnp.arange(n + 1, dtype=share.dtype), share.shape), axis=-1
    )


def maximum_sensitivity(profile: jax.typing.ArrayLike) -> jax.Array:
    """max_x s(x, f), from a profile ``(..., n + 1)`` to int32 ``(...)``."""
    present = jnp.asarray(profile) > 0
    n = present.shape[-1] - 1
    return jnp.int32(n) - jnp.argmax(present[..., ::-1], axis=-1).astype(jnp.int32)


def walsh_hadamard(table: jax.typing.ArrayLike) -> jax.Array:
    r"""Walsh-Hadamard coefficients of 1 - 2f, unnormalised.

    W(S) = sum_x (1 - 2 f(x)) (-1)^{<S, x>}; the Fourier coefficient is W(S) / 2^n. Set S has the
    row number whose bits mark its members, in the bit order of the strings.

    Args:
      table: bool ``(..., 2**n)``.

    Returns:
      int32 ``(..., 2**n)``, exact.
    """
    n = strings.length_of_table(jnp.shape(table))
    shape = jnp.shape(table)
    signs = 1 - 2 * jnp.asarray(table, dtype=bool).astype(jnp.int32)
    for j in range(n):
        pairs = signs.reshape(*shape[:-1], 2 ** (n - 1 - j), 2, 2**j)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        signs = jnp.stack([low + high, low - high], axis=-2)
    return signs.reshape(shape)


def weight_by_degree(table: jax.typing.ArrayLike) -> jax.Array:
    r"""Spectral weight at every degree, sum over \|S\| = k of fhat(S)^2 for 1 - 2f.

    bool ``(..., 2**n)`` to float ``(..., n + 1)``. The last axis sums to 1 (Parseval), and
    sum_k k weight[k] is the average sensitivity.
    """
    n = strings.length_of_table(jnp.shape(table))
    coefficients = walsh_hadamard(table) / 2**n
    squares = coefficients**2
    degree = jax.lax.population_count(jnp.arange(2**n, dtype=jnp.int32))
    degree = jnp.broadcast_to(degree, squares.shape)
    by_degree = [
        jnp.sum(jnp.where(degree == k, squares, jnp.zeros_like(squares)), axis=-1)
        for k in range(n + 1)
    ]
    return jnp.stack(by_degree, axis=-1)


def table_hash(words: jax.Array) -> jax.Array:
    """A 64-bit fingerprint of packed tables, as two uint32 lanes.

    Each lane is a sum over words of a bijectively mixed (word, position) pair, so equal tables have
    equal hashes and two given different tables collide with probability about 2^-64. Up to n = 5
    the table is one word; lane 0 then determines it.

    Args:
      words: uint32 ``(..., num_words)``.

    Returns:
      uint32 ``(..., 2)``.
    """
    position = jnp.broadcast_to(jnp.arange(words.shape[-1], dtype=jnp.uint32), words.shape)

    def mixed(seed: int) -> jax.Array:
        h = words ^ (position * jnp.uint32(0x9E3779B9) + jnp.uint32(seed))
        for multiplier in (0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F):
            h = (h ^ (h >> jnp.uint32(16))) * jnp.uint32(multiplier)
        return h ^ (h >> jnp.uint32(15))

    lanes = [jnp.sum(mixed(seed), axis=-1, dtype=jnp.uint32) for seed in (0x2545F491, 0x8F1BBCDC)]
    return jnp.stack(lanes, axis=-1)
