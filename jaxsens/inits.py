r"""Init laws: distributions over the parameters of a transformer.

A law is a pytree that is called as ``law(key, cfg) -> params``. It names one distribution for each
*tensor group*; its numbers are leaves, so a sweep over scales vmaps and never recompiles.

Every law is a function of the same base draw: one flat vector u of independent uniforms on
(-1, 1) in float32, cut into the arrays of
:func:`jaxsens.transformer.params.all_array_shapes`. A uniform law is ``a u``, a normal law
``sigma sqrt(2) erfinv(u)``, and so on. So one key gives *coupled* models under different laws,
norms, masks, biases and activations: paired comparisons for free.

In float32 the base draw has 23 bits: ``|z|`` of a normal never exceeds 5.41998, where 1e8 exact
draws would reach about 5.7. That is part of any statement about very rare events;
``law.drawn_in("float64")`` removes it (the drawn values differ, hence so do the models). Either way
the parameters are handed over in float32, so a model means the same in every precision.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxsens import threefry
from jaxsens.transformer import params as parameters
from jaxsens.transformer.config import TransformerConfig

Kind = Literal["uniform", "normal", "truncated_normal", "orthogonal", "constant"]
Fan = Literal["none", "in", "sum"]

#: Tensor groups and the arrays in them.
GROUPS: dict[str, tuple[str, ...]] = {
    "embedding": ("token_embedding",),
    "positions": ("position_embedding",),
    "attention": ("wq", "wk", "wv", "wo"),
    "mlp": ("w_in", "w_out"),
    "slope": ("slope",),
    "biases": ("bq", "bk", "bv", "bo", "b_in", "b_out", "b"),
    "norm_gain": ("scale",),
    "norm_bias": ("bias",),
    "readout": ("w",),
}
_GROUP_OF = {array: group for group, arrays in GROUPS.items() for array in arrays}
# P(|z| < 2): the part of the base interval that a normal cut at two deviations keeps.
_WITHIN_TWO_SIGMA = math.erf(math.sqrt(2.0))


@struct.dataclass
class GroupLaw:
    """Law of one tensor group: ``number * factor(shape)`` scales the base of ``kind``.

    Attributes:
      number: half-width a, standard deviation sigma, gain, or the constant itself. A leaf.
      kind: shape of the distribution.
      fan: divides ``number`` by sqrt(fan_in) (``in``) or sqrt(fan_in + fan_out) (``sum``).
      residual: divides ``number`` by sqrt(2 L) in wo and w_out, the ends of residual branches.
    """

    number: Any
    kind: Kind = struct.field(pytree_node=False)
    fan: Fan = struct.field(pytree_node=False, default="none")
    residual: bool = struct.field(pytree_node=False, default=False)


def _base_draw(key: jax.Array, total: int, dtype) -> Callable[[int, int], jax.Array]:
    """The base draw of ``total`` numbers, as a function (start, count) to a piece of it."""
    if dtype == jnp.float32 and threefry.is_counter_mode(key):
        return lambda start, count: threefry.uniform(key, start, count)
    low = np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype))
    flat = jax.random.uniform(key, (total,), dtype, minval=low, maxval=1.0)
    return lambda start, count: flat[start : start + count]


def _matrix_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan_in, fan_out): heads and head width count as one axis."""
    if name in ("wq", "wk", "wv"):
        return shape[0], shape[1] * shape[2]
    if name == "wo":
        return shape[0] * shape[1], shape[2]
    if len(shape) == 2:
        return shape[0], shape[1]
    return (shape[0] if shape else 1), 1


