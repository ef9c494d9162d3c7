"""The numbers of ``jax.random.uniform``, any piece of them, in one fused loop.

A draw of n uniforms is a counter mode: number j depends on the key and on j alone. Cutting the draw
of a model into its arrays, and leaving out those that a law does not draw, therefore changes none
of the others. JAX keeps the rounds of threefry in a loop on the CPU, which costs several passes
over memory; unrolled they are one pass of integer instructions. The values are those of JAX, bit
for bit (tested), so (seed, index) names the same model.
"""

import jax
import jax.numpy as jnp
import numpy as np

# Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).
_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
#: The open interval of jax.random.normal: -1 would be an infinite normal.
LOWEST = np.nextafter(np.float32(-1), np.float32(0))


def is_counter_mode(key: jax.Array) -> bool:
    """Whether ``key`` is a typed threefry key and draws number j from (key, j) alone."""
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return partitionable and typed and str(jax.random.key_impl(key)) == "threefry2x32"


def _rotated(x: jax.Array, distance: int) -> jax.Array:
    left = jax.lax.shift_left(x, np.uint32(distance))
    return jax.lax.bitwise_or(left, jax.lax.shift_right_logical(x, np.uint32(32 - distance)))


def bits(key: jax.Array, start: int, count: int) -> jax.Array:
    """Numbers ``start`` to ``start + count - 1`` of ``jax.random.bits(key, ...)``, uint32."""
    # Bare lax: 40 arrays of 20 rounds are traced in half the time that operators take.
    add, xor = jax.lax.add, jax.lax.bitwise_xor
    low, high = jnp.unstack(jax.random.key_data(key))
    words = [jax.lax.broadcast(w, (count,)) for w in (low, high)]
    words.append(xor(xor(words[0], words[1]), np.uint32(_PARITY)))
    counter = jax.lax.iota(jnp.uint32, count)
    x1 = add(add(counter, np.uint32(start)), words[1])
    x0 = words[0]
    for i in range(5):
        for distance in _ROTATIONS[i % 2]:
            x0 = add(x0, x1)
            x1 = xor(_rotated(x1, distance), x0)
        x0 = add(x0, words[(i + 1) % 3])
        x1 = add(add(x1, words[(i + 2) % 3]), np.uint32(i + 1))
    return xor(x0, x1)


def uniform(key: jax.Array, start: int, count: int) -> jax.Array:
    """Numbers ``start`` to ``start + count - 1`` of a float32 uniform draw on (-1, 1).

    Equal to ``jax.random.uniform(key, (n,), minval=LOWEST, maxval=1)[start : start + count]``.
    """
    mantissa = (bits(key, start, count) >> jnp.uint32(9)) | jnp.uint32(0x3F800000)
    unit = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 1
    return jnp.maximum(LOWEST, unit * (1 - LOWEST) + LOWEST)
