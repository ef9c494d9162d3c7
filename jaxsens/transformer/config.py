"""Shape and kind of a transformer: the static, hashable half of a model."""

import dataclasses
import math
from typing import Literal, get_args

from jaxsens import strings

Norm = Literal["post", "pre", "once", "none"]
Activation = Literal["relu", "gelu_tanh", "gelu", "tanh", "prelu"]
Positions = Literal["learned", "sinusoidal", "none"]


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: {value!r} given; it must be one of {', '.join(choices)}")


def _check_at_least(name: str, value: object, least: int) -> None:
    if not strings.is_integer(value) or value < least:
        raise ValueError(f"{name}: {value!r} given; it must be an integer of at least {least}")


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Everything about a transformer that is not a number in a parameter array.

    A model reads ``length`` bits and one EOS token (index ``length``) and returns one logit, read
    at EOS. With D = ``d_model``, H = ``num_heads``, K = ``head_dim``, M = ``d_mlp``:

    h = token_embedding[tokens] + position; scores q.k / sqrt(K); softmax over all positions, or
    over the prefix where ``causal``; logit = readout.w . h[EOS] + readout.b, with the block
    structure by ``norm``:

    * ``post``: h = LN1(h + attn(h)); h = LN2(h + mlp(h)).
    * ``pre``: h += attn(LN1 h); h += mlp(LN2 h); a final LN before the readout.
    * ``once``: h = h + attn(h); h = LN1(h + mlp(h)) (one norm per layer, as in arXiv:2606.08768).
    * ``none``: no norm.

    LN(x) = (x - mean) / sqrt(var + eps) * scale + bias with the biased variance. With eps = 0 a
    constant row gives 0 before scale and bias, with zero gradient.

    Attributes:
      length: Number N of bits of a string, 1 to 65536; tables of all strings are made up to 30.
      num_layers: Number L of layers.
      d_model: Width D of the residual stream.
      num_heads: Number H of attention heads.
      d_mlp: Width M of the MLP; 0 leaves it out.
      head_dim: Width K of a head; by default d_model / num_heads.
      norm: Placement of the layer norms.
      eps: Layer-norm constant inside the root; exactly 0 is allowed.
      causal: Position t attends to positions up to t only.
      activation: Non-linearity of the MLP; gelu is the exact one, prelu has a slope per unit.
      positions: Position vectors: part of the parameters, fixed sinusoids, or none.
      attention_bias: Attention has biases (bq, bk, bv, bo).
      mlp_bias: The MLP has biases (b_in, b_out).
      norm_affine: Layer norms have gain and shift.
      readout_bias: The readout has a bias.

    Raises:
      ValueError: a field is out of range; one line names it, its value and what would be right.
    """

    length: int
    num_layers: int
    d_model: int
    num_heads: int
    d_mlp: int
    head_dim: int | None = None
    norm: Norm = "post"
    eps: float = 0.0
    causal: bool = False
    activation: Activation = "relu"
    positions: Positions = "learned"
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_affine: bool = True
    readout_bias: bool = True

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if strings.is_integer(value):
                # NumPy integers mean the same model: one hash, one JSON.
                object.__setattr__(self, field.name, int(value))
        strings.check_length(self.length, strings.MAX_STRING)
        for name, least in (("num_layers", 1), ("d_model", 1), ("num_heads", 1), ("d_mlp", 0)):
            _check_at_least(name, getattr(self, name), least)
        if self.head_dim is not None:
            _check_at_least("head_dim", self.head_dim, 1)
        elif self.d_model % self.num_heads:
            raise ValueError(
                f"d_model: {self.d_model} is not divisible by num_heads = {self.num_heads}; "
                "choose a multiple, or give head_dim"
            )
        _check_choice("norm", self.norm, get_args(Norm))
        _check_choice("activation", self.activation, get_args(Activation))
        _check_choice("positions", self.positions, get_args(Positions))
        if isinstance(self.eps, bool) or not (
            isinstance(self.eps, (int, float)) and math.isfinite(self.eps) and self.eps >= 0
        ):
            raise ValueError(f"eps: {self.eps!r} given; it must be a finite number >= 0")
        for field in dataclasses.fields(self):
            if field.type is bool and not isinstance(getattr(self, field.name), bool):
                raise ValueError(
                    f"{field.name}: {getattr(self, field.name)!r} given; it must be True or False"
                )

    @property
    def key_dim(self) -> int:
        """K, the width of one head."""
        return self.head_dim if self.head_dim is not None else self.d_model // self.num_heads

    @property
    def num_tokens(self) -> int:
        """N + 1: the bits and EOS."""
        return self.length + 1
