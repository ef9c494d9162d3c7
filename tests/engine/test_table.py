"""The engine against the plain pass, over everything that a config can ask for."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpy_pass
import pytest

import jaxsens as js
from jaxsens import engine, inits, strings
from jaxsens.engine import some_strings
from jaxsens.transformer.forward import plain_truth_table_logits

SCALES = (1.0, 3.0, 6.0, 10.0, 20.0)
BASE = {"d_model": 8, "num_heads": 2, "d_mlp": 8}

# Every value of every field, and every pair of norm, depth and mask, at least once.
GRID = [
    {"length": 1, "num_layers": 1, "norm": "post"},
    {"length": 1, "num_layers": 2, "norm": "pre", "causal": True, "activation": "tanh"},
    {"length": 2, "num_layers": 3, "norm": "once", "causal": True, "num_heads": 1},
    {"length": 2, "num_layers": 2, "norm": "post", "num_heads": 4, "head_dim": 3},
    {"length": 3, "num_layers": 1, "norm": "pre", "activation": "gelu", "positions": "sinusoidal"},
    {"length": 4, "num_layers": 1, "norm": "once", "causal": True, "activation": "gelu_tanh"},
    {"length": 4, "num_layers": 3, "norm": "none", "activation": "prelu"},
    {"length": 5, "num_layers": 2, "norm": "post", "eps": 1e-5},
    {"length": 5, "num_layers": 2, "norm": "post", "causal": True, "eps": 1e-5},
    {"length": 5, "num_layers": 2, "norm": "pre", "d_mlp": 0},
    {"length": 5, "num_layers": 2, "norm": "once", "d_mlp": 0, "causal": True},
    {"length": 5, "num_layers": 1, "norm": "none", "d_mlp": 0, "num_heads": 1},
    {"length": 6, "num_layers": 3, "norm": "post", "activation": "gelu", "eps": 0.1},
    {"length": 6, "num_layers": 3, "norm": "pre", "causal": True, "activation": "prelu"},
    {"length": 6, "num_layers": 2, "norm": "none", "causal": True, "positions": "sinusoidal"},
    {"length": 6, "num_layers": 2, "norm": "once", "activation": "tanh", "attention_bias": False},
    {"length": 6, "num_layers": 2, "norm": "post", "norm_affine": False, "mlp_bias": False},
    {"length": 6, "num_layers": 3, "norm": "pre", "readout_bias": False, "head_dim": 5},
    {"length": 5, "num_layers": 2, "norm": "post", "positions": "none"},
    {"length": 5, "num_layers": 2, "norm": "post", "positions": "none", "causal": True},
    {"length": 7, "num_layers": 2, "norm": "post"},
    {"length": 7, "num_layers": 2, "norm": "post", "causal": True},
]


def config(**fields) -> js.TransformerConfig:
    return js.TransformerConfig(**(BASE | fields))


@functools.cache
def draws(cfg: js.TransformerConfig):
    """Two models of every scale, stacked, in float32."""

    def draw(scale: jax.Array, key: jax.Array):
        return inits.normal(scale)(key, cfg)

    keys = jax.vmap(jax.random.key)(jnp.arange(2 * len(SCALES)))
    return jax.jit(jax.vmap(draw))(jnp.repeat(jnp.asarray(SCALES, jnp.float32), 2), keys)


def in_numpy(cfg: js.TransformerConfig, dtype: str) -> np.ndarray:
    stacked = {n: np.asarray(a, dtype) for n, a in js.params_to_arrays(draws(cfg)).items()}
    bits = strings.all_strings(cfg.length)
    return np.stack(
        [
            numpy_pass.logits(cfg, {n: a[i] for n, a in stacked.items()}, bits)
            for i in range(2 * len(SCALES))
        ]
    )


def evaluated(function, params):
    return jax.device_get(jax.jit(lambda p: jax.lax.map(function, p))(params))


@pytest.mark.parametrize("fields", GRID, ids=lambda f: "-".join(str(v) for v in f.values()))
def test_the_engine_is_the_plain_pass(fields):
    cfg = config(**fields)
    exact = in_numpy(cfg, "float64")
    size = np.abs(exact).max(axis=1, keepdims=True)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: x.astype("float64"), draws(cfg))
        # Several tiles, where the table is large enough.
        logits, trusted = evaluated(lambda p: engine.trusted_table(cfg, p, tile_bits=3), params)
    assert trusted.all()
    np.testing.assert_allclose(logits / size, exact / size, atol=1e-10)
    logits, trusted = evaluated(functools.partial(engine.trusted_table, cfg), draws(cfg))
    # Scores in the thousands leave float32 few digits: at wide scales every float32 pass is off by
    # as much, so the plain one is the yardstick there.
    error = np.abs(logits - exact) / size
    with np.errstate(over="ignore", invalid="ignore"):
        plain = in_numpy(cfg, "float32")
    # Three layers without a norm overflow float32 at scale 20.
    finite = np.isfinite(plain).all(axis=1)
    yardstick = np.abs(plain - exact).max(axis=1, keepdims=True) / size
    assert (trusted | ~finite).all()
    assert (error <= 1e-4 + 8 * yardstick)[finite].all()
    narrow = np.repeat(np.asarray(SCALES), 2) == 1
    assert error[narrow].max() <= 1e-4
    clear = np.abs(exact) > 8 * (1e-5 + yardstick) * size
    clear &= finite[:, None]
    np.testing.assert_array_equal((logits > 0)[clear], (exact > 0)[clear])


@pytest.mark.parametrize("fields", [f for f in GRID if f["num_layers"] < 3 and f["length"] > 2])
def test_some_strings_are_rows_of_the_table(fields):
    cfg = config(**fields)
    exact = in_numpy(cfg, "float64")
    size = np.abs(exact).max(axis=1, keepdims=True)
    rows = np.random.default_rng(0).integers(0, 2**cfg.length, 7)
    bits = strings.all_strings(cfg.length)[rows]
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: x.astype("float64"), draws(cfg))
        logits = evaluated(
            lambda p: some_strings.trusted_logits(cfg, p, jnp.asarray(bits))[0], params
        )
    np.testing.assert_allclose(logits / size, exact[:, rows] / size, atol=1e-10)


def jitted(cfg: js.TransformerConfig):
    return jax.jit(functools.partial(engine.trusted_table, cfg))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [1e-25, 1e18])
def test_spreads_that_cannot_be_squared_are_not_trusted(causal, scale):
    cfg = config(length=4, num_layers=2, causal=causal)
    params = inits.uniform(1.0).scaled("embedding", scale).scaled("positions", scale)
    # Without biases a layer norm at eps = 0 undoes the scale.
    params = params.with_group("biases", inits.zeros()).scaled("attention", scale**0.5)
    params = params(jax.random.key(0), cfg)
    _, trusted = jitted(cfg)(params)
    assert not trusted
    expected = jax.jit(functools.partial(plain_truth_table_logits, cfg))(params)
    np.testing.assert_array_equal(js.truth_table_logits(cfg, params), expected)


@pytest.mark.parametrize("norm", ["post", "pre", "once"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_constant_rows_are_not_trusted(norm, num_layers):
    cfg = config(length=4, num_layers=num_layers, norm=norm)
    params = inits.normal(1.0)(jax.random.key(3), cfg)
    arrays = {name: np.array(a) for name, a in js.params_to_arrays(params).items()}
    for name, array in arrays.items():
        # Whatever is written to the stream is the same in every channel, up to rounding.
        if name.split(".")[-1] in ("token_embedding", "position_embedding", "wo", "w_out"):
            array[...] = array[..., :1]
        if name.split(".")[-1] in ("bo", "b_out"):
            array[...] = array[:1]
    params = js.params_from_arrays(cfg, arrays)
    _, trusted = jitted(cfg)(params)
    assert not trusted
    plain = jax.jit(functools.partial(plain_truth_table_logits, cfg))(params)
    np.testing.assert_array_equal(js.truth_table_logits(cfg, params), plain)


def test_scores_of_any_width_are_exact():
    """Scores of 1e7 and 1e-7 in one model: hard attention beside uniform attention."""
    for causal in (False, True):
        cfg = config(length=6, num_layers=3, causal=causal)
        with jax.enable_x64(True):
            params = inits.normal(1.0)(jax.random.key(5), cfg)
            params = jax.tree.map(lambda x: x.astype("float64"), params)
            factor = jnp.asarray([1e5, 1e-5])[None, :, None]
            layers = tuple(p.replace(wq=p.wq * factor, bq=p.bq * factor[0]) for p in params.layers)
            params = params.replace(layers=layers)
            logits, trusted = jitted(cfg)(params)
            exact = jax.jit(functools.partial(plain_truth_table_logits, cfg))(params)
            size = jnp.max(jnp.abs(exact))
            assert trusted
            np.testing.assert_allclose(logits / size, exact / size, atol=1e-9)


def test_a_batch_of_models_is_each_of_them():
    cfg = config(length=5, num_layers=2)
    params = draws(cfg)
    one_by_one = jax.jit(lambda p: jax.lax.map(lambda q: engine.trusted_table(cfg, q)[0], p))
    together = jax.jit(jax.vmap(lambda q: engine.trusted_table(cfg, q)[0]))
    a, b = np.asarray(one_by_one(params)), np.asarray(together(params))
    size = np.abs(a).max(axis=1, keepdims=True)
    np.testing.assert_allclose(a[:4] / size[:4], b[:4] / size[:4], atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "tabulated first layer"),
        ({"causal": True}, "prefix tree"),
        ({"causal": True, "num_layers": 1}, "tabulated first layer"),
        ({"positions": "none"}, "weight of the string"),
        ({"positions": "none", "causal": True}, "prefix tree"),
    ],
)
def test_each_structure_is_recognised(fields, name):
    assert engine.path_name(config(**({"length": 4, "num_layers": 2} | fields))) == name


def captured_bytes(function, *args) -> int:
    return sum(c.nbytes for c in jax.make_jaxpr(function)(*args).consts if hasattr(c, "nbytes"))


@pytest.mark.parametrize("causal", [False, True])
def test_nothing_large_is_captured(causal):
    cfg = config(length=16, num_layers=2, causal=causal)
    params = inits.normal(1.0)(jax.random.key(0), cfg)
    assert captured_bytes(functools.partial(engine.trusted_table, cfg), params) < 2**20
    text = jax.jit(functools.partial(engine.trusted_table, cfg)).lower(params).as_text()
    assert len(text) < 2**20
    # Compilers are slow, or worse, with arrays of many axes.
    shapes = re.findall(r"tensor<((?:\d+x)*)", text)
    assert max(shape.count("x") for shape in shapes) <= 4


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"length": 20, "num_layers": 1}, 2**31),
        ({"length": 16, "num_layers": 2}, 2**27),
        ({"length": 16, "num_layers": 2, "causal": True}, 2**28),
    ],
)
def test_memory_of_one_table(fields, limit):
    cfg = js.TransformerConfig(**({"d_model": 16, "num_heads": 2, "d_mlp": 64} | fields))
    params = jax.eval_shape(lambda: inits.normal(1.0)(jax.random.key(0), cfg))
    usage = jitted(cfg).lower(params).compile().memory_analysis()
    assert usage.temp_size_in_bytes + usage.output_size_in_bytes < limit


def test_lengths_without_a_table_are_refused():
    with pytest.raises(ValueError, match=r"^length: 31 given"):
        engine.trusted_table(js.TransformerConfig(31, 1, 8, 2, 8), None)


def test_rows_are_in_binary_order():
    cfg = config(length=9, num_layers=2, causal=True)
    params = inits.normal(1.0)(jax.random.key(2), cfg)
    logits, _ = jitted(cfg)(params)
    rows = np.array([0, 1, 2, 255, 256, 510, 511])
    some = js.apply(cfg, params, strings.all_strings(9)[rows])
    np.testing.assert_allclose(logits[rows], some, atol=1e-4)
