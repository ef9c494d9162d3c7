r"""The first layer of causal models on the tree of prefixes, from a table of 2N + 1 rows.

A node is number ``2^(t+1) + sum_s x_s 2^s`` (see :mod:`jaxsens.engine.prefix_tree`), its query the
one of (t, x_t). The tokens before position ``low_bits`` are its low half, told by the number modulo
``2^low_bits``; the rest, its own token among them, is the high half: a node of the tree over the
positions from ``low_bits`` on. The halves are merged as in :mod:`jaxsens.engine.first_layer`. The
string at EOS is a node as well, whose high half holds EOS.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxsens.engine import columns, first_layer
from jaxsens.engine.first_layer import AttentionRows
from jaxsens.transformer.config import TransformerConfig
from jaxsens.transformer.params import TransformerParams


class _Halves(NamedTuple):
    """Tables of queries (axis Q) and of nodes of the high half (axis R), low strings last.

    Attributes:
      base: ``(Q, D)``.
      level_low: ``(Q, H, 2**low_bits)``.
      pooled_low: ``(Q, H, D, 2**low_bits)``.
      level_high: ``(H, R)``.
      pooled_high: ``(H, D, R)``.
    """

    base: jax.Array
    level_low: jax.Array
    pooled_low: jax.Array
    level_high: jax.Array
    pooled_high: jax.Array


class FirstLayer(NamedTuple):
    """What :func:`tabulate` returns.

    Attributes:
      rows: attention of every (position, bit).
      nodes: tables of the prefixes longer than ``tile_bits``, queries by (position, bit).
      strings: tables of the strings at EOS.
      tile_bits: log2 of the nodes in a tile.
    """

    rows: AttentionRows
    nodes: _Halves
    strings: _Halves
    tile_bits: int


def depth_of(number: jax.Array) -> jax.Array:
    """Position of a node's last bit; that of the numbers 0 and 1, which are no nodes, is 0."""
    return 30 - jax.lax.clz(jnp.maximum(number, 2))


