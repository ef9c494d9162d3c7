"""From indices to outcomes in one compiled computation: draw, evaluate, pack, count."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxsens import sensitivity, strings
from jaxsens.inits import InitLaw
from jaxsens.model import Model
from jaxsens.montecarlo.keys import key_of_parts

# Models drawn in one vectorised step, and strings whose answers may wait to be counted.
_DRAWN_TOGETHER = 32
_WAITING_BITS = 1 << 21


class Outcome(NamedTuple):
    """What one model computes; a leading axis runs over models.

    Attributes:
      profile: int32 ``(n + 1,)``, number of strings of each sensitivity.
      ones: int32 ``()``, number of strings answered 1.
      fingerprint: uint32 ``(2,)``, :func:`jaxsens.sensitivity.table_hash`.
      table: uint32 words, the answers (:func:`jaxsens.strings.pack`).
      close: uint32 words, the strings with ``|logit|`` not above the screen times the largest.
      smallest: smallest ``|logit|`` over all strings; 0 where a logit is not finite.
      largest: largest finite ``|logit|``.
      peak: int32 ``()``, a row with the largest ``|logit|``.
      finite: bool, every logit is finite.
      trusted: bool, the fast path vouches for its logits.
    """

    profile: Any
    ones: Any
    fingerprint: Any
    table: Any
    close: Any
    smallest: Any
    largest: Any
    peak: Any
    finite: Any
    trusted: Any


class _Signs(NamedTuple):
    """The part of an :class:`Outcome` that is read off the logits."""

    table: jax.Array
    close: jax.Array
    smallest: jax.Array
    largest: jax.Array
    peak: jax.Array
    finite: jax.Array
    trusted: jax.Array


def _signs(logits: jax.Array, trusted: jax.Array, screen: jax.Array) -> _Signs:
    finite = jnp.isfinite(logits)
    size = jnp.where(finite, jnp.abs(logits), jnp.zeros_like(logits))
    largest = jnp.max(size)
    # `not >` rather than `<=`: in an all-zero table every string is close.
    close = ~(size > jnp.broadcast_to(screen.astype(size.dtype) * largest, size.shape))
    return _Signs(
        table=strings.pack(logits > 0),
        close=strings.pack(close),
        smallest=jnp.min(size),
        largest=largest,
        peak=jnp.argmax(size).astype(jnp.int32),
        finite=jnp.all(finite),
        trusted=trusted,
    )


def counts_of_words(words: jax.Array, n: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Profile, number of ones and fingerprint of packed tables ``(..., words)``."""
    return (
        sensitivity.profile_packed(words, n),
        sensitivity.ones_packed(words),
        sensitivity.table_hash(words),
    )


def _outcome(signs: _Signs, n: int) -> Outcome:
    profile, ones, fingerprint = counts_of_words(signs.table, n)
    return Outcome(profile, ones, fingerprint, *signs)


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


def draw(model: Model, seed: jax.Array, high: jax.Array, low: jax.Array) -> object:
    """The parameters of one model: root seed and the halves of its index, uint32 scalars."""
    return model.init_fn(model.law, key_of_parts(seed, high, low))


_draw_one = jax.jit(draw)


def in_groups(function, width: int, *arrays):
    """Maps over the leading axis: sequentially over groups, vmapped over ``width`` inside one."""
    if width == 1:
        return jax.lax.map(lambda row: function(*row), arrays)
    grouped = jax.tree.map(lambda a: a.reshape(-1, width, *a.shape[1:]), arrays)
    result = jax.lax.map(lambda group: jax.vmap(function)(*group), grouped)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), result)


def over_devices(function, mesh: Mesh, num_shared: int, num_split: int):
    """Splits the leading axis of the last ``num_split`` arguments over the devices of ``mesh``."""
    split = PartitionSpec(mesh.axis_names[0])
    specs = (*(PartitionSpec() for _ in range(num_shared)), *(split for _ in range(num_split)))
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)


def _drawn_together(models: int, width: int, n: int) -> int:
    """Models whose parameters are drawn, and whose tables are counted, in one vectorised step.

    Both are cheap for each model and dear to dispatch; the tables of a group wait in memory.
    """
    group = math.gcd(models, max(1, min(_DRAWN_TOGETHER, _WAITING_BITS >> n)))
    return group if group % width == 0 else width


