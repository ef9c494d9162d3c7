"""A range of indices to per-model integers, with every close call settled in float64."""

import math
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxsens.model import Model, tables_at_once
from jaxsens.montecarlo import keys
from jaxsens.montecarlo.outcome import Outcome, outcomes
from jaxsens.strings import is_integer

# Work per compiled call, in units of 64 operations per number that a string keeps alive: seconds.
_CALL_BUDGET = 1 << 26
_CALLS_PER_CHUNK = 8
_MAX_BATCH = 1 << 14
#: Most shard files that a run is cut into by default.
MAX_CHUNKS = 4096
# The screen is wider than the tolerance, so that who is undecided is settled by float64 margins,
# which do not depend on batch or device.
_SCREEN = 2.0
#: Relative change of the parameters that a settled table must survive: 256 float64 roundings.
NUDGE = 2.0**-44
#: Models in one float64 call; close calls are rare and come in small numbers.
RECHECK_BATCH = 8
_CHECKED_MODELS = 64

DECIDED, UNDECIDED, UNRESOLVED = 0, 1, 2


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


class Execution(NamedTuple):
    """How a run is computed. Never part of what it means.

    Attributes:
      mesh: devices the models are split over.
      batch: models in one compiled call.
      chunk: models in one shard file, the unit that is saved.
      width: models vmapped together.
    """

    mesh: Mesh
    batch: int
    chunk: int
    width: int


def plan_execution(
    model: Model,
    models: int,
    *,
    chunk: int | None = None,
    batch: int | None = None,
    devices: int | None = None,
) -> Execution:
    """Chooses batch and chunk from the cost of a model, unless given.

    The choice depends on the model and the number of models only, so that an interrupted run and an
    undisturbed one are cut into the same files.

    Raises:
      ValueError: a number is not a positive integer, or there are fewer devices.
    """
    for name, value in (("chunk", chunk), ("batch", batch), ("devices", devices)):
        if value is not None and not (is_integer(value) and value >= 1):
            raise ValueError(f"{name}: {value!r} given; it must be an integer of at least 1")
    present = jax.devices()
    if devices is not None and devices > len(present):
        raise ValueError(
            f"devices: {devices} given; there are {len(present)} "
            "(on the CPU set more with --cpu-devices or jax_num_cpu_devices)"
        )
    mesh = Mesh(np.asarray(present[:devices]), ("models",))
    cost = model.floats_per_string * 2**model.length
    by_cost = min(_MAX_BATCH, _power_of_two(_CALL_BUDGET / cost))
    if chunk is None:
        chunk = max(_CALLS_PER_CHUNK * by_cost, _power_of_two(models / MAX_CHUNKS))
    batch = min(by_cost if batch is None else batch, chunk)
    return Execution(mesh, batch, chunk, min(tables_at_once(model), math.ceil(batch / mesh.size)))


def _power_of_two(x: float) -> int:
    return 1 << math.ceil(math.log2(max(x, 1)))


class _Calls(NamedTuple):
    """One compiled shape: what is evaluated, how many at once, and in which precision."""

    model: Model
    seed: int
    size: int
    width: int
    mesh: Mesh
    dtype: str

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
            nudge=nudge,
        )
        return Outcome(*(a[: len(block)] for a in result))


def _below(outcome: Outcome, tolerance: float) -> np.ndarray:
    # `not >` rather than `<=`: an all-zero or non-finite table is below every tolerance.
    return ~(outcome.smallest > tolerance * outcome.largest)


def evaluate_range(
    model: Model,
    seed: int,
    start: int,
    stop: int,
    execution: Execution,
    *,
    tolerance: float,
    dtype: str = "float32",
) -> ModelArrays:
    """Per-model integers of the models with indices ``start <= i < stop``."""
    index = np.uint64(start) + np.arange(stop - start, dtype=np.uint64)
    calls = _Calls(model, seed, execution.batch, execution.width, execution.mesh, dtype)
    result = Outcome(*(np.array(column) for column in calls(index)))
    result = result._replace(
        smallest=result.smallest.astype(np.float64), largest=result.largest.astype(np.float64)
    )
    close = np.flatnonzero(_below(result, _SCREEN * tolerance))
    status = np.full(len(index), DECIDED, np.uint8)
    exact = calls._replace(dtype="float64")
    if len(close):
        # Many close calls (a law with ties) are worth the wide batch, few are not.
        if len(close) < execution.batch // 2:
            exact = exact._replace(size=RECHECK_BATCH, width=1)
        if dtype == "float32":
            for column, settled in zip(result, exact(index[close]), strict=True):
                column[close] = settled
        close = close[_below(Outcome(*(column[close] for column in result)), tolerance)]
        status[close] = UNDECIDED
    if len(close):
        # To first order a string within reach of rounding changes sign under one of the two.
        stable = result.finite[close]
        for nudge in (NUDGE, -NUDGE):
            moved = exact(index[close], nudge)
            stable &= np.all(moved.fingerprint == result.fingerprint[close], axis=-1)
        status[close[~stable]] = UNRESOLVED
    lanes = result.fingerprint.astype(np.uint64)
    return ModelArrays(
        profile=result.profile,
        ones=result.ones,
        fingerprint=(lanes[:, 1] << np.uint64(32)) | lanes[:, 0],
        smallest_logit=np.minimum(result.smallest, np.finfo(np.float32).max).astype(np.float32),
        status=status,
    )


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
        affordable = _CALL_BUDGET // 4 // (model.floats_per_string * 2**model.length)
        count = min(count, max(RECHECK_BATCH, affordable))
    index = np.uint64(start) + np.arange(count, dtype=np.uint64)
    fast = _Calls(model, seed, execution.batch, execution.width, execution.mesh, "float32")(index)
    cpu = Mesh(np.asarray(jax.devices("cpu")[:1]), ("models",))
    exact = _Calls(model, seed, RECHECK_BATCH, 1, cpu, "float64")(index)
    differs = np.any(fast.fingerprint != exact.fingerprint, axis=-1) & ~_below(exact, tolerance)
    # What float32 cannot decide is settled in float64 anyway.
    differs &= fast.finite & ~_below(fast, _SCREEN * tolerance)
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
