"""Deciding K_0 >= 1 without a truth table: one witness settles it, enumeration what is left."""

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxsens.inits import InitLaw
from jaxsens.model import Model
from jaxsens.montecarlo import evaluate, keys, memory, shards, verdicts, witness
from jaxsens.montecarlo.execution import Execution, plan_execution
from jaxsens.montecarlo.sampler import TOLERANCE, as_model
from jaxsens.montecarlo.verdicts import Counts, Decisions, Verdicts
from jaxsens.strings import is_integer
from jaxsens.transformer.config import TransformerConfig

#: Longest strings that are enumerated unless asked for.
ENUMERATE_UP_TO = 20
# Numbers that the strings of all probes of one compiled call go through.
_CALL_BUDGET = 1 << 26
_MAX_BATCH = 1 << 12
_CALLS_PER_CHUNK = 8
_CHECKED_MODELS = 64
_ENUMERATED_AT_ONCE = 64
# As in the sampler, the float32 screen is wider than the tolerance.
_SCREEN = 2.0
# Numbers that an accelerator keeps alive at once; a CPU searches model after model.
_WIDE_BUDGET = 1 << 28
_MAX_WIDTH = 1 << 10


class DecideProgress(NamedTuple):
    """State of a running loop, reported at the start and once a chunk.

    Attributes:
      done: models decided by this loop.
      wanted: models that this loop has to decide.
      seconds: time since the loop started, compilation included.
      counts: sums over the models so far; ``counts.estimate()`` is the running estimate.
    """

    done: int
    wanted: int
    seconds: float
    counts: Counts


class _Plan(NamedTuple):
    model: Model
    seed: int
    start: int
    stop: int
    rounds: tuple[tuple[int, int], ...]
    enumeration: Execution | None
    tolerance: float
    batch: int
    width: int
    chunk: int
    mesh: Mesh


def rounds_of(max_probes: int) -> tuple[tuple[int, int], ...]:
    """(first probe, number of probes) of each round: 1, 1, 2, 4, 8, ... up to ``max_probes``."""
    rounds, first = [], 0
    while first < max_probes:
        count = min(max(1, first), max_probes - first)
        rounds.append((first, count))
        first += count
    return tuple(rounds)


