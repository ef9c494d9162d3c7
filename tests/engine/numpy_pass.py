"""The plain pass in NumPy, in the dtype of its arrays: compiled by nothing, shared with nothing."""

import math

import numpy as np
from scipy.special import erf


def norm(x, arrays, name, eps):
    deviation = x - x.mean(axis=-1, keepdims=True)
    normed = deviation / np.sqrt((deviation**2).mean(axis=-1, keepdims=True) + x.dtype.type(eps))
    return normed * arrays.get(f"{name}.scale", x.dtype.type(1)) + arrays.get(
        f"{name}.bias", x.dtype.type(0)
    )


def activation(x, kind, slope):
    if kind == "relu":
        return np.maximum(x, 0)
    if kind == "tanh":
        return np.tanh(x)
    if kind == "prelu":
        return np.where(x > 0, x, x * slope)
    if kind == "gelu":
        return (x * (1 + erf(x / math.sqrt(2))) / 2).astype(x.dtype)
    return x / 2 * (1 + np.tanh(x.dtype.type(math.sqrt(2 / math.pi)) * (x + 0.044715 * x**3)))


def attention(cfg, arrays, layer, h):
    def get(name, default=0):
        return arrays.get(f"layer{layer}.{name}", h.dtype.type(default))

    q, k, v = (np.einsum("std,dhk->shtk", h, get(f"w{c}")) for c in "qkv")
    bias = {c: np.expand_dims(get(f"b{c}"), -2) if np.ndim(get(f"b{c}")) else 0 for c in "qkv"}
    q, k, v = q + bias["q"], k + bias["k"], v + bias["v"]
    scores = q @ k.swapaxes(-1, -2) / h.dtype.type(math.sqrt(cfg.key_dim))
    if cfg.causal:
        tokens = h.shape[1]
        scores = np.where(np.tril(np.ones((tokens, tokens), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.einsum("shtk,hkd->std", weights @ v, get("wo")) + get("bo")


def mlp(cfg, arrays, layer, h):
    def get(name):
        return arrays.get(f"layer{layer}.{name}", h.dtype.type(0))

    hidden = activation(h @ get("w_in") + get("b_in"), cfg.activation, get("slope"))
    return hidden @ get("w_out") + get("b_out")


def positions(cfg, arrays, dtype):
    if cfg.positions == "learned":
        return arrays["position_embedding"]
    if cfg.positions == "none":
        return np.zeros((cfg.num_tokens, cfg.d_model), dtype)
    column = np.arange(cfg.d_model)
    angle = np.arange(cfg.num_tokens)[:, None] / 10000 ** (2 * (column // 2) / cfg.d_model)
    return np.where(column % 2, np.cos(angle), np.sin(angle)).astype(dtype)


def logits(cfg, arrays, bits):
    """Logits ``(S,)`` of strings ``(S, length)`` from arrays under flat names."""
    tokens = np.pad(bits, ((0, 0), (0, 1)), constant_values=2)
    h = arrays["token_embedding"][tokens]
    h = h + positions(cfg, arrays, h.dtype)
    for layer in range(cfg.num_layers):
        name = f"layer{layer}.norm"
        if cfg.norm == "post":
            h = norm(h + attention(cfg, arrays, layer, h), arrays, f"{name}1", cfg.eps)
            if cfg.d_mlp:
                h = norm(h + mlp(cfg, arrays, layer, h), arrays, f"{name}2", cfg.eps)
        elif cfg.norm == "pre":
            h = h + attention(cfg, arrays, layer, norm(h, arrays, f"{name}1", cfg.eps))
            if cfg.d_mlp:
                h = h + mlp(cfg, arrays, layer, norm(h, arrays, f"{name}2", cfg.eps))
        else:
            h = h + attention(cfg, arrays, layer, h)
            h = h + mlp(cfg, arrays, layer, h) if cfg.d_mlp else h
            h = norm(h, arrays, f"{name}1", cfg.eps) if cfg.norm == "once" else h
    last = norm(h[:, -1], arrays, "final_norm", cfg.eps) if cfg.norm == "pre" else h[:, -1]
    return last @ arrays["readout.w"] + arrays.get("readout.b", h.dtype.type(0))
