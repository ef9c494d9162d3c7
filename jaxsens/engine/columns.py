"""Transformer parts on columns: arrays ``(channels, strings)`` whose last axis is contiguous.

The plain pass keeps a string's channels together; the engine keeps a channel's strings together, so
that products are wide and everything else is a plain loop over strings. Layer norms here are the
short form, without the plain pass's rescaling; each returns beside its result where the short form
can be trusted, and whoever holds an untrusted table takes the plain pass instead.
"""

import math

import jax
import jax.numpy as jnp

from jaxsens.transformer.config import TransformerConfig
from jaxsens.transformer.forward import HIGHEST, activate
from jaxsens.transformer.params import LayerParams, NormParams, TransformerParams

# A deviation below this many roundings of the mean it was taken from is noise.
_NOISE_IN_ROUNDINGS = 1024


def product(weights: jax.Array, x: jax.Array) -> jax.Array:
    """``(out, in)`` times ``(in, columns)``."""
    return jax.lax.dot_general(weights, x, (((1,), (0,)), ((), ())), precision=HIGHEST)


def materialised(x: jax.Array) -> jax.Array:
    """A copy of ``(rows, ...)``, written to memory before it is read.

    XLA fuses the slice that a loop takes of a table into whatever reads it, and then finds every
    single element through the slice (3 times slower on the CPU); barriers are dropped before that.
    A product is not fused, and one with the identity is exact.
    """
    return product(jnp.eye(x.shape[0], dtype=x.dtype), x.reshape(x.shape[0], -1)).reshape(x.shape)


def beside(vector: jax.Array, like: jax.Array) -> jax.Array:
    """A channel vector repeated over the columns of ``like``."""
    return jnp.broadcast_to(vector.reshape(-1, *(1,) * (like.ndim - 1)), like.shape)


def plus(x: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Adds a channel vector."""
    return x if bias is None else x + beside(bias, x)


def affine(x: jax.Array, p: NormParams | None) -> jax.Array:
    """Gain and shift of a layer norm."""
    return x if p is None else plus(x * beside(p.scale, x), p.bias)


def normalise_centred(
    x: jax.Array, p: NormParams | None, eps: float, noise: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Layer norm of columns whose mean is 0 already.

    Args:
      x: ``(D, ...)``.
      p: gain and shift.
      eps: constant inside the root.
      noise: size of what was added up to ``x`` (broadcast against the columns).

    Returns:
      The normed columns, and bool ``(...)``: the spread is finite and stands clear of rounding.
    """
    spread = jnp.mean(x * x, axis=0) + jnp.asarray(eps, x.dtype)
    info = jnp.finfo(x.dtype)
    floor = _NOISE_IN_ROUNDINGS * info.eps * noise
    trusted = (spread > floor * floor) & (spread > info.tiny * 1e8) & (spread < info.max)
    return affine(x * jax.lax.rsqrt(spread)[None], p), trusted


def normalise(x: jax.Array, p: NormParams | None, eps: float) -> tuple[jax.Array, jax.Array]:
    """Layer norm over the channels ``(D, ...)``; see :func:`normalise_centred`."""
    mean = jnp.mean(x, axis=0)
    return normalise_centred(x - mean[None], p, eps, jnp.abs(mean))


def mlp(cfg: TransformerConfig, p: LayerParams, x: jax.Array) -> jax.Array:
    """The MLP on columns ``(D, S)``."""
    assert p.w_in is not None
    assert p.w_out is not None
    slope = None if p.slope is None else p.slope[:, None]
    hidden = activate(plus(product(p.w_in.T, x), p.b_in), cfg.activation, slope)
    return plus(product(p.w_out.T, hidden), p.b_out)


def after_attention(
    cfg: TransformerConfig, p: LayerParams, h: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The rest of a block, from the residual sum after attention ``(D, S)``."""
    if cfg.norm == "post":
        h, trusted = normalise(h, p.norm1, cfg.eps)
        return after_first_norm(cfg, p, h, trusted)
    trusted = jnp.ones(h.shape[1:], bool)
    if cfg.norm == "pre":
        if cfg.d_mlp:
            normed, trusted = normalise(h, p.norm2, cfg.eps)
            h = h + mlp(cfg, p, normed)
        return h, trusted
    h = h + mlp(cfg, p, h) if cfg.d_mlp else h
    return normalise(h, p.norm1, cfg.eps) if cfg.norm == "once" else (h, trusted)


def after_first_norm(
    cfg: TransformerConfig, p: LayerParams, h: jax.Array, trusted: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The rest of a post-norm block, from the output of its first norm."""
    if not cfg.d_mlp:
        return h, trusted
    out, also = normalise(h + mlp(cfg, p, h), p.norm2, cfg.eps)
    return out, trusted & also


def attention_input(
    cfg: TransformerConfig, p: LayerParams, h: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What a layer's attention reads: the stream, or its norm before pre-norm layers."""
    if cfg.norm == "pre":
        return normalise(h, p.norm1, cfg.eps)
    return h, jnp.ones(h.shape[1:], bool)


def readout(
    cfg: TransformerConfig, params: TransformerParams, h: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Logits ``(S,)`` from the stream at EOS ``(D, S)``."""
    trusted = jnp.ones(h.shape[1:], bool)
    if cfg.norm == "pre":
        h, trusted = normalise(h, params.final_norm, cfg.eps)
    logits = product(params.readout.w[None], h)[0]
    bias = params.readout.b
    return (logits if bias is None else logits + jnp.broadcast_to(bias, logits.shape)), trusted


def project(w: jax.Array, b: jax.Array | None, x: jax.Array) -> jax.Array:
    """Queries, keys or values: ``(D, S)`` to ``(H K, S)``."""
    return plus(product(w.reshape(w.shape[0], -1).T, x), None if b is None else b.reshape(-1))


def head_sums(x: jax.Array, heads: int) -> jax.Array:
    """Sums the channels of every head: ``(H C, S)`` to ``(H, S)``.

    Written as a product with a block matrix of ones: a sum over a middle axis is compiled to a loop
    that strides over memory.
    """
    ones = jnp.kron(jnp.eye(heads, dtype=x.dtype), jnp.ones((1, x.shape[0] // heads), x.dtype))
    return product(ones, x)


def per_head(x: jax.Array, channels: int) -> jax.Array:
    """Repeats ``(H, S)`` over the channels of every head: ``(H channels, S)``."""
    heads, columns = x.shape
    return jnp.broadcast_to(x[:, None], (heads, channels, columns)).reshape(-1, columns)


def score_scale(cfg: TransformerConfig, dtype) -> jax.Array:
    """1 / sqrt(K), the factor of attention scores."""
    return jnp.asarray(1 / math.sqrt(cfg.key_dim), dtype)