def decide(
    model: Model | TransformerConfig,
    init: InitLaw | Callable | None = None,
    *,
    models: int,
    seed: int = 0,
    start: int = 0,
    max_probes: int = 64,
    enumerate: bool | None = None,
    tolerance: float = TOLERANCE,
    batch: int | None = None,
    devices: int | None = None,
    on_progress: Callable[[DecideProgress], None] | None = None,
) -> Decisions:
    """Decides for each model whether it has a zero-sensitivity string (K_0 >= 1).

    The models are those of :func:`jaxsens.sample`: (seed, index) is the same model. A *probe*
    evaluates one string and its N neighbours; where all N + 1 answers agree, K_0 >= 1. Every model
    is probed in rounds of 1, 1, 2, 4, 8, ... probes, climbing to strings with larger ``|logit|``,
    until it has a witness; what has none after ``max_probes`` is evaluated on all strings. The
    decision is that of the sampler, wherever that resolves a model. (A model that it leaves
    unresolved for other strings' sake may still have a witness that holds.)

    Rounding decides nothing: a witness is believed in float32 if its smallest ``|logit|`` exceeds
    ``2 * tolerance`` times the largest seen of the model; otherwise it must hold in float64, under
    changes of the parameters' last digits too, or it is none.

    Args:
      model: a :class:`~jaxsens.TransformerConfig` (then ``init`` is its law) or a
        :class:`~jaxsens.Model`.
      init: init law, for a config only.
      models: how many models, indices ``start`` to ``start + models - 1``.
      seed: root seed, 0 <= seed < 2^32.
      start: first index.
      max_probes: most probes of a model.
      enumerate: evaluate what is left on all strings. By default where N <= 20 and a table fits
        into memory. Without it the models left are *unknown*, and the estimate is a certified lower
        bound: N may then be in the hundreds.
      tolerance: as in :func:`jaxsens.sample`.
      batch: models in one compiled call.
      devices: number of devices to use, by default all.
      on_progress: called at the start and after each chunk, on the host.

    Returns:
      :class:`Decisions`. Batch and device count change nothing in it.

    Raises:
      ValueError: an argument is out of range, or a witness fails the self-check of the device.
    """
    plan = _plan(
        as_model(model, init), models, seed, start, max_probes, enumerate, tolerance, batch, devices
    )
    parts = []
    for progress in _loop(plan, parts):
        if on_progress is not None:
            on_progress(progress)
    rows = Verdicts(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    ends = [first + count for first, count in plan.rounds]
    return Decisions(
        plan.model.length,
        np.uint64(plan.start) + np.arange(len(rows.verdict), dtype=np.uint64),
        *rows,
        rounds=tuple((end, verdicts.left_after(rows, end)) for end in ends),
    )


def _plan(
    model: Model,
    models: int,
    seed: int,
    start: int,
    max_probes: int,
    enumerate: bool | None,
    tolerance: float,
    batch: int | None,
    devices: int | None,
) -> _Plan:
    for name, value in (("models", models), ("max_probes", max_probes)):
        _check_positive(name, value)
    if enumerate not in (None, True, False):
        raise ValueError(f"enumerate: {enumerate!r} given; it must be True, False or None")
    models, seed, start = int(models), keys.check_seed(seed), keys.check_index(start, "start")
    keys.check_index(start + models - 1, "start + models - 1")
    tolerance = evaluate.check_tolerance(tolerance)
    for name, value in (("batch", batch), ("devices", devices)):
        if value is not None:
            _check_positive(name, value)
    keys.check_generator()
    mesh = _mesh(devices)
    enumeration = None
    if enumerate:
        memory.check_fits(model)
    if enumerate or (enumerate is None and _affordable(model)):
        planned = plan_execution(model, models, devices=devices)
        enumeration = planned._replace(batch=min(planned.batch, _ENUMERATED_AT_ONCE))
    tile, cost = witness.cost_of_probe(model)
    _check_fits(model, 8 * tile * mesh.size)
    width = 1
    if mesh.devices.flat[0].platform != "cpu":
        width = max(1, min(_MAX_WIDTH, _power_below(_WIDE_BUDGET / tile)))
    batch = min(_MAX_BATCH, _power_below(_CALL_BUDGET / cost)) if batch is None else batch
    batch = min(batch, models)
    unit = max(width, min(witness.DRAWN_AT_ONCE, _power_below(batch / mesh.size))) * mesh.size
    batch = math.ceil(batch / unit) * unit
    return _Plan(
        model, seed, start, start + models, rounds_of(max_probes), enumeration, tolerance,
        batch, width, batch * _CALLS_PER_CHUNK, mesh,
    )  # fmt: skip


def _check_positive(name: str, value: object) -> None:
    if not (is_integer(value) and value >= 1):
        raise ValueError(f"{name}: {value!r} given; it must be an integer of at least 1")


def _power_below(x: float) -> int:
    return 1 << max(0, math.floor(math.log2(max(x, 1))))


def _mesh(devices: int | None) -> Mesh:
    present = jax.devices()
    if devices is not None and devices > len(present):
        raise ValueError(
            f"devices: {devices} given; there are {len(present)} "
            "(on the CPU set more with --cpu-devices or jax_num_cpu_devices)"
        )
    return Mesh(np.asarray(present[:devices]), ("models",))


def _affordable(model: Model) -> bool:
    if model.length > ENUMERATE_UP_TO:
        return False
    try:
        memory.check_fits(model)
    except ValueError:
        return False
    return True


def _check_fits(model: Model, needed: int) -> None:
    available = memory.bytes_available()
    if available is not None and needed > available:
        raise ValueError(
            f"length: {model.length} given; a probe of N + 1 strings needs "
            f"{needed / 2**30:.4g} GiB, {available / 2**30:.4g} GiB of memory are free"
        )


def _loop(plan: _Plan, parts: list[Verdicts]) -> Iterator[DecideProgress]:
    began = time.monotonic()
    counts, done, wanted = Counts(*[0] * len(Counts._fields)), 0, plan.stop - plan.start
    yield DecideProgress(0, wanted, 0.0, counts)
    for start, stop in shards.missing_ranges([], plan.start, plan.stop, plan.chunk):
        index = np.uint64(start) + np.arange(stop - start, dtype=np.uint64)
        rows = _decide(plan, index)
        if not done:
            _self_check(plan, index, rows)
        parts.append(rows)
        counts, done = counts.plus(Counts.of(rows)), done + len(index)
        yield DecideProgress(done, wanted, time.monotonic() - began, counts)


def _decide(plan: _Plan, index: np.ndarray) -> Verdicts:
    """Verdicts of the models ``index``, uint64 ``(models,)``."""
    state = witness.start_search(len(index), plan.model.length)
    how = np.full(len(index), verdicts.OPEN, np.uint8)
    for first, count in plan.rounds:
        rows = np.flatnonzero(how == verdicts.OPEN)
        for block in _blocks(rows, plan.batch):
            _search(plan, index, state, block, first, count)
        how[rows[state.found[rows]]] = verdicts.PROBE
        # The doubtful strings of models that have no better one.
        rows = rows[~state.found[rows] & (state.margin[rows] >= 0)]
        confirmed = rows[_holds(plan, index[rows], state.doubtful[rows], plan.mesh)]
        how[confirmed] = verdicts.FLOAT64
        state.witness[confirmed] = state.doubtful[confirmed]
        state.margin[rows] = -1
    verdict = np.where(how == verdicts.OPEN, verdicts.UNKNOWN, verdicts.SOME).astype(np.uint8)
    rows = np.flatnonzero(how == verdicts.OPEN)
    if plan.enumeration is not None and len(rows):
        table = evaluate.evaluate_indices(
            plan.model, plan.seed, index[rows], plan.enumeration, tolerance=plan.tolerance
        ).models
        found = np.where(table.profile[:, 0] >= 1, verdicts.SOME, verdicts.NONE)
        resolved = table.status != evaluate.UNRESOLVED
        verdict[rows] = np.where(resolved, found, verdicts.UNRESOLVED)
        how[rows] = verdicts.ENUMERATION
    return Verdicts(verdict, how, state.probes, state.witness)


def _blocks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for at in range(0, len(rows), size):
        yield rows[at : at + size]


def _dealt(count: int, size: int, devices: int) -> np.ndarray:
    """Where ``count`` models go among ``size`` places, so that every device has its share."""
    return np.arange(size).reshape(devices, -1).T.reshape(-1)[:count]


def _search(
    plan: _Plan, index: np.ndarray, state: witness.Search, rows: np.ndarray, first: int, count: int
) -> None:
    """One round of the models ``rows``, in a batch of the one compiled shape; updates ``state``."""
    # The padding has found its witness already, so that no device works for it.
    padded = witness.start_search(plan.batch, plan.model.length)
    padded.found[:] = True
    places = _dealt(len(rows), plan.batch, plan.mesh.size)
    for column, new in zip(padded, state, strict=True):
        column[places] = new[rows]
    which = np.full(plan.batch, index[rows[0]], np.uint64)
    which[places] = index[rows]
    high, low = keys.split_indices(which)
    result = witness.search(
        plan.model, plan.seed, high, low, padded, first=first, count=count,
        screen=_SCREEN * plan.tolerance, width=plan.width, mesh=plan.mesh,
    )  # fmt: skip
    for column, new in zip(state, result, strict=True):
        column[rows] = new[places]


def _holds(plan: _Plan, index: np.ndarray, words: np.ndarray, mesh: Mesh) -> np.ndarray:
    """Whether the strings ``words`` are witnesses of the models ``index`` in float64."""
    held = np.zeros(len(index), bool)
    for rows in _blocks(np.arange(len(index)), plan.batch):
        places = _dealt(len(rows), plan.batch, mesh.size)
        which = np.full(plan.batch, index[rows[0]], np.uint64)
        padded = np.zeros((plan.batch, words.shape[1]), np.uint32)
        idle = np.ones(plan.batch, bool)
        which[places], padded[places], idle[places] = index[rows], words[rows], False
        high, low = keys.split_indices(which)
        result = witness.hold(plan.model, plan.seed, high, low, padded, idle, mesh=mesh)
        held[rows] = result[places]
    return held


def _self_check(plan: _Plan, index: np.ndarray, rows: Verdicts) -> None:
    """Float32 witnesses of the first models must hold in float64, computed on the CPU."""
    checked = np.flatnonzero(rows.how == verdicts.PROBE)[:_CHECKED_MODELS]
    mesh = plan.mesh
    if mesh.devices.flat[0].platform != "cpu":
        mesh = Mesh(np.asarray(jax.devices("cpu")[:1]), ("models",))
    held = _holds(plan, index[checked], rows.witness[checked], mesh)
    if not held.all():
        failed = index[checked[~held]][0]
        raise ValueError(
            f"self-check: model {failed} of seed {plan.seed} has a zero-sensitivity string in "
            "float32 on this device that is none in float64; use a larger tolerance"
        )