@functools.partial(jax.jit, static_argnames=("width", "mesh"))
def _fused(model: Model, seed, screen, high, low, *, width: int, mesh: Mesh) -> Outcome:
    n = model.length

    def one(params, screen) -> _Signs:
        return _signs(*model.table_fn(cast(params, "float32")), screen)

    def on_device(model, seed, screen, high, low):
        group = _drawn_together(high.shape[0], width, n)

        def some(high, low) -> Outcome:
            params = jax.vmap(lambda hi, lo: draw(model, seed, hi, lo))(high, low)
            # Whatever follows the draw, the drawn numbers must not be re-derived inside it.
            params = jax.lax.optimization_barrier(params)
            return _outcome(in_groups(lambda p: one(p, screen), width, params), n)

        rows = [a.reshape(-1, group) for a in (high, low)]
        result = jax.lax.map(lambda row: some(*row), tuple(rows))
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), result)

    return over_devices(on_device, mesh, 3, 2)(model, seed, screen, high, low)


@functools.partial(jax.jit, static_argnames=("mesh",))
def _draw_batch(model: Model, seed, high, low, *, mesh: Mesh):
    def on_device(model, seed, high, low):
        return jax.vmap(lambda hi, lo: draw(model, seed, hi, lo))(high, low)

    return over_devices(on_device, mesh, 2, 2)(model, seed, high, low)


@functools.partial(jax.jit, static_argnames=("width", "mesh", "plain"))
def _evaluate_batch(
    model: Model, params, nudge, screen, *, width: int, mesh: Mesh, plain: bool
) -> Outcome:
    def on_device(model, nudge, screen, params):
        def one(params) -> Outcome:
            params = nudged(cast(params, nudge.dtype), nudge)
            if plain:
                logits, trusted = model.plain_table(params), jnp.bool_(True)
            else:
                logits, trusted = model.table_fn(params)
            return _outcome(_signs(logits, trusted, screen), model.length)

        return in_groups(one, width, params)

    return over_devices(on_device, mesh, 3, 1)(model, nudge, screen, params)


@functools.partial(jax.jit, static_argnames=("mesh",))
def _evaluate_rows(model: Model, params, rows, nudge, *, mesh: Mesh) -> jax.Array:
    def on_device(model, nudge, params, rows):
        def one(params, rows) -> jax.Array:
            params = nudged(cast(params, nudge.dtype), nudge)
            return model.apply_fn(params, strings.strings_of_rows(rows, model.length))

        return in_groups(one, 1, params, rows)

    return over_devices(on_device, mesh, 2, 2)(model, nudge, params, rows)


def unnamed(model: Model) -> Model:
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
    screen: float = 0.0,
    nudge: float = 0.0,
    plain: bool = False,
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
      screen: margin, relative to a model's largest ``|logit|``, up to which a string is close.
      nudge: relative change of the parameters (:func:`nudged`).
      plain: by the plain pass alone.
    """
    root, model = np.uint32(seed), unnamed(model)
    if dtype == "float32" and model.draw == "float32" and not plain and not nudge:
        with jax.enable_x64(False):
            screen32 = np.float32(screen)
            return jax.device_get(_fused(model, root, screen32, high, low, width=width, mesh=mesh))
    params = draw_params(model, seed, high, low, mesh=mesh)
    with jax.enable_x64(dtype == "float64"):
        result = _evaluate_batch(
            model,
            params,
            np.asarray(nudge, dtype),
            np.asarray(screen, dtype),
            width=width,
            mesh=mesh,
            plain=plain,
        )
        return jax.device_get(result)


def draw_params(model: Model, seed: int, high: np.ndarray, low: np.ndarray, *, mesh: Mesh):
    """The parameters of the models with the given indices, stacked, on the devices of ``mesh``."""
    with jax.enable_x64(model.draw == "float64"):
        return _draw_batch(unnamed(model), np.uint32(seed), high, low, mesh=mesh)


def logits_of_rows(
    model: Model,
    params: Any,
    rows: np.ndarray,
    *,
    mesh: Mesh,
    nudge: float = 0.0,
) -> np.ndarray:
    """Float64 logits of single strings by the plain pass.

    Args:
      model: what is sampled.
      params: parameters of B models, as of :func:`draw_params`.
      rows: int32 ``(B, C)``, rows of the truth table of each.
      mesh: devices; their number divides B.
      nudge: relative change of the parameters.

    Returns:
      float64 ``(B, C)``.
    """
    with jax.enable_x64(True):
        result = _evaluate_rows(unnamed(model), params, rows, np.float64(nudge), mesh=mesh)
        return jax.device_get(result)


@functools.partial(jax.jit, static_argnames=("n",))
def _recount(words, n: int):
    return counts_of_words(words, n)


def recounted(words: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Profile, number of ones and fingerprint of packed tables on the host."""
    with jax.enable_x64(False):
        return jax.device_get(_recount(words, n))


def regenerate_params(model: Model, seed: int, index: int) -> object:
    """The parameters of one model, bit for bit those of the run: a pytree of float32 arrays."""
    with jax.enable_x64(model.draw == "float64"):
        high, low = np.uint32(index >> 32), np.uint32(index & 0xFFFFFFFF)
        return _draw_one(unnamed(model), np.uint32(seed), high, low)
