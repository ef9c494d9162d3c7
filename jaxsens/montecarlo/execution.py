"""How a run is cut up and spread over devices: never part of what it means."""

import math
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxsens.model import Model, tables_at_once
from jaxsens.strings import is_integer

#: Work of one compiled call, in units of 64 operations: about a second.
CALL_BUDGET = 1 << 28
_CALLS_PER_CHUNK = 8
_MAX_BATCH = 1 << 14
#: Most shard files that a run is cut into by default.
MAX_CHUNKS = 4096


class Tuning(NamedTuple):
    """What a measurement can choose; see :func:`jaxsens.tune`.

    Attributes:
      width: models vmapped together, at least 1.
      tile_bits: log2 of the strings worked on together, at least 1; ``None`` where the evaluation
        has no such tiles, or for the default.
    """

    width: int
    tile_bits: int | None = None


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

    @property
    def platform(self) -> str:
        """``cpu``, ``gpu`` or ``tpu``."""
        return self.mesh.devices.flat[0].platform


def plan_execution(
    model: Model,
    models: int,
    *,
    chunk: int | None = None,
    batch: int | None = None,
    devices: int | None = None,
    width: int | None = None,
) -> Execution:
    """Chooses batch, chunk and width from the cost of a model, unless given.

    The choice of a chunk depends on the model and the number of models only, so that an interrupted
    run and an undisturbed one are cut into the same files.

    Raises:
      ValueError: a number is not a positive integer, or there are fewer devices.
    """
    for name, value in (
        ("chunk", chunk),
        ("batch", batch),
        ("devices", devices),
        ("width", width),
    ):
        if value is not None and not (is_integer(value) and value >= 1):
            raise ValueError(f"{name}: {value!r} given; it must be an integer of at least 1")
    present = jax.devices()
    if devices is not None and devices > len(present):
        raise ValueError(
            f"devices: {devices} given; there are {len(present)} "
            "(on the CPU set more with --cpu-devices or jax_num_cpu_devices)"
        )
    mesh = Mesh(np.asarray(present[:devices]), ("models",))
    cost = model.work_per_string * 2**model.length
    by_cost = min(_MAX_BATCH, _power_of_two(CALL_BUDGET / cost))
    if chunk is None:
        chunk = max(_CALLS_PER_CHUNK * by_cost, _power_of_two(models / MAX_CHUNKS))
    batch = min(by_cost, _power_of_two(models)) if batch is None else batch
    batch = min(batch, chunk)
    if width is None:
        width = tables_at_once(model, mesh.devices.flat[0].platform)
    return Execution(mesh, batch, chunk, min(width, math.ceil(batch / mesh.size)))


def _power_of_two(x: float) -> int:
    return 1 << math.ceil(math.log2(max(x, 1)))
