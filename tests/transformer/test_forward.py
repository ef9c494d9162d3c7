"""The plain forward pass against stored logits, a NumPy oracle and its own symmetries."""

import dataclasses
import itertools
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
from jaxsens.transformer import NormParams, array_shapes, layer_norm, num_parameters
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


# Layer norm.


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -11.0, 1e-30, 3e30])
def test_layer_norm_of_a_constant_row_is_zero_with_zero_gradient(value):
    row = jnp.full((3,), value, jnp.float32)
    for norm in (layer_norm, jax.jit(layer_norm, static_argnums=2)):
        np.testing.assert_array_equal(np.asarray(norm(row, None, 0.0)), np.zeros(3))
    jacobian = np.asarray(jax.jacobian(lambda v: layer_norm(v, None, 0.0))(row))
    np.testing.assert_array_equal(jacobian, np.zeros((3, 3)))


def test_layer_norm_of_a_constant_row_keeps_the_shift():
    affine = NormParams(scale=jnp.full((3,), 7.0), bias=jnp.asarray([1.0, 2.0, 3.0]))
    out = layer_norm(jnp.full((3,), 0.1), affine, 0.0)
    np.testing.assert_array_equal(np.asarray(out), [1.0, 2.0, 3.0])


@pytest.mark.parametrize("bump", [[2e-6, 2e-6, 2e-6], [0.0, 0.0, 2e-6], [0.0, 1e-6, 2e-6]])
def test_layer_norm_near_a_constant_row_is_finite(bump):
    row = jnp.asarray(np.float32([-11, -11, -11]) + np.float32(bump))
    out = np.asarray(layer_norm(row, None, 0.0))
    jacobian = np.asarray(jax.jacobian(lambda v: layer_norm(v, None, 0.0))(row))
    assert np.isfinite(out).all()
    assert np.isfinite(jacobian).all()
    assert np.abs(out).max() <= math.sqrt(2) * (1 + 1e-6)  # D - 1 is the most a squared entry has


@pytest.mark.parametrize("exponent", range(-20, 16, 5))
def test_layer_norm_forgets_the_scale(exponent):
    v = np.float32([0.3, -1.7, 2.2, 0.9, -0.4])
    whole = np.asarray(layer_norm(jnp.asarray(v), None, 0.0))
    scaled = np.asarray(layer_norm(jnp.asarray(v * np.float32(10.0**exponent)), None, 0.0))
    np.testing.assert_allclose(scaled, whole, rtol=1e-6, atol=1e-6)
    exact = v.astype(np.float64)
    np.testing.assert_allclose(whole, (exact - exact.mean()) / exact.std(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.1, 10.0])
def test_layer_norm_with_eps_is_the_formula(eps):
    v = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    v[0] = 1.5
    v[1] *= np.float32(1e-4)
    scale, bias = np.float32([1, -2, 3, 0.5, 0]), np.float32([0, 1, 0, -1, 2])
    affine = NormParams(scale=jnp.asarray(scale), bias=jnp.asarray(bias))
    exact = v.astype(np.float64)
    centred = exact - exact.mean(-1, keepdims=True)
    expected = centred / np.sqrt(exact.var(-1, keepdims=True) + eps) * scale + bias
    out = np.asarray(layer_norm(jnp.asarray(v), affine, eps))
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)
    gradient = np.asarray(jax.grad(lambda x: jnp.sum(layer_norm(x, affine, eps) ** 3))(v))
    assert np.isfinite(gradient).all()


def test_layer_norm_gradient_is_the_formula():
    with jax.enable_x64(True):
        v = jnp.asarray(np.random.default_rng(1).normal(size=5))
        for eps in (0.0, 0.1):
            got = np.asarray(jax.jacobian(lambda x, eps=eps: layer_norm(x, None, eps))(v))
            x = np.asarray(v)
            root, c = math.sqrt(x.var() + eps), x - x.mean()
            expected = (np.eye(5) - 1 / 5) / root - np.outer(c, c) / (5 * root**3)
            np.testing.assert_allclose(got, expected, atol=1e-12)


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


# Arrays in and out.


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"norm": "pre", "activation": "prelu"},
        {"norm": "once", "positions": "none", "readout_bias": False},
        {"norm": "none", "d_mlp": 0, "attention_bias": False},
        {"norm": "pre", "d_mlp": 0, "mlp_bias": False},
        {"num_layers": 11},
    ],
    ids=str,
)
def test_arrays_and_params_are_inverse(change):
    cfg = dataclasses.replace(CFG, **change)
    params = draw(cfg)
    arrays = js.params_to_arrays(params)
    assert {n: a.shape for n, a in arrays.items()} == array_shapes(cfg)
    assert sum(a.size for a in arrays.values()) == num_parameters(cfg)
    back = js.params_from_arrays(cfg, arrays)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_absent_biases_and_gains_have_their_defaults():
    arrays = arrays_of(draw(CFG))
    biases = ("bq", "bk", "bv", "bo", "b_in", "b_out", "bias", "b", "scale")
    few = {n: a for n, a in arrays.items() if n.rsplit(".", 1)[-1] not in biases}
    full = arrays_of(js.params_from_arrays(CFG, few))
    assert full.keys() == arrays.keys()
    for name in full.keys() - few.keys():
        assert (full[name] == float(name.endswith("scale"))).all(), name


