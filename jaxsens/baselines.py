"""Random recurrent and feed-forward networks, as models for the sampler.

All of them are ``flax.nnx`` modules that draw float32 from the key they are given, compute in the
dtype of their parameters, and read the bits first to last.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxsens import strings
from jaxsens.model import Model, from_nnx

_HIGHEST = jax.lax.Precision.HIGHEST
Draw = Callable[[nnx.Rngs, tuple[int, ...]], jax.Array]


def _uniform(scale: float) -> Draw:
    def draw(rngs: nnx.Rngs, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.uniform(rngs.params(), shape, jnp.float32, minval=-scale, maxval=scale)

    return draw


def _normal(scale: float) -> Draw:
    def draw(rngs: nnx.Rngs, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(rngs.params(), shape, jnp.float32) * jnp.float32(scale)

    return draw


_LAWS: dict[str, Callable[[float], Draw]] = {"uniform": _uniform, "normal": _normal}
#: Beyond it the ends of an interval, or a normal, leave float32.
_LARGEST_SCALE = 1e37


def _check_law(law: object) -> str:
    if not isinstance(law, str) or law not in _LAWS:
        raise ValueError(f"law: {law!r} given; it must be {' or '.join(_LAWS)}")
    return law


def _check_scale(value: object) -> float:
    number = isinstance(value, (int, float, np.integer, np.floating))
    if not number or isinstance(value, bool) or not 0 <= value <= _LARGEST_SCALE:
        raise ValueError(f"scale: {value!r} given; it must be a number from 0 to {_LARGEST_SCALE}")
    return float(value)


def _check_size(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name}: {value!r} given; it must be an integer of at least 1")
    return int(value)


def _dot(x: jax.Array, w: nnx.Param) -> jax.Array:
    return jnp.matmul(x, w[...], precision=_HIGHEST)


def _shift(x: jax.Array, b: nnx.Param | None) -> jax.Array:
    return x if b is None else x + jnp.broadcast_to(b[...], x.shape)


class Perceptron(nnx.Module):
    """logit = w . x, without bias: the string 0...0 is an exact tie, hence class 0."""

    def __init__(self, length: int, draw: Draw, rngs: nnx.Rngs):
        """Draws w ``(length,)``."""
        self.w = nnx.Param(draw(rngs, (length,)))

    def __call__(self, bits: jax.Array) -> jax.Array:
        """Logits ``(S,)`` of bits ``(S, length)``."""
        return _dot(bits.astype(self.w.dtype), self.w)


class MLP(nnx.Module):
    """ReLU layers of the given widths and a linear readout."""

    def __init__(self, length: int, widths: tuple[int, ...], draw: Draw, rngs: nnx.Rngs):
        """Draws weights and biases of every layer."""
        sizes = (length, *widths, 1)
        shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
        self.weights = nnx.List([nnx.Param(draw(rngs, shape)) for shape in shapes])
        self.biases = nnx.List([nnx.Param(draw(rngs, (out,))) for _, out in shapes])

    def __call__(self, bits: jax.Array) -> jax.Array:
        """Logits ``(S,)`` of bits ``(S, length)``."""
        x = bits.astype(self.weights[0].dtype)
        last = len(self.weights) - 1
        for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = _shift(_dot(x, w), b)
            x = x if layer == last else jax.nn.relu(x)
        return x[:, 0]


class LSTMLayer(nnx.Module):
    """One LSTM layer: gates i, f, g, o from W_ih x + W_hh h (+ biases), zero start state."""

    def __init__(self, inputs: int, hidden: int, biases: int, draw: Draw, rngs: nnx.Rngs):
        """Draws W_ih, W_hh and, for ``biases`` = 2, the two bias vectors of PyTorch's LSTM."""
        self.w_ih = nnx.Param(draw(rngs, (inputs, 4 * hidden)))
        self.w_hh = nnx.Param(draw(rngs, (hidden, 4 * hidden)))
        self.b_ih = nnx.Param(draw(rngs, (4 * hidden,))) if biases else None
        self.b_hh = nnx.Param(draw(rngs, (4 * hidden,))) if biases else None

    def __call__(self, xs: jax.Array) -> jax.Array:
        """Hidden states ``(T, S, hidden)`` of inputs ``(T, S, inputs)``."""
        driven = _shift(_shift(_dot(xs, self.w_ih), self.b_ih), self.b_hh)

        def step(state, drive):
            h, cell = state
            i, f, g, o = jnp.split(drive + _dot(h, self.w_hh), 4, axis=-1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (h, cell), h

        zero = jnp.zeros((*xs.shape[1:-1], self.w_hh.shape[0]), xs.dtype)
        return jax.lax.scan(step, (zero, zero), driven)[1]


class LSTM(nnx.Module):
    """Embedding of the bits, LSTM layers, and a linear readout of the last hidden state."""

    def __init__(self, hidden: int, num_layers: int, biases: int, draw: Draw, rngs: nnx.Rngs):
        """Draws embedding ``(2, hidden)``, the layers, and the readout ``(hidden,)``."""
        self.embedding = nnx.Param(draw(rngs, (2, hidden)))
        self.layers = nnx.List(
            [LSTMLayer(hidden, hidden, biases, draw, rngs) for _ in range(num_layers)]
        )
        self.readout = nnx.Param(draw(rngs, (hidden,)))

    def __call__(self, bits: jax.Array) -> jax.Array:
        """Logits ``(S,)`` of bits ``(S, length)``."""
        xs = self.embedding[...][bits.T]
        for layer in self.layers:
            xs = layer(xs)
        return _dot(xs[-1], self.readout)


# Cached behind the checks, so that equal arguments, however they are written (1 or 1.0, by position
# or by name), give one model with one name, which compiles once.
@functools.cache
def _perceptron(length: int, law: str, scale: float) -> Model:
    draw = _LAWS[law](scale)
    return from_nnx(
        lambda rngs: Perceptron(length, draw, rngs),
        length=length,
        name=f"perceptron, {law} {scale!r}",
        floats_per_string=2 * length,
    )


@functools.cache
def _mlp(length: int, widths: tuple[int, ...], law: str, scale: float) -> Model:
    draw = _LAWS[law](scale)
    return from_nnx(
        lambda rngs: MLP(length, widths, draw, rngs),
        length=length,
        name=f"mlp {widths!r}, {law} {scale!r}",
        floats_per_string=length + 2 * sum(widths),
    )


@functools.cache
def _lstm(length: int, hidden: int, num_layers: int, biases: str, law: str, scale: float) -> Model:
    draw = _LAWS[law](scale)
    return from_nnx(
        lambda rngs: LSTM(hidden, num_layers, 2 if biases == "two" else 0, draw, rngs),
        length=length,
        name=f"lstm hidden {hidden}, layers {num_layers}, biases {biases}, {law} {scale!r}",
        floats_per_string=length * 6 * hidden * num_layers,
    )


def perceptron(
    length: int, law: Literal["normal", "uniform"] = "normal", scale: float = 1.0
) -> Model:
    """Perceptron without bias, weights N(0, scale^2) or U[-scale, scale].

    The number of strings it answers 1 is uniform on 0 ... 2^n - 1 (arXiv:1909.11522): an exact test
    of a sampler, its counting and its tie rule.

    Raises:
      ValueError: an argument is out of range.
    """
    return _perceptron(strings.check_length(length), _check_law(law), _check_scale(scale))


def mlp(
    length: int,
    widths: Sequence[int] = (40, 40),
    law: Literal["normal", "uniform"] = "normal",
    scale: float = 1.0,
) -> Model:
    """ReLU network (default 40-40, as in arXiv:1805.08522), one law for all weights and biases.

    Raises:
      ValueError: an argument is out of range.
    """
    length = strings.check_length(length)
    if not isinstance(widths, (tuple, list)) or not widths:
        raise ValueError(f"widths: {widths!r} given; it must be a tuple such as (40, 40)")
    sizes = tuple(_check_size("widths", width) for width in widths)
    return _mlp(length, sizes, _check_law(law), _check_scale(scale))


def lstm(
    length: int,
    hidden: int = 8,
    num_layers: int = 1,
    biases: Literal["zero", "two"] = "zero",
    law: Literal["normal", "uniform"] = "uniform",
    scale: float = 10.0,
) -> Model:
    """LSTM with embedding, W_ih, W_hh and readout under one law, as in arXiv:2211.12316.

    Args:
      length: number of bits.
      hidden: hidden size, also the width of the embedding.
      num_layers: 1 or more stacked layers.
      biases: ``zero``, or ``two``: the sum of two independent draws, as PyTorch has it.
      law: ``uniform`` on [-scale, scale], or ``normal``.
      scale: half-width or standard deviation.

    Raises:
      ValueError: an argument is out of range.
    """
    length = strings.check_length(length)
    hidden, num_layers = _check_size("hidden", hidden), _check_size("num_layers", num_layers)
    if biases not in ("zero", "two"):
        raise ValueError(f"biases: {biases!r} given; it must be zero or two")
    return _lstm(length, hidden, num_layers, biases, _check_law(law), _check_scale(scale))
