"""Models to integers: the fast path for all, the plain pass in float64 for what is close."""

import math
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxsens.model import Model
from jaxsens.montecarlo import keys, settle
from jaxsens.montecarlo.execution import CALL_BUDGET, MAX_CHUNKS, Execution, plan_execution
from jaxsens.montecarlo.outcome import Outcome, outcomes
from jaxsens.montecarlo.settle import DECIDED, NUDGE, UNDECIDED, UNRESOLVED

__all__ = ["DECIDED", "MAX_CHUNKS", "NUDGE", "UNDECIDED", "UNRESOLVED", "Execution"]
__all__ += ["ModelArrays", "evaluate_range", "plan_execution"]

# The screen is wider than the tolerance, so that who is undecided is settled by float64 margins,
# which do not depend on batch or device.
_SCREEN = 2.0
#: Models in one call of the plain pass; the models that need it are few.
RECHECK_BATCH = 8
_CHECKED_MODELS = 64


class ModelArrays(NamedTuple):
    """Integers of consecutive models, one row a model.

    Attributes:
      profile: int32 ``(models, n + 1)``, number of strings of each sensitivity.
      ones: int32 ``(models,)``, number of strings answered 1.
      fingerprint: uint64 ``(models,)``, hash of the truth table.
      smallest_logit: float32 ``(models,)``, smallest ``|logit|`` over all strings.
      status: uint8 ``(models,)``: 0 decided; 1 undecided, the smallest ``|logit|`` is below
        ``tolerance * largest |logit|``, and settled in float64; 2 unresolved: not finite, or the
        float64 table changes when the parameters do by their last digits. A tie that stays exact
        is class 0, hence settled.
    """

    profile: np.ndarray
    ones: np.ndarray
    fingerprint: np.ndarray
    smallest_logit: np.ndarray
    status: np.ndarray


class Evaluated(NamedTuple):
    """What an evaluation returns.

    Attributes:
      models: the integers.
      untrusted: number of models whose whole table came from the plain pass, since the fast path
        did not vouch for it or a logit was not finite.
      many_close: number of those where more than a quarter of the strings were close calls.
    """

    models: ModelArrays
    untrusted: int
    many_close: int


