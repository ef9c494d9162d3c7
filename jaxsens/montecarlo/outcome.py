"""From indices to outcomes in one compiled computation: draw, evaluate, pack, count."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxsens import sensitivity, strings
from jaxsens.inits import InitLaw
from jaxsens.model import Model
from jaxsens.montecarlo.keys import key_of_parts


class Outcome(NamedTuple):
    """What one model computes; a leading axis runs over models.

    Attributes:
      profile: int32 ``(n + 1,)``, number of strings of each sensitivity.
      ones: int32 ``()``, number of strings answered 1.
      fingerprint: uint32 ``(2,)``, :func:`jaxsens.sensitivity.table_hash`.
      smallest: smallest ``|logit|`` over all strings; 0 where a logit is not finite.
      largest: largest finite ``|logit|``.
      finite: bool, every logit is finite.
    """

    profile: Any
    ones: Any
    fingerprint: Any
    smallest: Any
    largest: Any
    finite: Any


def outcome_of_logits(logits: jax.Array, n: int) -> Outcome:
    """Packs the signs of ``(2**n,)`` logits (1 iff > 0) and counts."""
    words = strings.pack(logits > 0)
    finite = jnp.isfinite(logits)
    size = jnp.where(finite, jnp.abs(logits), jnp.zeros_like(logits))
    return Outcome(
        profile=sensitivity.profile_packed(words, n),
        ones=sensitivity.ones_packed(words),
        fingerprint=sensitivity.table_hash(words),
        smallest=jnp.min(size),
        largest=jnp.max(size),
        finite=jnp.all(finite),
    )


def cast(params: object, dtype: str) -> object:
    """Casts the floating leaves of a pytree."""

    def leaf(x: jax.Array) -> jax.Array:
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(leaf, params)


def nudged(params: object, nudge: jax.Array) -> object:
    """Multiplies every floating number by 1 + ``nudge`` r, with fixed scattered r in [-1, 1]."""

    def leaf(number: int, x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        # Quasi-random is enough here, and compiles in no time where 40 random draws do not.
        phase = jnp.arange(x.size, dtype=x.dtype) * 2.399963 + number * 1.7
        return x * (1 + nudge.astype(x.dtype) * jnp.cos(phase).reshape(x.shape))

    leaves, tree = jax.tree.flatten(params)
    return jax.tree.unflatten(tree, [leaf(i, x) for i, x in enumerate(leaves)])


def _draw(model: Model, seed: jax.Array, high: jax.Array, low: jax.Array) -> object:
    return model.init_fn(model.law, key_of_parts(seed, high, low))


_draw_one = jax.jit(_draw)


def _outcome(model: Model, params: object, dtype: str) -> Outcome:
    # Whatever follows the draw, the drawn numbers must not be re-derived inside it.
    params = jax.lax.optimization_barrier(params)
    return outcome_of_logits(model.table_fn(cast(params, dtype)), model.length)


def _in_groups(function, width: int, *arrays):
    """Maps over the leading axis: sequentially over groups, vmapped over ``width`` inside one."""
    grouped = jax.tree.map(lambda a: a.reshape(-1, width, *a.shape[1:]), arrays)
    result = jax.lax.map(lambda group: jax.vmap(function)(*group), grouped)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), result)


def _over_devices(function, mesh: Mesh, num_arrays: int):
    """Splits the leading axis of the last ``num_arrays`` arguments over the devices of ``mesh``."""
    split = PartitionSpec(mesh.axis_names[0])
    specs = (PartitionSpec(), PartitionSpec(), *(split for _ in range(num_arrays)))
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)


@functools.partial(jax.jit, static_argnames=("width", "mesh"))
def _fused(model: Model, seed, high, low, *, width: int, mesh: Mesh) -> Outcome:
    def on_device(model, seed, high, low):
        def one(high, low):
            return _outcome(model, _draw(model, seed, high, low), "float32")

        return _in_groups(one, width, high, low)

    return _over_devices(on_device, mesh, 2)(model, seed, high, low)


@functools.partial(jax.jit, static_argnames=("mesh",))
def _draw_batch(model: Model, seed, high, low, *, mesh: Mesh):
    def on_device(model, seed, high, low):
        return jax.vmap(lambda hi, lo: _draw(model, seed, hi, lo))(high, low)

    return _over_devices(on_device, mesh, 2)(model, seed, high, low)


@functools.partial(jax.jit, static_argnames=("dtype", "width", "mesh"))
def _evaluate_batch(model: Model, params, nudge, *, dtype: str, width: int, mesh: Mesh) -> Outcome:
    def on_device(model, nudge, params):
        def one(params):
            return _outcome(model, nudged(cast(params, dtype), nudge), dtype)

        return _in_groups(one, width, params)

    return _over_devices(on_device, mesh, 1)(model, nudge, params)


def _unnamed(model: Model) -> Model:
    """The model without the texts that describe it: they hold the law's numbers.

    As static parts of the model they would compile every number of a sweep anew.
    """
    law = model.law
    if isinstance(law, InitLaw):
        law = dataclasses.replace(law, name="")
    return dataclasses.replace(model, law=law, description="")


def outcomes(
    model: Model,
    seed: int,
    high: np.ndarray,
    low: np.ndarray,
    *,
    dtype: str,
    width: int,
    mesh: Mesh,
    nudge: float = 0.0,
) -> Outcome:
    """Outcomes of the models with the given indices, as NumPy arrays.

    Args:
      model: what is sampled.
      seed: root seed.
      high: uint32 ``(B,)``, the indices' high 32 bits; B is a multiple of ``width * devices``.
      low: uint32 ``(B,)``, their low 32 bits.
      dtype: dtype of the evaluation, ``float32`` or ``float64``. Parameters are drawn alike for
        both and then cast.
      width: models vmapped together; the groups run one after another on each device.
      mesh: one-dimensional device mesh over which the models are split.
      nudge: relative change of the parameters, float64 only (:func:`nudged`).
    """
    root, model = np.uint32(seed), _unnamed(model)
    if dtype == "float32" and model.draw == "float32":
        with jax.enable_x64(False):
            return jax.device_get(_fused(model, root, high, low, width=width, mesh=mesh))
    with jax.enable_x64(model.draw == "float64"):
        params = _draw_batch(model, root, high, low, mesh=mesh)
    with jax.enable_x64(dtype == "float64"):
        result = _evaluate_batch(
            model, params, np.asarray(nudge, dtype), dtype=dtype, width=width, mesh=mesh
        )
        return jax.device_get(result)


def regenerate_params(model: Model, seed: int, index: int) -> object:
    """The parameters of one model, bit for bit those of the run: a pytree of float32 arrays."""
    with jax.enable_x64(model.draw == "float64"):
        high, low = np.uint32(index >> 32), np.uint32(index & 0xFFFFFFFF)
        return _draw_one(_unnamed(model), np.uint32(seed), high, low)
