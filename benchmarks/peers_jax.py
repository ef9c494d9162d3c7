"""The JAX peer: vmap over models of vmap over strings of a plain forward pass of one string."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsens import TransformerConfig, strings

Arrays = dict[str, np.ndarray]
Result = tuple[jax.Array, jax.Array]


def _norm(x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    deviation = x - x.mean(-1, keepdims=True)
    return deviation / jnp.sqrt((deviation**2).mean(-1, keepdims=True) + eps) * scale + bias


def _logit(cfg: TransformerConfig, p: dict[str, jax.Array], bits: jax.Array) -> jax.Array:
    """Logit of one string ``(n,)``."""
    h = p["token_embedding"][jnp.append(bits, 2)] + p["position_embedding"]
    for i in range(cfg.num_layers):
        a = {k.split(".", 1)[1]: v for k, v in p.items() if k.startswith(f"layer{i}.")}
        q, k, v = (jnp.einsum("td,dhk->htk", h, a[f"w{x}"]) + a[f"b{x}"][:, None] for x in "qkv")
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(cfg.key_dim)
        if cfg.causal:
            scores = jnp.where(jnp.tri(cfg.num_tokens, dtype=bool), scores, -jnp.inf)
        pooled = jax.nn.softmax(scores, axis=-1) @ v
        attended = jnp.einsum("htk,hkd->td", pooled, a["wo"]) + a["bo"]
        h = _norm(h + attended, a["norm1.scale"], a["norm1.bias"], cfg.eps)
        hidden = jax.nn.relu(h @ a["w_in"] + a["b_in"])
        h = _norm(h + hidden @ a["w_out"] + a["b_out"], a["norm2.scale"], a["norm2.bias"], cfg.eps)
    return h[-1] @ p["readout.w"] + p["readout.b"]


def profile(table: jax.Array, flipped: jax.Array) -> jax.Array:
    """Sensitivity profile by index gather: bool ``(2**n,)`` to int32 ``(n + 1,)``."""
    sensitivity = (table[flipped] != table).sum(0)
    return jnp.stack([(sensitivity == k).sum() for k in range(len(flipped) + 1)])


def profile_bit_by_bit(table: jax.Array, flipped: jax.Array) -> jax.Array:
    """The same, gathering one bit position after the other: smaller temporaries."""
    sensitivity = sum((table[rows] != table).astype(jnp.uint8) for rows in flipped)
    return jnp.stack([(sensitivity == k).sum() for k in range(len(flipped) + 1)])


def neighbours(n: int) -> jax.Array:
    """Row r ^ (1 << j) for each j and r: int32 ``(n, 2**n)``."""
    rows = jnp.arange(2**n, dtype=jnp.int32)
    return jnp.stack([rows ^ (1 << j) for j in range(n)])


def over_all_devices(tree: Any) -> Any:
    """Splits the leading axis over all devices."""
    mesh = Mesh(np.asarray(jax.devices()), ("models",))
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec("models")))


def mapped_over_tables(
    one: Callable[[jax.Array, jax.Array], jax.Array], flipped: jax.Array
) -> Callable[[jax.Array], jax.Array]:
    """Tables, split over the devices, to what ``one`` gives for each, one after the other."""
    mesh = Mesh(np.asarray(jax.devices()), ("models",))
    spec = PartitionSpec("models")

    def on_device(tables: jax.Array, flipped: jax.Array) -> jax.Array:
        return jax.lax.map(lambda table: one(table, flipped), tables)

    specs = (spec, PartitionSpec())
    program = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=spec))
    flipped = jax.device_put(flipped, NamedSharding(mesh, PartitionSpec()))
    return lambda tables: program(tables, flipped)


@functools.partial(jax.jit, static_argnames=("cfg", "tile"))
def _evaluate(cfg: TransformerConfig, params, bits, flipped, *, tile: int) -> Result:
    # On a GPU the default would be TF32: another truth table.
    with jax.default_matmul_precision("highest"):
        of_strings = jax.vmap(lambda p, x: _logit(cfg, p, x), in_axes=(None, 0))
        of_models = jax.vmap(of_strings, in_axes=(0, None))
        tiles = jax.lax.map(lambda x: of_models(params, x), bits.reshape(-1, tile, cfg.length))
    tables = tiles.swapaxes(0, 1).reshape(-1, len(bits)) > 0
    return tables, jax.vmap(profile, in_axes=(0, None))(tables, flipped)


def double_vmap(
    cfg: TransformerConfig, models: list[Arrays], **settings: Any
) -> Callable[[int], Result]:
    """A call that evaluates the first ``count`` models, ``chunk`` at once.

    Settings: ``chunk``, ``tile`` (strings at once), ``split`` (a chunk is split over the devices).

    The call returns truth tables ``(count, 2**n)`` and profiles ``(count, n + 1)``.
    """
    chunk, tile = settings["chunk"], settings["tile"]
    bits, flipped = jnp.asarray(strings.all_strings(cfg.length)), neighbours(cfg.length)
    stacks = []
    for i in range(0, len(models), chunk):
        stack = {k: np.stack([m[k] for m in models[i : i + chunk]]) for k in models[0]}
        stacks.append(over_all_devices(stack) if settings["split"] else jax.device_put(stack))
    if settings["split"]:
        mesh = Mesh(np.asarray(jax.devices()), ("models",))
        bits, flipped = jax.device_put((bits, flipped), NamedSharding(mesh, PartitionSpec()))

    def run(count: int) -> Result:
        each = [
            _evaluate(cfg, stack, bits, flipped, tile=tile)
            for stack in stacks[: -(-count // chunk)]
        ]
        jax.block_until_ready(each)
        return tuple(jnp.concatenate(column) for column in zip(*each, strict=True))

    return run
