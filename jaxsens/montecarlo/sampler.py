"""The sampler: a host loop over chunks of one compiled shape."""

import collections
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from jaxsens.inits import InitLaw
from jaxsens.model import Model, transformer_model
from jaxsens.montecarlo import evaluate, keys, memory, shards
from jaxsens.montecarlo.evaluate import ModelArrays
from jaxsens.montecarlo.execution import Execution, Tuning
from jaxsens.montecarlo.store import Run
from jaxsens.montecarlo.summary import Summary
from jaxsens.transformer.config import TransformerConfig

Keep = Literal["models", "sums"]
Dtype = Literal["float32", "float64"]

#: Default relative margin below which a model is undecided in float32.
TOLERANCE = 5e-4


class Progress(NamedTuple):
    """State of a running loop, reported once a chunk.

    Attributes:
      held: models that the run held when it started.
      done: models finished by this loop.
      wanted: models that this loop has to do.
      seconds: time since the loop started, compilation included.
      summary: sums over everything the run holds.
    """

    held: int
    done: int
    wanted: int
    seconds: float
    summary: Summary


class Sample(NamedTuple):
    """What :func:`sample` returns.

    Attributes:
      summary: sums over all models of the run; ``summary.estimates()`` has the intervals.
      indices: uint64 ``(models,)`` indices of ``models``, or ``None``.
      models: per-model integers, or ``None`` where only sums were kept or the run is on disk
        (then ``run.arrays()`` reads them).
      run: the run on disk, or ``None``.
    """

    summary: Summary
    indices: np.ndarray | None
    models: ModelArrays | None
    run: Run | None


class _Plan(NamedTuple):
    model: Model
    seed: int
    start: int
    stop: int
    tolerance: float
    dtype: Dtype
    keep: Keep
    execution: Execution
    config: dict[str, Any]


def as_model(model: Model | TransformerConfig, init: InitLaw | Callable | None = None) -> Model:
    """A model as it is, or the transformer of a config under an init law."""
    if isinstance(model, TransformerConfig):
        if init is None:
            raise ValueError("init: None given; a TransformerConfig needs an init law")
        return transformer_model(model, init)
    if not isinstance(model, Model):
        raise ValueError(f"model: {model!r} given; it must be a Model or a TransformerConfig")
    if init is not None:
        raise ValueError("init: given beside a Model, which has its own; leave it out")
    return model


def run_config(model: Model, seed: int, tolerance: float, dtype: str) -> dict[str, Any]:
    """What defines the integers of a run, as JSON values; its hash names the run."""
    return {
        "model": json.loads(model.description),
        "seed": seed,
        "tolerance": tolerance,
        "dtype": dtype,
    }


def _check_models(models: object) -> int:
    if isinstance(models, bool) or not isinstance(models, (int, np.integer)) or models < 1:
        raise ValueError(f"models: {models!r} given; it must be an integer of at least 1")
    return int(models)


def _plan(
    model: Model | TransformerConfig,
    init: InitLaw | Callable | None,
    models: int,
    seed: int,
    start: int,
    keep: str,
    tolerance: float,
    dtype: str,
    tuning: Tuning | None,
    **execution: int | None,
) -> _Plan:
    model = as_model(model, init)
    if tuning is not None:
        if not isinstance(tuning, Tuning):
            raise ValueError(f"tuning: {tuning!r} given; it must be a jaxsens.Tuning")
        model = model.in_tiles(tuning.tile_bits)
        execution["width"] = tuning.width
    models, seed, start = (
        _check_models(models),
        keys.check_seed(seed),
        keys.check_index(start, "start"),
    )
    keys.check_index(start + models - 1, "start + models - 1")
    tolerance = evaluate.check_tolerance(tolerance)
    for name, value, choices in (
        ("keep", keep, ("models", "sums")),
        ("dtype", dtype, ("float32", "float64")),
    ):
        if value not in choices:
            raise ValueError(f"{name}: {value!r} given; it must be {' or '.join(choices)}")
    keys.check_generator()
    memory.check_fits(model)
    planned = evaluate.plan_execution(model, models, **execution)
    config = run_config(model, seed, tolerance, dtype)
    stop = start + models
    return _Plan(model, seed, start, stop, tolerance, dtype, keep, planned, config)  # pyright: ignore[reportArgumentType]


