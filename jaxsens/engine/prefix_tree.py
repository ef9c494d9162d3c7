r"""Truth tables of causal models: what a bit position computes depends on its prefix alone.

Prefixes form a binary tree. The node of the prefix x_0 .. x_t is number ``2^(t+1) + sum_s x_s 2^s``
(first bit *least* significant), so the prefix of length s + 1 of any node is

    2^(s+1) + (number mod 2^(s+1)):

along a run of consecutive nodes, the ancestors at depth s are consecutive too, or repeat with
period 2^(s+1). Nodes are kept in tiles of consecutive numbers; for a tile of queries the keys and
values of one depth are one tile, never gathered. All layers together evaluate about 2^(N+1) nodes
and 2^N strings at EOS instead of (N + 1) 2^N tokens each.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.engine import attend, columns, prefix_first_layer
from jaxsens.engine.prefix_first_layer import depth_of
from jaxsens.transformer.config import TransformerConfig
from jaxsens.transformer.params import LayerParams, TransformerParams


class _Nodes(NamedTuple):
    """Channels of every node in tiles ``(tiles, C, size)``, and where they are trusted."""

    tiles: jax.Array
    trusted: jax.Array


def table(
    cfg: TransformerConfig, params: TransformerParams, tile_bits: int
) -> tuple[jax.Array, jax.Array]:
    """Logits ``(2**length,)`` in row order, and bool ``()``: they can be trusted."""
    n = cfg.length
    tile_bits = min(tile_bits, n)
    tables = prefix_first_layer.tabulate(cfg, params, tile_bits)
    second, last = params.layers[1], params.layers[-1]

    def shown(p: LayerParams) -> Callable:
        def show(h: jax.Array) -> tuple[jax.Array, jax.Array]:
            x, good = columns.attention_input(cfg, p, h)
            both = [columns.project(p.wk, p.bk, x), columns.project(p.wv, p.bv, x)]
            return jnp.concatenate([*both, *([h] if p is not last else [])]), good

        return show

    nodes = _first_nodes(cfg, params, tables, shown(second))
    trusted = jnp.bool_(True)
    later = params.layers[1:]
    middle = []
    for p, following in zip(later[:-1], later[1:], strict=True):
        trusted = trusted & jnp.all(nodes.trusted[2:])
        middle.append(_by_depth(cfg, nodes, tile_bits))
        nodes = _middle(cfg, p, nodes, middle[-1], tile_bits, shown(following))
    trusted = trusted & jnp.all(nodes.trusted[2:])
    by_depth = [*middle, _by_depth(cfg, nodes, tile_bits)]

    def strings(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        h, good = prefix_first_layer.string_tile(cfg, params, tables, number)
        for p, seen in zip(later, by_depth, strict=True):
            h, also = _at_eos(cfg, p, h, seen, _ancestors(n, tile_bits, number))
            good = good & also
        logits, also = columns.readout(cfg, params, h)
        return logits, good & also

    logits, good = jax.lax.map(strings, jnp.arange(2 ** (n - tile_bits), dtype=jnp.int32))
    return _in_row_order(logits.reshape(-1), n), trusted & jnp.all(good)


def _in_row_order(x: jax.Array, n: int) -> jax.Array:
    """From the first bit least significant to the first bit most significant."""
    # Both halves of the index are reversed and change places: two gathers of whole rows.
    half = n // 2
    x = jnp.take(x.reshape(2**half, -1), _reversed(half), axis=0, mode="clip").T
    return jnp.take(x, _reversed(n - half), axis=0, mode="clip").reshape(-1)


def _reversed(bits: int) -> np.ndarray:
    """Every number of so many bits, read backwards."""
    numbers = np.zeros(1, np.int32)
    for _ in range(bits):
        numbers = np.concatenate([2 * numbers, 2 * numbers + 1])
    return numbers


def _first_nodes(
    cfg: TransformerConfig,
    params: TransformerParams,
    tables: prefix_first_layer.FirstLayer,
    show: Callable,
) -> _Nodes:
    """The first layer at every node, as ``show`` makes it."""
    size = 2**tables.tile_bits
    h, good = prefix_first_layer.first_tiles(cfg, params, tables)
    x, also = show(h)
    x, good = _tiles_of(x, size), (good & also).reshape(2, size)
    if cfg.length > tables.tile_bits:

        def tile(number: jax.Array) -> tuple[jax.Array, jax.Array]:
            h, good = prefix_first_layer.node_tile(cfg, params, tables, number)
            x, also = show(h)
            return x, good & also

        numbers = jnp.arange(2, 2 ** (cfg.length + 1 - tables.tile_bits), dtype=jnp.int32)
        more, also = jax.lax.map(tile, numbers)
        x, good = jnp.concatenate([x, more]), jnp.concatenate([good, also])
    return _Nodes(x, good.reshape(-1))


def _tiles_of(x: jax.Array, size: int) -> jax.Array:
    """``(C, T size)`` to ``(T, C, size)``."""
    return jnp.moveaxis(x.reshape(x.shape[0], -1, size), 1, 0)


def _by_depth(cfg: TransformerConfig, nodes: _Nodes, tile_bits: int) -> jax.Array:
    """Keys and values in tiles, those of the shallow depths repeated until they fill one.

    ``(tile_bits - 1 + tiles - 1, 2 H K, size)``: depths 0 .. tile_bits - 2, then tiles 1, 2, ...
    """
    tiles = nodes.tiles[:, : 2 * cfg.num_heads * cfg.key_dim]
    size = tiles.shape[-1]
    shallow = [
        jnp.tile(tiles[0, :, width : 2 * width], (1, size // width))[None]
        for width in (2 ** (depth + 1) for depth in range(tile_bits - 1))
    ]
    return jnp.concatenate([*shallow, tiles[1:]])


def _ancestors(n: int, tile_bits: int, number: jax.Array) -> jax.Array:
    """Where :func:`_by_depth` keeps the ancestors of tile ``number``, int32 ``(n,)``."""
    depth = jnp.arange(n, dtype=jnp.int32)
    width = 1 << jnp.maximum(depth + 1 - tile_bits, 0)
    deep = tile_bits - 2 + width + (number & (width - 1))
    return jnp.where(depth < tile_bits - 1, depth, deep)


def _scores(
    cfg: TransformerConfig, query: jax.Array, by_depth: jax.Array, ancestors: jax.Array
) -> jax.Array:
    """Scores of the ancestors, ``(n, H, size)``."""
    inner = query.shape[0]

    def step(_, at: jax.Array):
        key = jax.lax.dynamic_index_in_dim(by_depth, at, 0, keepdims=False)[:inner]
        return _, columns.head_sums(query * key, cfg.num_heads)

    return jax.lax.scan(step, 0, ancestors)[1]


def _pooled(
    cfg: TransformerConfig,
    start: jax.Array,
    weights: jax.Array,
    by_depth: jax.Array,
    ancestors: jax.Array,
) -> jax.Array:
    """``start`` plus the weighted values of the ancestors, ``(H K, size)``."""
    inner = start.shape[0]

    def step(total: jax.Array, at: tuple[jax.Array, jax.Array]):
        weight, place = at
        value = jax.lax.dynamic_index_in_dim(by_depth, place, 0, keepdims=False)[inner:]
        return total + columns.per_head(weight, cfg.key_dim) * value, None

    return jax.lax.scan(step, start, (weights, ancestors))[0]


def _at_eos(
    cfg: TransformerConfig,
    p: LayerParams,
    h: jax.Array,
    by_depth: jax.Array,
    ancestors: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """One block at EOS of a tile of strings, ``(D, size)``."""
    x, good = columns.attention_input(cfg, p, h)
    query = columns.project(p.wq, p.bq, x) * columns.score_scale(cfg, h.dtype)
    own = columns.head_sums(query * columns.project(p.wk, p.bk, x), cfg.num_heads)
    scores = _scores(cfg, query, by_depth, ancestors)
    scores = jnp.concatenate([scores, own[None]])
    weights = attend.softmax(scores)
    start = columns.per_head(weights[-1], cfg.key_dim) * columns.project(p.wv, p.bv, x)
    pool = _pooled(cfg, start, weights[:-1], by_depth, ancestors)
    return _after(cfg, p, h, pool, good)


def _after(
    cfg: TransformerConfig, p: LayerParams, h: jax.Array, pool: jax.Array, good: jax.Array
) -> tuple[jax.Array, jax.Array]:
    out = columns.product(p.wo.reshape(pool.shape[0], -1).T, pool)
    h, also = columns.after_attention(cfg, p, h + columns.plus(out, p.bo))
    return h, good & also


def _middle(
    cfg: TransformerConfig,
    p: LayerParams,
    nodes: _Nodes,
    by_depth: jax.Array,
    tile_bits: int,
    show: Callable,
) -> _Nodes:
    """One block at every node, as ``show`` makes it."""
    n, size = cfg.length, nodes.tiles.shape[-1]
    inner = cfg.num_heads * cfg.key_dim

    def tile(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jax.lax.dynamic_index_in_dim(nodes.tiles, number, 0, keepdims=False)[2 * inner :]
        x, good = columns.attention_input(cfg, p, h)
        query = columns.project(p.wq, p.bq, x) * columns.score_scale(cfg, h.dtype)
        ancestors = _ancestors(n, tile_bits, number)
        scores = _scores(cfg, query, by_depth, ancestors)
        level = depth_of(number * size + jnp.arange(size, dtype=jnp.int32))
        depth = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        # Every prefix begins at depth 0, so the largest score is finite.
        scores = jnp.where(
            depth <= jnp.broadcast_to(level, scores.shape), scores, jnp.full_like(scores, -jnp.inf)
        )
        pool = _pooled(cfg, jnp.zeros_like(query), attend.softmax(scores), by_depth, ancestors)
        h, good = _after(cfg, p, h, pool, good)
        x, also = show(h)
        return x, good & also

    tiles, good = jax.lax.map(tile, jnp.arange(nodes.tiles.shape[0], dtype=jnp.int32))
    return _Nodes(tiles, good.reshape(-1))
