"""Truth tables of bidirectional models without positions: functions of the number of ones."""

import jax
import jax.numpy as jnp

from jaxsens.transformer.config import TransformerConfig
from jaxsens.transformer.forward import apply
from jaxsens.transformer.params import TransformerParams


def table(
    cfg: TransformerConfig, params: TransformerParams, tile_bits: int | None
) -> tuple[jax.Array, jax.Array]:
    """Logits ``(2**length,)`` from the plain pass on one string of every weight.

    Attention without positions does not see the order of the bits, and EOS, where the answer is
    read, is told apart by its own row. Always trusted.
    """
    del tile_bits
    n = cfg.length
    weights = jnp.arange(n + 1, dtype=jnp.int32)[:, None]
    strings = jnp.arange(n, dtype=jnp.int32)[None, :]
    shape = (n + 1, n)
    ones = jnp.broadcast_to(strings, shape) < jnp.broadcast_to(weights, shape)
    by_weight = apply(cfg, params, ones)
    rows = jnp.arange(2**n, dtype=jnp.int32)
    return by_weight[jax.lax.population_count(rows)], jnp.bool_(True)
