"""Sums over models, exact and additive, and the estimates that follow from them."""

import dataclasses
from typing import Any

import numpy as np

from jaxsens.estimate import Proportion, mean_in_unit_interval, proportion
from jaxsens.montecarlo.census import count_named
from jaxsens.montecarlo.evaluate import DECIDED, UNRESOLVED, ModelArrays


def _merge(a: dict, b: dict) -> dict:
    return {k: a.get(k, 0) + b.get(k, 0) for k in sorted(a.keys() | b.keys())}


@dataclasses.dataclass(frozen=True)
class Summary:
    """Everything a run reports, as Python ints that add up over disjoint index ranges.

    Attributes:
      length: N, bits of a string.
      models: models counted.
      undecided: models whose smallest ``|logit|`` lay below the declared tolerance; settled in
        float64.
      unresolved: undecided models that float64 did not settle either. They widen intervals.
      zero_sensitivity: resolved models with K_0 >= 1.
      constant: resolved models that answer alike on every string.
      profile: pooled profile, number of (model, string) pairs of each sensitivity; unresolved
        models enter it, and the histogram, with their float64 answers.
      k0_histogram: K_0 to number of models.
      total_sensitivity: sum over models of ``S = sum_k k profile[k] = 2^N as(f)``.
      total_squared_sensitivity: sum of ``S^2``.
      census: label to (resolved models that compute the function, that compute its complement).
    """

    length: int
    models: int
    undecided: int
    unresolved: int
    zero_sensitivity: int
    constant: int
    profile: tuple[int, ...]
    k0_histogram: dict[int, int]
    total_sensitivity: int
    total_squared_sensitivity: int
    census: dict[str, tuple[int, int]]

    @classmethod
    def empty(cls, length: int) -> "Summary":
        """No models yet."""
        return cls(length, 0, 0, 0, 0, 0, (0,) * (length + 1), {}, 0, 0, {})

    @classmethod
    def of_models(cls, arrays: ModelArrays, length: int) -> "Summary":
        """Counts per-model integers; every sum over models is a Python int."""
        k0 = arrays.profile[:, 0]
        resolved = arrays.status != UNRESOLVED
        constant = (arrays.ones == 0) | (arrays.ones == 2**length)
        values, counts = np.unique(k0, return_counts=True)
        per_model = arrays.profile.astype(np.int64) @ np.arange(length + 1, dtype=np.int64)
        sensitivities = per_model.tolist()
        return cls(
            length=length,
            models=len(k0),
            undecided=int(np.count_nonzero(arrays.status != DECIDED)),
            unresolved=int(np.count_nonzero(~resolved)),
            zero_sensitivity=int(np.count_nonzero(resolved & (k0 >= 1))),
            constant=int(np.count_nonzero(resolved & constant)),
            profile=tuple(int(x) for x in arrays.profile.sum(axis=0, dtype=np.int64)),
            k0_histogram=dict(zip(values.tolist(), counts.tolist(), strict=True)),
            total_sensitivity=sum(sensitivities),
            total_squared_sensitivity=sum(s * s for s in sensitivities),
            census=count_named(arrays.fingerprint[resolved], length),
        )

    def __add__(self, other: "Summary") -> "Summary":
        """The summary of both, over disjoint models of one length."""
        if self.length != other.length:
            raise ValueError(f"length: {self.length} and {other.length} do not add up")
        labels = sorted(self.census.keys() | other.census.keys())
        census = {}
        for label in labels:
            a, b = self.census.get(label, (0, 0)), other.census.get(label, (0, 0))
            census[label] = (a[0] + b[0], a[1] + b[1])
        plain = ("models", "undecided", "unresolved", "zero_sensitivity", "constant")
        plain += ("total_sensitivity", "total_squared_sensitivity")
        return Summary(
            length=self.length,
            profile=tuple(a + b for a, b in zip(self.profile, other.profile, strict=True)),
            k0_histogram=_merge(self.k0_histogram, other.k0_histogram),
            census=census,
            **{name: getattr(self, name) + getattr(other, name) for name in plain},
        )

    def to_json(self) -> dict[str, Any]:
        """JSON values; :meth:`from_json` gives the summary back exactly."""
        values = dataclasses.asdict(self)
        values["k0_histogram"] = [[k, count] for k, count in self.k0_histogram.items()]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Summary":
        """Inverse of :meth:`to_json`."""
        values = dict(values)
        values["profile"] = tuple(values["profile"])
        values["k0_histogram"] = {k: count for k, count in values["k0_histogram"]}
        values["census"] = {label: tuple(pair) for label, pair in values["census"].items()}
        return cls(**values)

    def estimates(self, level: float = 0.95) -> dict[str, Proportion]:
        """Estimates with two-sided intervals of the given level.

        ``p_zero_sensitivity``: P(K_0 >= 1). ``p_zero_sensitivity_nonconstant``: the same among
        non-constant models. ``p_constant``. All three exact (Clopper-Pearson), unresolved models
        counted once as misses and once as hits. ``mean_sensitivity_over_n``: mean of as(f)/N, each
        unresolved model taken for anything from 0 to 1.
        """
        open_ = self.unresolved
        mean = mean_in_unit_interval(
            self.total_sensitivity,
            self.total_squared_sensitivity,
            self.models,
            self.length * 2**self.length,
            level,
        )
        if open_:
            slack = open_ / self.models
            low, high = max(0.0, mean.low - slack), min(1.0, mean.high + slack)
            mean = mean._replace(low=low, high=high, undecided=open_)
        return {
            "p_zero_sensitivity": proportion(self.zero_sensitivity, self.models, open_, level),
            "p_zero_sensitivity_nonconstant": proportion(
                self.zero_sensitivity - self.constant, self.models - self.constant, open_, level
            ),
            "p_constant": proportion(self.constant, self.models, open_, level),
            "mean_sensitivity_over_n": mean,
        }

    def census_estimates(self, level: float = 0.95) -> dict[str, dict[str, Proportion]]:
        """Label to exact intervals for the function and, counted apart, its complement.

        Unresolved models count once as misses and once as hits.
        """
        return {
            label: {
                "function": proportion(function, self.models, self.unresolved, level),
                "complement": proportion(complement, self.models, self.unresolved, level),
            }
            for label, (function, complement) in self.census.items()
        }