class _Calls(NamedTuple):
    """One compiled shape: what is evaluated, how many at once, and in which precision."""

    model: Model
    seed: int
    size: int
    width: int
    mesh: Mesh
    dtype: str
    screen: float = 0.0
    plain: bool = False

    def __call__(self, index: np.ndarray, nudge: float = 0.0) -> Outcome:
        """Outcomes of models ``index`` (uint64), in batches padded to one shape."""
        parts, done, size = [], 0, self.size
        while done < len(index):
            block = index[done : done + size]
            try:
                parts.append(self._padded(block, size, nudge))
                done += len(block)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error) or size == 1:
                    raise
                # Smaller calls change no integer, only the speed.
                size = (size + 1) // 2
        return Outcome(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _padded(self, block: np.ndarray, size: int, nudge: float) -> Outcome:
        width = min(self.width, math.ceil(size / self.mesh.size))
        unit = width * self.mesh.size
        padded = np.full(math.ceil(size / unit) * unit, block[-1], dtype=np.uint64)
        padded[: len(block)] = block
        high, low = keys.split_indices(padded)
        result = outcomes(
            self.model,
            self.seed,
            high,
            low,
            dtype=self.dtype,
            width=width,
            mesh=self.mesh,
            screen=self.screen,
            nudge=nudge,
            plain=self.plain,
        )
        return Outcome(*(a[: len(block)] for a in result))


def evaluate_range(
    model: Model,
    seed: int,
    start: int,
    stop: int,
    execution: Execution,
    *,
    tolerance: float,
    dtype: str = "float32",
) -> Evaluated:
    """:func:`evaluate_indices` of the models with indices ``start <= i < stop``."""
    index = np.uint64(start) + np.arange(stop - start, dtype=np.uint64)
    return evaluate_indices(model, seed, index, execution, tolerance=tolerance, dtype=dtype)


def evaluate_indices(
    model: Model,
    seed: int,
    index: np.ndarray,
    execution: Execution,
    *,
    tolerance: float,
    dtype: str = "float32",
) -> Evaluated:
    """Per-model integers of the models with the given indices (uint64).

    The fast path tells the sign of every string and which are close calls. Those are evaluated
    again one by one, in float64 by the plain pass, and the table is corrected where a sign
    differs. Where the fast path does not vouch for its logits, or more than a quarter of them are
    close (ties), the plain pass does the whole table.
    """
    fast = _Calls(
        model, seed, execution.batch, execution.width, execution.mesh, dtype, _SCREEN * tolerance
    )
    exact = fast._replace(size=RECHECK_BATCH, width=1, dtype="float64", plain=True)
    found = Outcome(*(np.array(column) for column in fast(index)))
    close = np.sum(np.bitwise_count(found.close), axis=-1, dtype=np.int64)
    untrusted = ~(found.finite & found.trusted)
    many = ~untrusted & (4 * close > 2**model.length)
    settled = settle.Settled(
        profile=found.profile,
        ones=found.ones,
        fingerprint=found.fingerprint,
        smallest=found.smallest.astype(np.float64),
        status=np.full(len(index), settle.DECIDED, np.uint8),
    )
    single = np.flatnonzero(~untrusted & ~many & (close > 0))
    if len(single):
        settle.single_strings(model, seed, index, found, single, settled, execution.mesh, tolerance)
    whole = np.flatnonzero(untrusted | many)
    if len(whole):
        # Many of them (a law with ties) are worth the wide batch, few are not.
        if len(whole) >= execution.batch // 2:
            exact = exact._replace(size=execution.batch, width=execution.width)
        settle.whole_tables(exact, index, whole, settled, tolerance)
    lanes = settled.fingerprint.astype(np.uint64)
    largest32 = np.finfo(np.float32).max
    models = ModelArrays(
        profile=settled.profile,
        ones=settled.ones,
        fingerprint=(lanes[:, 1] << np.uint64(32)) | lanes[:, 0],
        smallest_logit=np.minimum(settled.smallest, largest32).astype(np.float32),
        status=settled.status,
    )
    return Evaluated(models, int(untrusted.sum()), int(many.sum()))


def self_check(
    model: Model, seed: int, start: int, stop: int, execution: Execution, *, tolerance: float
) -> None:
    """Compares the device's truth tables with float64 ones computed on the CPU.

    Up to 64 models (fewer where a table is costly and the device is a CPU) from the run's first
    indices. A GPU's reduced-precision products, or a miscompiled map, must not go unnoticed.

    Raises:
      ValueError: a table differs although the model's margin exceeds the tolerance.
    """
    count = min(_CHECKED_MODELS, stop - start)
    if execution.mesh.devices.flat[0].platform == "cpu":
        affordable = CALL_BUDGET // 16 // (model.floats_per_string * 2**model.length)
        count = min(count, max(RECHECK_BATCH, affordable))
    index = np.uint64(start) + np.arange(count, dtype=np.uint64)
    calls = _Calls(
        model,
        seed,
        execution.batch,
        execution.width,
        execution.mesh,
        "float32",
        _SCREEN * tolerance,
    )
    fast = calls(index)
    cpu = Mesh(np.asarray(jax.devices("cpu")[:1]), ("models",))
    exact = _Calls(model, seed, RECHECK_BATCH, 1, cpu, "float64", plain=True)(index)
    # What is close in float32 is settled in float64 anyway.
    differs = np.any((fast.table ^ exact.table) & ~fast.close, axis=-1)
    differs &= fast.finite & fast.trusted & ~settle.below(exact.smallest, exact.largest, tolerance)
    if differs.any():
        row = int(np.flatnonzero(differs)[0])
        raise ValueError(
            f"self-check: model {start + row} of seed {seed} has another truth table in float32 on "
            f"this device than in float64, with its smallest |logit| at {exact.smallest[row]:.3g} "
            f"of {exact.largest[row]:.3g}; use dtype float64 or a larger tolerance"
        )


def check_tolerance(value: object) -> float:
    """Returns a relative tolerance; raises ``ValueError`` unless 0 <= value < 1."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, np.number))
        or not 0 <= value < 1
    ):
        raise ValueError(f"tolerance: {value!r} given; it must be a number from 0 to below 1")
    return float(value)
