"""The plain forward pass: the readable oracle for every faster path.

Every contraction states ``precision=HIGHEST``: TF32 or bfloat16 products flip signs near 0.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxsens import strings
from jaxsens.transformer.config import Activation, TransformerConfig
from jaxsens.transformer.params import LayerParams, NormParams, TransformerParams

HIGHEST = jax.lax.Precision.HIGHEST
#: Row of the token embedding that stands for the end of the string.
EOS = 2


def _plus(x: jax.Array, bias: jax.Array | None) -> jax.Array:
    return x if bias is None else x + jnp.broadcast_to(bias, x.shape)


def layer_norm(x: jax.Array, params: NormParams | None, eps: float) -> jax.Array:
    r"""LN(x) = (x - mean) / sqrt(var + eps) * scale + bias over the last axis.

    Biased variance in two passes. The deviations are divided by the largest of them before they
    are squared, so that nothing under- or overflows, and LN(c v) = LN(v) holds at eps = 0 for any
    c > 0. With eps = 0 a constant row gives exactly 0 before scale and bias, with zero gradient.

    Args:
      x: floating array ``(..., D)``.
      params: gain and shift ``(D,)``, or ``None`` for neither.
      eps: constant inside the root, >= 0.

    Returns:
      Array of the shape and dtype of ``x``.
    """
    # Rounding of the mean must not turn a constant row into a varying one: shift it to 0 first.
    shifted = x - x[..., :1]
    deviation = shifted - jnp.mean(shifted, axis=-1, keepdims=True)
    largest = jnp.max(jnp.abs(deviation), axis=-1, keepdims=True)
    constant = largest == 0
    # The result does not depend on the divisor, hence neither does its gradient.
    divisor = jax.lax.stop_gradient(jnp.where(constant, jnp.ones_like(largest), largest))
    ratio = deviation / divisor
    variance = jnp.mean(ratio**2, axis=-1, keepdims=True)
    if eps == 0:
        # Both the argument and the result are guarded: one `where` alone has a NaN gradient.
        variance = jnp.where(constant, jnp.ones_like(variance), variance)
        normed = jnp.where(constant, jnp.zeros_like(ratio), ratio / jnp.sqrt(variance))
    else:
        normed = ratio / jnp.sqrt(variance + (jnp.asarray(eps, x.dtype) / divisor) / divisor)
    if params is None:
        return normed
    return _plus(normed * jnp.broadcast_to(params.scale, x.shape), params.bias)


def sinusoidal_positions(num_tokens: int, d_model: int, dtype) -> jax.Array:
    """Fixed positions: sin and cos of t / 10000^(2i/D) in even and odd columns (1706.03762)."""
    angle = jnp.arange(num_tokens, dtype=dtype)[:, None] * jnp.exp(
        -jnp.arange(0, d_model, 2, dtype=dtype)[None, :]
        * jnp.asarray(math.log(1e4) / d_model, dtype)
    )
    waves = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)
    return waves.reshape(num_tokens, -1)[:, :d_model]


def activate(x: jax.Array, activation: Activation, slope: jax.Array | None) -> jax.Array:
    """Elementwise non-linearity; ``slope`` ``(M,)`` multiplies the negative part for prelu."""
    if activation == "relu":
        return jax.nn.relu(x)
    if activation == "tanh":
        return jnp.tanh(x)
    if activation == "prelu":
        assert slope is not None
        return jnp.where(x > 0, x, x * jnp.broadcast_to(slope, x.shape))
    return jax.nn.gelu(x, approximate=activation == "gelu_tanh")


def attention(cfg: TransformerConfig, p: LayerParams, h: jax.Array) -> jax.Array:
    """Softmax attention of every position: ``(S, T, D)`` to ``(S, T, D)``."""
    q, k, v = (
        _plus(jnp.einsum("std,dhk->sthk", h, w, precision=HIGHEST), b)
        for w, b in ((p.wq, p.bq), (p.wk, p.bk), (p.wv, p.bv))
    )
    scores = jnp.einsum("sqhk,sthk->shqt", q, k, precision=HIGHEST)
    scores = scores / jnp.asarray(math.sqrt(cfg.key_dim), h.dtype)
    if cfg.causal:
        tokens = jnp.arange(h.shape[1], dtype=jnp.int32)
        visible = tokens[:, None] >= tokens[None, :]
        scores = jnp.where(visible[None, None], scores, jnp.asarray(-jnp.inf, h.dtype))
    weights = jax.nn.softmax(scores, axis=-1)
    pooled = jnp.einsum("shqt,sthk->sqhk", weights, v, precision=HIGHEST)
    return _plus(jnp.einsum("sqhk,hkd->sqd", pooled, p.wo, precision=HIGHEST), p.bo)


def mlp(cfg: TransformerConfig, p: LayerParams, h: jax.Array) -> jax.Array:
    """The position-wise MLP: ``(S, T, D)`` to ``(S, T, D)``."""
    assert p.w_in is not None
    assert p.w_out is not None
    hidden = _plus(jnp.einsum("std,dm->stm", h, p.w_in, precision=HIGHEST), p.b_in)
    hidden = activate(hidden, cfg.activation, p.slope)
    return _plus(jnp.einsum("stm,md->std", hidden, p.w_out, precision=HIGHEST), p.b_out)


def block(cfg: TransformerConfig, p: LayerParams, h: jax.Array) -> jax.Array:
    """One layer, ``(S, T, D)`` to ``(S, T, D)``, by the norm placement of the config."""

    def norm(x: jax.Array, params: NormParams | None) -> jax.Array:
        return layer_norm(x, params, cfg.eps)

    has_mlp = cfg.d_mlp > 0
    if cfg.norm == "post":
        h = norm(h + attention(cfg, p, h), p.norm1)
        return norm(h + mlp(cfg, p, h), p.norm2) if has_mlp else h
    if cfg.norm == "pre":
        h = h + attention(cfg, p, norm(h, p.norm1))
        return h + mlp(cfg, p, norm(h, p.norm2)) if has_mlp else h
    h = h + attention(cfg, p, h)
    h = h + mlp(cfg, p, h) if has_mlp else h
    return norm(h, p.norm1) if cfg.norm == "once" else h


def embed(cfg: TransformerConfig, params: TransformerParams, bits: jax.Array) -> jax.Array:
    """Token embedding plus position: int bits ``(S, N)`` to ``(S, N + 1, D)``, EOS last."""
    eos = jnp.full((*bits.shape[:-1], 1), EOS, bits.dtype)
    h = params.token_embedding[jnp.concatenate([bits, eos], axis=-1)]
    if cfg.positions == "learned":
        assert params.position_embedding is not None
        return _plus(h, params.position_embedding)
    if cfg.positions == "sinusoidal":
        return _plus(h, sinusoidal_positions(cfg.num_tokens, cfg.d_model, h.dtype))
    return h


def apply(
    cfg: TransformerConfig, params: TransformerParams, bits: jax.typing.ArrayLike
) -> jax.Array:
    """Logits of one transformer on strings.

    Args:
      cfg: the static config.
      params: parameters of one model; their floating dtype is the dtype of the computation.
      bits: integer or bool array ``(..., length)`` of 0 and 1.

    Returns:
      Logits ``(...)``. The model answers 1 iff the logit is > 0; a tie, 0.0 or -0.0, is class 0.
      Under ``jit`` float32 denormals are flushed to 0, hence are ties.

    Raises:
      ValueError: the last axis of ``bits`` is not ``cfg.length``.
    """
    bits = jnp.asarray(bits)
    if bits.ndim == 0 or bits.shape[-1] != cfg.length:
        raise ValueError(f"bits: shape {bits.shape} given; the last axis must be {cfg.length}")
    flat = bits.reshape(-1, cfg.length).astype(jnp.int32)
    # NumPy leaves cannot be indexed by traced tokens.
    params = jax.tree.map(jnp.asarray, params)
    h = embed(cfg, params, flat)
    for p in params.layers:
        h = block(cfg, p, h)
    last = h[:, -1]
    if cfg.norm == "pre":
        last = layer_norm(last, params.final_norm, cfg.eps)
    logits = jnp.einsum("sd,d->s", last, params.readout.w, precision=HIGHEST)
    return _plus(logits, params.readout.b).reshape(bits.shape[:-1])


def rows_per_tile(length: int, floats_per_string: int, budget: int = 1 << 19) -> int:
    """Strings evaluated at once: a power of two that keeps temporaries within ``budget`` floats."""
    rows = 1
    while rows < 2**length and 2 * rows * floats_per_string <= budget:
        rows *= 2
    return rows


def floats_per_string(cfg: TransformerConfig) -> int:
    """Working set of one string in the plain pass, in numbers: the widest layer's temporaries."""
    t, heads = cfg.num_tokens, cfg.num_heads
    return t * (2 * cfg.d_model + 3 * heads * cfg.key_dim + heads * t + cfg.d_mlp)


def plain_truth_table_logits(cfg: TransformerConfig, params: TransformerParams) -> jax.Array:
    """Logits on every string, ``(2**length,)``, in row order, by the plain pass.

    Equal to ``apply(cfg, params, all_strings(length))`` up to rounding, in tiles of strings whose
    temporaries stay in cache. The engine (:mod:`jaxsens.engine`) is held against it.
    """
    return tabulate(functools.partial(apply, cfg, params), cfg.length, floats_per_string(cfg))


def tabulate(
    function: Callable[[jax.Array], jax.Array], length: int, floats_per_string: int
) -> jax.Array:
    """A function of int32 strings ``(S, length)`` on every string, a tile after the other."""
    tile = rows_per_tile(length, floats_per_string)

    def of_tile(start: jax.Array) -> jax.Array:
        rows = start + jnp.arange(tile, dtype=jnp.int32)
        return function(strings.strings_of_rows(rows, length))

    starts = jnp.arange(0, 2**length, tile, dtype=jnp.int32)
    return jax.lax.map(of_tile, starts).reshape(-1)
