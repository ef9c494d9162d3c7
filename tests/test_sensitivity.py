"""Sensitivity of truth tables: stored profiles, a NumPy oracle, and identities."""

import json
import math
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxsens as js
from jaxsens import boolean, sensitivity, strings

DATA = json.loads((Path(__file__).parent / "data" / "sensitivity.json").read_text())


def random_tables(n, count=6, seed=0):
    """``count`` tables of every density, the two constants among them."""
    density = np.linspace(0, 1, count)[:, None]
    return np.random.default_rng([seed, n]).random((count, 2**n)) < density


@st.composite
def tables(draw, max_n=8):
    """One truth table and its length."""
    n = draw(st.integers(1, max_n))
    if n <= 4:
        bits = draw(st.lists(st.booleans(), min_size=2**n, max_size=2**n))
        return np.array(bits), n
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.random(2**n) < draw(st.floats(0, 1)), n


def oracle_counts(table, n):
    """Sensitivity of every string, and the number of sensitive strings of every bit."""
    rows = np.arange(2**n)
    changes = [table != table[rows ^ (1 << (n - 1 - i))] for i in range(n)]
    return np.sum(changes, axis=0), np.sum(changes, axis=1)


# Compiled once a length; op by op every shape would compile a dozen programs.
_profile = jax.jit(js.sensitivity_profile)
_influences = jax.jit(sensitivity.influences)
_weight_by_degree = jax.jit(sensitivity.weight_by_degree)
_ones = jax.jit(lambda table: sensitivity.ones_packed(strings.pack(table)))


def profile_of(table):
    return np.asarray(_profile(table))


def parity_of_rows(n):
    return np.array([r.bit_count() % 2 == 1 for r in range(2**n)])


# Stored functions.


def test_stored_functions():
    for case in DATA["functions"]:
        n = case["n"]
        table = np.asarray(boolean.truth_table(case["name"], n, **case["kw"]))
        if "table" in case:
            assert "".join(map(str, table.astype(int))) == case["table"], case
        profile = _profile(table)
        assert profile.dtype == jnp.int32
        assert np.asarray(profile).tolist() == case["profile"], case
        assert int(_ones(table)) == case["ones"], case
        exact = Fraction(*case["average_sensitivity"])
        pooled = sum(k * count for k, count in enumerate(case["profile"]))
        assert Fraction(pooled, 2**n) == exact
        average = float(sensitivity.average_sensitivity(profile))
        assert average == pytest.approx(float(exact), rel=1e-6)


# The oracle.


@pytest.mark.parametrize("n", range(1, 9))
def test_agrees_with_oracle(n):
    batch = random_tables(n)
    profiles = js.sensitivity_profile(batch)
    words = strings.pack(batch)
    results = [
        profiles,
        sensitivity.influences(batch),
        sensitivity.influences_packed(words, n),
        sensitivity.maximum_sensitivity(profiles),
        sensitivity.average_sensitivity(profiles),
        sensitivity.zero_sensitivity(batch),
        sensitivity.ones_packed(words),
    ]
    for table, *row in zip(batch, *map(np.asarray, results), strict=True):
        profile, influence, counted, maximum, average, zero, ones = row
        strings_of, bits_of = oracle_counts(table, n)
        expected = np.bincount(strings_of, minlength=n + 1)
        np.testing.assert_array_equal(profile, expected)
        np.testing.assert_array_equal(influence, (bits_of / 2**n).astype(np.float32))
        np.testing.assert_array_equal(counted, bits_of)
        assert maximum == strings_of.max()
        assert average == pytest.approx(strings_of.mean(), rel=1e-6)
        assert zero == expected[0]
        assert ones == table.sum()


def test_packed_and_plain_profiles_agree_under_jit():
    batch = random_tables(7)
    packed = jax.jit(sensitivity.profile_packed, static_argnums=1)(strings.pack(batch), 7)
    np.testing.assert_array_equal(np.asarray(packed), profile_of(batch))


