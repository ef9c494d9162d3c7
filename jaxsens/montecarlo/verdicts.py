"""What deciding K_0 >= 1 gives: a verdict a model, counts, and the estimate that follows."""

import dataclasses
from typing import NamedTuple

import numpy as np

from jaxsens.estimate import Proportion, clopper_pearson, proportion
from jaxsens.montecarlo.witness import unpack_strings

#: Verdicts: K_0 = 0; K_0 >= 1; rounding decides; not enumerated and no witness found.
NONE, SOME, UNRESOLVED, UNKNOWN = 0, 1, 2, 3
#: How a verdict came about: not at all; a witness in float32; one in float64; every string.
OPEN, PROBE, FLOAT64, ENUMERATION = 0, 1, 2, 3


class Verdicts(NamedTuple):
    """Integers of consecutive models, one row a model.

    Attributes:
      verdict: uint8 ``(models,)``: 0 K_0 = 0; 1 K_0 >= 1; 2 unresolved, as in the sampler; 3
        unknown, no witness was found and not every string was looked at.
      how: uint8 ``(models,)``: 0 not decided; 1 by a witness in float32, clear of rounding; 2 by a
        witness that float64 confirmed; 3 by evaluating all strings.
      probes: int32 ``(models,)``, probes made (of N + 1 strings each).
      witness: uint32 ``(models, words)``, a zero-sensitivity string where ``how`` is 1 or 2, else
        0. Bit i of the string is bit ``i % 32`` (0 the least significant) of word ``i // 32``.
    """

    verdict: np.ndarray
    how: np.ndarray
    probes: np.ndarray
    witness: np.ndarray


class Counts(NamedTuple):
    """Sums over models, Python ints that add up over disjoint models.

    Attributes:
      models: models looked at.
      zero_sensitivity: models with K_0 >= 1.
      no_zero_sensitivity: models with K_0 = 0.
      unresolved: enumerated models that float64 did not settle.
      unknown: models without a witness that were not enumerated.
      probed: models decided by a witness in float32.
      confirmed: models decided by a witness that float64 confirmed.
      enumerated: models evaluated on all strings.
      probes: probes made.
    """

    models: int
    zero_sensitivity: int
    no_zero_sensitivity: int
    unresolved: int
    unknown: int
    probed: int
    confirmed: int
    enumerated: int
    probes: int

    @classmethod
    def of(cls, verdicts: Verdicts) -> "Counts":
        """Counts rows."""
        by_verdict = np.bincount(verdicts.verdict, minlength=4).tolist()
        by_how = np.bincount(verdicts.how, minlength=4).tolist()
        return cls(
            models=len(verdicts.verdict),
            zero_sensitivity=by_verdict[SOME],
            no_zero_sensitivity=by_verdict[NONE],
            unresolved=by_verdict[UNRESOLVED],
            unknown=by_verdict[UNKNOWN],
            probed=by_how[PROBE],
            confirmed=by_how[FLOAT64],
            enumerated=by_how[ENUMERATION],
            probes=int(verdicts.probes.sum(dtype=np.int64)),
        )

    def plus(self, other: "Counts") -> "Counts":
        """The counts of both."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def estimate(self, level: float = 0.95) -> Proportion:
        """P(K_0 >= 1) with its exact two-sided interval.

        Unresolved and unknown models count once as misses and once as hits; the low end is a
        certified lower bound, whatever they are.
        """
        open_ = self.unresolved + self.unknown
        return proportion(self.zero_sensitivity, self.models, open_, level)

    def lower_bound(self, level: float = 0.95) -> float:
        """The one-sided lower Clopper-Pearson bound of P(K_0 >= 1); every open model is a miss."""
        return clopper_pearson(self.zero_sensitivity, self.models, level, "lower").low


@dataclasses.dataclass(frozen=True, eq=False)
class Decisions:
    """What :func:`jaxsens.decide` returns, one row a model.

    Attributes:
      length: N, bits of a string.
      index: uint64 ``(models,)``, index of each model.
      verdict: uint8, see :class:`Verdicts`, as for the next three.
      how: uint8.
      probes: int32.
      witness: uint32 ``(models, words)``.
      rounds: (probes a model, models without a witness after them), after each round.
    """

    length: int
    index: np.ndarray
    verdict: np.ndarray
    how: np.ndarray
    probes: np.ndarray
    witness: np.ndarray
    rounds: tuple[tuple[int, int], ...]

    @property
    def counts(self) -> Counts:
        """Sums over the models."""
        return Counts.of(Verdicts(self.verdict, self.how, self.probes, self.witness))

    @property
    def witnessed(self) -> np.ndarray:
        """Whether the row of ``witness`` is a zero-sensitivity string: bool ``(models,)``."""
        return (self.how == PROBE) | (self.how == FLOAT64)

    def strings(self) -> np.ndarray:
        """The witnesses of the models that have one, in order: int32 ``(witnessed, length)``."""
        return unpack_strings(self.witness[self.witnessed], self.length)

    def estimate(self, level: float = 0.95) -> Proportion:
        """As :meth:`Counts.estimate`."""
        return self.counts.estimate(level)

    def lower_bound(self, level: float = 0.95) -> float:
        """As :meth:`Counts.lower_bound`."""
        return self.counts.lower_bound(level)


def left_after(verdicts: Verdicts, probes: int) -> int:
    """Models without a witness after so many probes (the end of a round)."""
    witnessed = (verdicts.how == PROBE) | (verdicts.how == FLOAT64)
    return int(np.count_nonzero(~(witnessed & (verdicts.probes <= probes))))
