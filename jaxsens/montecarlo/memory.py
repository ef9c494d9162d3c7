"""Refusing what cannot fit, before anything is compiled."""

import os

import jax

from jaxsens import strings
from jaxsens.model import Model
from jaxsens.transformer.forward import rows_per_tile

# Per string of a table: one float64 logit, its absolute value, masks, and packed counters.
_BYTES_PER_STRING = 24


def bytes_needed(model: Model) -> tuple[int, int]:
    """Memory of one model's evaluation in float64, in bytes: its table, and everything else."""
    tile = rows_per_tile(model.length, model.floats_per_string)
    with jax.enable_x64(model.draw == "float64"):
        params = jax.eval_shape(lambda: model.init_fn(model.law, jax.random.key(0)))
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    # Parameters are held drawn, cast and nudged.
    return 2**model.length * _BYTES_PER_STRING, 8 * tile * model.floats_per_string + 24 * numbers


def bytes_available() -> int | None:
    """Physical memory of the host that is free for use, or ``None`` where unknown."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def check_fits(model: Model) -> None:
    """Raises ``ValueError`` if one model's table does not fit into the host's memory."""
    strings.check_enumerable(model.length)
    (table, rest), available = bytes_needed(model), bytes_available()
    if available is None or table + rest <= available:
        return
    needs = f"{(table + rest) / 2**30:.4g} GiB, {available / 2**30:.4g} GiB of memory are free"
    if table > rest:
        fits = max(1, (available - rest) // _BYTES_PER_STRING).bit_length() - 1
        raise ValueError(
            f"length: {model.length} given; a table of 2**{model.length} strings needs {needs}; "
            f"up to {fits} would fit"
        )
    raise ValueError(f"model: one of this size needs {needs}; take a smaller width or MLP")
