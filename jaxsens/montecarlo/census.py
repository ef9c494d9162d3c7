"""Which named functions the sampled truth tables are."""

import functools

import jax
import numpy as np

from jaxsens import boolean, sensitivity, strings


@functools.cache
def named_fingerprints(n: int) -> dict[str, tuple[int, int]]:
    """Label to the 64-bit hashes of the named function and of its complement, at length ``n``."""
    hashed = jax.jit(lambda table: sensitivity.table_hash(strings.pack(table)))

    def fingerprint(table: np.ndarray) -> int:
        low, high = (int(lane) for lane in np.asarray(hashed(table)))
        return (high << 32) | low

    return {
        label: (fingerprint(table), fingerprint(~table))
        for label, table in boolean.census_functions(n).items()
    }


def count_named(fingerprint: np.ndarray, n: int) -> dict[str, tuple[int, int]]:
    """Label to (number of models that compute it, number that compute its complement).

    Args:
      fingerprint: uint64 ``(models,)`` hashes of truth tables.
      n: length of the strings.

    Returns:
      Every label of the census. One table can bear several labels (``exactly_n`` is ``and``). Equal
      hashes are taken for equal tables: from n = 6 on two different ones collide with probability
      about 2^-64, up to n = 5 never.
    """
    values, counts = np.unique(fingerprint, return_counts=True)
    seen = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return {
        label: (seen.get(function, 0), seen.get(complement, 0))
        for label, (function, complement) in named_fingerprints(n).items()
    }


def is_named(fingerprint: np.ndarray, n: int) -> np.ndarray:
    """Bool ``(models,)``: the table or its complement is a non-constant function of the census."""
    named = [
        pair for label, pair in named_fingerprints(n).items() if not label.startswith("constant")
    ]
    return np.isin(fingerprint, np.array(named, dtype=np.uint64).reshape(-1))
