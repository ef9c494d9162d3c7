"""The one entrance: which structure a config has, and what guards its table."""

import functools

import jax

from jaxsens import strings
from jaxsens.engine import bidirectional, by_weight, prefix_tree
from jaxsens.transformer.config import TransformerConfig
from jaxsens.transformer.forward import plain_truth_table_logits
from jaxsens.transformer.params import TransformerParams

# log2 of the strings worked on together, by path: their temporaries stay in a core's cache.
_TILE_BITS = {"tabulated first layer": 10, "prefix tree": 8, "weight of the string": None}

_PATHS = {
    "tabulated first layer": bidirectional.table,
    "prefix tree": prefix_tree.table,
    "weight of the string": by_weight.table,
}


def path_name(cfg: TransformerConfig) -> str:
    """Which structure of the model the engine uses; recorded in the manifest of a run."""
    if cfg.positions == "none" and not cfg.causal:
        return "weight of the string"
    # A mask does not change what EOS sees, and one layer asks for no more.
    if cfg.causal and cfg.num_layers > 1:
        return "prefix tree"
    return "tabulated first layer"


def default_tile_bits(cfg: TransformerConfig) -> int | None:
    """log2 of the strings worked on together, at most; ``None`` where there are no tiles."""
    bits = _TILE_BITS[path_name(cfg)]
    return None if bits is None else min(bits, cfg.length)


def work_per_string(cfg: TransformerConfig) -> float:
    """Multiplications and additions of one string, in units of 64: a measure of time.

    Counts the MLP and the attention of every token that the structure leaves; the unit makes it
    comparable with the numbers that the plain pass keeps alive.
    """
    tokens, width = cfg.num_tokens, cfg.d_model
    inner = cfg.num_heads * cfg.key_dim
    mlp = 4 * width * cfg.d_mlp + 64 * width
    own, read = 8 * width * inner, 8 * cfg.num_heads * width
    if path_name(cfg) == "weight of the string":
        return 1.0
    if path_name(cfg) == "prefix tree":
        return (3 * cfg.num_layers - 2) * (mlp + own + tokens * read) / 64
    first = mlp + 8 * cfg.num_heads * width
    if cfg.num_layers == 1:
        return first / 64
    middle = (cfg.num_layers - 2) * tokens * (mlp + own + tokens * read)
    return (tokens * (first + read) + middle + mlp) / 64


def trusted_table(
    cfg: TransformerConfig, params: TransformerParams, tile_bits: int | None = None
) -> tuple[jax.Array, jax.Array]:
    """Logits on every string, and whether rounding leaves them their meaning.

    Attention scores of any width are safe: every softmax is shifted by the largest score of its own
    string. The layer norms of the engine are not those of the plain pass, which rescales each row
    before it squares it and knows a constant row when it sees one. A table with a row whose spread
    is below 1024 roundings of its size, or over- or underflows when squared, is not trusted.

    Args:
      cfg: the config.
      params: parameters of one model; their dtype is that of the computation.
      tile_bits: log2 of the strings worked on together, by default the path's own; changes the
        speed alone.

    Returns:
      ``(2**length,)`` logits in row order, and bool ``()``.
    """
    strings.check_enumerable(cfg.length)
    tile_bits = default_tile_bits(cfg) if tile_bits is None else tile_bits
    return _PATHS[path_name(cfg)](cfg, params, tile_bits)


@functools.partial(jax.jit, static_argnums=0)
def truth_table_logits(cfg: TransformerConfig, params: TransformerParams) -> jax.Array:
    """Logits of one transformer on every string, ``(2**length,)``, in row order.

    Equal to ``apply(cfg, params, all_strings(length))`` up to rounding, but computed once where the
    plain pass computes it for every string: the first layer from a table of 2N + 1 rows, the last
    layer at EOS alone, causal models on the tree of prefixes, models without positions by weight.
    Tables that the short layer norms of the engine cannot be trusted with (see
    :func:`jaxsens.engine.trusted_table`) come from the plain pass.

    Args:
      cfg: the static config, ``length <= 30``.
      params: parameters of one model; their floating dtype is the dtype of the computation.

    Returns:
      The logits. The model answers 1 iff the logit is > 0.

    Raises:
      ValueError: the length is above 30.
    """
    logits, trusted = trusted_table(cfg, params)
    if path_name(cfg) == "weight of the string":
        return logits
    return jax.lax.cond(trusted, lambda: logits, lambda: plain_truth_table_logits(cfg, params))
