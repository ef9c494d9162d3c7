"""The Chiang-Cholak transformers and the family that computes linear threshold functions only."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens as js
from jaxsens.transformer.constructions import chiang_cholak, exact_logits

NAMES = [(f, norm) for f in ("parity", "first") for norm in ("post", "none")]
# Half the time to compile, for the float64 checks of many shapes.
truth_table_logits = jax.jit(
    js.truth_table_logits,
    static_argnums=0,
    compiler_options={"xla_backend_optimization_level": 0},
)


@pytest.fixture(scope="module")
def golden():
    import pathlib

    path = pathlib.Path(__file__).parents[1] / "data" / "sensitivity.json"
    return json.loads(path.read_text())


@pytest.mark.parametrize(("function", "norm"), NAMES)
def test_arrays_are_the_published_ones(golden, function, norm):
    case = golden["chiang_cholak"][f"{function}_{norm}"]
    for n in (1, 2, 4, 8):
        cfg, arrays = chiang_cholak(function, n, norm)
        for field, value in case["config"].items():
            assert getattr(cfg, field) == value, field
        for name, value in case["arrays"].items():
            np.testing.assert_allclose(arrays[name], np.array(value), atol=1e-15, err_msg=name)
        expected = np.array(case["position_embedding"][str(n)])
        np.testing.assert_allclose(arrays["position_embedding"], expected, atol=1e-15)


@pytest.mark.parametrize(("function", "norm"), NAMES)
def test_logits_and_profiles(golden, function, norm):
    case = golden["chiang_cholak"][f"{function}_{norm}"]
    for n in (1, 2, 4, 8):
        cfg, arrays = chiang_cholak(function, n, norm)
        answer = js.boolean.truth_table(function, n)
        values = case["logits"][str(n)]
        expected = np.where(answer, values["class_1"], values["class_0"])
        assert exact_logits(function, n, norm) == pytest.approx(
            (values["class_0"], values["class_1"]), abs=1e-12
        )
        if n in (1, 8):
            low = js.params_from_arrays(cfg, {k: v.astype(np.float32) for k, v in arrays.items()})
            logits = np.asarray(js.truth_table_logits(cfg, low))
            np.testing.assert_allclose(logits, expected, atol=1e-5)
            assert np.array_equal(logits > 0, answer)
        with jax.enable_x64(True):
            params = js.params_from_arrays(cfg, arrays)
            logits = np.asarray(truth_table_logits(cfg, params))
        np.testing.assert_allclose(logits, expected, atol=1e-12)
        profile = np.asarray(js.sensitivity_profile(logits > 0)).tolist()
        assert profile == case["profile"][str(n)] == js.boolean.profile(function, n)
        assert profile[0] == 0


@pytest.mark.parametrize("length", [8, 16])
def test_margin_collapses_with_eps(golden, length):
    case = golden["parity_margins"]["lengths"][str(length)]
    cfg, arrays = chiang_cholak("parity", length, eps=1e-5)
    weights = [int(w) for w in case["logit_by_weight"]]
    strings = np.array([[1] * w + [0] * (length - w) for w in weights])
    with jax.enable_x64(True):
        logits = np.asarray(js.apply(cfg, js.params_from_arrays(cfg, arrays), strings))
    np.testing.assert_allclose(logits, list(case["logit_by_weight"].values()), rtol=1e-9)


@pytest.mark.parametrize(("function", "norm"), NAMES)
def test_every_sign_is_right_at_a_length_without_golden_values(function, norm):
    cfg, arrays = chiang_cholak(function, 11, norm)
    params = js.params_from_arrays(cfg, {k: v.astype(np.float32) for k, v in arrays.items()})
    table = np.asarray(js.truth_table_logits(cfg, params)) > 0
    assert np.array_equal(table, js.boolean.truth_table(function, 11))


@pytest.mark.parametrize(("function", "norm"), NAMES)
@pytest.mark.parametrize("n", [5, 6])
def test_logits_at_another_score(function, norm, n):
    cfg, arrays = chiang_cholak(function, n, norm, c=0.5)
    with jax.enable_x64(True):
        params = js.params_from_arrays(cfg, arrays)
        logits = np.asarray(truth_table_logits(cfg, params))
    low, high = exact_logits(function, n, norm, c=0.5)
    expected = np.where(js.boolean.truth_table(function, n), high, low)
    np.testing.assert_allclose(logits, expected, atol=1e-12)


def test_bad_arguments():
    with pytest.raises(ValueError, match="function: 'majority' given"):
        chiang_cholak("majority", 4)
    with pytest.raises(ValueError, match="norm: 'pre' given"):
        chiang_cholak("parity", 4, "pre")


def _threshold_tables(n: int) -> set[tuple[bool, ...]]:
    # Small integer weights suffice up to n = 3.
    strings = js.strings.all_strings(n)
    found = set()
    for weights in itertools.product(range(-3, 4), repeat=n):
        for doubled in range(-14, 15):
            found.add(tuple((2 * strings @ np.array(weights) > doubled).tolist()))
    return found


@pytest.mark.parametrize(("n", "count"), [(1, 4), (2, 14), (3, 104)])
def test_one_head_without_mlp_and_norm_computes_threshold_functions_only(n, count):
    thresholds = _threshold_tables(n)
    assert len(thresholds) == count
    cfg = js.TransformerConfig(length=n, num_layers=1, d_model=4, num_heads=1, d_mlp=0, norm="none")
    keys = jax.random.split(jax.random.key(0), 4000)
    law = js.inits.normal(2.0)
    tables = jax.jit(
        jax.vmap(lambda key: js.truth_table_logits(cfg, law(key, cfg)) > jnp.float32(0))
    )(keys)
    seen = {tuple(row) for row in np.asarray(tables).tolist()}
    assert seen <= thresholds
    assert len(seen) > 0.7 * count
    two_heads = js.TransformerConfig(
        length=n, num_layers=1, d_model=4, num_heads=2, d_mlp=8, norm="post"
    )
    if n == 2:
        tables = jax.jit(
            jax.vmap(lambda key: js.truth_table_logits(two_heads, law(key, two_heads)) > 0)
        )(jax.random.split(jax.random.key(1), 20_000))
        more = {tuple(row) for row in np.asarray(tables).tolist()}
        assert not more <= thresholds, "XOR is within reach of the larger model"
