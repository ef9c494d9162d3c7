r"""Truth tables of causal models: what a bit position computes depends on its prefix alone.

Prefixes form a binary tree. The node of the prefix x_0 .. x_t is number ``2^(t+1) + sum_s x_s 2^s``
(first bit *least* significant), so the prefix of length s + 1 of any node is

    2^(s+1) + (number mod 2^(s+1)):

along a run of consecutive nodes, the ancestors at depth s are consecutive too, or repeat with
period 2^(s+1). Keys and values are therefore read as slices, never gathered. All layers together
evaluate about 2^(N+1) nodes and 2^N strings at EOS instead of (N + 1) 2^N tokens each.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxsens.engine import attend, columns
from jaxsens.engine.first_layer import token_rows
from jaxsens.transformer.config import TransformerConfig
from jaxsens.transformer.params import LayerParams, TransformerParams


class _Shown(NamedTuple):
    """Keys and values of every depth, one below the other: ``(2 H K, total)``.

    Depths whose nodes do not fill a tile are repeated until they do.
    """

    keys_values: jax.Array
    offsets: tuple[int, ...]
    periods: tuple[int, ...]


def table(
    cfg: TransformerConfig, params: TransformerParams, tile_bits: int
) -> tuple[jax.Array, jax.Array]:
    """Logits ``(2**length,)`` in row order, and bool ``()``: they can be trusted."""
    n = cfg.length
    size = 2 ** min(tile_bits, n)
    rows = token_rows(cfg, params)
    number = jnp.arange(2 ** (n + 1), dtype=jnp.int32)
    depth = 31 - jax.lax.clz(jnp.maximum(number, 2)) - 1
    bit = (number >> depth) & 1
    flat = rows.reshape(-1, cfg.d_model).T
    nodes = jnp.take(flat, 2 * depth + bit, axis=1)
    strings = jnp.broadcast_to(rows[n, 0][:, None], (cfg.d_model, 2**n))
    trusted = jnp.bool_(True)
    for index, p in enumerate(params.layers):
        shown, good = _show(cfg, p, nodes, size)
        trusted = trusted & good
        strings, good = _layer(cfg, p, shown, strings, 2**n, size, at_eos=True)
        trusted = trusted & good
        if index + 1 < cfg.num_layers:
            nodes, good = _layer(cfg, p, shown, nodes, 0, size, at_eos=False)
            trusted = trusted & good
    logits, good = columns.readout(cfg, params, strings)
    row = jnp.arange(2**n, dtype=jnp.int32)
    return logits[_reversed_bits(row, n)], trusted & jnp.all(good)


def _reversed_bits(row: jax.Array, n: int) -> jax.Array:
    reverse = jnp.zeros_like(row)
    for i in range(n):
        reverse = reverse | (((row >> i) & 1) << (n - 1 - i))
    return reverse


def _in_tiles(function, size: int, *arrays: jax.Array):
    """Maps ``function(start, *tiles)`` over tiles of ``size`` columns."""
    total = arrays[0].shape[-1]

    def at(start: jax.Array):
        tiles = [jax.lax.dynamic_slice_in_dim(a, start, size, axis=-1) for a in arrays]
        return function(start, *tiles)

    results = jax.lax.map(at, jnp.arange(0, total, size, dtype=jnp.int32))

    def joined(x: jax.Array) -> jax.Array:
        # (tiles, ..., size) to (..., total).
        return jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], total)

    return jax.tree.map(joined, results)


def _show(
    cfg: TransformerConfig, p: LayerParams, nodes: jax.Array, size: int
) -> tuple[_Shown, jax.Array]:
    def tokens(start: jax.Array, h: jax.Array):
        x, good = columns.attention_input(cfg, p, h)
        both = [columns.project(p.wk, p.bk, x), columns.project(p.wv, p.bv, x)]
        return jnp.concatenate(both), good

    keys_values, good = _in_tiles(tokens, min(size, nodes.shape[1]), nodes)
    # Numbers 0 and 1 are no prefixes.
    trusted = jnp.all(good[2:])
    pieces, offsets, periods, offset = [], [], [], 0
    for depth in range(cfg.length):
        width = 2 ** (depth + 1)
        piece = keys_values[:, width : 2 * width]
        repeats = max(1, size // width)
        pieces.append(jnp.tile(piece, (1, repeats)))
        offsets.append(offset)
        periods.append(max(width, size))
        offset += max(width, size)
    return _Shown(jnp.concatenate(pieces, axis=1), tuple(offsets), tuple(periods)), trusted


def _layer(
    cfg: TransformerConfig,
    p: LayerParams,
    shown: _Shown,
    stream: jax.Array,
    first_number: int,
    size: int,
    at_eos: bool,
) -> tuple[jax.Array, jax.Array]:
    """One block at the nodes of a stream ``(D, nodes)``, or at EOS of every string."""
    n, heads, inner = cfg.length, cfg.num_heads, cfg.num_heads * cfg.key_dim
    offsets = jnp.asarray(shown.offsets, jnp.int32)
    periods = jnp.asarray(shown.periods, jnp.int32)
    scale = columns.score_scale(cfg, stream.dtype)

    def tile(start: jax.Array, h: jax.Array):
        x, good = columns.attention_input(cfg, p, h)
        query = columns.project(p.wq, p.bq, x) * scale
        number = first_number + start + jnp.arange(size, dtype=jnp.int32)
        level = 31 - jax.lax.clz(jnp.maximum(number, 2)) - 1

        def step(pool: attend.Pool, depth: jax.Array):
            at = offsets[depth] + (start & (periods[depth] - 1))
            shown_here = jax.lax.dynamic_slice_in_dim(shown.keys_values, at, size, axis=1)
            key, value = shown_here[:inner], shown_here[inner:]
            scores = columns.head_sums(query * key, heads)
            if not at_eos:
                ancestor = jnp.broadcast_to(depth, level.shape) <= level
                never = jnp.full_like(scores, -jnp.inf)
                scores = jnp.where(jnp.broadcast_to(ancestor[None], scores.shape), scores, never)
            return attend.add(pool, scores, value), None

        if at_eos:
            own = columns.project(p.wk, p.bk, x)
            pool = attend.start(
                columns.head_sums(query * own, heads), columns.project(p.wv, p.bv, x)
            )
            pool, _ = jax.lax.scan(step, pool, jnp.arange(n, dtype=jnp.int32))
        else:
            # Every prefix begins at depth 0, so the maximum is finite from the first step on.
            never = jnp.full((heads, size), -jnp.inf, h.dtype)
            pool = attend.Pool(never, jnp.zeros_like(never), jnp.zeros((inner, size), h.dtype))
            pool, _ = jax.lax.scan(step, pool, jnp.arange(n, dtype=jnp.int32))
        out = columns.product(p.wo.reshape(inner, -1).T, attend.mean(pool))
        h, also = columns.after_attention(cfg, p, h + columns.plus(out, p.bo))
        return h, good & also

    out, good = _in_tiles(tile, size, stream)
    return out, jnp.all(good if at_eos else good[2:])
