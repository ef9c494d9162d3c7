"""sample, sample_iter, their arguments, and a published-style table of random transformers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import inits
from jaxsens.montecarlo import memory

CFG = jaxsens.TransformerConfig(length=3, num_layers=1, d_model=2, num_heads=1, d_mlp=2)
LAW = inits.uniform(10.0)


def _init(key):
    return {"table": jax.random.normal(key, (16,), jnp.float32)}


def _apply(params, bits):
    row = bits @ (2 ** jnp.arange(3, -1, -1, dtype=jnp.int32))
    return params["table"][row]


MODEL = jaxsens.from_pair(_init, _apply, length=4, name="normal table")
KNOBS = {"chunk": 16, "batch": 16}


def test_sample():
    states = []
    result = jaxsens.sample(MODEL, models=40, seed=7, on_progress=states.append, **KNOBS)
    assert result.run is None
    assert result.indices.tolist() == list(range(40))
    assert result.models.profile.shape == (40, 5)
    assert result.summary == jaxsens.Summary.of_models(result.models, 4)
    assert [s.done for s in states] == [0, 16, 32, 40]
    assert {(s.held, s.wanted) for s in states} == {(0, 40)}
    assert [s.summary.models for s in states] == [0, 16, 32, 40]
    assert states[-1].summary == result.summary


def test_sums_only():
    result = jaxsens.sample(MODEL, models=40, seed=7, keep="sums", **KNOBS)
    assert (result.models, result.indices) == (None, None)
    assert result.summary == jaxsens.sample(MODEL, models=40, seed=7, **KNOBS).summary


def test_start_shifts_the_indices():
    whole = jaxsens.sample(MODEL, models=40, **KNOBS)
    part = jaxsens.sample(MODEL, models=9, start=20, **KNOBS)
    assert part.indices.tolist() == list(range(20, 29))
    for name in part.models._fields:
        np.testing.assert_array_equal(
            getattr(part.models, name), getattr(whole.models, name)[20:29]
        )


def test_a_prefix_of_the_iteration_is_a_run():
    states = jaxsens.sample_iter(MODEL, models=1000, seed=7, **KNOBS)
    next(states)
    for progress in states:
        direct = jaxsens.sample(MODEL, models=progress.done, seed=7, **KNOBS)
        assert progress.summary == direct.summary
        if progress.done >= 48:
            break
    states.close()


def test_stopping_the_iteration_loses_nothing(tmp_path):
    states = jaxsens.sample_iter(MODEL, models=100, out=tmp_path / "run", **KNOBS)
    for progress in states:
        if progress.done == 32:
            break
    states.close()
    assert jaxsens.Run.open(tmp_path / "run").summary() == progress.summary
    result = jaxsens.sample(MODEL, models=100, out=tmp_path / "run", **KNOBS)
    assert result.summary == jaxsens.sample(MODEL, models=100, **KNOBS).summary
    assert result.run.path == tmp_path / "run"
    assert result.models is None


def test_a_list_of_counts(tmp_path):
    counts = [10, 25, 60]
    on_disk = list(jaxsens.sample(MODEL, models=counts, out=tmp_path / "run", **KNOBS))
    in_memory = list(jaxsens.sample(MODEL, models=counts, **KNOBS))
    for count, a, b in zip(counts, on_disk, in_memory, strict=True):
        direct = jaxsens.sample(MODEL, models=count, **KNOBS).summary
        assert a.summary == b.summary == direct
    assert jaxsens.Run.open(tmp_path / "run").ranges()[:2] == [(0, 10), (10, 16)]


def test_a_seed_gives_other_models():
    a = jaxsens.sample(MODEL, models=16, seed=0, **KNOBS).models.fingerprint
    b = jaxsens.sample(MODEL, models=16, seed=2**32 - 1, **KNOBS).models.fingerprint
    assert (a != b).any()


def test_a_numpy_integer_is_an_integer():
    a = jaxsens.sample(MODEL, models=np.int32(8), seed=np.uint32(3), start=np.int64(2), **KNOBS)
    b = jaxsens.sample(MODEL, models=8, seed=3, start=2, **KNOBS)
    assert a.summary == b.summary


@pytest.mark.parametrize(
    ("name", "kw"),
    [
        ("models", {"models": 0}),
        ("models", {"models": -1}),
        ("models", {"models": 1.5}),
        ("models", {"models": True}),
        ("models", {"models": None}),
        ("models", {"models": "12"}),
        ("models", {"models": [5, 0]}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": 2**32}),
        ("seed", {"seed": np.int64(2**32)}),
        ("seed", {"seed": 0.0}),
        ("seed", {"seed": True}),
        ("start", {"start": -1}),
        ("start", {"start": 2**63}),
        ("start + models - 1", {"start": 2**63 - 1, "models": 2}),
        ("start", {"start": 0.5}),
        ("tolerance", {"tolerance": float("nan")}),
        ("tolerance", {"tolerance": -1e-9}),
        ("tolerance", {"tolerance": 1.0}),
        ("tolerance", {"tolerance": "small"}),
        ("keep", {"keep": "everything"}),
        ("dtype", {"dtype": "bfloat16"}),
        ("chunk", {"chunk": 0}),
        ("chunk", {"chunk": 2.5}),
        ("batch", {"batch": -1}),
        ("batch", {"batch": True}),
        ("devices", {"devices": 0}),
        ("devices", {"devices": 10_000}),
        ("init", {"init": None}),
        ("init", {"model": MODEL}),
        ("model", {"model": "transformer"}),
    ],
)
@pytest.mark.parametrize("function", [jaxsens.sample, jaxsens.sample_iter])
def test_bad_arguments_are_named_at_the_call(function, name, kw, tmp_path):
    kw = {"model": CFG, "init": LAW, "models": 4, "out": tmp_path / "run"} | kw
    with pytest.raises(ValueError, match=f"^{re.escape(name)}: ") as caught:
        function(kw.pop("model"), kw.pop("init"), **kw)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_table_beyond_memory_is_refused_at_the_call(monkeypatch):
    cfg = jaxsens.TransformerConfig(length=24, num_layers=1, d_model=2, num_heads=1, d_mlp=2)
    monkeypatch.setattr(memory, "bytes_available", lambda: 2**28)
    with pytest.raises(ValueError, match=r"^length: 24 given; .* up to 23 would fit$"):
        jaxsens.sample(cfg, LAW, models=1)
    monkeypatch.setattr(memory, "bytes_available", lambda: None)
    memory.check_fits(jaxsens.transformer_model(cfg, LAW))


def within(p, reference, n, variance=None):
    """The estimate lies within five combined standard errors of a reference from n models."""
    variance = reference * (1 - reference) if variance is None else variance
    error = 5 * np.sqrt(variance * (1 / p.of + 1 / n))
    assert abs(p.estimate - reference) < error, (p, reference, error)


# Computed by two other programs (float64 and float32), not from a paper.
@pytest.mark.stat
@pytest.mark.parametrize(
    ("length", "models", "reference_models", "mean", "zero", "constant"),
    [(5, 3000, 40_000, 0.1040, 0.9740, 0.444), (7, 800, 10_000, 0.0734, 0.9872, 0.410)],
)
def test_uniform_transformers(length, models, reference_models, mean, zero, constant):
    cfg = jaxsens.TransformerConfig(
        length=length, num_layers=2, d_model=16, num_heads=2, d_mlp=32, norm="pre", eps=1e-12
    )
    law = (
        inits.uniform(10.0)
        .with_group("norm_gain", inits.ones())
        .with_group("norm_bias", inits.zeros())
        .with_group("biases", inits.zeros())
        .scaled("embedding", 4.0)
    )
    summary = jaxsens.sample(cfg, law, models=models, seed=20).summary
    p = summary.estimates()
    assert summary.unresolved == 0
    within(p["p_zero_sensitivity"], zero, reference_models)
    within(p["p_constant"], constant, reference_models)
    scale = length * 2**length
    first = summary.total_sensitivity / models / scale
    variance = summary.total_squared_sensitivity / models / scale**2 - first**2
    error = 5 * np.sqrt(variance * (1 / models + 1 / reference_models))
    assert abs(p["mean_sensitivity_over_n"].estimate - mean) < error
    assert summary.census["parity"] == (0, 0)


def test_overflowing_models_are_no_fault_of_the_device():
    # Logits near 1e60: float32 overflows, float64 does not, and the self-check must not refuse.
    summary = jaxsens.sample(CFG, jaxsens.inits.uniform(1e15), models=40, keep="sums").summary
    assert summary.models == 40


def test_numpy_integers_are_integers():
    cfg = jaxsens.TransformerConfig(np.int64(3), 1, np.int64(2), 1, 2)
    plain = jaxsens.TransformerConfig(3, 1, 2, 1, 2)
    a, b = (jaxsens.sample(c, LAW, models=np.int64(5), keep="sums").summary for c in (cfg, plain))
    assert a == b


@pytest.mark.parametrize("init", ["uniform", 3.0])
def test_an_init_that_is_no_law_is_named(init):
    with pytest.raises(ValueError, match="^init: "):
        jaxsens.sample(CFG, init, models=2)


@pytest.mark.parametrize(
    ("apply", "words"),
    [
        (lambda w, bits: bits.astype(w.dtype), r"apply_fn: 2 strings give \(2, 3\)"),
        (lambda w, bits: bits[:, 0] > 0, "apply_fn: bool logits"),
        (3, "apply_fn: 3 given"),
    ],
)
def test_an_apply_of_the_wrong_shape_is_refused(apply, words):
    with pytest.raises(ValueError, match=words):
        jaxsens.from_pair(lambda key: jax.random.normal(key, (3,)), apply, length=3, name="x")
