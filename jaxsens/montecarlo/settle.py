"""Close calls, settled in float64 by the plain pass: single strings, or whole tables.

What is settled here does not depend on batch or device, so neither do the integers of a run. To
first order a string within reach of float64 rounding changes sign under one of two nudges of the
parameters; such a model is unresolved.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from jaxsens.model import Model
from jaxsens.montecarlo import keys
from jaxsens.montecarlo.outcome import Outcome, draw_params, logits_of_rows, recounted

#: Relative change of the parameters that a settled table must survive: 256 float64 roundings.
NUDGE = 2.0**-44
DECIDED, UNDECIDED, UNRESOLVED = 0, 1, 2
# Strings of one model, and models, in one compiled call: close calls are few.
_ROWS = 8
_ENTRIES = 64


class Settled(NamedTuple):
    """Columns over models, written in place as close calls are settled (see ``ModelArrays``)."""

    profile: np.ndarray
    ones: np.ndarray
    fingerprint: np.ndarray
    smallest: np.ndarray
    status: np.ndarray


def below(smallest: np.ndarray, largest: np.ndarray, tolerance: float) -> np.ndarray:
    """Whether the margin of a model is within the tolerance."""
    # `not >` rather than `<=`: an all-zero or non-finite table is below every tolerance.
    return ~(smallest.astype(np.float64) > tolerance * largest.astype(np.float64))


def rows_of_words(words: np.ndarray) -> np.ndarray:
    """The rows that are set in one packed table: uint32 ``(words,)`` to sorted int64."""
    as_bytes = words.astype("<u4").view(np.uint8)
    return np.flatnonzero(np.unpackbits(as_bytes, bitorder="little"))


class _Entries(NamedTuple):
    """Strings to evaluate, at most 8 of one model together.

    Attributes:
      owner: ``(E,)``, position of the model among those to settle.
      rows: int32 ``(E, 8)``, padded with the first.
    """

    owner: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, rows: list[np.ndarray]) -> "_Entries":
        owner, cut = [], []
        for position, each in enumerate(rows):
            for start in range(0, len(each), _ROWS):
                piece = each[start : start + _ROWS]
                owner.append(position)
                cut.append(np.pad(piece, (0, _ROWS - len(piece)), mode="edge"))
        return cls(np.asarray(owner, np.int64), np.asarray(cut, np.int32))

    def logits(
        self, model: Model, seed: int, index: np.ndarray, mesh: Mesh, nudges: tuple[float, ...]
    ) -> list[np.ndarray]:
        """Float64 logits ``(E, 8)`` under each nudge; ``index`` runs over models to settle."""
        results: list[list[np.ndarray]] = [[] for _ in nudges]
        unit = -(-_ENTRIES // mesh.size) * mesh.size
        for start in range(0, len(self.owner), unit):
            rows = self.rows[start : start + unit]
            padding = (0, unit - len(rows))
            of = np.pad(index[self.owner[start : start + unit]], padding, mode="edge")
            high, low = keys.split_indices(of)
            params = draw_params(model, seed, high, low, mesh=mesh)
            padded = np.pad(rows, (padding, (0, 0)), mode="edge")
            for result, nudge in zip(results, nudges, strict=True):
                logits = logits_of_rows(model, params, padded, mesh=mesh, nudge=nudge)
                result.append(logits[: len(rows)])
        return [np.concatenate(result) for result in results]

    def over_models(self, function: np.ufunc, values: np.ndarray) -> np.ndarray:
        """Reduces ``(E, 8)`` to one number a model; every model has entries, in order."""
        starts = np.flatnonzero(np.diff(self.owner, prepend=-1))
        return function.reduceat(function.reduce(values, axis=1), starts)


def single_strings(
    model: Model,
    seed: int,
    index: np.ndarray,
    found: Outcome,
    which: np.ndarray,
    settled: Settled,
    mesh: Mesh,
    tolerance: float,
) -> None:
    """Settles the close strings of the models ``which``, and corrects their tables.

    The string with the largest ``|logit|`` is evaluated along, so that the margin is a float64
    ratio.
    """
    rows = [np.append(found.peak[m], rows_of_words(found.close[m])) for m in which]
    entries = _Entries.of(rows)
    models = index[which]
    (logits,) = entries.logits(model, seed, models, mesh, (0.0,))
    answers = logits > 0
    size = np.abs(logits)
    largest = size[np.flatnonzero(np.diff(entries.owner, prepend=-1)), 0]
    smallest = entries.over_models(np.minimum, size)
    settled.smallest[which] = smallest
    tables = found.table[which]
    word, bit = entries.rows >> 5, (entries.rows & 31).astype(np.uint32)
    said = (tables[entries.owner[:, None], word] >> bit) & np.uint32(1) == 1
    wrong = entries.over_models(np.logical_or, said != answers)
    if wrong.any():
        for entry in np.flatnonzero(wrong[entries.owner]):
            for column in np.flatnonzero(said[entry] != answers[entry]):
                # Padding repeats a row: set, never toggle.
                mask = np.uint32(1) << bit[entry, column]
                here = tables[entries.owner[entry], word[entry, column]]
                here = here | mask if answers[entry, column] else here & ~mask
                tables[entries.owner[entry], word[entry, column]] = here
        corrected = np.flatnonzero(wrong)
        counts = recounted(tables[corrected], model.length)
        for column, values in zip(settled[:3], counts, strict=True):
            column[which[corrected]] = values
    undecided = np.flatnonzero(below(smallest, largest, tolerance) | ~np.isfinite(smallest))
    if not len(undecided):
        return
    settled.status[which[undecided]] = UNDECIDED
    again = _Entries.of([rows[m] for m in undecided])
    plus, minus = again.logits(model, seed, models[undecided], mesh, (NUDGE, -NUDGE))
    kept = answers[np.isin(entries.owner, undecided)]
    moves = (plus > 0) != kept
    moves |= ((minus > 0) != kept) | ~np.isfinite(plus) | ~np.isfinite(minus)
    unresolved = undecided[again.over_models(np.logical_or, moves)]
    settled.status[which[unresolved]] = UNRESOLVED


def whole_tables(
    exact: Callable[..., Outcome],
    index: np.ndarray,
    which: np.ndarray,
    settled: Settled,
    tolerance: float,
) -> None:
    """Replaces the models ``which`` by what ``exact(index, nudge)`` finds in float64."""
    found = exact(index[which])
    for column, values in zip(settled[:4], (*found[:3], found.smallest), strict=True):
        column[which] = values
    close = below(found.smallest, found.largest, tolerance)
    settled.status[which[close]] = UNDECIDED
    if not close.any():
        return
    stable = found.finite[close]
    for nudge in (NUDGE, -NUDGE):
        moved = exact(index[which[close]], nudge)
        stable = stable & np.all(moved.table == found.table[close], axis=-1)
    settled.status[which[np.flatnonzero(close)[~stable]]] = UNRESOLVED
