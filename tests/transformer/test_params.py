"""Arrays in and out of the parameter pytree, and configs that are refused."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens as js
from jaxsens import inits
from jaxsens.transformer import array_shapes, num_parameters

CFG = js.TransformerConfig(length=4, num_layers=2, d_model=4, num_heads=2, d_mlp=6)
truth_table_logits = jax.jit(js.truth_table_logits, static_argnums=0)


def draw(cfg, seed=0, sigma=1.0):
    return inits.normal(sigma)(jax.random.key(seed), cfg)


def arrays_of(params, dtype=None):
    return {n: np.asarray(a, dtype) for n, a in js.params_to_arrays(params).items()}


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
        *itertools.product(["length"], [0, 65537, True, -1, 2.0, "4", None]),
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
