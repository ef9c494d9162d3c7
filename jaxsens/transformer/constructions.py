r"""Exact transformers for PARITY and FIRST: ground truth for everything that evaluates models.

The two-layer constructions of Chiang & Cholak (arXiv:2202.12172), at every length. Only the logit
at EOS is meaningful. Without norm the logit shrinks with n; with post-norm at eps = 0 it is
+-sqrt(10) (PARITY) or +-sqrt(6) (FIRST) on every string of every length, since a final norm whose
row holds only the answer and its negative scales it back to full size. With eps > 0 that margin
collapses.

Features (columns of the residual stream): 0, 1, 2 mark bit 0, bit 1 and EOS; 3 and 4 hold
positions; the rest is written by the layers. With norm every feature f is stored twice, as v at f
and -v at f + D/2: the mean of a row is then 0, and layer norm is a positive rescaling of the row.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxsens.transformer.config import TransformerConfig

Function = Literal["parity", "first"]
_FEATURES = {"parity": 10, "first": 6}


class Construction(NamedTuple):
    """A config and float64 arrays for :func:`jaxsens.params_from_arrays` (absent ones are 0 or 1).

    Attributes:
      cfg: two layers, bidirectional, ReLU.
      arrays: NumPy arrays under flat names.
    """

    cfg: TransformerConfig
    arrays: dict[str, np.ndarray]


def _check(function: str, norm: str) -> None:
    for name, value, choices in (
        ("function", function, ("parity", "first")),
        ("norm", norm, ("post", "none")),
    ):
        if value not in choices:
            raise ValueError(f"{name}: {value!r} given; it must be {' or '.join(choices)}")


def _matrix(shape: tuple[int, ...], entries: Mapping[tuple[int, ...], float]) -> np.ndarray:
    array = np.zeros(shape)
    for index, value in entries.items():
        array[index] = value
    return array


def _parity_layers(c: float) -> list[dict[str, Any]]:
    # With k ones among T = n + 1 positions, layer 1 averages to k/T (5) and 1/T (6); its MLP is the
    # hat relu(k-i-1) - 2 relu(k-i) + relu(k-i+1) over T, which leaves 1[i = k]/T (7).
    count = {
        "wv": {(1, 0, 0): 1, (2, 0, 1): 1},
        "wo": {(0, 0, 5): 1, (0, 1, 6): 1},
        "w_in": {
            **{(3, unit): -1 for unit in range(3)},
            **{(5, unit): 1 for unit in range(3)},
            (6, 0): -1,
            (6, 2): 1,
        },
        "w_out": {(0, 7): 1, (1, 7): -2, (2, 7): 1},
    }
    # EOS scores +c cos(pi i) in one head and -c cos(pi i) in the other: their difference tells
    # whether the position i = k, where feature 7 stands, is odd.
    compare = {
        "wq": {(2, 0, 0): c, (2, 1, 0): -c},
        "wk": {(4, 0, 0): 1, (4, 1, 0): 1},
        "wv": {(7, 0, 0): 1, (7, 1, 0): 1},
        "wo": {(0, 0, 8): -1, (1, 0, 8): 1},
    }
    return [count, compare]


def _first_layers(c: float, with_norm: bool) -> list[dict[str, Any]]:
    # Layer 1 marks (4) "bit 1 at position 0". A norm rescales rows, so there the test is written
    # without a constant: position mark minus "bit 0" minus "EOS".
    if with_norm:
        mark = {"w_in": {(0, 0): -1, (2, 0): -1, (3, 0): 1}}
    else:
        mark = {"w_in": {(1, 0): 1, (3, 0): 1}, "b_in": {(0,): -1}}
    mark["w_out"] = {(0, 4): 1}
    look = {
        "wq": {(2, 0, 0): c},
        "wk": {(3, 0, 0): 1},
        "wv": {(3, 0, 0): -0.5, (4, 0, 0): 1},
        "wo": {(0, 0, 5): 1},
    }
    return [mark, look]


def chiang_cholak(
    function: Function,
    n: int,
    norm: Literal["post", "none"] = "post",
    c: float = 1.0,
    eps: float = 0.0,
) -> Construction:
    """The two-layer transformer that computes ``function`` on every string of length ``n``.

    Args:
      function: ``parity`` or ``first``.
      n: length of the strings.
      norm: ``post`` (exact margin at eps = 0) or ``none``.
      c: attention score that EOS gives to the positions it looks at.
      eps: layer-norm constant; any value but 0 makes the margin shrink with n.

    Returns:
      :class:`Construction`; logits as in :func:`exact_logits` for eps = 0.

    Raises:
      ValueError: an argument is out of range.
    """
    _check(function, norm)
    doubled = norm == "post"
    half = _FEATURES[function]
    width = 2 * half if doubled else half
    answer = 8 if function == "parity" else 5
    heads = 2 if function == "parity" else 1
    hidden = width if doubled else (3 if function == "parity" else 1)
    cfg = TransformerConfig(
        length=n, num_layers=2, d_model=width, num_heads=heads, head_dim=width // heads,
        d_mlp=hidden, norm=norm, eps=eps,
    )  # fmt: skip
    key_dim = cfg.key_dim
    # Scores are divided by sqrt(K).
    score = c * math.sqrt(key_dim)
    layers = _parity_layers(score) if function == "parity" else _first_layers(score, doubled)
    shapes = {
        "wq": (width, heads, key_dim), "wk": (width, heads, key_dim),
        "wv": (width, heads, key_dim), "wo": (heads, key_dim, width),
        "w_in": (width, hidden), "b_in": (hidden,), "w_out": (hidden, width), "b_out": (width,),
    }  # fmt: skip

    def mirrored(array: np.ndarray) -> np.ndarray:
        """What is written to feature f is also written, negated, to f + D/2."""
        if doubled:
            array[..., half:] = -array[..., :half]
        return array

    arrays = {"token_embedding": mirrored(_matrix((3, width), {(t, t): 1 for t in range(3)}))}
    for layer, entries in enumerate(layers):
        for name, shape in shapes.items():
            array = _matrix(shape, entries.get(name, {}))
            arrays[f"layer{layer}.{name}"] = mirrored(array) if name in ("wo", "w_out") else array
    if doubled:
        # The last MLP cancels every feature but the answer: relu(v) - relu(-v) = v.
        others = [f for f in range(width) if f % half != answer]
        arrays["layer1.w_in"] = _matrix((width, hidden), {(f, f): 1 for f in others})
        arrays["layer1.w_out"] = _matrix(
            (hidden, width),
            {(f, f): -1 for f in others} | {(f, (f + half) % width): 1 for f in others},
        )
    i = np.arange(n + 1)
    positions = np.zeros((n + 1, width))
    if function == "parity":
        positions[:, 3], positions[:, 4] = i / (n + 1), (-1.0) ** i
    else:
        positions[0, 3] = 1
    arrays["position_embedding"] = mirrored(positions)
    arrays["readout.w"] = _matrix((width,), {(answer,): 1})
    arrays["readout.b"] = np.zeros(())
    return Construction(cfg, arrays)


def exact_logits(
    function: Function, n: int, norm: Literal["post", "none"] = "post", c: float = 1.0
) -> tuple[float, float]:
    """The two logits of :func:`chiang_cholak` at eps = 0: (on class 0, on class 1).

    Post-norm: -+sqrt(D/2), that is sqrt(10) for PARITY and sqrt(6) for FIRST. Without norm, FIRST:
    -+e^c / (2 (e^c + n)); PARITY, with E even and O odd positions among T = n + 1:
    k odd (e^c/(E e^-c + O e^c) - e^-c/(E e^c + O e^-c)) / T, k even the same with c negated.
    """
    _check(function, norm)
    if norm == "post":
        size = math.sqrt(_FEATURES[function])
        return -size, size
    if function == "first":
        size = math.exp(c) / (2 * (math.exp(c) + n))
        return -size, size
    total = n + 1
    even, odd = (total + 1) // 2, total // 2
    up, down = math.exp(c), math.exp(-c)
    denominator_plus, denominator_minus = even * up + odd * down, even * down + odd * up
    on_odd = (up / denominator_minus - down / denominator_plus) / total
    on_even = -(up / denominator_plus - down / denominator_minus) / total
    return on_even, on_odd