def _chunks(
    plan: _Plan, done: list[tuple[int, int]], fallbacks: collections.Counter[str]
) -> Iterator[shards.Shard]:
    """Computes what is missing, a shard at a time; counts whole tables of the plain pass."""
    missing = shards.missing_ranges(done, plan.start, plan.stop, plan.execution.chunk)
    if missing and plan.dtype == "float32":
        start, stop = missing[0]
        evaluate.self_check(
            plan.model, plan.seed, start, stop, plan.execution, tolerance=plan.tolerance
        )
    for start, stop in missing:
        evaluated = evaluate.evaluate_range(
            plan.model,
            plan.seed,
            start,
            stop,
            plan.execution,
            tolerance=plan.tolerance,
            dtype=plan.dtype,
        )
        fallbacks.update(untrusted=evaluated.untrusted, many_close=evaluated.many_close)
        yield shards.make_shard(
            start, evaluated.models, plan.model.length, keep_models=plan.keep == "models"
        )


def _loop(plan: _Plan, run: Run | None, kept: list[shards.Shard]) -> Iterator[Progress]:
    began = time.monotonic()
    if run is None:
        summary, done = Summary.empty(plan.model.length), []
    else:
        summary, done = run.summary(), run.ranges()
    held = summary.models
    missing = shards.missing_ranges(done, plan.start, plan.stop, plan.execution.chunk)
    wanted, finished = sum(b - a for a, b in missing), 0
    yield Progress(held, 0, wanted, 0.0, summary)
    fallbacks: collections.Counter[str] = collections.Counter()
    for shard in _chunks(plan, done, fallbacks):
        if run is not None:
            run.write(shard)
        elif plan.keep == "models":
            kept.append(shard)
        summary = summary + shard.summary
        finished += shard.stop - shard.start
        progress = Progress(held, finished, wanted, time.monotonic() - began, summary)
        if run is not None:
            run.write_progress(**_progress_values(progress))
        yield progress
    if run is not None:
        run.record(summary, _execution_values(plan, fallbacks))


def _progress_values(progress: Progress) -> dict[str, Any]:
    p = progress.summary.estimates()["p_zero_sensitivity"]
    return {
        "models": progress.summary.models,
        "done": progress.done,
        "wanted": progress.wanted,
        "seconds": round(progress.seconds, 3),
        "p_zero_sensitivity": {"estimate": p.estimate, "low": p.low, "high": p.high},
    }


def _execution_values(plan: _Plan, fallbacks: collections.Counter[str]) -> dict[str, Any]:
    devices = [str(d) for d in plan.execution.mesh.devices.flat]
    return {
        "devices": devices,
        "device_kind": plan.execution.mesh.devices.flat[0].device_kind,
        "batch": plan.execution.batch,
        "chunk": plan.execution.chunk,
        "width": plan.execution.width,
        "tile_bits": plan.model.tile_bits,
        "keep": plan.keep,
        "evaluation": plan.model.evaluation,
        # Of the last call that computed anything: models whose whole table the plain pass gave.
        "plain_pass": {
            "untrusted": fallbacks["untrusted"],
            "many_close_strings": fallbacks["many_close"],
        },
    }


def _iterate(plan: _Plan, out: str | os.PathLike | None, kept: list) -> Iterator[Progress]:
    if out is None:
        yield from _loop(plan, None, kept)
        return
    run = Run.create(out, plan.config)
    with run.writing(plan.start, plan.stop):
        yield from _loop(plan, run, kept)


def sample_iter(
    model: Model | TransformerConfig,
    init: InitLaw | Callable | None = None,
    *,
    models: int,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    keep: Keep = "models",
    start: int = 0,
    tolerance: float = TOLERANCE,
    dtype: Dtype = "float32",
    chunk: int | None = None,
    batch: int | None = None,
    devices: int | None = None,
    tuning: Tuning | None = None,
) -> Iterator[Progress]:
    """The generator form of :func:`sample`: yields its state at the start and after each chunk.

    ``progress.summary.estimates()`` are the running estimates. Stopping the iteration loses nothing
    that was yielded. With ``out=None`` nothing is kept but the sums. Arguments as in
    :func:`sample`; they are checked at the call, not at the first step.
    """
    plan = _plan(
        model, init, models, seed, start, keep if out is not None else "sums", tolerance, dtype,
        tuning, chunk=chunk, batch=batch, devices=devices,
    )  # fmt: skip
    return _iterate(plan, out, [])