def test_batch_axes():
    batch = random_tables(6, count=12)
    cube = batch.reshape(3, 2, 2, 64)
    words = strings.pack(batch)
    functions = [
        js.sensitivity_profile,
        sensitivity.influences,
        sensitivity.zero_sensitivity,
        sensitivity.walsh_hadamard,
        sensitivity.weight_by_degree,
    ]
    for function in functions:
        flat = np.asarray(function(batch))
        whole = np.asarray(function(cube))
        np.testing.assert_array_equal(whole, flat.reshape(3, 2, 2, *flat.shape[1:]))
        np.testing.assert_array_equal(np.asarray(jax.vmap(function)(batch)), flat)
        np.testing.assert_array_equal(np.asarray(function(batch[7])), flat[7])
    profiles = js.sensitivity_profile(cube)
    for function in (sensitivity.average_sensitivity, sensitivity.maximum_sensitivity):
        assert function(profiles).shape == (3, 2, 2)
        assert function(profiles[0, 0, 0]).shape == ()
    hashes = np.asarray(sensitivity.table_hash(words))
    whole = np.asarray(sensitivity.table_hash(strings.pack(cube)))
    np.testing.assert_array_equal(whole, hashes.reshape(3, 2, 2, 2))


@pytest.mark.parametrize("n", [5, 6])
def test_no_tables(n):
    empty = np.zeros((0, 2**n), bool)
    assert js.sensitivity_profile(empty).shape == (0, n + 1)
    assert sensitivity.influences(empty).shape == (0, n)
    assert sensitivity.walsh_hadamard(empty).shape == (0, 2**n)
    assert sensitivity.table_hash(strings.pack(empty)).shape == (0, 2)


@pytest.mark.parametrize("shape", [(), (1,), (6,), (2, 3)])
def test_a_bad_table_is_named_in_one_line(shape):
    for function in (
        js.sensitivity_profile,
        sensitivity.influences,
        sensitivity.walsh_hadamard,
        sensitivity.weight_by_degree,
    ):
        with pytest.raises(ValueError, match=r"^truth table: last axis has \d+ rows; .*n >= 1$"):
            function(np.zeros(shape, bool))


# What a change of the function does to the profile.


@given(tables())
def test_adding_parity_reverses_the_profile(case):
    table, n = case
    np.testing.assert_array_equal(profile_of(table ^ parity_of_rows(n)), profile_of(table)[::-1])


@given(tables())
def test_complement_keeps_everything(case):
    table, _ = case
    np.testing.assert_array_equal(profile_of(~table), profile_of(table))
    for function in (_influences, _weight_by_degree):
        np.testing.assert_array_equal(np.asarray(function(~table)), np.asarray(function(table)))


@given(tables(), st.data())
def test_permuting_bits_permutes_influences(case, data):
    table, n = case
    order = data.draw(st.permutations(range(n)))
    bits = strings.all_strings(n, np.int64)[:, order]
    moved = table[bits @ (1 << np.arange(n - 1, -1, -1))]  # moved(x) = f(x[order])
    np.testing.assert_array_equal(profile_of(moved), profile_of(table))
    influences, old = (np.asarray(_influences(t)) for t in (moved, table))
    np.testing.assert_array_equal(influences[np.array(order)], old)


@given(tables(), st.data())
def test_xor_mask_keeps_the_profile(case, data):
    table, n = case
    mask = data.draw(st.integers(0, 2**n - 1))
    moved = table[np.arange(2**n) ^ mask]
    np.testing.assert_array_equal(profile_of(moved), profile_of(table))
    influences, old = (np.asarray(_influences(t)) for t in (moved, table))
    np.testing.assert_array_equal(influences, old)


@given(tables())
def test_an_ignored_bit_moves_nothing(case):
    table, n = case
    for longer in (np.concatenate([table, table]), np.repeat(table, 2)):
        expected = np.append(2 * profile_of(table), 0)
        np.testing.assert_array_equal(profile_of(longer), expected)
        ends = np.asarray(_influences(longer))[[0, n]]
        assert 0 in ends


@given(tables())
def test_counts_are_those_of_a_graph(case):
    table, n = case
    profile = profile_of(table).astype(int)
    assert profile.sum() == 2**n
    # Every sensitive edge has two ends.
    assert (profile * np.arange(n + 1)).sum() % 2 == 0