def _orthogonal(z: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Haar-distributed (semi-)orthogonal matrix from normals, by a QR with positive diagonal."""
    rows, columns = shape
    tall = z.reshape(max(shape), min(shape))
    q, r = jnp.linalg.qr(tall)
    diagonal = jnp.diagonal(r)
    signs = jnp.where(diagonal < 0, -jnp.ones_like(diagonal), jnp.ones_like(diagonal))
    q = q * jnp.broadcast_to(signs, q.shape)
    return q if rows >= columns else q.T


def _sample(
    law: GroupLaw, name: str, shape: tuple[int, ...], cfg: TransformerConfig, u: jax.Array
) -> jax.Array:
    fan_in, fan_out = _matrix_shape(name, shape)
    factor = {"none": 1.0, "in": fan_in**-0.5, "sum": (fan_in + fan_out) ** -0.5}[law.fan]
    if law.residual and name in ("wo", "w_out"):
        factor /= math.sqrt(2 * cfg.num_layers)
    number = jnp.asarray(law.number, u.dtype) * jnp.asarray(factor, u.dtype)
    if law.kind == "constant":
        base = jnp.ones_like(u)
    elif law.kind == "uniform":
        base = u
    else:
        inside = _WITHIN_TWO_SIGMA if law.kind == "truncated_normal" else 1.0
        z = jax.lax.erf_inv(u * jnp.asarray(inside, u.dtype)) * jnp.asarray(math.sqrt(2), u.dtype)
        # XLA reorders (number * z) * sqrt 2 for a scalar array and not for a batch of them.
        z = jax.lax.optimization_barrier(z)
        base = z if law.kind != "orthogonal" else _orthogonal(z, (fan_in, fan_out))
    return (number * base).reshape(shape)


@struct.dataclass
class InitLaw:
    """A distribution over the parameters of a transformer: ``law(key, cfg) -> params``.

    Attributes:
      groups: law of every tensor group of :data:`GROUPS`.
      name: for people; the groups define the law.
      draw: dtype of the base draw, ``float32`` or ``float64`` (needs x64 mode).
    """

    groups: dict[str, GroupLaw]
    name: str = struct.field(pytree_node=False, default="custom")
    draw: Literal["float32", "float64"] = struct.field(pytree_node=False, default="float32")

    def __call__(self, key: jax.Array, cfg: TransformerConfig) -> parameters.TransformerParams:
        """Draws one model: float32 parameters in the structure that ``cfg`` asks for."""
        dtype = jnp.dtype(self.draw)
        x64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
        if dtype == jnp.float64 and not x64:
            raise ValueError("draw: 'float64' given; it needs x64 mode (jax.enable_x64)")
        everything = parameters.all_array_shapes(cfg)
        sizes = [math.prod(shape) for shape in everything.values()]
        starts = dict(zip(everything, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        base = _base_draw(key, sum(sizes), dtype)
        arrays = {}
        for name, shape in parameters.array_shapes(cfg).items():
            short = name.rsplit(".", 1)[-1]
            law = self.groups[_GROUP_OF[short]]
            u = base(starts[name], math.prod(shape))
            arrays[name] = _sample(law, short, shape, cfg, u).astype(jnp.float32)
        return parameters.build(cfg, arrays)

    def with_group(self, group: str, law: "InitLaw") -> "InitLaw":
        """The same law, but ``group`` follows ``law`` (e.g. ``inits.zeros()``)."""
        check_group(group)
        name = f"{self.name}, {group}={law.name}"
        groups = self.groups | {group: law.groups[group]}
        return dataclasses.replace(self, groups=groups, name=name)

    def scaled(self, group: str, factor: jax.typing.ArrayLike) -> "InitLaw":
        """The same law, but every number drawn in ``group`` is multiplied by ``factor``."""
        check_group(group)
        old = self.groups[group]
        number = old.number * check_number(f"factor of {group}", factor)
        groups = self.groups | {group: dataclasses.replace(old, number=number)}
        return dataclasses.replace(self, groups=groups, name=f"{self.name}, {group}*{factor}")

    def drawn_in(self, draw: str) -> "InitLaw":
        """The same law with another base draw: ``float32`` (23 bits) or ``float64`` (52 bits)."""
        if draw not in ("float32", "float64"):
            raise ValueError(f"draw: {draw!r} given; it must be float32 or float64")
        return dataclasses.replace(self, draw=draw)

    def describe(self) -> dict:
        """What defines the law, as JSON values."""
        groups = {
            group: {
                "kind": law.kind,
                "number": np.asarray(law.number, np.float64).item(),
                "fan": law.fan,
                "residual": law.residual,
            }
            for group, law in self.groups.items()
        }
        return {"groups": groups, "draw": self.draw}


def check_group(group: str) -> None:
    """Raises ``ValueError`` unless ``group`` is a tensor group."""
    if group not in GROUPS:
        raise ValueError(f"group: {group!r} given; it must be one of {', '.join(GROUPS)}")


def check_number(name: str, value: Any) -> Any:
    """Returns a swept number; raises ``ValueError`` if it is a plain one, not finite and >= 0."""
    if isinstance(value, (bool, str, type(None))) or (
        isinstance(value, (int, float, np.number)) and not (math.isfinite(value) and value >= 0)
    ):
        raise ValueError(f"{name}: {value!r} given; it must be a finite number >= 0")
    # One type for all plain numbers: a NumPy scalar would be traced anew.
    return float(value) if isinstance(value, (int, float, np.number)) else value


def _law(name: str, default: GroupLaw, **others: GroupLaw) -> InitLaw:
    return InitLaw(groups={group: others.get(group, default) for group in GROUPS}, name=name)


def _with_identity_rest(name: str, matrices: GroupLaw, **others: GroupLaw) -> InitLaw:
    """Matrices by one law; biases and norm shifts 0, gains 1, prelu slopes 0.25."""
    fixed = {
        "biases": GroupLaw(0.0, "constant"),
        "norm_bias": GroupLaw(0.0, "constant"),
        "norm_gain": GroupLaw(1.0, "constant"),
        "slope": GroupLaw(0.25, "constant"),
    }
    return _law(name, matrices, **(fixed | others))


def uniform(a: jax.typing.ArrayLike = 10.0) -> InitLaw:
    """U[-a, a] on every scalar of every tensor, norms and biases included.

    The uniform scheme of arXiv:2211.12316 (a = 10), and the law of arXiv:2606.08768, Unif(Theta).
    """
    return _law("uniform", GroupLaw(check_number("scale", a), "uniform"))


def normal(sigma: jax.typing.ArrayLike = 10.0) -> InitLaw:
    """N(0, sigma^2) on every scalar of every tensor, norms and biases included (2211.12316: 10)."""
    return _law("normal", GroupLaw(check_number("scale", sigma), "normal"))


def truncated_normal(sigma: jax.typing.ArrayLike = 1.0) -> InitLaw:
    """N(0, sigma^2) cut at +-2 sigma on every scalar of every tensor.

    The variance is that of the cut law, about 0.774 sigma^2.
    """
    return _law("truncated_normal", GroupLaw(check_number("scale", sigma), "truncated_normal"))


def xavier_uniform(gain: jax.typing.ArrayLike = 1.0) -> InitLaw:
    """U[-b, b], b = gain sqrt(6 / (fan_in + fan_out)), on attention, MLP and readout matrices.

    Fans of wq, wk, wv are (D, H K), of wo (H K, D), of the readout (D, 1). Token embedding and
    positions N(0, 1); biases and norm shifts 0; norm gains 1; prelu slopes 0.25.
    """
    number = check_number("scale", gain) * math.sqrt(6)
    one = GroupLaw(1.0, "normal")
    return _with_identity_rest(
        "xavier_uniform", GroupLaw(number, "uniform", "sum"), embedding=one, positions=one
    )


def xavier_normal(gain: jax.typing.ArrayLike = 1.0) -> InitLaw:
    """N(0, 2 gain^2 / (fan_in + fan_out)) on attention, MLP and readout matrices.

    Everything else as in :func:`xavier_uniform`: embeddings and positions N(0, 1), biases 0.
    """
    number = check_number("scale", gain) * math.sqrt(2)
    one = GroupLaw(1.0, "normal")
    return _with_identity_rest(
        "xavier_normal", GroupLaw(number, "normal", "sum"), embedding=one, positions=one
    )


def kaiming(gain: jax.typing.ArrayLike = 2**0.5) -> InitLaw:
    """N(0, gain^2 / fan_in) on attention, MLP and readout matrices (1502.01852: gain sqrt 2).

    Token embedding and positions N(0, 1); biases and norm shifts 0; norm gains 1; slopes 0.25.
    """
    one = GroupLaw(1.0, "normal")
    matrices = GroupLaw(check_number("scale", gain), "normal", "in")
    return _with_identity_rest("kaiming", matrices, embedding=one, positions=one)


def gpt2(sigma: jax.typing.ArrayLike = 0.02) -> InitLaw:
    """N(0, sigma^2) on embeddings, positions and all matrices; wo and w_out divided by sqrt(2 L).

    Biases and norm shifts 0; norm gains 1; prelu slopes 0.25. The published sigma is 0.02.
    """
    sigma = check_number("scale", sigma)
    plain, residual = GroupLaw(sigma, "normal"), GroupLaw(sigma, "normal", residual=True)
    return _with_identity_rest("gpt2", plain, attention=residual, mlp=residual)


def orthogonal(gain: jax.typing.ArrayLike = 1.0) -> InitLaw:
    """Gain times a Haar-distributed (semi-)orthogonal matrix for each attention and MLP matrix.

    wq, wk, wv are (D, H K) matrices, wo is (H K, D); the readout is a uniformly random direction of
    length gain. Embeddings and positions N(0, 1); biases and shifts 0; gains 1; slopes 0.25.
    """
    one = GroupLaw(1.0, "normal")
    matrices = GroupLaw(check_number("scale", gain), "orthogonal")
    return _with_identity_rest("orthogonal", matrices, embedding=one, positions=one)


def constant(value: float) -> InitLaw:
    """Every scalar of every tensor is ``value``: for replacing the law of single groups."""
    if isinstance(value, (int, float)) and not math.isfinite(value):
        raise ValueError(f"value: {value!r} given; it must be finite")
    return _law(f"constant {value}", GroupLaw(value, "constant"))


def zeros() -> InitLaw:
    """Every scalar of every tensor is 0: to silence a group, as in with_group("biases", ...)."""
    return dataclasses.replace(constant(0.0), name="zeros")


def ones() -> InitLaw:
    """Every scalar of every tensor is 1: for the norm gains."""
    return dataclasses.replace(constant(1.0), name="ones")


#: Name to law. Each takes one optional number, documented as ``scale`` on the command line.
REGISTRY: Mapping[str, Callable[..., InitLaw]] = {
    f.__name__: f
    for f in (
        uniform,
        normal,
        truncated_normal,
        xavier_uniform,
        xavier_normal,
        kaiming,
        gpt2,
        orthogonal,
        constant,
        zeros,
        ones,
    )
}


def by_name(name: str, scale: float | None = None) -> InitLaw:
    """The registered law ``name``, at ``scale`` or its default number.

    Raises:
      ValueError: the name is unknown, or the law takes no number, or needs one.
    """
    if name not in REGISTRY:
        raise ValueError(f"init: {name!r} given; it must be one of {', '.join(REGISTRY)}")
    if scale is None and name == "constant":
        raise ValueError("scale: none given; init 'constant' needs one")
    if scale is not None and name in ("zeros", "ones"):
        raise ValueError(f"scale: {scale} given; init {name!r} takes none")
    return REGISTRY[name]() if scale is None else REGISTRY[name](scale)


def init_params(
    cfg: TransformerConfig, init: InitLaw | Callable, key: jax.Array
) -> parameters.TransformerParams:
    """Draws the parameters of one model: ``init(key, cfg)``.

    Args:
      cfg: the static config.
      init: a law of this module, or any callable ``(key, cfg) -> params``.
      key: a typed ``jax.random.key``.

    Returns:
      float32 parameters.
    """
    return init(key, cfg)