def test_numpy_leaves_integers_and_dtypes():
    arrays = arrays_of(draw(CFG))
    params = js.params_from_arrays(CFG, arrays | {"readout.w": np.array([1, 0, -2, 3])})
    assert params.readout.w.dtype == jnp.float32
    numpy_leaves = jax.tree.map(np.asarray, params)
    np.testing.assert_array_equal(
        np.asarray(js.truth_table_logits(CFG, numpy_leaves)),  # not traced: NumPy inside
        np.asarray(truth_table_logits(CFG, params)),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer7.wq": np.zeros(3)}, "'layer7.wq' given"),
        ({"slope": np.zeros(3)}, "'slope' given"),
        ({"layer0.wq": None}, r"'layer0.wq' \(4, 2, 2\) is missing"),
        ({"readout.w": None}, r"'readout.w' \(4,\) is missing"),
        ({"token_embedding": None}, r"'token_embedding' \(3, 4\) is missing"),
        ({"readout.w": np.zeros((4, 1), np.float32)}, r"readout.w: shape \(4, 1\) .*be \(4,\)"),
        ({"readout.b": np.zeros(1, np.float32)}, r"readout.b: shape \(1,\) .*be \(\)"),
        ({"readout.w": np.zeros(4, np.float16)}, "dtypes .*float16.*float32"),
    ],
    ids=str,
)
def test_wrong_arrays_are_named_in_one_line(change, message):
    arrays = {n: a for n, a in (arrays_of(draw(CFG)) | change).items() if a is not None}
    with pytest.raises(ValueError, match=message) as caught:
        js.params_from_arrays(CFG, arrays)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *itertools.product(["length"], [0, 31, True, -1, 2.0, "4", None]),
        *itertools.product(["num_layers", "d_model", "num_heads"], [0, True, 1.5]),
        *itertools.product(["d_mlp"], [-1, False, None]),
        *itertools.product(["head_dim"], [0, 2.0]),
        *itertools.product(["eps"], [-1, math.nan, math.inf, True, "0"]),
        *itertools.product(["norm", "activation", "positions"], ["Post", None, 1]),
        *itertools.product(["causal", "attention_bias", "mlp_bias"], [1, None]),
        *itertools.product(["norm_affine", "readout_bias"], [0, "yes"]),
    ],
    ids=str,
)
def test_a_bad_config_is_named_in_one_line(name, value):
    with pytest.raises(ValueError) as caught:
        dataclasses.replace(CFG, **{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name}: {value!r} given; it must be ")
    assert "\n" not in message


def test_heads_that_do_not_divide_the_width():
    with pytest.raises(ValueError, match=r"^d_model: 9 is not divisible by num_heads = 2; .*$"):
        js.TransformerConfig(4, 1, 9, 2, 4)
    assert js.TransformerConfig(4, 1, 9, 2, 4, head_dim=3).key_dim == 3


def test_config_is_hashable_and_frozen():
    assert hash(CFG) == hash(dataclasses.replace(CFG))
    with pytest.raises(dataclasses.FrozenInstanceError):
        CFG.length = 5  # pyright: ignore[reportAttributeAccessIssue]


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
def test_products_are_exact_and_constants_small(norm, length):
    cfg = dataclasses.replace(CFG, norm=norm, length=length)
    # Without the test setting, so that the code itself has to ask for it.
    with jax.default_matmul_precision("bfloat16"):
        program = jax.make_jaxpr(lambda p: js.truth_table_logits(cfg, p))(draw(cfg))
    products, literals = [], []
    for jaxpr, constants in jaxprs(program):
        literals += [np.asarray(c).nbytes for c in constants]
        for equation in jaxpr.eqns:
            literals += [np.asarray(v.val).nbytes for v in equation.invars if hasattr(v, "val")]
            if equation.primitive.name == "dot_general":
                products.append(equation.params["precision"])
    assert len(products) == 8 * cfg.num_layers + 1
    highest = jax.lax.Precision.HIGHEST
    assert all(p in (highest, (highest, highest)) for p in products)
    assert max(literals, default=0) < 2**20
