"""Which key is model i: random access by (root seed, index), whatever the batch or device."""

import jax
import jax.numpy as jnp
import numpy as np

IMPLEMENTATION = "threefry2x32"
MAX_SEED = 2**32
MAX_INDEX = 2**63


def _check_integer(name: str, value: object, stop: int, power: str) -> int:
    if (
        isinstance(value, (bool, np.bool_))
        or not isinstance(value, (int, np.integer))
        or not 0 <= int(value) < stop
    ):
        raise ValueError(f"{name}: {value!r} given; it must be an integer from 0 to {power} - 1")
    return int(value)


def check_seed(seed: object) -> int:
    """Returns the root seed as an int; raises ``ValueError`` unless 0 <= seed < 2^32."""
    return _check_integer("seed", seed, MAX_SEED, "2**32")


def check_index(index: object, name: str = "index") -> int:
    """Returns a model index as an int; raises ``ValueError`` unless 0 <= index < 2^63."""
    return _check_integer(name, index, MAX_INDEX, "2**63")


def check_generator() -> None:
    """Raises ``ValueError`` where jax is set to another generator than threefry.

    Under vmap the others (rbg, unsafe_rbg) draw a whole batch from one key, and with partitionable
    threefry off the draw of a model depends on its shape.
    """
    implementation = jax.config.jax_default_prng_impl  # pyright: ignore[reportAttributeAccessIssue]
    if implementation != IMPLEMENTATION:
        raise ValueError(f"jax_default_prng_impl: {implementation!r} is set; use {IMPLEMENTATION}")
    if not jax.config.jax_threefry_partitionable:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("jax_threefry_partitionable: False is set; it must be True")


def split_indices(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """High and low 32 bits, uint32 each, of uint64 indices."""
    high, low = index >> np.uint64(32), index & np.uint64(0xFFFFFFFF)
    return high.astype(np.uint32), low.astype(np.uint32)


def key_of_parts(seed: jax.Array, high: jax.Array, low: jax.Array) -> jax.Array:
    """fold_in(fold_in(key(seed), high), low), from uint32 scalars, traceable."""
    root = jax.random.key(seed, impl=IMPLEMENTATION)
    return jax.random.fold_in(jax.random.fold_in(root, high), low)


def model_key(seed: int, index: int) -> jax.Array:
    """The key of model ``index`` of root seed ``seed``.

    key = fold_in(fold_in(key(seed), index >> 32), index & 0xffffffff), threefry only.

    Raises:
      ValueError: seed outside [0, 2^32) or index outside [0, 2^63), as int or NumPy integer.
    """
    seed, index = check_seed(seed), check_index(index)
    high, low = index >> 32, index & 0xFFFFFFFF
    return key_of_parts(*(jnp.asarray(np.uint32(part)) for part in (seed, high, low)))
