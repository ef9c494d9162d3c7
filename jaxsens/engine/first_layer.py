r"""Attention of the first layer, over all strings, from a table of 2N + 1 rows.

The first layer sees one of two rows at a bit position and a third at EOS, so its queries, keys,
values and scores are tables. For one query and one head, cut the other tokens in two halves. Over
the strings of one half alone let m be the largest score, l = m + log sum exp(score - m) and p the
pooled value. The attention over the whole string is then

    w p_high + (1 - w) p_low,    w = 1 / (1 + exp(l_low - l_high)),

one logistic function and a few additions a string instead of N exponentials. Nothing over- or
underflows however wide the scores are: each half is shifted by its own maximum, and w is 0 or 1
where one half outweighs the other (the merge of arXiv:1805.02867).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxsens import strings
from jaxsens.engine import columns
from jaxsens.transformer.config import TransformerConfig
from jaxsens.transformer.forward import HIGHEST, layer_norm, sinusoidal_positions
from jaxsens.transformer.params import TransformerParams


@struct.dataclass
class FirstLayer:
    """Tables of the first layer. Q queries, H heads, D channels; the last axis is a half's strings.

    Rows of the second axis belong to (bit of the query's own position, head), bit first. The high
    half is the first ``length - low_bits`` positions and EOS, the low half the rest.

    Attributes:
      shift: int32 ``(Q,)``, the query's own bit is ``row >> shift`` (any bit for EOS).
      base: ``(Q, 2, D)``, the residual stream plus the output bias of attention.
      level_high: ``(Q, 2 H, 2**high_bits)``, l of the high half.
      pooled_high: ``(Q, 2 H, D, 2**high_bits)``, p of the high half, after the output matrix.
      level_low: ``(Q, 2 H, 2**low_bits)``.
      pooled_low: ``(Q, 2 H, D, 2**low_bits)``.
      size: ``()``, largest magnitude that is added up to a residual sum.
    """

    shift: jax.Array
    base: jax.Array
    level_high: jax.Array
    pooled_high: jax.Array
    level_low: jax.Array
    pooled_low: jax.Array
    size: jax.Array


def token_rows(cfg: TransformerConfig, params: TransformerParams) -> jax.Array:
    """The residual stream of every (position, bit): ``(N + 1, 2, D)``, EOS twice at the end."""
    tokens = params.token_embedding
    bits = jnp.broadcast_to(tokens[None, :2], (cfg.length, 2, cfg.d_model))
    eos = jnp.broadcast_to(tokens[None, 2:], (1, 2, cfg.d_model))
    rows = jnp.concatenate([bits, eos])
    if cfg.positions == "learned":
        assert params.position_embedding is not None
        return rows + jnp.broadcast_to(params.position_embedding[:, None], rows.shape)
    if cfg.positions == "sinusoidal":
        waves = sinusoidal_positions(cfg.num_tokens, cfg.d_model, rows.dtype)
        return rows + jnp.broadcast_to(waves[:, None], rows.shape)
    return rows


def half(scores: jax.Array, values: jax.Array, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Level and pooled value over the strings of one half.

    Args:
      scores: ``(Q', H, n, 2)``, of n tokens with either bit.
      values: ``(H, n, 2, D)``.
      bits: bool ``(n, R)``, the half's strings.

    Returns:
      ``(Q', H, R)`` and ``(Q', H, D, R)``.
    """
    shape = (*scores.shape[:3], bits.shape[1])
    chosen = jnp.where(
        jnp.broadcast_to(bits[None, None], shape),
        jnp.broadcast_to(scores[..., 1:], shape),
        jnp.broadcast_to(scores[..., :1], shape),
    )
    return pooled(chosen, values, bits)


def pooled(scores: jax.Array, values: jax.Array, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """:func:`half` from the scores of the tokens as they are in the strings, ``(Q', H, n, R)``."""
    largest = jnp.max(scores, axis=2, keepdims=True)
    weights = jnp.exp(scores - largest)
    total = jnp.sum(weights, axis=2, keepdims=True)
    weights = weights / total
    zero, is_one = jnp.zeros_like(weights), jnp.broadcast_to(bits[None, None], weights.shape)
    by_bit = [jnp.where(is_one, zero, weights), jnp.where(is_one, weights, zero)]
    mean = jnp.einsum(
        "qhnr,hnd->qhdr",
        jnp.concatenate(by_bit, axis=2),
        jnp.concatenate([values[:, :, 0], values[:, :, 1]], axis=1),
        precision=HIGHEST,
    )
    return (largest + jnp.log(total))[:, :, 0], mean


class AttentionRows(NamedTuple):
    """What the first layer's attention makes of every (position, bit).

    Attributes:
      scores: ``(2 Q, H, N + 1, 2)``, of the tokens with either bit; the queries by (position, bit).
      values: ``(H, N + 1, 2, D)``, after the output matrix.
      base: ``(Q, 2, D)``, the residual stream plus the output bias. Under post-norm both this and
        the values are centred.
      size: ``()``, largest magnitude that is added up to a residual sum.
    """

    scores: jax.Array
    values: jax.Array
    base: jax.Array
    size: jax.Array


def attention_rows(
    cfg: TransformerConfig, params: TransformerParams, queries: slice
) -> AttentionRows:
    """The rows of the query positions ``queries`` against every token."""
    p = params.layers[0]
    rows = token_rows(cfg, params)
    read = layer_norm(rows, p.norm1, cfg.eps) if cfg.norm == "pre" else rows

    def heads(w: jax.Array, b: jax.Array | None, x: jax.Array) -> jax.Array:
        y = jnp.einsum("tbd,dhk->tbhk", x, w, precision=HIGHEST)
        return y if b is None else y + jnp.broadcast_to(b, y.shape)

    q = heads(p.wq, p.bq, read[queries]).reshape(-1, cfg.num_heads, cfg.key_dim)
    k, v = heads(p.wk, p.bk, read), heads(p.wv, p.bv, read)
    scores = jnp.einsum("qhk,tbhk->qhtb", q, k, precision=HIGHEST)
    scores = scores * columns.score_scale(cfg, scores.dtype)
    values = jnp.einsum("tbhk,hkd->htbd", v, p.wo, precision=HIGHEST)
    base = rows[queries]
    if p.bo is not None:
        base = base + jnp.broadcast_to(p.bo, base.shape)
    size = jnp.max(jnp.abs(base)) + cfg.num_heads * jnp.max(jnp.abs(values))
    if cfg.norm == "post":
        # What is centred here need not be centred on every string.
        base = base - jnp.mean(base, axis=-1, keepdims=True)
        values = values - jnp.mean(values, axis=-1, keepdims=True)
    return AttentionRows(scores, values, base, size)


def tabulate(
    cfg: TransformerConfig, params: TransformerParams, low_bits: int, only_eos: bool
) -> FirstLayer:
    """Tables for every query position, or for EOS alone."""
    n = cfg.length
    queries = slice(n, n + 1) if only_eos else slice(None)
    scores, values, base, size = attention_rows(cfg, params, queries)
    # EOS joins the high half, which may have no bits.
    high_bits = n - low_bits
    order = [n, *range(high_bits)]
    high = jnp.concatenate([jnp.zeros((1, 2**high_bits), bool), _bits(high_bits)])
    position = jnp.asarray(order, jnp.int32)
    level_high, pooled_high = half(
        jnp.take(scores, position, axis=2), jnp.take(values, position, axis=1), high
    )
    level_low, pooled_low = half(scores[:, :, high_bits:n], values[:, high_bits:n], _bits(low_bits))
    count, width = base.shape[0], 2 * cfg.num_heads
    shift = jnp.maximum(n - 1 - jnp.arange(n + 1, dtype=jnp.int32), 0)
    return FirstLayer(
        shift=shift[queries],
        base=base,
        level_high=level_high.reshape(count, width, -1),
        pooled_high=pooled_high.reshape(count, width, cfg.d_model, -1),
        level_low=level_low.reshape(count, width, -1),
        pooled_low=pooled_low.reshape(count, width, cfg.d_model, -1),
        size=size,
    )


def _bits(n: int) -> jax.Array:
    """All strings of n bits as bool columns ``(n, 2**n)``."""
    if n == 0:
        return jnp.zeros((0, 1), bool)
    return strings.strings_of_rows(jnp.arange(2**n, dtype=jnp.int32), n).T == 1


def high_strings(tables: FirstLayer, start: jax.Array, count: int) -> FirstLayer:
    """The tables for ``count`` strings of the high half, from ``start`` on."""
    return dataclasses.replace(
        tables,
        level_high=jax.lax.dynamic_slice_in_dim(tables.level_high, start, count, axis=-1),
        pooled_high=jax.lax.dynamic_slice_in_dim(tables.pooled_high, start, count, axis=-1),
    )


def materialised(p: FirstLayer) -> FirstLayer:
    """The tables of one query, copied out of those that a loop runs over."""
    return dataclasses.replace(
        p,
        base=columns.materialised(p.base),
        level_high=columns.materialised(p.level_high),
        pooled_high=columns.materialised(p.pooled_high),
        level_low=columns.materialised(p.level_low),
        pooled_low=columns.materialised(p.pooled_low),
    )


def residual_sum(cfg: TransformerConfig, p: FirstLayer, rows: jax.Array) -> jax.Array:
    """Stream plus attention of one query on a tile of strings.

    Args:
      cfg: the config.
      p: tables of one query (no leading axis; ``size`` is not used).
      rows: int32 ``(I, J)`` row numbers, I strings of the high half by J of the low one.

    Returns:
      ``(D, I, J)``; its channel mean is 0 under post-norm.
    """
    heads, shape = cfg.num_heads, (cfg.d_model, *rows.shape)
    one = ((rows >> jnp.broadcast_to(p.shift, rows.shape)) & 1) == 1
    one_by_channel = jnp.broadcast_to(one, shape)

    def chosen(with_one: jax.Array, with_zero: jax.Array, by_channel: bool) -> jax.Array:
        target = shape if by_channel else rows.shape
        return jnp.where(
            one_by_channel if by_channel else one,
            jnp.broadcast_to(with_one, target),
            jnp.broadcast_to(with_zero, target),
        )

    total = chosen(p.base[1][:, None, None], p.base[0][:, None, None], True)
    for head in range(heads):
        zero, unit = head, heads + head
        level = [
            jnp.broadcast_to(p.level_high[i][:, None], rows.shape)
            - jnp.broadcast_to(p.level_low[i][None, :], rows.shape)
            for i in (zero, unit)
        ]
        high = chosen(p.pooled_high[unit][..., None], p.pooled_high[zero][..., None], True)
        low = chosen(p.pooled_low[unit][:, None], p.pooled_low[zero][:, None], True)
        total = total + merged(chosen(level[1], level[0], False), high, low)
    return total


def merged(difference: jax.Array, high: jax.Array, low: jax.Array) -> jax.Array:
    """One head's attention over both halves.

    Args:
      difference: ``(I, J)``, l of the high half less that of the low one.
      high: ``(D, I, J)``, p of the high half.
      low: ``(D, I, J)``, p of the low half.

    Returns:
      ``(D, I, J)``.
    """
    weight = jax.nn.sigmoid(difference)
    rest = jnp.broadcast_to(1 - weight, high.shape)
    return high * jnp.broadcast_to(weight, high.shape) + low * rest


def first_block(
    cfg: TransformerConfig, params: TransformerParams, p: FirstLayer, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Output of the first layer at one query on a tile: ``(D, I J)`` and where it is trusted."""
    total = residual_sum(cfg, p, rows)
    return after_residual_sum(cfg, params, total, p.size)


def after_residual_sum(
    cfg: TransformerConfig, params: TransformerParams, total: jax.Array, size: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The rest of the first layer.

    Args:
      cfg: the config.
      params: parameters of one model.
      total: ``(D, ...)``, stream plus attention, centred under post-norm.
      size: ``()``, of :class:`AttentionRows`.

    Returns:
      ``(D, S)`` and where it is trusted, ``(S,)``; S runs over the columns of ``total``.
    """
    layer = params.layers[0]
    if cfg.norm != "post":
        return columns.after_attention(cfg, layer, total.reshape(cfg.d_model, -1))
    normed, trusted = columns.normalise_centred(total, layer.norm1, cfg.eps, size)
    normed, trusted = normed.reshape(cfg.d_model, -1), trusted.reshape(-1)
    return columns.after_first_norm(cfg, layer, normed, trusted)
