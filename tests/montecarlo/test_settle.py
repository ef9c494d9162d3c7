"""Close calls settled in float64: a sign that float32 gets wrong is corrected, and its counts."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxsens
from jaxsens.montecarlo import settle
from jaxsens.montecarlo.settle import DECIDED, UNDECIDED

# Below a float32 unit in the last place of 1, far above one of float64.
TINY = 2.0**-30


def _one_plus_minus_one(params, bits):
    """The entry of the table, through a sum with 1: float32 rounds what is tiny to a tie."""
    weights = jnp.asarray(2 ** np.arange(bits.shape[-1])[::-1], jnp.int32)
    entry = params["table"][bits @ weights]
    one = jnp.broadcast_to(params["one"], entry.shape)
    return (one + entry) - one


def through_one(table):
    n = int(np.log2(len(table)))

    def init_fn(law, key):
        return {"table": law, "one": jnp.ones((), jnp.float32)}

    base = jaxsens.from_pair(
        lambda key: {"table": jnp.zeros(2**n, jnp.float32), "one": jnp.ones((), jnp.float32)},
        _one_plus_minus_one,
        length=n,
        name="a table through one",
    )
    return base.replace(law=np.asarray(table, np.float32), init_fn=init_fn)


@pytest.mark.parametrize("close", [1, 3, 20])
def test_a_sign_that_float32_gets_wrong_is_corrected(close):
    # 64 strings; up to a quarter close are settled one by one, more by the whole table.
    rng = np.random.default_rng(close)
    table = rng.choice([-1.0, 1.0], 64)
    rows = rng.choice(64, close, replace=False)
    table[rows] = TINY * np.where(np.arange(close) % 2 == 0, 1, -1)
    answers = table > 0
    found = jaxsens.sample(through_one(table), models=3).models
    expected = np.asarray(jaxsens.sensitivity_profile(answers))
    np.testing.assert_array_equal(found.profile, np.broadcast_to(expected, (3, 7)))
    assert found.ones.tolist() == [answers.sum()] * 3
    assert found.status.tolist() == [UNDECIDED] * 3
    clear = jaxsens.sample(through_one(np.sign(table)), models=1).models
    assert clear.status.tolist() == [DECIDED]
    assert clear.fingerprint[0] == found.fingerprint[0]
    # Without the settling the answers would be others.
    rounded = (np.float32(1) + table.astype(np.float32)) - np.float32(1) > 0
    assert (rounded != answers).any()


@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_rows_of_words_are_the_rows_that_are_set(seed, density):
    table = np.random.default_rng(seed).random(128) < density
    words = np.asarray(jaxsens.strings.pack(table))
    np.testing.assert_array_equal(settle.rows_of_words(words), np.flatnonzero(table))
