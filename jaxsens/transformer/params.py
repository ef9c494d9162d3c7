"""The parameter pytree, its flat names, and the shapes that a config asks for."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxsens.transformer.config import TransformerConfig


@struct.dataclass
class NormParams:
    """Gain and shift of one layer norm, each ``(D,)``."""

    scale: jax.Array
    bias: jax.Array


@struct.dataclass
class LayerParams:
    """One block. Leaves that the config leaves out are ``None``."""

    wq: jax.Array
    wk: jax.Array
    wv: jax.Array
    wo: jax.Array
    bq: jax.Array | None = None
    bk: jax.Array | None = None
    bv: jax.Array | None = None
    bo: jax.Array | None = None
    w_in: jax.Array | None = None
    b_in: jax.Array | None = None
    w_out: jax.Array | None = None
    b_out: jax.Array | None = None
    slope: jax.Array | None = None
    norm1: NormParams | None = None
    norm2: NormParams | None = None


@struct.dataclass
class ReadoutParams:
    """The linear readout at EOS: w ``(D,)`` and b ``()``."""

    w: jax.Array
    b: jax.Array | None = None


@struct.dataclass
class TransformerParams:
    """All arrays of one transformer (shapes in :func:`array_shapes`)."""

    token_embedding: jax.Array
    readout: ReadoutParams
    layers: tuple[LayerParams, ...]
    position_embedding: jax.Array | None = None
    final_norm: NormParams | None = None


def all_array_shapes(cfg: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Flat name to shape of every array that a transformer of this *size* can have.

    The list depends on length, num_layers, d_model, num_heads, head_dim and d_mlp alone, with the
    positions last: switching norms, biases, masks or activations never moves another array. Init
    laws draw in this order, so such variants of one model share their weights.
    """
    d, h, k, m = cfg.d_model, cfg.num_heads, cfg.key_dim, cfg.d_mlp
    shapes: dict[str, tuple[int, ...]] = {"token_embedding": (3, d)}
    for layer in range(cfg.num_layers):
        block = {"wq": (d, h, k), "wk": (d, h, k), "wv": (d, h, k), "wo": (h, k, d)}
        block |= {"bq": (h, k), "bk": (h, k), "bv": (h, k), "bo": (d,)}
        block |= {"w_in": (d, m), "b_in": (m,), "w_out": (m, d), "b_out": (d,), "slope": (m,)}
        block |= {f"norm{i}.{part}": (d,) for i in (1, 2) for part in ("scale", "bias")}
        shapes |= {f"layer{layer}.{name}": shape for name, shape in block.items()}
    shapes |= {"final_norm.scale": (d,), "final_norm.bias": (d,)}
    shapes |= {"readout.w": (d,), "readout.b": ()}
    shapes["position_embedding"] = (cfg.num_tokens, d)
    return shapes


def _exists(cfg: TransformerConfig, name: str) -> bool:
    """Whether a transformer with this config has the array ``name``."""
    part = name.split(".", 1)[-1]
    if name == "position_embedding":
        return cfg.positions == "learned"
    if name == "readout.b":
        return cfg.readout_bias
    if part in ("bq", "bk", "bv", "bo"):
        return cfg.attention_bias
    if part in ("w_in", "w_out", "b_in", "b_out", "slope"):
        wanted = {"slope": cfg.activation == "prelu", "b_in": cfg.mlp_bias, "b_out": cfg.mlp_bias}
        return cfg.d_mlp > 0 and wanted.get(part, True)
    if "norm" in name:
        norms = {"post": ("norm1", "norm2"), "pre": ("norm1", "norm2", "final_norm")}
        norms |= {"once": ("norm1",), "none": ()}
        present = norms[cfg.norm]
        if cfg.d_mlp == 0 and cfg.norm in ("post", "pre"):
            present = tuple(n for n in present if n != "norm2")
        return cfg.norm_affine and any(n in name for n in present)
    return True


