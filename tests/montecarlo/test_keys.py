"""Model i of a root seed has the key it always had."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens as js
from jaxsens.montecarlo import keys

# docs/pains.md, P15: threefry2x32, partitionable, jax 0.10.2.
TABLE = {
    (0, 0): (4165894930, 804218099),
    (1, 0): (3704974950, 1863054868),
    (42, 0): (1012194634, 3152801799),
    (0, 1): (1353695780, 2116000888),
    (1, 1): (2705940334, 2639757084),
    (42, 1): (1705926158, 899080142),
    (0, 5): (1526812653, 3822367991),
    (1, 5): (4062837595, 505010204),
    (42, 5): (4148232129, 1752255806),
    (0, 2**32 - 1): (1858973716, 1120471786),
    (1, 2**32 - 1): (4141931896, 580217127),
    (42, 2**32 - 1): (3857615461, 432774586),
    (0, 2**32): (346279018, 360566543),
    (1, 2**32): (3276925600, 2751771740),
    (42, 2**32): (3187376881, 129218101),
    (0, 2**32 + 5): (3006591476, 2914868775),
    (1, 2**32 + 5): (2550017737, 119053413),
    (42, 2**32 + 5): (423881385, 714897346),
}


def data_of(key):
    return tuple(int(word) for word in np.asarray(jax.random.key_data(key)))


@pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
def test_the_key_table(x64):
    with jax.enable_x64(x64):
        assert {pair: data_of(js.model_key(*pair)) for pair in TABLE} == TABLE


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_numpy_integers_name_the_same_keys(kind):
    assert {p: data_of(js.model_key(kind(p[0]), kind(p[1]))) for p in TABLE} == TABLE


def test_the_key_in_a_compiled_batch():
    for seed in (0, 1, 42):
        index = np.array([i for s, i in TABLE if s == seed], np.uint64)
        high, low = keys.split_indices(index)
        batch = jax.jit(jax.vmap(keys.key_of_parts, in_axes=(None, 0, 0)))(
            jnp.uint32(seed), high, low
        )
        words = np.asarray(jax.random.key_data(batch))
        np.testing.assert_array_equal(words, [TABLE[seed, int(i)] for i in index])


def test_the_ends_of_the_ranges():
    ends = [js.model_key(s, i) for s in (0, 2**32 - 1) for i in (0, 2**63 - 1)]
    assert len({data_of(key) for key in ends}) == 4


@pytest.mark.parametrize(
    "index", [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33 - 1, 2**33, 2**63 - 1]
)
def test_splitting_an_index(index):
    high, low = keys.split_indices(np.array([index], np.uint64))
    assert high.dtype == low.dtype == np.uint32
    assert (int(high[0]), int(low[0])) == divmod(index, 2**32)


OUTSIDE = [-1, True, False, 0.0, 1.0, 0.5, "1", None, np.int64(-1), np.bool_(True), np.float32(1)]


@pytest.mark.parametrize("seed", [*OUTSIDE, 2**32, 2**64, np.int64(2**32), np.uint64(2**32)])
def test_a_bad_seed_is_named_in_one_line(seed):
    for function in (keys.check_seed, lambda s: js.model_key(s, 0)):
        with pytest.raises(ValueError) as caught:
            function(seed)
        expected = f"seed: {seed!r} given; it must be an integer from 0 to 2**32 - 1"
        assert str(caught.value) == expected


@pytest.mark.parametrize("index", [*OUTSIDE, 2**63, 2**64, np.uint64(2**63)])
def test_a_bad_index_is_named_in_one_line(index):
    for function in (keys.check_index, lambda i: js.model_key(0, i)):
        with pytest.raises(ValueError) as caught:
            function(index)
        expected = f"index: {index!r} given; it must be an integer from 0 to 2**63 - 1"
        assert str(caught.value) == expected


@pytest.mark.parametrize("seed", [0, 2**32 - 1, np.uint32(7), np.int64(2**32 - 1)])
def test_a_good_seed_is_a_python_int(seed):
    assert type(keys.check_seed(seed)) is int
    assert type(keys.check_index(seed)) is int
    assert keys.check_seed(seed) == int(seed)


@pytest.mark.parametrize("name", ["rbg", "unsafe_rbg"])
def test_other_generators_are_refused(name):
    keys.check_generator()
    with jax.default_prng_impl(name):
        with pytest.raises(ValueError, match=f"^jax_default_prng_impl: '{name}' is set; use "):
            keys.check_generator()
        # A key asked for by name is threefry whatever the default.
        assert data_of(js.model_key(42, 5)) == TABLE[42, 5]


def test_sampling_under_another_generator_is_refused():
    cfg = js.TransformerConfig(2, 1, 2, 1, 2)
    with (
        jax.default_prng_impl("rbg"),
        pytest.raises(ValueError, match="jax_default_prng_impl: 'rbg'"),
    ):
        js.sample(cfg, js.inits.uniform(1.0), models=1)


def test_threefry_has_to_be_partitionable():
    with (
        jax.threefry_partitionable(False),
        pytest.raises(ValueError, match="^jax_threefry_partitionable: False is set"),
    ):
        keys.check_generator()
