"""What the sampler samples: an (init, apply) pair on binary strings."""

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

from jaxsens import engine, strings
from jaxsens.inits import InitLaw
from jaxsens.transformer.config import TransformerConfig
from jaxsens.transformer.forward import apply as transformer_apply
from jaxsens.transformer.forward import floats_per_string, rows_per_tile, tabulate


@struct.dataclass
class Model:
    """A random function on ``{0,1}^length``: draw parameters, then take logits of strings.

    Attributes:
      law: pytree of swept numbers, handed to ``init_fn``; ``None`` where there are none.
      init_fn: ``(law, key) -> params``, pure; draws float32 parameters.
      apply_fn: ``(params, bits)`` with int32 bits ``(S, length)`` to logits ``(S,)``: the plain
        pass, by which close calls are settled.
      table_fn: ``params -> (logits, trusted)``, the fastest way to the logits ``(2**length,)`` in
        row order; where the bool ``trusted`` is False they may be wrong.
      strings_fn: ``(params, bits) -> (logits, trusted)``, the fastest way to the logits of a few
        strings, each with its bool ``trusted`` ``(S,)``.
      length: number of bits.
      description: canonical JSON of what defines the model, ``law`` included; hashed into runs.
      floats_per_string: working set of one string in ``apply_fn``, in numbers; sets how many are
        evaluated at once.
      evaluation: what ``table_fn`` makes use of; recorded in the manifest.
      work_per_string: cost of one string in ``table_fn``, in the unit of ``floats_per_string``.
    """

    law: Any
    init_fn: Callable[[Any, jax.Array], Any] = struct.field(pytree_node=False)
    apply_fn: Callable[[Any, jax.Array], jax.Array] = struct.field(pytree_node=False)
    table_fn: Callable[[Any], tuple[jax.Array, jax.Array]] = struct.field(pytree_node=False)
    strings_fn: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]] = struct.field(
        pytree_node=False
    )
    length: int = struct.field(pytree_node=False)
    description: str = struct.field(pytree_node=False)
    floats_per_string: int = struct.field(pytree_node=False)
    evaluation: str = struct.field(pytree_node=False)
    work_per_string: float = struct.field(pytree_node=False)
    draw: str = struct.field(pytree_node=False, default="float32")

    @property
    def tile_bits(self) -> int | None:
        """log2 of the strings that ``table_fn`` works on together; ``None`` where it has no say."""
        return self.table_fn.tile_bits if isinstance(self.table_fn, _TransformerTable) else None

    def in_tiles(self, tile_bits: int | None) -> "Model":
        """The same model, worked on in tiles of ``2**tile_bits`` strings; ``None`` changes nothing.

        Raises:
          ValueError: the number is below 1, or the model's evaluation has no tiles to choose.
        """
        if tile_bits is None:
            return self
        if self.tile_bits is None:
            raise ValueError(
                f"tile_bits: {tile_bits!r} given; leave it out, the evaluation of this model "
                f"({self.evaluation}) has no tiles to choose"
            )
        if not strings.is_integer(tile_bits) or tile_bits < 1:
            raise ValueError(f"tile_bits: {tile_bits!r} given; it must be an integer of at least 1")
        table_fn = dataclasses.replace(self.table_fn, tile_bits=int(tile_bits))  # pyright: ignore[reportArgumentType]
        return dataclasses.replace(self, table_fn=table_fn)

    def plain_table(self, params: Any) -> jax.Array:
        """Logits ``(2**length,)`` in row order from ``apply_fn`` alone."""
        return tabulate(
            lambda bits: self.apply_fn(params, bits), self.length, self.floats_per_string
        )


# The callables below are frozen dataclasses, not closures: equal configs compare equal, so that a
# model built twice compiles once.
@dataclasses.dataclass(frozen=True)
class _TransformerInit:
    cfg: TransformerConfig

    def __call__(self, law: Callable, key: jax.Array) -> Any:
        return law(key, self.cfg)


