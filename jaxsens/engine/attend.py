"""Attention of columns to columns: queries and keys that differ from string to string."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxsens.engine import columns
from jaxsens.transformer.config import TransformerConfig
from jaxsens.transformer.forward import HIGHEST
from jaxsens.transformer.params import LayerParams


def softmax(scores: jax.Array) -> jax.Array:
    """Softmax over the leading axis."""
    weights = jnp.exp(scores - jnp.max(scores, axis=0, keepdims=True))
    return weights / jnp.sum(weights, axis=0, keepdims=True)


class Pool(NamedTuple):
    """Softmax attention over the tokens seen so far, with a running maximum.

    Attributes:
      largest: ``(H, S)``, largest score.
      total: ``(H, S)``, sum of exp(score - largest).
      pooled: ``(H C, S)``, the same sum of values.
    """

    largest: jax.Array
    total: jax.Array
    pooled: jax.Array


def start(scores: jax.Array, values: jax.Array) -> Pool:
    """A pool of one token: scores ``(H, S)`` and values ``(H C, S)``."""
    return Pool(scores, jnp.ones_like(scores), values)


def add(pool: Pool, scores: jax.Array, values: jax.Array) -> Pool:
    """The pool with one more token."""
    largest = jnp.maximum(pool.largest, scores)
    old, new = jnp.exp(pool.largest - largest), jnp.exp(scores - largest)
    channels = values.shape[0] // scores.shape[0]
    return Pool(
        largest,
        pool.total * old + new,
        pool.pooled * columns.per_head(old, channels) + values * columns.per_head(new, channels),
    )


def mean(pool: Pool) -> jax.Array:
    """The softmax-weighted mean of the values, ``(H C, S)``."""
    channels = pool.pooled.shape[0] // pool.total.shape[0]
    return pool.pooled * columns.per_head(1 / pool.total, channels)


def absorbed_query(cfg: TransformerConfig, p: LayerParams, x: jax.Array) -> jax.Array:
    """W_K^T q for every head: the score of a token is its product with what the token shows.

    ``(D, S)`` to ``(H D, S)``. The key bias adds the same to every score of a query, hence nothing.
    """
    heads, width = cfg.num_heads, cfg.d_model
    w = jnp.einsum("dhk,chk->hcd", p.wq, p.wk, precision=HIGHEST).reshape(heads * width, width)
    b = None
    if p.bq is not None:
        b = jnp.einsum("hk,chk->hc", p.bq, p.wk, precision=HIGHEST).reshape(-1)
    return columns.plus(columns.product(w, x), b) * columns.score_scale(cfg, x.dtype)


def absorbed_output(cfg: TransformerConfig, p: LayerParams, pooled: jax.Array) -> jax.Array:
    """Values and output of attention, from the pooled inputs of every head ``(H D, S)``."""
    w = jnp.einsum("dhk,hke->ehd", p.wv, p.wo, precision=HIGHEST)
    y = columns.product(w.reshape(w.shape[0], -1), pooled)
    if p.bv is not None:
        # The weights of a head sum to 1.
        y = columns.plus(y, jnp.einsum("hk,hke->e", p.bv, p.wo, precision=HIGHEST))
    return columns.plus(y, p.bo)


def read_absorbed(
    cfg: TransformerConfig,
    p: LayerParams,
    eos: jax.Array,
    others: Any,
    see: Callable[[Any], tuple[jax.Array, jax.Array]],
) -> tuple[jax.Array, jax.Array]:
    """Attention output of one query per string, without keys and values of the tokens.

    Args:
      cfg: the config.
      p: the layer.
      eos: ``(D, S)``, what attention reads at the query, itself a token.
      others: pytree with a leading axis over the other tokens.
      see: an element of ``others`` to what attention reads there ``(D, S)`` and where to trust it.

    Returns:
      ``(D, S)`` and bool ``(S,)``.
    """
    heads = cfg.num_heads
    query = absorbed_query(cfg, p, eos)

    def repeated(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x[None], (heads, *x.shape)).reshape(heads * x.shape[0], -1)

    def step(carry, token):
        pool, trusted = carry
        x, also = see(token)
        x = repeated(x)
        return (add(pool, columns.head_sums(query * x, heads), x), trusted & also), None

    own = repeated(eos)
    first = start(columns.head_sums(query * own, heads), own)
    carry = (first, jnp.ones(eos.shape[1:], bool))
    (pool, trusted), _ = jax.lax.scan(step, carry, others)
    return absorbed_output(cfg, p, mean(pool)), trusted
