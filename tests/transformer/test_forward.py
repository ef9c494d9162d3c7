"""The plain forward pass against stored logits, a NumPy oracle and its own symmetries."""

import dataclasses
import json
import math
from pathlib import Path

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens as js
from jaxsens import inits, strings
from jaxsens.transformer.forward import floats_per_string, rows_per_tile

GOLDEN = Path(__file__).parents[1] / "data" / "transformer"
CASES = json.loads((GOLDEN / "index.json").read_text())
CFG = js.TransformerConfig(length=4, num_layers=2, d_model=4, num_heads=2, d_mlp=6)
# Compiled once for each config: a bare call of truth_table_logits compiles every time.
apply = jax.jit(js.apply, static_argnums=0)
truth_table_logits = jax.jit(js.truth_table_logits, static_argnums=0)


def draw(cfg, seed=0, sigma=1.0):
    return inits.normal(sigma)(jax.random.key(seed), cfg)


def arrays_of(params, dtype=None):
    return {n: np.asarray(a, dtype) for n, a in js.params_to_arrays(params).items()}


def table_of(cfg, params):
    return np.asarray(truth_table_logits(cfg, params)) > 0


# Stored cases.


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-10)], ids=["float32", "float64"]
)
@pytest.mark.parametrize("name", CASES)
def test_stored_logits_and_profiles(name, dtype, tolerance):
    case = CASES[name]
    cfg = js.TransformerConfig(length=case["length"], **case["config"])
    with np.load(GOLDEN / f"{name}.npz") as file:
        given = {k: file[k] for k in file}
    expected, profile = given.pop("expected_logits"), given.pop("expected_profile")
    with jax.enable_x64(dtype == "float64"):
        params = js.params_from_arrays(cfg, {k: a.astype(dtype) for k, a in given.items()})
        bits = strings.all_strings(cfg.length)
        for logits in (apply(cfg, params, bits), truth_table_logits(cfg, params)):
            assert logits.dtype == dtype
            logits = np.asarray(logits)
            np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance)
            np.testing.assert_array_equal(np.asarray(js.sensitivity_profile(logits > 0)), profile)
    assert profile.tolist() == case["profile"]


# An oracle that shares no code with the package: one string, one number at a time.


def oracle_norm(v, eps, arrays, prefix):
    mean = sum(v) / len(v)
    variance = sum((x - mean) ** 2 for x in v) / len(v)
    scale = arrays.get(f"{prefix}.scale", np.ones(len(v)))
    bias = arrays.get(f"{prefix}.bias", np.zeros(len(v)))
    root = math.sqrt(variance + eps)
    normed = [(x - mean) / root if root > 0 else 0.0 for x in v]
    return np.array([z * s + b for z, s, b in zip(normed, scale, bias, strict=True)])


