"""The draw in pieces against ``jax.random``, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens import threefry

TOTAL = 4099
bits = jax.jit(threefry.bits, static_argnums=(1, 2))
uniform = jax.jit(threefry.uniform, static_argnums=(1, 2))


@given(seed=st.integers(0, 2**32 - 1), fold=st.integers(0, 2**32 - 1))
def test_whole_draws_are_those_of_jax(seed, fold):
    key = jax.random.fold_in(jax.random.key(np.uint32(seed)), np.uint32(fold))
    np.testing.assert_array_equal(bits(key, 0, TOTAL), jax.random.bits(key, (TOTAL,)))
    expected = jax.random.uniform(key, (TOTAL,), minval=threefry.LOWEST, maxval=1.0)
    np.testing.assert_array_equal(uniform(key, 0, TOTAL), expected)


@pytest.mark.parametrize(("start", "count"), [(0, 1), (1, 1), (7, 100), (4098, 1), (31, 0)])
def test_pieces_are_slices(start, count):
    key = jax.random.key(11)
    whole = jax.random.uniform(key, (TOTAL,), minval=threefry.LOWEST, maxval=1.0)
    np.testing.assert_array_equal(uniform(key, start, count), whole[start : start + count])


def test_all_mantissas_stay_inside_the_open_interval():
    key = jax.random.key(0)
    u = np.asarray(uniform(key, 0, 1 << 20))
    assert u.min() >= threefry.LOWEST
    assert u.max() < 1
    # Mean and variance of U(-1, 1), in standard errors.
    assert abs(u.mean(dtype=np.float64)) < 5 * (1 / 3 / u.size) ** 0.5
    assert abs(np.var(u, dtype=np.float64) - 1 / 3) < 5 * (4 / 45 / u.size) ** 0.5


def test_other_keys_are_told_apart():
    assert threefry.is_counter_mode(jax.random.key(0))
    assert not threefry.is_counter_mode(jax.random.key(0, impl="rbg"))
    assert not threefry.is_counter_mode(jnp.zeros(2, jnp.uint32))
    with jax.threefry_partitionable(False):
        assert not threefry.is_counter_mode(jax.random.key(0))