def tabulate(cfg: TransformerConfig, params: TransformerParams, tile_bits: int) -> FirstLayer:
    """Tables of the first layer for tiles of ``2**tile_bits`` nodes; ``tile_bits <= N``."""
    n = cfg.length
    rows = first_layer.attention_rows(cfg, params, slice(None))
    low_bits = min(tile_bits, (n + 1) // 2)
    low = _bits(low_bits)
    base = rows.base.reshape(-1, cfg.d_model)
    long = slice(2 * tile_bits, 2 * n)
    level_low, pooled_low = first_layer.half(
        rows.scores[long, :, :low_bits], rows.values[:, :low_bits], low
    )
    level_high, pooled_high = _by_node(rows, low_bits, n - low_bits)
    nodes = _Halves(base[long], level_low, pooled_low, level_high, pooled_high)
    eos = slice(2 * n, 2 * n + 1)
    level_low, pooled_low = first_layer.half(
        rows.scores[eos, :, :low_bits], rows.values[:, :low_bits], low
    )
    high = _bits(n - low_bits)
    level_high, pooled_high = first_layer.half(
        rows.scores[eos, :, low_bits:],
        rows.values[:, low_bits:],
        jnp.concatenate([high, jnp.zeros((1, high.shape[1]), bool)]),
    )
    strings = _Halves(base[eos], level_low, pooled_low, level_high[0], pooled_high[0])
    return FirstLayer(rows, nodes, strings, tile_bits)


def _bits(count: int) -> jax.Array:
    """All strings of ``count`` bits, the first least significant: bool ``(count, 2**count)``."""
    number = jnp.arange(2**count, dtype=jnp.int32)
    return _bit(number[None], jnp.arange(count, dtype=jnp.int32)[:, None])


def _bit(number: jax.Array, at: jax.Array) -> jax.Array:
    shape = jnp.broadcast_shapes(number.shape, at.shape)
    return ((jnp.broadcast_to(number, shape) >> jnp.broadcast_to(at, shape)) & 1) == 1


def _by_node(rows: AttentionRows, first: int, count: int) -> tuple[jax.Array, jax.Array]:
    """Level and pooled value of all nodes over the ``count`` positions from ``first`` on.

    Returns:
      ``(H, 2**(count + 1))`` and ``(H, D, 2**(count + 1))``; the first two nodes mean nothing.
    """
    heads = rows.values.shape[0]
    if not count:
        return (
            jnp.zeros((heads, 2), rows.values.dtype),
            jnp.zeros((heads, rows.values.shape[-1], 2), rows.values.dtype),
        )
    number = jnp.arange(2 ** (count + 1), dtype=jnp.int32)
    token = jnp.arange(count, dtype=jnp.int32)[:, None]
    depth = depth_of(number)
    query = 2 * (first + depth) + _bit(number, depth).astype(jnp.int32)
    scores = jnp.moveaxis(
        jnp.take(rows.scores[:, :, first : first + count], query, axis=0, mode="clip"), 0, -1
    )
    bits = _bit(number[None], token)
    shape = (heads, count, number.size)
    seen = jnp.broadcast_to(token, shape[1:]) <= jnp.broadcast_to(depth[None], shape[1:])
    scores = jnp.where(jnp.broadcast_to(bits[None], shape), scores[:, :, 1], scores[:, :, 0])
    scores = jnp.where(jnp.broadcast_to(seen[None], shape), scores, jnp.full_like(scores, -jnp.inf))
    level, mean = first_layer.pooled(scores[None], rows.values[:, first : first + count], bits)
    return level[0], mean[0]


def first_tiles(
    cfg: TransformerConfig, params: TransformerParams, tables: FirstLayer
) -> tuple[jax.Array, jax.Array]:
    """The layer at the prefixes of up to ``tile_bits`` bits: ``(D, 2 * tile)`` and trusted."""
    _, mean = _by_node(tables.rows, 0, tables.tile_bits)
    number = jnp.arange(mean.shape[-1], dtype=jnp.int32)
    depth = depth_of(number)
    own = 2 * depth + _bit(number, depth).astype(jnp.int32)
    base = jnp.take(tables.rows.base.reshape(-1, cfg.d_model).T, own, axis=1, mode="clip")
    total = base + jnp.sum(mean, axis=0)
    return first_layer.after_residual_sum(cfg, params, total, tables.rows.size)


def node_tile(
    cfg: TransformerConfig, params: TransformerParams, tables: FirstLayer, number: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The layer at tile ``number >= 2`` of the nodes: ``(D, tile)`` and trusted ``(tile,)``."""
    depth = depth_of(number)
    query = 2 * depth + _bit(number, depth).astype(jnp.int32)
    return _tile(cfg, params, tables, tables.nodes, query, number)


def string_tile(
    cfg: TransformerConfig, params: TransformerParams, tables: FirstLayer, number: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The layer at EOS on tile ``number`` of the strings: ``(D, tile)`` and trusted ``(tile,)``."""
    return _tile(cfg, params, tables, tables.strings, jnp.int32(0), number)


def _tile(
    cfg: TransformerConfig,
    params: TransformerParams,
    tables: FirstLayer,
    halves: _Halves,
    query: jax.Array,
    number: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    low = halves.level_low.shape[-1]
    count = 2**tables.tile_bits // low

    def of_query(x: jax.Array) -> jax.Array:
        return columns.materialised(jax.lax.dynamic_index_in_dim(x, query, 0, keepdims=False))

    def of_tile(x: jax.Array) -> jax.Array:
        piece = jax.lax.dynamic_slice_in_dim(x, number * count, count, axis=-1)
        return columns.materialised(piece)

    level_low, pooled_low = of_query(halves.level_low), of_query(halves.pooled_low)
    level_high, pooled_high = of_tile(halves.level_high), of_tile(halves.pooled_high)
    shape = (cfg.d_model, count, low)
    base = jax.lax.dynamic_index_in_dim(halves.base, query, 0, keepdims=False)
    total = jnp.broadcast_to(base[:, None, None], shape)
    for head in range(cfg.num_heads):
        difference = jnp.broadcast_to(level_high[head][:, None], shape[1:])
        difference = difference - jnp.broadcast_to(level_low[head][None], shape[1:])
        total = total + first_layer.merged(
            difference,
            jnp.broadcast_to(pooled_high[head][:, :, None], shape),
            jnp.broadcast_to(pooled_low[head][:, None], shape),
        )
    return first_layer.after_residual_sum(cfg, params, total, tables.rows.size)
