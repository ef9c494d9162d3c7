"""Logits of some strings, where no table is asked for: probes of a witness search.

The first layer's rows are looked up and the last layer is read at EOS, as in the tables; positions
and strings share the columns, so that the products are wide even for a handful of strings.
"""

import jax
import jax.numpy as jnp

from jaxsens.engine import attend, columns
from jaxsens.engine.first_layer import token_rows
from jaxsens.transformer.config import TransformerConfig
from jaxsens.transformer.forward import HIGHEST, apply, layer_norm
from jaxsens.transformer.params import LayerParams, TransformerParams


def trusted_logits(
    cfg: TransformerConfig, params: TransformerParams, bits: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Logits of int32 strings ``(S, length)``, equal to the plain pass up to rounding.

    The layer norms are the engine's short ones, guarded as those of a table. More than two layers
    take the plain pass.

    Returns:
      ``(S,)`` logits, and bool ``(S,)``: where they can be trusted.
    """
    if cfg.num_layers > 2:
        return apply(cfg, params, bits), jnp.ones(bits.shape[:1], bool)
    queries = cfg.num_tokens if cfg.num_layers == 2 else 1
    stream, trusted = _first_layer(cfg, params, bits.T == 1, queries)
    h = stream[:, -1]
    if cfg.num_layers == 2:
        h, good = _read_at_eos(cfg, params.layers[1], stream)
        trusted = trusted & good
    logits, good = columns.readout(cfg, params, h)
    return logits, trusted & good


def _first_layer(
    cfg: TransformerConfig, params: TransformerParams, ones: jax.Array, queries: int
) -> tuple[jax.Array, jax.Array]:
    """The first layer at the last ``queries`` tokens: ``(D, queries, S)``, and trusted ``(S,)``."""
    p, heads, tokens = params.layers[0], cfg.num_heads, cfg.num_tokens
    count = ones.shape[1]
    ones = jnp.concatenate([ones, jnp.zeros((1, count), bool)])
    rows = token_rows(cfg, params)
    read = layer_norm(rows, p.norm1, cfg.eps) if cfg.norm == "pre" else rows
    flat = read.reshape(-1, cfg.d_model).T
    q, k, v = (
        columns.project(w, b, flat).reshape(heads, cfg.key_dim, -1)
        for w, b in ((p.wq, p.bq), (p.wk, p.bk), (p.wv, p.bv))
    )
    first = tokens - queries
    q = q[..., 2 * first :] * columns.score_scale(cfg, q.dtype)
    # Scores by (head, query, its bit, token, its bit).
    table = jnp.einsum("hkq,hkt->hqt", q, k, precision=HIGHEST)
    table = table.reshape(heads, queries, 2, tokens, 2)
    shape = (heads, queries, tokens, count)

    def by_query(with_one: jax.Array, with_zero: jax.Array) -> jax.Array:
        own = jnp.broadcast_to(ones[None, first:, None], shape)
        return jnp.where(
            own,
            jnp.broadcast_to(with_one[..., None], shape),
            jnp.broadcast_to(with_zero[..., None], shape),
        )

    is_one = jnp.broadcast_to(ones[None, None], shape)
    scores = jnp.where(
        is_one,
        by_query(table[:, :, 1, :, 1], table[:, :, 0, :, 1]),
        by_query(table[:, :, 1, :, 0], table[:, :, 0, :, 0]),
    )
    if cfg.causal:
        scores = jnp.where(_visible(shape, first), scores, jnp.full_like(scores, -jnp.inf))
    weights = jnp.exp(scores - jnp.max(scores, axis=2, keepdims=True))
    weights = weights / jnp.sum(weights, axis=2, keepdims=True)
    zero = jnp.zeros_like(weights)
    by_bit = jnp.stack([jnp.where(is_one, zero, weights), jnp.where(is_one, weights, zero)])
    # One product pools the values of every head: (bit, head, token) down, (query, string) across.
    down = jnp.moveaxis(by_bit, 3, 2).reshape(2 * heads * tokens, queries * count)
    values = jnp.einsum(
        "hktb,hkd->dbht", v.reshape(heads, cfg.key_dim, tokens, 2), p.wo, precision=HIGHEST
    )
    out = columns.product(values.reshape(cfg.d_model, -1), down)
    pair = jnp.moveaxis(rows[first:], -1, 0)[..., None]
    one = jnp.broadcast_to(ones[None, first:], (cfg.d_model, queries, count))
    h = jnp.where(
        one, jnp.broadcast_to(pair[:, :, 1], one.shape), jnp.broadcast_to(pair[:, :, 0], one.shape)
    )
    total = columns.plus(h.reshape(cfg.d_model, -1) + out, p.bo)
    out, trusted = columns.after_attention(cfg, p, total)
    trusted = jnp.all(trusted.reshape(queries, count), axis=0)
    return out.reshape(cfg.d_model, queries, count), trusted


def _visible(shape: tuple[int, ...], first: int) -> jax.Array:
    query = first + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    return jax.lax.broadcasted_iota(jnp.int32, shape, 2) <= query


def _read_at_eos(
    cfg: TransformerConfig, p: LayerParams, stream: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The last layer at EOS: stream ``(D, T, S)`` to ``(D, S)``, and trusted ``(S,)``."""
    width, tokens, count = stream.shape
    heads = cfg.num_heads
    x, trusted = columns.attention_input(cfg, p, stream.reshape(width, -1))
    trusted = jnp.all(trusted.reshape(tokens, count), axis=0)
    x = x.reshape(width, tokens, count)
    shape = (heads, width, tokens, count)
    query = attend.absorbed_query(cfg, p, x[:, -1]).reshape(heads, width, 1, count)
    products = jnp.broadcast_to(query, shape) * jnp.broadcast_to(x[None], shape)
    scores = columns.head_sums(products.reshape(heads * width, -1), heads)
    scores = scores.reshape(heads, tokens, count)
    weights = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
    weights = weights / jnp.sum(weights, axis=1, keepdims=True)
    pooled = jnp.sum(
        jnp.broadcast_to(weights[:, None], shape) * jnp.broadcast_to(x[None], shape), axis=2
    )
    out = attend.absorbed_output(cfg, p, pooled.reshape(heads * width, count))
    h, good = columns.after_attention(cfg, p, stream[:, -1] + out)
    return h, trusted & good