@overload
def sample(
    model: Model | TransformerConfig,
    init: InitLaw | Callable | None = None,
    *,
    models: int,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    keep: Keep = "models",
    start: int = 0,
    tolerance: float = TOLERANCE,
    dtype: Dtype = "float32",
    chunk: int | None = None,
    batch: int | None = None,
    devices: int | None = None,
    tuning: Tuning | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Sample: ...


@overload
def sample(
    model: Model | TransformerConfig,
    init: InitLaw | Callable | None = None,
    *,
    models: Sequence[int],
    seed: int = 0,
    out: str | os.PathLike | None = None,
    keep: Keep = "models",
    start: int = 0,
    tolerance: float = TOLERANCE,
    dtype: Dtype = "float32",
    chunk: int | None = None,
    batch: int | None = None,
    devices: int | None = None,
    tuning: Tuning | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Iterator[Sample]: ...


def sample(
    model: Model | TransformerConfig,
    init: InitLaw | Callable | None = None,
    *,
    models: int | Sequence[int],
    seed: int = 0,
    out: str | os.PathLike | None = None,
    keep: Keep = "models",
    start: int = 0,
    tolerance: float = TOLERANCE,
    dtype: Dtype = "float32",
    chunk: int | None = None,
    batch: int | None = None,
    devices: int | None = None,
    tuning: Tuning | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Sample | Iterator[Sample]:
    """Draws models, evaluates each on every string, and counts.

    Model i of root seed s has the key ``fold_in(fold_in(key(s), i >> 32), i & 0xffffffff)``; its
    integers are the same for every chunk, batch, tuning and device count. Do not jit this: serial
    outside and compiled inside is the point.

    Args:
      model: a :class:`~jaxsens.TransformerConfig` (then ``init`` is its law) or a
        :class:`~jaxsens.Model`.
      init: init law, for a config only.
      models: how many models, indices ``start`` to ``start + models - 1``. A sequence gives a
        generator of samples at each count in turn, each computing only what is new; give ``out``
        with it, or the earlier models are computed again.
      seed: root seed, 0 <= seed < 2^32.
      out: run directory. Finished models are saved there chunk by chunk; the same call goes on
        where a killed one stopped, and a larger ``models`` computes only what is missing.
      keep: ``models`` saves per-model integers, ``sums`` their sums and the notable indices.
      start: first index, so that processes can share a run.
      tolerance: a model whose smallest ``|logit|`` is below ``tolerance`` times its largest is
        undecided: it is evaluated again in float64 and counted as such.
      dtype: dtype of the evaluation. Parameters are drawn alike and then cast.
      chunk: models saved together; what a crash can lose. By default some seconds' work.
      batch: models in one compiled call.
      devices: number of devices to use, by default all.
      tuning: how a device works through its models, measured by :func:`jaxsens.tune` or chosen;
        by default a choice that suits most machines.
      on_progress: called after each chunk, on the host.

    Returns:
      A :class:`Sample`, or an iterator of them where ``models`` is a sequence. Its summary covers
      everything that the run directory holds.

    Raises:
      ValueError: an argument is out of range, the run directory holds another config or a damaged
        shard (:class:`RunError`, ``ShardError``), or the device fails its self-check.
    """
    shared: dict[str, Any] = {
        "seed": seed, "start": start, "keep": keep, "tolerance": tolerance, "dtype": dtype,
        "chunk": chunk, "batch": batch, "devices": devices, "tuning": tuning,
    }  # fmt: skip
    if isinstance(models, Sequence):
        plans = [_plan(model, init, models=count, **shared) for count in models]
        return (_complete(plan, out, on_progress) for plan in plans)
    return _complete(_plan(model, init, models=models, **shared), out, on_progress)


def _complete(
    plan: _Plan, out: str | os.PathLike | None, on_progress: Callable[[Progress], None] | None
) -> Sample:
    kept: list[shards.Shard] = []
    summary = Summary.empty(plan.model.length)
    for progress in _iterate(plan, out, kept):
        summary = progress.summary
        if on_progress is not None:
            on_progress(progress)
    if out is not None:
        return Sample(summary, None, None, Run.open(out))
    if not kept:
        return Sample(summary, None, None, None)
    columns = zip(*(shard.models for shard in kept if shard.models is not None), strict=True)
    index = np.uint64(plan.start) + np.arange(plan.stop - plan.start, dtype=np.uint64)
    return Sample(summary, index, ModelArrays(*(np.concatenate(c) for c in columns)), None)
