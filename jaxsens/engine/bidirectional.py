"""Truth tables of bidirectional models: tabulated first layer, one query in the last layer."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxsens.engine import attend, columns, first_layer
from jaxsens.engine.first_layer import FirstLayer
from jaxsens.transformer.config import TransformerConfig
from jaxsens.transformer.params import LayerParams, TransformerParams


def table(
    cfg: TransformerConfig, params: TransformerParams, tile_bits: int
) -> tuple[jax.Array, jax.Array]:
    """Logits ``(2**length,)`` in row order, and bool ``()``: they can be trusted.

    Works through tiles of ``2**tile_bits`` strings.
    """
    n = cfg.length
    tile_bits = min(tile_bits, n)
    low_bits = min((n + 1) // 2, tile_bits)
    tables = first_layer.tabulate(cfg, params, low_bits, only_eos=cfg.num_layers == 1)
    count, low = 2 ** (tile_bits - low_bits), 2**low_bits
    within = jnp.arange(count * low, dtype=jnp.int32).reshape(count, low)

    def tile(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        here = first_layer.high_strings(tables, number * count, count)
        return _tile(cfg, params, here, within + number * (count * low))

    tiles = 2 ** (n - tile_bits)
    if tiles == 1:
        logits, trusted = tile(jnp.int32(0))
    else:
        logits, trusted = jax.lax.map(tile, jnp.arange(tiles, dtype=jnp.int32))
    return logits.reshape(-1), jnp.all(trusted)


def _query(tables: FirstLayer, index) -> FirstLayer:
    return jax.tree.map(lambda x: x[index] if x.ndim else x, tables)


def _tile(
    cfg: TransformerConfig, params: TransformerParams, tables: FirstLayer, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
    size = tables.size
    # What a scan runs over must have a leading axis.
    others = dataclasses.replace(_query(tables, slice(None, -1)), size=None)

    def first(p: FirstLayer) -> tuple[jax.Array, jax.Array]:
        return first_layer.first_block(cfg, params, dataclasses.replace(p, size=size), rows)

    def first_in_loop(p: FirstLayer) -> tuple[jax.Array, jax.Array]:
        return first(first_layer.materialised(p))

    h, trusted = first(_query(tables, -1))
    if cfg.num_layers == 1:
        logits, also = columns.readout(cfg, params, h)
        return logits, trusted & also
    last = params.layers[-1]
    if cfg.num_layers == 2:

        def see(token: Any) -> tuple[jax.Array, jax.Array]:
            x, good = first_in_loop(token)
            x, also = columns.attention_input(cfg, last, x)
            return x, good & also

    else:
        hidden, good = jax.lax.map(first_in_loop, others)
        trusted = trusted & jnp.all(good, axis=0)
        hidden = jnp.concatenate([hidden, h[None]])
        for p in params.layers[1:-1]:
            hidden, good = _middle(cfg, p, hidden)
            trusted = trusted & good
        h, others = hidden[-1], hidden[:-1]

        def see(token: Any) -> tuple[jax.Array, jax.Array]:
            return columns.attention_input(cfg, last, token)

    eos, good = columns.attention_input(cfg, last, h)
    trusted = trusted & good
    read, good = attend.read_absorbed(cfg, last, eos, others, see)
    trusted = trusted & good
    h, good = columns.after_attention(cfg, last, h + read)
    logits, also = columns.readout(cfg, params, h)
    return logits, trusted & good & also


def _middle(
    cfg: TransformerConfig, p: LayerParams, hidden: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One whole layer at every position: ``(T, D, S)`` to ``(T, D, S)``."""
    heads = cfg.num_heads

    def tokens(h: jax.Array):
        x, trusted = columns.attention_input(cfg, p, h)
        q = columns.project(p.wq, p.bq, x) * columns.score_scale(cfg, x.dtype)
        return q, columns.project(p.wk, p.bk, x), columns.project(p.wv, p.bv, x), trusted

    q, k, v, trusted = jax.lax.map(tokens, hidden)
    trusted = jnp.all(trusted, axis=0)

    def block(at) -> tuple[jax.Array, jax.Array]:
        h, query = at

        def step(pool: attend.Pool, token):
            key, value = token
            return attend.add(pool, columns.head_sums(query * key, heads), value), None

        pool = attend.start(columns.head_sums(query * k[0], heads), v[0])
        pool, _ = jax.lax.scan(step, pool, (k[1:], v[1:]))
        out = columns.product(p.wo.reshape(-1, p.wo.shape[-1]).T, attend.mean(pool))
        return columns.after_attention(cfg, p, h + columns.plus(out, p.bo))

    hidden, good = jax.lax.map(block, (hidden, q))
    return hidden, trusted & jnp.all(good, axis=0)