# The spectrum.


@pytest.mark.parametrize("n", range(1, 6))
def test_walsh_hadamard_is_the_matrix(n):
    matrix = [[(-1) ** (s & x).bit_count() for x in range(2**n)] for s in range(2**n)]
    batch = random_tables(n)
    coefficients = sensitivity.walsh_hadamard(batch)
    assert coefficients.dtype == jnp.int32
    expected = (1 - 2 * batch.astype(int)) @ np.array(matrix).T
    np.testing.assert_array_equal(np.asarray(coefficients), expected)


@given(tables())
def test_parseval_and_total_influence(case):
    table, n = case
    coefficients = np.asarray(sensitivity.walsh_hadamard(table)).astype(np.int64)
    assert (coefficients**2).sum() == 4**n
    weight = np.asarray(sensitivity.weight_by_degree(table), np.float64)
    degree = np.array([s.bit_count() for s in range(2**n)])
    expected = np.bincount(degree, weights=coefficients**2, minlength=n + 1) / 4**n
    np.testing.assert_allclose(weight, expected, atol=1e-6)
    average = float(sensitivity.average_sensitivity(js.sensitivity_profile(table)))
    total = float(np.asarray(sensitivity.influences(table), np.float64).sum())
    assert weight.sum() == pytest.approx(1, abs=1e-6)
    assert average == pytest.approx(total, abs=1e-6)
    assert average == pytest.approx((weight * np.arange(n + 1)).sum(), abs=1e-5)


@pytest.mark.parametrize("n", [1, 4, 7])
def test_characters_have_one_coefficient(n):
    for members in range(2**n):
        table = np.array([(members & x).bit_count() % 2 == 1 for x in range(2**n)])
        expected = np.zeros(2**n, int)
        expected[members] = 2**n
        np.testing.assert_array_equal(np.asarray(sensitivity.walsh_hadamard(table)), expected)


def test_average_of_a_large_profile_does_not_wrap():
    profile = np.zeros(31, np.int32)
    profile[30] = 2**30
    assert float(sensitivity.average_sensitivity(profile)) == 30.0
    assert int(sensitivity.maximum_sensitivity(profile)) == 30


def test_spectrum_in_float64():
    with jax.enable_x64(True):
        weight = sensitivity.weight_by_degree(random_tables(8))
        assert math.isclose(float(jnp.max(jnp.abs(jnp.sum(weight, axis=-1) - 1.0))), 0, abs_tol=0)


# Hashes.


def distinct(words):
    hashes = np.asarray(sensitivity.table_hash(words))
    assert hashes.dtype == np.uint32
    return len(np.unique(hashes, axis=0)), [len(np.unique(lane)) for lane in hashes.T]


def test_all_tables_of_four_bits_have_their_own_hash():
    words = np.arange(2**16, dtype=np.uint32)[:, None]
    both, (first, _) = distinct(jnp.asarray(words))
    assert both == first == 2**16


def test_random_tables_have_their_own_hash():
    words = np.random.default_rng(3).integers(0, 2**32, (10_000, 8), dtype=np.uint32)
    assert len(np.unique(words, axis=0)) == distinct(jnp.asarray(words))[0] == 10_000


def test_near_tables_have_their_own_hash():
    # One or two ones, and swapped words: what a plain sum would confuse.
    single = np.eye(256, dtype=bool)
    first, second = np.triu_indices(256, 1)
    words = strings.pack(np.concatenate([single, single[first] | single[second]]))
    assert distinct(words)[0] == len(words) == 256 * 257 // 2
    words = np.array([[1, 2, 3, 4], [2, 1, 3, 4], [4, 3, 2, 1], [3, 4, 1, 2]], np.uint32)
    assert distinct(jnp.asarray(words))[0] == 4


def test_hash_is_that_of_the_table_alone():
    words = strings.pack(random_tables(8))
    plain = np.asarray(sensitivity.table_hash(words))
    with jax.enable_x64(True):
        np.testing.assert_array_equal(np.asarray(jax.jit(sensitivity.table_hash)(words)), plain)