def oracle_activation(x, kind, slope):
    if kind == "relu":
        return max(x, 0.0)
    if kind == "tanh":
        return math.tanh(x)
    if kind == "prelu":
        return x if x > 0 else slope * x
    if kind == "gelu":
        return x * (1 + math.erf(x / math.sqrt(2))) / 2
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def oracle_position(cfg, arrays, t):
    if cfg.positions == "learned":
        return arrays["position_embedding"][t]
    if cfg.positions == "none":
        return np.zeros(cfg.d_model)
    angles = [t / 10000 ** (2 * (c // 2) / cfg.d_model) for c in range(cfg.d_model)]
    return np.array([math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(angles)])


def oracle_attention(cfg, arrays, layer, h):
    def get(name, shape=()):
        return arrays.get(f"layer{layer}.{name}", np.zeros(shape))

    heads, width = cfg.num_heads, cfg.key_dim
    out = []
    for t in range(len(h)):
        total = np.array(get("bo", cfg.d_model))
        for head in range(heads):

            def project(name, vector, head=head):
                bias = get(f"b{name}", (heads, width))[head]
                return vector @ get(f"w{name}")[:, head, :] + bias

            q = project("q", h[t])
            seen = range(t + 1) if cfg.causal else range(len(h))
            scores = [float(q @ project("k", h[u])) / math.sqrt(width) for u in seen]
            exps = [math.exp(s - max(scores)) for s in scores]
            pooled = sum(
                e / sum(exps) * project("v", h[u]) for e, u in zip(exps, seen, strict=True)
            )
            total = total + pooled @ get("wo")[head]
        out.append(total)
    return out


def oracle_mlp(cfg, arrays, layer, h):
    def get(name, default):
        return arrays.get(f"layer{layer}.{name}", default)

    slope = get("slope", np.zeros(cfg.d_mlp))
    out = []
    for v in h:
        hidden = v @ get("w_in", None) + get("b_in", 0.0)
        hidden = [
            oracle_activation(float(x), cfg.activation, s)
            for x, s in zip(hidden, slope, strict=True)
        ]
        out.append(np.array(hidden) @ get("w_out", None) + get("b_out", 0.0))
    return out


def oracle(cfg, arrays, bits):
    """Logit of one string."""

    def norm(h, prefix):
        return [oracle_norm(v, cfg.eps, arrays, prefix) for v in h]

    def add(a, b):
        return [x + y for x, y in zip(a, b, strict=True)]

    tokens = [*bits, 2]
    h = [
        arrays["token_embedding"][token] + oracle_position(cfg, arrays, t)
        for t, token in enumerate(tokens)
    ]
    for layer in range(cfg.num_layers):
        norm1, norm2 = f"layer{layer}.norm1", f"layer{layer}.norm2"
        read = norm(h, norm1) if cfg.norm == "pre" else h
        h = add(h, oracle_attention(cfg, arrays, layer, read))
        if cfg.norm == "post":
            h = norm(h, norm1)
        if cfg.d_mlp:
            read = norm(h, norm2) if cfg.norm == "pre" else h
            h = add(h, oracle_mlp(cfg, arrays, layer, read))
            if cfg.norm == "post":
                h = norm(h, norm2)
        if cfg.norm == "once":
            h = norm(h, norm1)
    last = norm(h[-1:], "final_norm")[0] if cfg.norm == "pre" else h[-1]
    return float(last @ arrays["readout.w"] + arrays.get("readout.b", 0.0))


def compare_with_oracle(cfg):
    params = draw(cfg)
    rows = strings.all_strings(cfg.length)
    arrays = arrays_of(params, np.float64)
    expected = [oracle(cfg, arrays, [int(b) for b in row]) for row in rows]
    with jax.enable_x64(True):
        double = js.params_from_arrays(cfg, arrays)
        logits = np.asarray(js.apply(cfg, double, rows))
    np.testing.assert_allclose(logits, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("activation", ["relu", "gelu_tanh", "gelu", "tanh", "prelu"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("norm", ["post", "pre", "once", "none"])
def test_agrees_with_oracle(norm, causal, activation, positions):
    compare_with_oracle(
        js.TransformerConfig(
            2, 2, 4, 2, 3, norm=norm, causal=causal, activation=activation, positions=positions
        )
    )


@pytest.mark.parametrize(
    "change",
    [
        {"length": 1},
        {"d_mlp": 0, "norm": "post"},
        {"d_mlp": 0, "norm": "pre"},
        {"d_mlp": 0, "norm": "once"},
        {"d_mlp": 0, "norm": "none", "length": 1},
        {"eps": 0.1},
        {"eps": 0.1, "norm": "pre"},
        {"head_dim": 3},
        {"d_model": 5, "num_heads": 1, "positions": "sinusoidal"},
        {"attention_bias": False, "mlp_bias": False, "norm_affine": False, "readout_bias": False},
    ],
    ids=str,
)
def test_agrees_with_oracle_at_the_edges(change):
    compare_with_oracle(dataclasses.replace(js.TransformerConfig(3, 1, 4, 2, 3), **change))


def test_bits_of_any_batch_shape_and_integer_type():
    params = draw(CFG)
    rows = strings.all_strings(4)
    whole = np.asarray(js.apply(CFG, params, rows))
    cube = np.asarray(js.apply(CFG, params, rows.reshape(2, 8, 4).astype(bool)))
    np.testing.assert_array_equal(cube, whole.reshape(2, 8))
    assert js.apply(CFG, params, rows[3].astype(np.uint8)).shape == ()
    np.testing.assert_allclose(np.asarray(truth_table_logits(CFG, params)), whole, atol=1e-4)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_all_strings_in_several_tiles(norm):
    cfg = js.TransformerConfig(10, 1, 4, 2, 64, norm=norm, causal=norm == "pre")
    assert rows_per_tile(10, floats_per_string(cfg)) < 2**10
    params = draw(cfg)
    np.testing.assert_allclose(
        np.asarray(truth_table_logits(cfg, params)),
        np.asarray(apply(cfg, params, strings.all_strings(10))),
        rtol=1e-4,
        atol=1e-4,
    )


def test_bits_of_another_length_are_named():
    with pytest.raises(ValueError, match=r"^bits: shape \(3,\) given; the last axis must be 4$"):
        js.apply(CFG, draw(CFG), np.zeros(3, np.int32))


# What a change of the parameters does to the function.


def test_swapping_the_tokens_complements_the_bits():
    params = draw(CFG)
    swapped = params.replace(token_embedding=params.token_embedding[np.array([1, 0, 2])])
    logits = np.asarray(truth_table_logits(CFG, params))
    np.testing.assert_allclose(
        np.asarray(truth_table_logits(CFG, swapped)), logits[::-1], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_readout_scales_the_logit(seed):
    params = draw(CFG, seed)
    table = table_of(CFG, params)
    negated = params.replace(readout=jax.tree.map(lambda a: -a, params.readout))
    np.testing.assert_array_equal(table_of(CFG, negated), ~table)
    tripled = params.replace(readout=jax.tree.map(lambda a: 3 * a, params.readout))
    np.testing.assert_array_equal(table_of(CFG, tripled), table)


def test_without_positions_the_function_is_symmetric():
    cfg = dataclasses.replace(CFG, positions="none")
    logits = np.asarray(js.truth_table_logits(cfg, draw(cfg)))
    ones = strings.all_strings(4).sum(axis=1)
    for count in range(5):
        values = logits[ones == count]
        np.testing.assert_allclose(values, np.full_like(values, values[0]), atol=1e-4)


@pytest.mark.parametrize("order", [[1, 0, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]], ids=str)
def test_permuting_positions_permutes_bits(order):
    params = draw(CFG)
    moved = params.replace(position_embedding=params.position_embedding[np.array([*order, 4])])
    bits = strings.all_strings(4)
    np.testing.assert_allclose(
        np.asarray(apply(CFG, moved, bits[:, order])),
        np.asarray(apply(CFG, params, bits)),
        atol=1e-4,
    )


def test_causal_attention_sees_the_past_only():
    # One layer, full attention and the causal one agree where the last position alone is read.
    full = js.TransformerConfig(3, 1, 4, 2, 6)
    causal = dataclasses.replace(full, causal=True)
    params = draw(full)
    np.testing.assert_allclose(
        np.asarray(js.truth_table_logits(causal, params)),
        np.asarray(js.truth_table_logits(full, params)),
        atol=1e-5,
    )


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_tie_is_class_zero(zero):
    arrays = {n: np.zeros_like(a) for n, a in arrays_of(draw(CFG)).items()}
    arrays["readout.b"] = np.float32(zero)
    logits = np.asarray(truth_table_logits(CFG, js.params_from_arrays(CFG, arrays)))
    assert (logits == 0).all()
    profile = np.asarray(js.sensitivity_profile(logits > 0))
    assert not (logits > 0).any()
    assert profile.tolist() == [16, 0, 0, 0, 0]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU flushes denormals")
def test_a_denormal_logit_is_a_tie_under_jit():
    params = inits.zeros()(jax.random.key(0), CFG)
    params = params.replace(readout=params.readout.replace(b=jnp.asarray(np.float32(1e-40))))
    assert np.asarray(params.readout.b) > 0
    positive = jax.jit(lambda p: js.truth_table_logits(CFG, p) > jnp.float32(0))(params)
    assert not np.asarray(positive).any()


# The compiled program.


def jaxprs(value):
    """A jaxpr and all those inside it, with their constants."""
    if isinstance(value, jax.extend.core.ClosedJaxpr):
        yield value.jaxpr, value.consts
        value = value.jaxpr
    elif isinstance(value, jax.extend.core.Jaxpr):
        yield value, []
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from jaxprs(item)
        return
    else:
        return
    for equation in value.eqns:
        for inner in equation.params.values():
            yield from jaxprs(inner)


@pytest.mark.parametrize("norm", ["post", "pre", "once", "none"])
@pytest.mark.parametrize("length", [3, 16])
@pytest.mark.parametrize(
    "function", [js.transformer.plain_truth_table_logits, js.truth_table_logits]
)
def test_products_are_exact_and_constants_small(norm, length, function):
    cfg = dataclasses.replace(CFG, norm=norm, length=length)
    # Without the test setting, so that the code itself has to ask for it.
    with jax.default_matmul_precision("bfloat16"):
        program = jax.make_jaxpr(lambda p: function(cfg, p))(draw(cfg))
    products, literals = [], []
    for jaxpr, constants in jaxprs(program):
        literals += [np.asarray(c).nbytes for c in constants]
        for equation in jaxpr.eqns:
            literals += [np.asarray(v.val).nbytes for v in equation.invars if hasattr(v, "val")]
            if equation.primitive.name == "dot_general":
                products.append(equation.params["precision"])
    assert len(products) >= 8 * cfg.num_layers + 1
    highest = jax.lax.Precision.HIGHEST
    assert all(p in (highest, (highest, highest)) for p in products)
    assert max(literals, default=0) < 2**20
