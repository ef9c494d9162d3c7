"""Width and tile by a short measurement on the machine: they change the speed and nothing else."""

import hashlib
import json
import math
import os
import pathlib
import platform as system
import time
from collections.abc import Sequence

import numpy as np

from jaxsens.model import Model, tables_at_once
from jaxsens.montecarlo import memory
from jaxsens.montecarlo.execution import CALL_BUDGET, Execution, Tuning, plan_execution
from jaxsens.montecarlo.outcome import outcomes
from jaxsens.montecarlo.shards import write_atomically
from jaxsens.montecarlo.store import versions

# A timed call is about this part of a second; the best of so many is kept.
_CALLS_PER_SECOND = 8
_ROUNDS = 3
# Faster by less than this is noise, and the default stays.
_CLEARLY = 0.95
_CPU_WIDTHS = (1, 8)
_TILES = (-2, -1, 1, 2)


def cache_directory() -> pathlib.Path:
    """Where measurements are kept: ``jaxsens/tuning`` in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(home) / "jaxsens" / "tuning"


def tune(
    model: Model, *, devices: int | None = None, cache: str | os.PathLike | None = None
) -> Tuning:
    """Measures which width and tile evaluate a model fastest here, or recalls it.

    A few compiled shapes (3 to 20 seconds in all) are timed in turn on the first models of seed 0.
    First the width is chosen, then the tile; the default stays unless another is faster by 5 %.

    Args:
      model: what will be sampled.
      devices: number of devices, by default all.
      cache: directory of earlier measurements; a new one is added to it. Its entries hold for one
        model shape, number and kind of devices, processor, and version of jax and jaxsens. By
        default nothing is read or kept.

    Returns:
      The :class:`Tuning`, to be given to :func:`jaxsens.sample`.

    Raises:
      ValueError: there are fewer devices, or a table does not fit into memory.
    """
    memory.check_fits(model)
    execution = plan_execution(model, 1, devices=devices)
    file = None
    if cache is not None:
        file = pathlib.Path(cache) / f"{_digest(_situation(model, execution))}.json"
        known = _read(file)
        if known is not None:
            return known
    default = default_tuning(model, devices)
    seconds: dict[Tuning, float] = {}
    best = _fastest(model, execution, default, _widths(default, execution), seconds)
    best = _fastest(model, execution, best, _tiles(model, best), seconds)
    if file is not None:
        _write(file, _situation(model, execution), best, seconds)
    return best


def default_tuning(model: Model, devices: int | None = None) -> Tuning:
    """What is taken without a measurement; raises ``ValueError`` where there are fewer devices."""
    platform = plan_execution(model, 1, devices=devices).platform
    return Tuning(tables_at_once(model, platform), model.tile_bits)


def _widths(default: Tuning, execution: Execution) -> list[Tuning]:
    if execution.platform == "cpu":
        widths = {default.width, *_CPU_WIDTHS}
    else:
        widths = {max(1, default.width // 4), default.width, 4 * default.width}
    return [default._replace(width=width) for width in sorted(widths)]


def _tiles(model: Model, best: Tuning) -> list[Tuning]:
    if best.tile_bits is None:
        return [best]
    bits = {min(max(1, best.tile_bits + change), model.length) for change in (0, *_TILES)}
    return [best, *(best._replace(tile_bits=b) for b in sorted(bits) if b != best.tile_bits)]


def _fastest(
    model: Model,
    execution: Execution,
    default: Tuning,
    candidates: Sequence[Tuning],
    seconds: dict[Tuning, float],
) -> Tuning:
    """The fastest of some candidates by :func:`_seconds_a_model`; fills ``seconds``."""
    new = [candidate for candidate in candidates if candidate not in seconds]
    seconds |= dict(zip(new, _seconds_a_model(model, execution, new), strict=True))
    best = min(candidates, key=lambda candidate: seconds[candidate])
    return best if seconds[best] < _CLEARLY * seconds[default] else default


def _seconds_a_model(
    model: Model, execution: Execution, candidates: Sequence[Tuning]
) -> list[float]:
    """Best time of each, taken in turn so that what slows the machine down slows all of them."""
    work = model.work_per_string * 2**model.length
    rate = max(1, CALL_BUDGET // _CALLS_PER_SECOND)
    calls = []
    for candidate in candidates:
        unit = candidate.width * execution.mesh.size
        count = unit * max(1, math.ceil(rate / work / unit))
        calls.append((model.in_tiles(candidate.tile_bits), candidate.width, count))
    best = [math.inf] * len(calls)
    for round_ in range(_ROUNDS + 1):
        for at, (tiled, width, count) in enumerate(calls):
            low, high = np.arange(count, dtype=np.uint32), np.zeros(count, np.uint32)
            began = time.perf_counter()
            outcomes(tiled, 0, high, low, dtype="float32", width=width, mesh=execution.mesh)
            took = (time.perf_counter() - began) / count
            if round_:  # the first call compiles
                best[at] = min(best[at], took)
    return best


def _situation(model: Model, execution: Execution) -> dict[str, object]:
    """What a measurement holds for."""
    described = json.loads(model.description)
    described.pop("init", None)
    return {
        "model": described,
        "draw": model.draw,
        "devices": execution.mesh.size,
        "kind": execution.mesh.devices.flat[0].device_kind,
        "processor": _processor(),
        "versions": {k: v for k, v in versions().items() if k != "numpy"},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return f"{names[0] if names else system.processor()} x {os.cpu_count()}"


def _digest(situation: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(situation, sort_keys=True).encode()).hexdigest()[:24]


def _read(file: pathlib.Path) -> Tuning | None:
    """An earlier measurement; a file that cannot be read or understood is none."""
    try:
        stored = json.loads(file.read_text())
        width, tile_bits = stored["width"], stored["tile_bits"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    numbers = [width] if tile_bits is None else [width, tile_bits]
    if not all(type(number) is int and number >= 1 for number in numbers):
        return None
    return Tuning(width, tile_bits)


def _write(
    file: pathlib.Path, situation: dict[str, object], best: Tuning, seconds: dict[Tuning, float]
) -> None:
    """Keeps a measurement; a directory that cannot be written costs the next run its time only."""
    measured = [c._asdict() | {"microseconds_a_model": 1e6 * t} for c, t in seconds.items()]
    value = best._asdict() | {"measured": measured, "for": situation}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(value, indent=1)
        write_atomically(file, lambda stream: stream.write(text.encode()))
    except OSError:
        pass


def worth_measuring(model: Model, models: int) -> bool:
    """Whether a run is long enough, ten minutes or so, for a measurement to pay."""
    return models * model.work_per_string * 2**model.length > 600 * CALL_BUDGET
