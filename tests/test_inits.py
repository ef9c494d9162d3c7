"""Init laws: moments, coupling, and the same numbers in every way of drawing them."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens as js
from jaxsens import inits

SMALL = js.TransformerConfig(3, 2, 4, 2, 3)
#: Enough numbers in every matrix for its moments.
WIDE = js.TransformerConfig(length=7, num_layers=2, d_model=48, num_heads=3, d_mlp=96, head_dim=8)
KEY = jax.random.key(2024)


def arrays_of(law, cfg=WIDE, key=KEY):
    return {n: np.asarray(a) for n, a in js.params_to_arrays(js.init_params(cfg, law, key)).items()}


def short(name):
    return name.rsplit(".", 1)[-1]


def by_group(arrays):
    groups = {
        group: [a.ravel() for n, a in arrays.items() if short(n) in members]
        for group, members in inits.GROUPS.items()
    }
    return {g: np.concatenate(a).astype(np.float64) for g, a in groups.items() if a}


def check_moments(values, deviation, kurtosis, what):
    """Mean and variance within 4 standard errors of 0 and ``deviation ** 2``."""
    z, n = np.asarray(values, np.float64).ravel() / deviation, np.size(values)
    assert abs(z.mean()) < 4 / math.sqrt(n), what
    assert abs((z**2).mean() - 1) < 4 * math.sqrt((kurtosis - 1) / n), what


# Moments.

# Of N(0, 1) cut at 2: variance 1 - 4 phi(2) / P, fourth moment 3 variance - 16 phi(2) / P.
_EDGE = 2 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2))
CUT_VARIANCE = 1 - 2 * _EDGE
CUT_KURTOSIS = (3 * CUT_VARIANCE - 8 * _EDGE) / CUT_VARIANCE**2


@pytest.mark.parametrize(
    ("law", "deviation", "kurtosis", "bound"),
    [
        (inits.uniform(10.0), 10 / math.sqrt(3), 9 / 5, 10),
        (inits.uniform(), 10 / math.sqrt(3), 9 / 5, 10),
        (inits.normal(10.0), 10, 3, 55),
        (inits.normal(), 10, 3, 55),
        (inits.truncated_normal(3.0), 3 * math.sqrt(CUT_VARIANCE), CUT_KURTOSIS, 6),
    ],
    ids=["uniform", "uniform()", "normal", "normal()", "truncated_normal"],
)
@pytest.mark.stat
def test_moments_of_every_group(law, deviation, kurtosis, bound):
    assert pytest.approx(0.774, abs=1e-3) == CUT_VARIANCE
    groups = by_group(arrays_of(law, dataclasses.replace(WIDE, activation="prelu")))
    assert groups.keys() == inits.GROUPS.keys()
    for group, values in groups.items():
        check_moments(values, deviation, kurtosis, group)
        assert np.abs(values).max() <= bound


def fans(name, cfg):
    inner = cfg.num_heads * cfg.key_dim
    d, m = cfg.d_model, cfg.d_mlp
    return {
        **dict.fromkeys(("wq", "wk", "wv"), (d, inner)),
        "wo": (inner, d),
        "w_in": (d, m),
        "w_out": (m, d),
        "w": (d, 1),
    }[name]


def check_fixed(arrays):
    """The published schemes: biases and shifts 0, gains 1, slopes 1/4."""
    for name, array in arrays.items():
        part = short(name)
        if part in inits.GROUPS["biases"] or part == "bias":
            assert (array == 0).all(), name
        if part == "scale":
            assert (array == 1).all(), name
        if part == "slope":
            assert (array == 0.25).all(), name


FAN_LAWS = {
    "xavier_uniform": (inits.xavier_uniform, lambda i, o: math.sqrt(2 / (i + o)), 9 / 5),
    "xavier_normal": (inits.xavier_normal, lambda i, o: math.sqrt(2 / (i + o)), 3),
    "kaiming": (lambda g=1.0: inits.kaiming(g * 2**0.5), lambda i, o: math.sqrt(2 / i), 3),
}


@pytest.mark.parametrize("gain", [1.0, 3.0])
@pytest.mark.parametrize("name", FAN_LAWS)
@pytest.mark.stat
def test_fans(name, gain):
    law, deviation, kurtosis = FAN_LAWS[name]
    arrays = arrays_of(law(gain), dataclasses.replace(WIDE, activation="prelu"))
    check_fixed(arrays)
    for full, array in arrays.items():
        if short(full) in ("wq", "wk", "wv", "wo", "w_in", "w_out", "w"):
            expected = gain * deviation(*fans(short(full), WIDE))
            check_moments(array, expected, kurtosis, full)
        if full in ("token_embedding", "position_embedding"):
            check_moments(array, 1, 3, full)


@pytest.mark.parametrize("layers", [1, 2, 8])
@pytest.mark.stat
def test_gpt2_scales_the_ends_of_the_branches(layers):
    cfg = dataclasses.replace(WIDE, num_layers=layers, activation="prelu")
    arrays = arrays_of(inits.gpt2(), cfg)
    check_fixed(arrays)
    for full, array in arrays.items():
        if short(full) in ("wo", "w_out"):
            check_moments(array, 0.02 / math.sqrt(2 * layers), 3, full)
        elif array.ndim > 1 and array.size > 200 and short(full) != "slope":
            if not full.endswith(("bq", "bk", "bv")):
                check_moments(array, 0.02, 3, full)
        elif short(full) in ("w", "token_embedding"):
            check_moments(array, 0.02, 3, full)


@pytest.mark.parametrize("gain", [1.0, 2.5])
def test_orthogonal_matrices(gain):
    arrays = arrays_of(inits.orthogonal(gain))
    check_fixed(arrays)
    for full, array in arrays.items():
        if short(full) in ("wq", "wk", "wv", "wo", "w_in", "w_out", "w"):
            matrix = array.reshape(fans(short(full), WIDE)).astype(np.float64) / gain
            if matrix.shape[0] < matrix.shape[1]:
                matrix = matrix.T
            np.testing.assert_allclose(
                matrix.T @ matrix, np.eye(matrix.shape[1]), atol=1e-5, err_msg=full
            )


@pytest.mark.stat
def test_orthogonal_matrices_prefer_no_sign():
    cfg = js.TransformerConfig(1, 1, 3, 1, 3)
    keys = jax.random.split(KEY, 400)
    draws = jax.jit(jax.vmap(lambda k: inits.orthogonal()(k, cfg).layers[0].w_in))(keys)
    draws = np.asarray(draws, np.float64)
    # Every entry of a Haar matrix has mean 0 and variance 1/D.
    assert (np.abs(draws.mean(axis=0)) < 4 / math.sqrt(3 * 400)).all()
    assert abs(np.mean(np.linalg.det(draws))) < 4 / math.sqrt(400)


# Combination of laws.


def test_a_group_can_follow_another_law():
    base, law = arrays_of(inits.normal(2.0), SMALL), inits.normal(2.0)
    law = law.with_group("biases", inits.zeros()).with_group("norm_gain", inits.ones())
    law = law.with_group("mlp", inits.constant(-3.0))
    for name, array in arrays_of(law, SMALL).items():
        part = short(name)
        if part in inits.GROUPS["biases"]:
            assert (array == 0).all()
        elif part == "scale":
            assert (array == 1).all()
        elif part in inits.GROUPS["mlp"]:
            assert (array == -3).all()
        else:
            np.testing.assert_array_equal(array, base[name])


def test_a_group_can_be_scaled():
    base = arrays_of(inits.uniform(2.0), SMALL)
    scaled = arrays_of(inits.uniform(2.0).scaled("attention", 4.0), SMALL)
    for name, array in scaled.items():
        factor = np.float32(4 if short(name) in inits.GROUPS["attention"] else 1)
        np.testing.assert_array_equal(array, base[name] * factor)


def test_laws_are_coupled():
    uniform, normal = arrays_of(inits.uniform(1.0), SMALL), arrays_of(inits.normal(1.0), SMALL)
    for name, u in uniform.items():
        np.testing.assert_array_equal(np.sign(u), np.sign(normal[name]))
    small, large = arrays_of(inits.normal(0.5), SMALL), arrays_of(inits.normal(4.0), SMALL)
    for name, array in small.items():
        np.testing.assert_array_equal(array * np.float32(8), large[name])


@pytest.mark.parametrize(
    "change",
    [
        *({"norm": norm} for norm in ("pre", "once", "none")),
        {"causal": True},
        {"activation": "prelu"},
        {"positions": "none"},
        {"attention_bias": False},
        {"mlp_bias": False},
        {"norm_affine": False},
        {"readout_bias": False},
        {"eps": 0.1},
    ],
    ids=str,
)
def test_variants_of_a_model_share_their_weights(change):
    base = arrays_of(inits.normal(1.0), SMALL)
    other = arrays_of(inits.normal(1.0), dataclasses.replace(SMALL, **change))
    common = base.keys() & other.keys()
    assert {"token_embedding", "layer0.wq", "layer1.wo", "readout.w"} <= common
    for name in common:
        np.testing.assert_array_equal(base[name], other[name])


def test_no_two_arrays_share_their_draws():
    cfg = dataclasses.replace(SMALL, norm="pre", activation="prelu")
    numbers = np.concatenate([a.ravel() for a in arrays_of(inits.uniform(1.0), cfg).values()])
    assert len(np.unique(numbers)) == len(numbers)


# The same numbers in every way of drawing.

LAWS = {name: inits.by_name(name, 1.5 if name == "constant" else None) for name in inits.REGISTRY}


@pytest.mark.parametrize("name", LAWS)
def test_a_float32_draw_does_not_depend_on_x64(name):
    narrow = arrays_of(LAWS[name], SMALL)
    with jax.enable_x64(True):
        wide = arrays_of(LAWS[name], SMALL)
    for array, other in zip(narrow.values(), wide.values(), strict=True):
        assert array.dtype == other.dtype == np.float32
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("name", [n for n in LAWS if n != "orthogonal"])
def test_a_row_of_a_batch_is_the_single_draw(name):
    keys = jax.vmap(lambda i: jax.random.fold_in(KEY, i))(np.arange(5, dtype=np.uint32))
    single = jax.jit(lambda law, key: law(key, SMALL))
    batch = jax.jit(jax.vmap(lambda law, key: law(key, SMALL), in_axes=(None, 0)))(LAWS[name], keys)
    for row in (0, 3, 4):
        for one, many in zip(
            jax.tree.leaves(single(LAWS[name], keys[row])), jax.tree.leaves(batch), strict=True
        ):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(many)[row])


def test_another_number_does_not_trace_again():
    traces = []

    @jax.jit
    def first(law, key):
        traces.append(law)
        return law(key, SMALL).readout.w

    values = [np.asarray(first(inits.normal(s), KEY)) for s in (1.0, 2.0, 4, np.float32(8))]
    assert len(traces) == 1, [jax.tree.map(jax.typeof, law) for law in traces]
    np.testing.assert_array_equal(values[1], 2 * values[0])
    np.testing.assert_array_equal(values[3], 8 * values[0])


def test_a_sweep_is_a_vmap():
    scales = np.float32([0.5, 1, 10])
    swept = jax.vmap(lambda s: inits.uniform(s)(KEY, SMALL).readout.w)(scales)
    for row, scale in zip(np.asarray(swept), scales, strict=True):
        np.testing.assert_array_equal(
            row, arrays_of(inits.uniform(float(scale)), SMALL)["readout.w"]
        )


# The precision of the draw.


@pytest.mark.parametrize("u", [1 - 2**-23, -1 + 2**-24], ids=["high", "low"])
def test_the_largest_normal(u):
    # The largest numbers that the open base interval has in float32.
    z = np.sqrt(np.float32(2)) * np.asarray(jax.lax.erf_inv(jnp.float32(u)))
    assert abs(z) < 5.42


def test_a_float32_normal_stays_below_the_edge():
    cfg = js.TransformerConfig(4, 2, 256, 4, 512)
    law = inits.normal(1.0)
    numbers = np.concatenate([a.ravel() for a in arrays_of(law, cfg).values()])
    assert numbers.size > 10**6
    assert 4.5 < np.abs(numbers).max() < 5.42


def test_a_float64_draw_needs_x64():
    law = inits.normal(1.0).drawn_in("float64")
    with pytest.raises(ValueError, match=r"^draw: 'float64' given; it needs x64 mode"):
        law(KEY, SMALL)
    with jax.enable_x64(True):
        wide = arrays_of(law, SMALL)
        narrow = arrays_of(inits.normal(1.0), SMALL)
    for name, array in wide.items():
        assert array.dtype == np.float32
        if array.ndim:
            assert (array != narrow[name]).any()
    assert law.drawn_in("float32") == inits.normal(1.0)


@pytest.mark.parametrize("draw", ["float16", "Float32", None])
def test_another_draw_is_named(draw):
    with pytest.raises(ValueError, match="^draw: .* given; it must be float32 or float64$"):
        inits.normal(1.0).drawn_in(draw)


# Bad input, and the description.


@pytest.mark.parametrize("value", [math.nan, -1.0, -2, math.inf, -math.inf, np.float32(-1)])
@pytest.mark.parametrize("name", [n for n in LAWS if n not in ("constant", "zeros", "ones")])
def test_a_bad_scale_is_named_in_one_line(name, value):
    with pytest.raises(ValueError) as caught:
        inits.by_name(name, value)
    assert str(caught.value) == f"scale: {value!r} given; it must be a finite number >= 0"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_constant_or_factor(value):
    with pytest.raises(ValueError, match=f"^value: {value} given; it must be finite$"):
        inits.constant(value)
    with pytest.raises(ValueError, match=f"^factor of mlp: {value} given; it must be a finite"):
        inits.normal(1.0).scaled("mlp", value)


def test_unknown_names():
    with pytest.raises(ValueError, match="^init: 'glorot' given; it must be one of uniform, "):
        inits.by_name("glorot")
    for change in (lambda law, g: law.with_group(g, law), lambda law, g: law.scaled(g, 2.0)):
        with pytest.raises(ValueError, match="^group: 'heads' given; it must be one of embedding"):
            change(inits.normal(1.0), "heads")
    with pytest.raises(ValueError, match="^scale: none given; init 'constant' needs one$"):
        inits.by_name("constant")
    for name in ("zeros", "ones"):
        with pytest.raises(ValueError, match=f"^scale: 2.0 given; init '{name}' takes none$"):
            inits.by_name(name, 2.0)


def refuse(text):
    raise AssertionError(text)


@pytest.mark.parametrize("name", LAWS)
def test_the_description_is_strict_json(name):
    law = LAWS[name].scaled("mlp", np.float32(0.5)).with_group("readout", inits.uniform(3))
    text = json.dumps(law.describe(), allow_nan=False)
    back = json.loads(text, parse_constant=refuse)
    assert back == law.describe()
    assert back["groups"].keys() == inits.GROUPS.keys()
    assert back["groups"]["readout"]["number"] == 3.0
    assert back["draw"] == "float32"


def test_the_description_tells_laws_apart():
    texts = {json.dumps(law.describe()) for law in LAWS.values()}
    assert len(texts) == len(LAWS)
    assert inits.normal(1.0).drawn_in("float64").describe() != inits.normal(1.0).describe()
