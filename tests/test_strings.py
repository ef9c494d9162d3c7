"""Bit order, rows and packed words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens import strings


@st.composite
def tables(draw, max_n=8):
    """A batch of truth tables."""
    n = draw(st.integers(1, max_n))
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).random((*batch, 2**n)) < draw(st.floats(0, 1))


@given(tables())
def test_unpack_inverts_pack(table):
    n = table.shape[-1].bit_length() - 1
    words = strings.pack(table)
    assert words.dtype == jnp.uint32
    assert words.shape == (*table.shape[:-1], strings.num_words(n))
    np.testing.assert_array_equal(np.asarray(strings.unpack(words, n)), table)


@given(st.integers(1, 10), st.data())
def test_pack_inverts_unpack(n, data):
    largest = 2 ** min(32, 2**n) - 1
    size = strings.num_words(n)
    words = data.draw(st.lists(st.integers(0, largest), min_size=size, max_size=size))
    packed = strings.pack(strings.unpack(np.array(words, np.uint32), n))
    assert np.asarray(packed).tolist() == words


@pytest.mark.parametrize("n", range(1, 9))
def test_row_r_is_bit_r_mod_32_of_word_r_div_32(n):
    words = np.asarray(strings.pack(np.eye(2**n, dtype=bool)))
    for row in range(2**n):
        expected = [0] * strings.num_words(n)
        expected[row // 32] = 1 << (row % 32)
        assert words[row].tolist() == expected


def test_pack_takes_zeros_and_ones_of_any_type():
    for kind in (bool, np.int32, np.uint8, np.float32):
        assert np.asarray(strings.pack(np.array([0, 1, 1, 0], kind))).tolist() == [6]


def test_number_of_words():
    assert [strings.num_words(n) for n in (1, 4, 5, 6, 10, 30)] == [1, 1, 1, 2, 32, 2**25]


@pytest.mark.parametrize("n", range(1, 11))
def test_row_r_spells_r(n):
    rows = strings.all_strings(n)
    assert rows.shape == (2**n, n)
    assert rows.dtype == np.int32
    assert ["".join(map(str, row)) for row in rows] == [f"{r:0{n}b}" for r in range(2**n)]


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.float64])
def test_dtype_of_strings(dtype):
    rows = strings.all_strings(3, dtype)
    assert rows.dtype == dtype
    np.testing.assert_array_equal(rows, strings.all_strings(3))


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_flipping_bit_i_moves_to_the_stated_row(n):
    rows = strings.all_strings(n)
    for r, i in np.ndindex(2**n, n):
        assert rows[r, i] == (r >> (n - 1 - i)) & 1
        flipped = rows[r].copy()
        flipped[i] ^= 1
        np.testing.assert_array_equal(flipped, rows[r ^ (1 << (n - 1 - i))])


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_strings_of_rows_are_rows_of_all_strings(n):
    rows = jnp.arange(2**n, dtype=jnp.int32)
    for function in (strings.strings_of_rows, jax.jit(strings.strings_of_rows, static_argnums=1)):
        spelled = function(rows, n)
        assert spelled.dtype == jnp.int32
        np.testing.assert_array_equal(np.asarray(spelled), strings.all_strings(n))


def test_strings_of_rows_of_any_shape():
    rows = np.random.default_rng(0).integers(0, 2**6, (3, 2, 4)).astype(np.int32)
    spelled = np.asarray(strings.strings_of_rows(rows, 6))
    np.testing.assert_array_equal(spelled, strings.all_strings(6)[rows])
    assert strings.strings_of_rows(jnp.int32(5), 3).tolist() == [1, 0, 1]


def test_the_last_string_of_the_longest_length():
    assert strings.strings_of_rows(jnp.int32(2**30 - 1), 30).tolist() == [1] * 30
    assert strings.strings_of_rows(jnp.int32(2**29), 30).tolist() == [1] + [0] * 29


@pytest.mark.parametrize("n", [0, -1, 31, True, False, 2.0, "3", None, np.int64(31)])
def test_a_bad_length_is_named_in_one_line(n):
    for function in (strings.check_length, strings.all_strings):
        with pytest.raises(ValueError) as caught:
            function(n)
        assert str(caught.value) == f"length: {n!r} given; it must be an integer from 1 to 30"


def test_a_good_length_is_a_python_int():
    assert [type(strings.check_length(n)) for n in (1, np.int64(30), np.uint8(7))] == [int] * 3


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 6), (4, 0)])
def test_a_table_that_is_no_power_of_two(shape):
    rows = shape[-1] if shape else 0
    for function in (
        lambda: strings.pack(np.zeros(shape, bool)),
        lambda: strings.length_of_table(shape),
    ):
        with pytest.raises(ValueError) as caught:
            function()
        expected = f"truth table: last axis has {rows} rows; it must have 2**n, n >= 1"
        assert str(caught.value) == expected


def test_length_of_a_table():
    assert [strings.length_of_table((5, 2**n)) for n in (1, 2, 30)] == [1, 2, 30]
    with pytest.raises(ValueError, match="^length: 31 given; "):
        strings.length_of_table((2**31,))
