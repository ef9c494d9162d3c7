"""Refusing what cannot fit, before anything is compiled."""

import os

from jaxsens.model import Model
from jaxsens.transformer.forward import rows_per_tile

# Per string of a table: one float64 logit, its absolute value, masks, and packed counters.
_BYTES_PER_STRING = 24


def bytes_needed(model: Model) -> int:
    """Memory of one model's evaluation in float64, in bytes: its table and one tile's work."""
    tile = rows_per_tile(model.length, model.floats_per_string)
    return 2**model.length * _BYTES_PER_STRING + 8 * tile * model.floats_per_string


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
    """Raises ``ValueError`` if one model does not fit into the host's memory."""
    needed, available = bytes_needed(model), bytes_available()
    if available is not None and needed > available:
        largest = model.length
        while largest > 1 and needed > available:
            largest -= 1
            needed //= 2
        raise ValueError(
            f"length: {model.length} given; a table of 2**{model.length} strings does not fit "
            f"into the {available / 2**30:.1f} GiB of free memory, up to {largest} would"
        )
