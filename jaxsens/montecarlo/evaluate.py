"""A range of indices to per-model integers, with every close call settled in float64."""

import math
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxsens.model import Model, tables_at_once
from jaxsens.montecarlo.outcome import Outcome, outcomes

# Work per compiled call, in units of 64 operations per number that a string keeps alive: seconds.
_CALL_BUDGET = 1 << 26
_CALLS_PER_CHUNK = 8
_MAX_BATCH = 1 << 14
#: Most shard files that a run is cut into by default.
MAX_CHUNKS = 4096
# The screen is wider than the tolerance, so that who is undecided is settled by float64 margins,
# which do not depend on batch or device.
_SCREEN = 2.0
#: Relative margin under which not even float64 decides.
FLOAT64_TOLERANCE = 1e-12
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
        ``tolerance * largest |logit|``, and settled in float64; 2 unresolved, below rounding in
        float64 too (or not finite).
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
        if value is not None and (isinstance(value, bool) or int(value) != value or value < 1):
            raise ValueError(f"{name}: {value!r} given; it must be an integer of at least 1")
    present = jax.devices()
    if devices is not None and devices > len(present):
        raise ValueError(
            f"devices: {devices} given; there are {len(present)} "
            "(on the CPU set more with --cpu-devices or jax_num_cpu_devices)"
        )
    mesh = Mesh(np.asarray(present[:devices]), ("models",))
    by_cost = _power_of_two(_CALL_BUDGET / (model.floats_per_string * 2**model.length))
    if chunk is None:
        chunk = max(_CALLS_PER_CHUNK * by_cost, _power_of_two(models / MAX_CHUNKS))
    batch = min(by_cost if batch is None else batch, chunk)
    return Execution(mesh, batch, chunk, min(tables_at_once(model), math.ceil(batch / mesh.size)))


def _power_of_two(x: float) -> int:
    return min(_MAX_BATCH, 1 << max(0, math.ceil(math.log2(max(x, 1)))))


def _padded_call(
    model: Model, seed: int, index: np.ndarray, size: int, width: int, mesh: Mesh, dtype: str
) -> Outcome:
    """Outcomes of ``index`` through one compiled shape: pads with the last index, cuts off."""
    unit = width * mesh.size
    padded = np.full(math.ceil(size / unit) * unit, index[-1], dtype=np.uint64)
    padded[: len(index)] = index
    high = (padded >> np.uint64(32)).astype(np.uint32)
    low = (padded & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    result = outcomes(model, seed, high, low, dtype=dtype, width=width, mesh=mesh)
    return Outcome(*(a[: len(index)] for a in result))


def _in_batches(
    model: Model, seed: int, index: np.ndarray, size: int, width: int, mesh: Mesh, dtype: str
) -> Outcome:
    parts, done = [], 0
    while done < len(index):
        try:
            block = index[done : done + size]
            parts.append(_padded_call(model, seed, block, size, width, mesh, dtype))
            done += len(block)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or size == 1:
                raise
            # Smaller calls change no integer, only the speed.
            size = (size + 1) // 2
            width = min(width, math.ceil(size / mesh.size))
    return Outcome(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _below(outcome: Outcome, tolerance: float) -> np.ndarray:
    # `not >=` rather than `<`: an all-zero or non-finite table is below every tolerance.
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
    size, width, mesh = execution.batch, execution.width, execution.mesh
    first = _in_batches(model, seed, index, size, width, mesh, dtype)
    first = Outcome(*(np.array(a) for a in first))
    first = first._replace(smallest=np.asarray(first.smallest, np.float64))
    status = np.full(len(index), DECIDED, np.uint8)
    if dtype == "float64":
        _settle(first, np.arange(len(index)), first, tolerance, status)
    else:
        close = np.flatnonzero(_below(first, _SCREEN * tolerance))
        if len(close):
            # Many close calls (a law with ties) are worth the wide batch, few are not.
            small = len(close) < size // 2
            recheck = (RECHECK_BATCH, 1) if small else (size, width)
            exact = _in_batches(model, seed, index[close], *recheck, mesh, "float64")
            _settle(first, close, exact, tolerance, status)
    lanes = first.fingerprint.astype(np.uint64)
    return ModelArrays(
        profile=first.profile,
        ones=first.ones,
        fingerprint=(lanes[:, 1] << np.uint64(32)) | lanes[:, 0],
        smallest_logit=first.smallest.astype(np.float32),
        status=status,
    )


def _settle(
    into: Outcome, rows: np.ndarray, exact: Outcome, tolerance: float, status: np.ndarray
) -> None:
    """Overwrites ``rows`` by their float64 outcomes and marks who is undecided or unresolved."""
    if exact is not into:
        for old, new in zip(into, exact, strict=True):
            old[rows] = new
    undecided = _below(exact, tolerance)
    # An exact tie is class 0 by definition; only a value that rounding could move is open.
    open_ = exact.smallest_nonzero <= FLOAT64_TOLERANCE * exact.largest
    status[rows[undecided]] = UNDECIDED
    status[rows[undecided & open_]] = UNRESOLVED


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
    fast = _in_batches(
        model, seed, index, execution.batch, execution.width, execution.mesh, "float32"
    )
    cpu = Mesh(np.asarray(jax.devices("cpu")[:1]), ("models",))
    exact = _in_batches(model, seed, index, RECHECK_BATCH, 1, cpu, "float64")
    differs = np.any(fast.fingerprint != exact.fingerprint, axis=-1) & ~_below(exact, tolerance)
    if differs.any():
        row = int(np.flatnonzero(differs)[0])
        raise ValueError(
            f"self-check: model {start + row} of seed {seed} has another truth table in float32 on "
            f"this device than in float64, with its smallest |logit| at {exact.smallest[row]:.3g} "
            f"of {exact.largest[row]:.3g}; use dtype float64 or a larger tolerance"
        )


def check_tolerance(value: object) -> float:
    """Returns a relative tolerance; raises ``ValueError`` unless 0 <= value < 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"tolerance: {value!r} given; it must be a number from 0 to below 1")
    return float(value)