def array_shapes(cfg: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Flat name to shape of the arrays that a transformer with this config has."""
    return {name: shape for name, shape in all_array_shapes(cfg).items() if _exists(cfg, name)}


def num_parameters(cfg: TransformerConfig) -> int:
    """Number of scalars in the parameters."""
    return sum(int(np.prod(shape)) for shape in array_shapes(cfg).values())


def build(cfg: TransformerConfig, arrays: Mapping[str, jax.Array]) -> TransformerParams:
    """Assembles the pytree from flat names; names that are absent become ``None``."""

    def norm(prefix: str) -> NormParams | None:
        if f"{prefix}.scale" not in arrays:
            return None
        return NormParams(scale=arrays[f"{prefix}.scale"], bias=arrays[f"{prefix}.bias"])

    def layer(prefix: str) -> LayerParams:
        names = [f for f in LayerParams.__dataclass_fields__ if not f.startswith("norm")]
        # Any, since which leaves are None is the config's business.
        leaves: dict[str, Any] = {name: arrays.get(f"{prefix}.{name}") for name in names}
        return LayerParams(**leaves, norm1=norm(f"{prefix}.norm1"), norm2=norm(f"{prefix}.norm2"))

    return TransformerParams(
        token_embedding=arrays["token_embedding"],
        position_embedding=arrays.get("position_embedding"),
        layers=tuple(layer(f"layer{i}") for i in range(cfg.num_layers)),
        final_norm=norm("final_norm"),
        readout=ReadoutParams(w=arrays["readout.w"], b=arrays.get("readout.b")),
    )


def _default(name: str) -> float | None:
    """What an array that a mapping leaves out stands for (``None``: it must be given)."""
    part = name.rsplit(".", 1)[-1]
    if part == "scale":
        return 1.0
    if part in ("bq", "bk", "bv", "bo", "b_in", "b_out", "bias", "b"):
        return 0.0
    return None


def params_from_arrays(
    cfg: TransformerConfig, mapping: Mapping[str, jax.typing.ArrayLike]
) -> TransformerParams:
    """Parameters from arrays under flat names, so that any framework's weights can be judged.

    With D, H, K, M of the config: ``token_embedding`` (3, D: bit 0, bit 1, EOS),
    ``position_embedding`` (length+1, D), ``layer{l}.wq/wk/wv`` (D, H, K), ``.bq/bk/bv`` (H, K),
    ``.wo`` (H, K, D), ``.bo`` (D,), ``.w_in`` (D, M), ``.b_in`` (M,), ``.w_out`` (M, D),
    ``.b_out`` (D,), ``.slope`` (M,) for prelu, ``layer{l}.norm1/norm2.scale/.bias`` and
    ``final_norm.scale/.bias`` (D,), ``readout.w`` (D,), ``readout.b`` ().

    Absent biases are 0, absent gains 1. Floating dtypes are kept (float64 needs x64 mode), other
    dtypes become float32.

    Raises:
      ValueError: a name is missing or not one of this config's, a shape differs, or the dtypes
        of two arrays do.
    """
    shapes = array_shapes(cfg)
    unknown = sorted(set(mapping) - set(shapes))
    if unknown:
        raise ValueError(
            f"params_from_arrays: {unknown[0]!r} given; this config has {', '.join(shapes)}"
        )
    given = {}
    for name, value in mapping.items():
        array = value if isinstance(value, jax.Array) else np.asarray(value)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            array = array.astype(np.float32)
        if tuple(array.shape) != shapes[name]:
            raise ValueError(f"{name}: shape {tuple(array.shape)} given; it must be {shapes[name]}")
        given[name] = jnp.asarray(array)
    dtypes = {str(a.dtype) for a in given.values()}
    if len(dtypes) > 1:
        raise ValueError(f"params_from_arrays: dtypes {sorted(dtypes)} given; they must be one")
    for name, shape in shapes.items():
        if name not in given:
            fill = _default(name)
            if fill is None:
                raise ValueError(f"params_from_arrays: {name!r} {shape} is missing")
            given[name] = jnp.full(shape, fill, given["token_embedding"].dtype)
    return build(cfg, given)


def _flatten(params: TransformerParams) -> Iterator[tuple[str, jax.Array]]:
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        yield name.replace("layers.", "layer", 1), leaf


def params_to_arrays(params: TransformerParams) -> dict[str, jax.Array]:
    """The arrays of a parameter pytree under flat names; inverse of :func:`params_from_arrays`."""
    return dict(_flatten(params))