@dataclasses.dataclass(frozen=True)
class _TransformerApply:
    cfg: TransformerConfig

    def __call__(self, params: Any, bits: jax.Array) -> jax.Array:
        return transformer_apply(self.cfg, params, bits)


@dataclasses.dataclass(frozen=True)
class _TransformerTable:
    cfg: TransformerConfig
    tile_bits: int | None

    def __call__(self, params: Any) -> tuple[jax.Array, jax.Array]:
        return engine.trusted_table(self.cfg, params, self.tile_bits)


@dataclasses.dataclass(frozen=True)
class _TransformerStrings:
    cfg: TransformerConfig

    def __call__(self, params: Any, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
        return engine.trusted_logits(self.cfg, params, bits)


@dataclasses.dataclass(frozen=True)
class _KeyOnly:
    init_fn: Callable[[jax.Array], Any]

    def __call__(self, law: None, key: jax.Array) -> Any:
        return self.init_fn(key)


@dataclasses.dataclass(frozen=True)
class _PlainTable:
    apply_fn: Callable[[Any, jax.Array], jax.Array]
    length: int
    floats_per_string: int

    def __call__(self, params: Any) -> tuple[jax.Array, jax.Array]:
        logits = tabulate(
            functools.partial(self.apply_fn, params), self.length, self.floats_per_string
        )
        return logits, jnp.bool_(True)


@dataclasses.dataclass(frozen=True)
class _PlainStrings:
    apply_fn: Callable[[Any, jax.Array], jax.Array]

    def __call__(self, params: Any, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.apply_fn(params, bits), jnp.ones(bits.shape[:1], bool)


def canonical_json(value: Any) -> str:
    """One JSON text per value: sorted keys, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=lambda x: x.item()
    )


def transformer_model(cfg: TransformerConfig, init: InitLaw | Callable) -> Model:
    """The random transformer with config ``cfg`` whose parameters follow ``init``.

    Args:
      cfg: the static config.
      init: a law of :mod:`jaxsens.inits`, or any hashable callable ``(key, cfg) -> params``; the
        latter is told apart on disk by its ``__qualname__`` (or ``repr``) alone.
    """
    if not callable(init):
        raise ValueError(f"init: {init!r} given; it must be a law such as jaxsens.inits.uniform()")
    if isinstance(init, InitLaw):
        law, described, draw = init, init.describe(), init.draw
        init_fn = _TransformerInit(cfg)
    else:
        law, described, draw = None, getattr(init, "__qualname__", repr(init)), "float32"
        init_fn = _CallableInit(cfg, init)
    description = {"kind": "transformer", "config": dataclasses.asdict(cfg), "init": described}
    return Model(
        law=law,
        init_fn=init_fn,
        apply_fn=_TransformerApply(cfg),
        table_fn=_TransformerTable(cfg, engine.default_tile_bits(cfg)),
        strings_fn=_TransformerStrings(cfg),
        length=cfg.length,
        description=canonical_json(description),
        floats_per_string=floats_per_string(cfg),
        evaluation=engine.path_name(cfg),
        work_per_string=engine.work_per_string(cfg),
        draw=draw,
    )


@dataclasses.dataclass(frozen=True)
class _CallableInit:
    cfg: TransformerConfig
    init: Callable[[jax.Array, TransformerConfig], Any]

    def __call__(self, law: None, key: jax.Array) -> Any:
        return self.init(key, self.cfg)


def from_pair(
    init_fn: Callable[[jax.Array], Any],
    apply_fn: Callable[[Any, jax.Array], jax.Array],
    *,
    length: int,
    name: str,
    floats_per_string: int = 1024,
) -> Model:
    """Any network as a model, from a pure (init, apply) pair.

    Args:
      init_fn: ``key -> params`` (a pytree of float32 arrays).
      apply_fn: ``(params, bits) -> logits`` with int32 bits ``(S, length)`` and logits ``(S,)``.
        It must compute in the dtype of ``params``: undecided models are evaluated in float64.
      length: number of bits of a string.
      name: what identifies the model on disk; two models that differ must not share it.
      floats_per_string: numbers that one string keeps alive; sets the tile of strings.

    Raises:
      ValueError: ``length`` is out of range, ``name`` is empty, or ``apply_fn`` does not return one
        logit a string.
    """
    length = strings.check_length(length)
    if not isinstance(name, str) or not name:
        raise ValueError(f"name: {name!r} given; it must be a non-empty string")
    for argument, value in (("init_fn", init_fn), ("apply_fn", apply_fn)):
        if not callable(value):
            raise ValueError(f"{argument}: {value!r} given; it must be a function")
    if not strings.is_integer(floats_per_string) or floats_per_string < 1:
        raise ValueError(
            f"floats_per_string: {floats_per_string!r} given; it must be an integer of at least 1"
        )
    params = jax.eval_shape(lambda: init_fn(jax.random.key(0)))
    two = jax.ShapeDtypeStruct((2, length), jnp.int32)
    logits = jax.eval_shape(apply_fn, params, two)
    if getattr(logits, "shape", None) != (2,):
        raise ValueError(
            f"apply_fn: 2 strings give {getattr(logits, 'shape', type(logits).__name__)}; "
            "it must return one logit a string, shape (2,)"
        )
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise ValueError(f"apply_fn: {logits.dtype} logits returned; they must be floating")
    return Model(
        law=None,
        init_fn=_KeyOnly(init_fn),
        apply_fn=apply_fn,
        table_fn=_PlainTable(apply_fn, length, floats_per_string),
        strings_fn=_PlainStrings(apply_fn),
        length=length,
        description=canonical_json({"kind": "pair", "length": length, "name": name}),
        floats_per_string=floats_per_string,
        evaluation="plain pass",
        work_per_string=float(floats_per_string),
    )


def from_nnx(
    module_factory: Callable[[nnx.Rngs], nnx.Module],
    *,
    length: int,
    name: str,
    floats_per_string: int = 1024,
) -> Model:
    """Any flax ``nnx`` module as a model.

    Args:
      module_factory: ``rngs -> module``; the module maps int32 bits ``(S, length)`` to logits
        ``(S,)``. Every draw must come from ``rngs``.
      length: number of bits of a string.
      name: what identifies the model on disk.
      floats_per_string: as in :func:`from_pair`.
    """

    def init_fn(key: jax.Array) -> Any:
        return nnx.split(module_factory(nnx.Rngs(key)))[1]

    # The graph is the same for every key, so it is taken once, abstractly.
    graph, _ = nnx.split(nnx.eval_shape(lambda: module_factory(nnx.Rngs(0))))

    def apply_fn(params: Any, bits: jax.Array) -> jax.Array:
        return nnx.merge(graph, params)(bits)

    return from_pair(
        init_fn, apply_fn, length=length, name=name, floats_per_string=floats_per_string
    )


# Up to this length, this many tables of the engine go together on a CPU core.
_TINY_LENGTH, _TINY_TABLES = 6, 8


def tables_at_once(model: Model, platform: str) -> int:
    """Models vmapped together: as many as fill the device without leaving its fast memory.

    A CPU core is busy with one table of the engine, and small products are slow in batches; only
    where a table is so short that starting its loops takes longer do a few go together. The plain
    pass takes as many whole tables as one tile's budget holds, at least one. An accelerator
    wants many.
    """
    if platform != "cpu":
        numbers = 1 << 26
        return max(1, numbers // (model.floats_per_string << min(model.length, 12)))
    if model.evaluation != "plain pass":
        return _TINY_TABLES if model.length <= _TINY_LENGTH else 1
    budget = rows_per_tile(strings.MAX_LENGTH, model.floats_per_string)
    return max(1, budget >> model.length)
