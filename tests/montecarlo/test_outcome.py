"""From (seed, index) to integers: alike in every execution, and nothing decided by rounding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxsens
from jaxsens import inits
from jaxsens.montecarlo import evaluate, keys, outcome
from jaxsens.montecarlo.evaluate import DECIDED, UNDECIDED, UNRESOLVED

CFG = jaxsens.TransformerConfig(length=4, num_layers=1, d_model=4, num_heads=1, d_mlp=4)
LAW = inits.uniform(10.0)
MODELS = 37


def sampled(**kw):
    kw = {"models": MODELS, "seed": 3} | kw
    return jaxsens.sample(CFG, LAW, **kw).models


@functools.cache
def reference():
    return sampled(devices=1)


def assert_same_integers(a, b):
    for name in a._fields:
        if name != "smallest_logit":
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def table_of(params, bits):
    row = bits @ (2 ** jnp.arange(bits.shape[-1] - 1, -1, -1, dtype=jnp.int32))
    return params["table"][row]


def fixed_table(logits):
    """A model that is one given truth table of logits, whatever the key."""
    values = np.asarray(logits, np.float32)

    def init_fn(key):
        return {"table": jnp.asarray(values)}

    length = int(np.log2(len(values)))
    return jaxsens.from_pair(init_fn, table_of, length=length, name="fixed")


@pytest.mark.parametrize(
    ("batch", "chunk", "devices"),
    [(1, 1, 1), (7, 7, 1), (7, 32, 4), (32, 7, 2), (32, 32, 2), (MODELS, MODELS, 4), (1, 32, 4)],
)
def test_integers_do_not_depend_on_the_execution(batch, chunk, devices):
    got = sampled(batch=batch, chunk=chunk, devices=devices)
    assert_same_integers(got, reference())
    np.testing.assert_allclose(got.smallest_logit, reference().smallest_logit, rtol=1e-4)


def test_row_i_is_model_i(tmp_path):
    run = jaxsens.sample(CFG, LAW, models=MODELS, seed=3, out=tmp_path / "run").run
    index, rows = run.arrays()
    assert_same_integers(rows, reference())
    assert index.dtype == np.uint64
    for i in (0, 1, 17, MODELS - 1):
        params = jaxsens.regenerate(run, i)
        table = np.asarray(jaxsens.truth_table_logits(CFG, params)) > 0
        np.testing.assert_array_equal(rows.profile[i], jaxsens.sensitivity_profile(table))
        assert rows.ones[i] == table.sum()
        drawn = jaxsens.init_params(CFG, LAW, jaxsens.model_key(3, i))
        jax.tree.map(np.testing.assert_array_equal, params, drawn)
        assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))


def test_profiles_add_up_to_all_strings():
    rows = reference()
    np.testing.assert_array_equal(rows.profile.sum(axis=1), np.full(MODELS, 16))
    assert rows.profile.dtype == np.int32
    assert rows.fingerprint.dtype == np.uint64
    assert rows.status.dtype == np.uint8


def test_x64_changes_nothing():
    with jax.enable_x64(True):
        assert_same_integers(sampled(), reference())


def test_x64_regenerates_the_same_parameters(tmp_path):
    run = jaxsens.sample(CFG, LAW, models=2, seed=3, out=tmp_path / "run").run
    plain = jaxsens.regenerate(run, 1)
    with jax.enable_x64(True):
        wide = jaxsens.regenerate(run, 1)
    jax.tree.map(np.testing.assert_array_equal, plain, wide)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(wide))


def test_float64_agrees_on_decided_models():
    rows, wide = reference(), sampled(dtype="float64")
    decided = rows.status == DECIDED
    assert decided.sum() > MODELS // 2
    np.testing.assert_array_equal(rows.profile[decided], wide.profile[decided])
    np.testing.assert_array_equal(rows.fingerprint[decided], wide.fingerprint[decided])
    np.testing.assert_array_equal(rows.status, wide.status)


def test_every_model_undecided_gives_the_float64_integers():
    assert_same_integers(
        sampled(tolerance=0.99)._replace(status=None),
        sampled(dtype="float64")._replace(status=None),
    )


def test_float64_draw_is_another_run_but_as_independent_of_the_execution():
    law = LAW.drawn_in("float64")
    one = jaxsens.sample(CFG, law, models=9, batch=2, devices=1).models
    other = jaxsens.sample(CFG, law, models=9, devices=4).models
    assert_same_integers(one, other)


def test_another_seed_or_scale_does_not_compile_again():
    functions = (outcome._fused, outcome._draw_batch, outcome._evaluate_batch)
    kw = {"models": 16, "batch": 16, "devices": 2, "tolerance": 0.0}
    first = jaxsens.sample(CFG, inits.uniform(10.0), seed=0, **kw)
    before = [f._cache_size() for f in functions]
    second = jaxsens.sample(CFG, inits.uniform(2.5), seed=2**32 - 1, start=12345, **kw)
    # A config built anew is an equal one.
    cfg = jaxsens.TransformerConfig(length=4, num_layers=1, d_model=4, num_heads=1, d_mlp=4)
    jaxsens.sample(cfg, inits.uniform(1.0), seed=5, **kw)
    assert [f._cache_size() for f in functions] == before
    assert (first.models.fingerprint != second.models.fingerprint).any()


def test_memory_grows_with_a_batch_by_its_integers_only():
    # A run of any length is made of such calls, one after another.
    cfg = jaxsens.TransformerConfig(length=16, num_layers=1, d_model=16, num_heads=2, d_mlp=64)
    model = outcome.unnamed(jaxsens.transformer_model(cfg, LAW))
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("models",))

    def bytes_of(batch):
        index = jax.ShapeDtypeStruct((batch,), np.uint32)
        arguments = (model, np.uint32(0), np.float32(0), index, index)
        compiled = outcome._fused.lower(*arguments, width=1, mesh=mesh).compile()
        usage = compiled.memory_analysis()
        return usage.temp_size_in_bytes + usage.output_size_in_bytes

    small, large = bytes_of(32), bytes_of(256)
    words = 2 * 2**16 // 8  # the packed table and the packed close calls of a model
    assert large - small < 2.1 * (256 - 32) * words
    assert large < 2**28


@pytest.mark.parametrize(
    ("logits", "status", "ones"),
    [
        ([1.0, -1.0, 2.0, -2.0], DECIDED, 2),
        ([1e-5, -1.0, 2.0, -2.0], UNDECIDED, 2),
        ([-1e-5, -1.0, 2.0, -2.0], UNDECIDED, 1),
        ([0.0, -1.0, 2.0, -2.0], UNDECIDED, 1),
        ([-0.0, 1.0, 2.0, 3.0], UNDECIDED, 3),
        ([0.0, 0.0, 0.0, 0.0], UNDECIDED, 0),
        ([1e-14, -1.0, 2.0, -2.0], UNDECIDED, 2),
        ([np.nan, -1.0, 2.0, -2.0], UNRESOLVED, 1),
        ([np.inf, -1.0, 2.0, -2.0], UNRESOLVED, 2),
        ([-np.inf, -1.0, 2.0, -2.0], UNRESOLVED, 1),
        ([np.nan] * 4, UNRESOLVED, 0),
        ([1e30, -1e30, 1e30, 1e26], UNDECIDED, 3),
        ([1e-30, -1e-30, 1e-30, 1e-30], DECIDED, 3),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_close_calls(logits, status, ones, dtype):
    rows = jaxsens.sample(fixed_table(logits), models=3, dtype=dtype).models
    assert rows.status.tolist() == [status] * 3
    assert rows.ones.tolist() == [ones] * 3
    table = np.asarray(logits) > 0
    np.testing.assert_array_equal(rows.profile[0], jaxsens.sensitivity_profile(table))
    finite = np.all(np.isfinite(logits))
    expected = np.min(np.abs(logits)) if finite else 0.0
    np.testing.assert_allclose(rows.smallest_logit, np.full(3, expected), rtol=1e-6)


def _difference_init(key):
    one = jnp.ones(4, jnp.float32)
    return {"a": one, "b": one * jnp.asarray([1.0, 2.0, 0.5, 2.0], jnp.float32)}


def _difference(params, bits):
    row = bits @ jnp.asarray([2, 1], jnp.int32)
    return params["a"][row] - params["b"][row]


def _same_difference(params, bits):
    row = bits @ jnp.asarray([2, 1], jnp.int32)
    tie = params["a"][row] - params["a"][row]
    return jnp.where(row == 0, tie, _difference(params, bits))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("apply_fn", "status"), [(_difference, UNRESOLVED), (_same_difference, UNDECIDED)]
)
def test_a_tie_is_settled_only_if_rounding_cannot_move_it(apply_fn, status, dtype):
    model = jaxsens.from_pair(_difference_init, apply_fn, length=2, name="difference")
    rows = jaxsens.sample(model, models=2, dtype=dtype).models
    assert rows.status.tolist() == [status] * 2
    assert rows.ones.tolist() == [1] * 2
    assert rows.smallest_logit.tolist() == [0.0] * 2


def test_close_calls_are_counted():
    summary = jaxsens.sample(fixed_table([np.nan, -1.0, 2.0, -2.0]), models=5).summary
    assert (summary.models, summary.undecided, summary.unresolved) == (5, 5, 5)
    assert summary.estimates()["p_zero_sensitivity"].range == (0.0, 1.0)
    ties = jaxsens.sample(fixed_table([0.0] * 4), models=5).summary
    assert (ties.undecided, ties.unresolved, ties.constant) == (5, 0, 5)


def test_indices_cross_2_to_the_32():
    start = 2**32 - 3
    rows = jaxsens.sample(CFG, LAW, models=6, seed=3, start=start, batch=4).models
    seen = set()
    for row in range(6):
        params = jaxsens.init_params(CFG, LAW, jaxsens.model_key(3, start + row))
        table = np.asarray(jaxsens.truth_table_logits(CFG, params)) > 0
        np.testing.assert_array_equal(rows.profile[row], jaxsens.sensitivity_profile(table))
        seen.add(bytes(np.asarray(jax.random.key_data(jaxsens.model_key(3, start + row)))))
    assert len(seen) == 6
    # Index 2^32 is not index 0.
    zero = jax.random.key_data(jaxsens.model_key(3, 0))
    assert (np.asarray(zero) != np.asarray(jax.random.key_data(jaxsens.model_key(3, 2**32)))).any()


def test_the_last_indices():
    last = 2**63 - 1
    result = jaxsens.sample(CFG, LAW, models=3, start=last - 2)
    assert result.indices.tolist() == [last - 2, last - 1, last]
    params = jaxsens.init_params(CFG, LAW, jaxsens.model_key(0, last))
    table = np.asarray(jaxsens.truth_table_logits(CFG, params)) > 0
    assert result.models.ones[2] == table.sum()
    with pytest.raises(ValueError, match=r"^start \+ models - 1: 9223372036854775808 given"):
        jaxsens.sample(CFG, LAW, models=4, start=last - 2)


def test_the_key_is_two_fold_ins():
    index = (5 << 32) | 7
    expected = jax.random.fold_in(jax.random.fold_in(jax.random.key(11), 5), 7)
    got = jaxsens.model_key(11, index)
    np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(expected))
    high, low = keys.split_indices(np.array([2**32 - 1, 2**32], np.uint64))
    assert (high.tolist(), low.tolist()) == ([0, 1], [2**32 - 1, 0])


def exhausted_above(limit):
    calls = []

    def limited(model, seed, high, low, **kw):
        calls.append(len(high))
        if len(high) > limit:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte.")
        return outcome.outcomes(model, seed, high, low, **kw)

    return limited, calls


def test_out_of_memory_halves_the_batch(monkeypatch):
    limited, calls = exhausted_above(5)
    monkeypatch.setattr(evaluate, "outcomes", limited)
    got = sampled(batch=32, devices=1)
    assert max(calls) > 5
    assert min(calls) <= 5
    assert_same_integers(got, reference())


def test_out_of_memory_for_one_model_is_an_error(monkeypatch):
    limited, _ = exhausted_above(0)
    monkeypatch.setattr(evaluate, "outcomes", limited)
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        sampled(batch=8, devices=1)


def test_another_runtime_error_is_not_retried(monkeypatch):
    def broken(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")

    monkeypatch.setattr(evaluate, "outcomes", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        sampled(batch=8, devices=1)


def test_self_check_names_the_model(monkeypatch):
    row = int(np.flatnonzero(reference().status == DECIDED)[2])

    def broken(model, seed, high, low, *, dtype, **kw):
        result = outcome.outcomes(model, seed, high, low, dtype=dtype, **kw)
        if dtype == "float32":
            wrong = np.array(result.table)
            wrong[low == row, 0] ^= np.uint32(1)
            result = result._replace(table=wrong)
        return result

    monkeypatch.setattr(evaluate, "outcomes", broken)
    with pytest.raises(ValueError, match=rf"^self-check: model {row} of seed 3 .*\n?") as caught:
        sampled()
    assert "\n" not in str(caught.value)


def test_no_key_is_used_twice():
    with jax.debug_key_reuse(True):
        got = sampled(models=4)
    np.testing.assert_array_equal(got.fingerprint, reference().fingerprint[:4])


def test_other_generators_are_refused():
    with (
        jax.default_prng_impl("rbg"),
        pytest.raises(ValueError, match=r"^jax_default_prng_impl: 'rbg' is set; use threefry2x32$"),
    ):
        sampled(models=4)
    with (
        jax.threefry_partitionable(False),
        pytest.raises(ValueError, match=r"^jax_threefry_partitionable: False is set"),
    ):
        sampled(models=4)
