"""The search for a zero-sensitivity string, held against a second reading of what it does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

import jaxsens
from jaxsens.montecarlo import keys, witness

GROWTH = 1 + 2.0**-10
SCREEN = 1e-3


def row_of(bits):
    return int("".join(str(int(b)) for b in bits), 2)


def _table_of_law(law, key):
    return {"table": law}


@functools.cache
def _any_table(n):
    def apply_fn(params, bits):
        return params["table"][bits @ (2 ** jnp.arange(n - 1, -1, -1, dtype=jnp.int32))]

    def init_fn(key):
        return {"table": jnp.zeros(2**n, jnp.float32)}

    return jaxsens.from_pair(init_fn, apply_fn, length=n, name="table")


def table_model(logits):
    """A model that is one given table of logits, whatever the key; compiled once a length."""
    values = np.asarray(logits, np.float32)
    return _any_table(int(np.log2(len(values)))).replace(law=values, init_fn=_table_of_law)


def random_string(seed, index, number, n):
    """The documented random string of one probe."""
    key = jax.random.fold_in(jaxsens.model_key(seed, index), witness.STREAM)
    words = jax.random.bits(jax.random.fold_in(key, number), (-(-n // 32),), jnp.uint32)
    return [(int(words[i // 32]) >> (i % 32)) & 1 for i in range(n)]


def searched(model, indices, *, first=0, count, state=None, devices=1, width=1, seed=5):
    index = np.asarray(indices, np.uint64)
    state = witness.start_search(len(index), model.length) if state is None else state
    mesh = Mesh(np.asarray(jax.devices()[:devices]), ("models",))
    high, low = keys.split_indices(index)
    return witness.search(
        model, seed, high, low, state, first=first, count=count, screen=SCREEN, width=width,
        mesh=mesh,
    )  # fmt: skip


def by_hand(table, index, count, seed=5):
    """(probes, witness bits or None, doubtful bits or None), one string after the other."""
    n = int(np.log2(len(table)))
    x, largest, doubtful, margin = None, 0.0, None, -1.0
    for number in range(count):
        if x is None:
            x = random_string(seed, index, number, n)
        around = [x] + [[b ^ (i == j) for j, b in enumerate(x)] for i in range(n)]
        logits = np.array([table[row_of(s)] for s in around], np.float32)
        size = np.where(np.isfinite(logits), np.abs(logits), 0)
        largest = max(largest, size.max())
        same = (logits > 0) == (logits[0] > 0)
        if same.all() and size.min() > SCREEN * largest:
            return number + 1, x, doubtful
        if same.all() and size.min() > margin:
            doubtful, margin = x, size.min()
        best = int(np.argmax(np.where(same[1:], size[1:], 0)))
        climbs = same[1 + best] and size[1 + best] > GROWTH * size[0]
        x = around[1 + best] if climbs and np.isfinite(logits[0]) else None
    return count, None, doubtful


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.sampled_from([1.0, -1.0, 2.0, -3.0, 1e-4, -1e-4, 0.0, np.inf, np.nan]),
            min_size=2**n,
            max_size=2**n,
        )
    ),
    st.integers(0, 2**63 - 1),
)
def test_the_search_is_as_written(table, index):
    n, count = int(np.log2(len(table))), 6
    got = searched(table_model(table), [index], count=count)
    probes, string, doubtful = by_hand(table, index, count)
    assert bool(got.found[0]) == (string is not None)
    assert got.probes[0] == probes
    if string is not None:
        assert witness.unpack_strings(got.witness[0], n).tolist() == string
    else:
        assert (got.witness == 0).all()
    assert (got.margin[0] >= 0) == (doubtful is not None)
    if doubtful is not None:
        assert witness.unpack_strings(got.doubtful[0], n).tolist() == doubtful


PARITY = [1.0 if bin(r).count("1") % 2 else -1.0 for r in range(32)]


def test_rounds_go_on_where_the_last_one_stopped():
    rng = np.random.default_rng(0)
    model = table_model(np.array(PARITY) * rng.uniform(1, 9, 32))
    once = searched(model, [3, 4], count=7)
    state = witness.start_search(2, 5)
    for first, count in ((0, 1), (1, 1), (2, 2), (4, 3)):
        state = searched(model, [3, 4], first=first, count=count, state=state)
    for a, b in zip(state, once, strict=True):
        np.testing.assert_array_equal(a, b)
    assert once.probes.tolist() == [7, 7]
    assert not once.found.any()


def test_what_has_found_is_left_alone():
    model = table_model([1.0] * 8)
    first = searched(model, [0, 1, 2], count=1)
    again = searched(model, [0, 1, 2], first=1, count=5, state=first)
    assert first.found.all()
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("devices", "width"), [(1, 4), (2, 2), (4, 1), (4, 3)])
def test_devices_and_width_change_nothing_in_a_table(devices, width):
    rng = np.random.default_rng(1)
    model = table_model(rng.normal(size=64))
    index = np.arange(24)
    for a, b in zip(
        searched(model, index, count=4, devices=devices, width=width),
        searched(model, index, count=4),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 70])
def test_strings_of_any_length(n):
    seen = []

    def apply_fn(params, bits):
        seen.append(bits.shape)
        # Linear in the bits: the value of a string tells all of it, up to its length.
        return params["w"] @ bits.T.astype(params["w"].dtype)

    model = jaxsens.from_pair(
        lambda key: {"w": jnp.ones(min(n, 30), jnp.float32)}, apply_fn, length=min(n, 30), name="s"
    )
    model = model.replace(length=n, init_fn=lambda law, key: {"w": jnp.ones(n, jnp.float32)})
    got = searched(model, [7], count=1)
    drawn = random_string(5, 7, 0, n)
    assert got.largest[0] == min(n, sum(drawn) + 1)
    assert got.centre.shape == (1, -(-n // 32))
    assert seen[-1] == (n + 1, n)


def test_long_probes_are_cut_into_tiles(monkeypatch):
    rng = np.random.default_rng(2)
    model = table_model(rng.normal(size=128))
    whole = searched(model, [1, 2, 3], count=3)
    for budget in (1, 2048, 3072):
        monkeypatch.setattr(witness, "_TILE_BUDGET", budget)
        jax.clear_caches()
        tiled = searched(model, [1, 2, 3], count=3)
        for a, b in zip(whole, tiled, strict=True):
            np.testing.assert_array_equal(a, b)
    jax.clear_caches()


def held(model, index, bits, devices=1):
    mesh = Mesh(np.asarray(jax.devices()[:devices]), ("models",))
    high, low = keys.split_indices(np.asarray(index, np.uint64))
    words = np.array([[sum(int(b) << i for i, b in enumerate(s))] for s in bits], np.uint32)
    idle = np.zeros(len(index), bool)
    return witness.hold(model, 0, high, low, words, idle, mesh=mesh).tolist()


@pytest.mark.parametrize(
    ("logits", "holds"),
    [
        ([1.0, 1.0, 1.0, -1.0], True),  # around 00
        ([0.0, 0.0, 0.0, 1.0], True),  # a tie is class 0, and stays one
        ([0.0, -1.0, -1.0, 1.0], True),
        ([0.0, 1.0, 1.0, 1.0], False),
        ([1e-30, 1e-30, 1e-30, 1.0], True),
        ([1.0, -1.0, 1.0, 1.0], False),
        ([1.0, np.inf, 1.0, 1.0], False),
        ([-1.0, np.nan, -1.0, -1.0], False),
    ],
)
def test_what_holds_in_float64(logits, holds):
    assert held(table_model(logits), [0, 9], [[0, 0], [0, 0]]) == [holds] * 2


def test_a_tie_that_rounding_moves_does_not_hold():
    def apply_fn(params, bits):
        return params["a"] - params["b"] + 0 * bits.sum(axis=1).astype(params["a"].dtype)

    def init_fn(key):
        return {"a": jnp.float32(1.0), "b": jnp.float32(1.0)}

    model = jaxsens.from_pair(init_fn, apply_fn, length=2, name="difference")
    assert held(model, [0], [[1, 1]]) == [False]


def test_padding_is_not_evaluated():
    model = table_model([1.0] * 4)
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("models",))
    part = np.zeros(4, np.uint32)
    idle = np.array([False, True, False, True])
    got = witness.hold(model, 0, part, part, np.zeros((4, 1), np.uint32), idle, mesh=mesh)
    assert got.tolist() == [True, False, True, False]


def test_unpacking():
    words = np.array([[0b1011, 1], [1 << 31, 2]], np.uint32)
    bits = witness.unpack_strings(words, 34)
    assert bits.dtype == np.int32
    assert [np.flatnonzero(b).tolist() for b in bits] == [[0, 1, 3, 32], [31, 33]]
