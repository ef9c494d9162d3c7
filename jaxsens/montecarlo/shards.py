"""Shard files: half-open index ranges of finished models, written whole or not at all."""

import json
import os
import pathlib
import re
import zipfile
import zlib
from typing import Any, NamedTuple

import numpy as np

from jaxsens.montecarlo.census import is_named
from jaxsens.montecarlo.evaluate import DECIDED, ModelArrays
from jaxsens.montecarlo.summary import Summary

FORMAT = 1
_NAME = re.compile(r"(\d+)-(\d+)\.npz")
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


class ShardError(ValueError):
    """A shard cannot be used; the message is one line that names the file."""


class Shard(NamedTuple):
    """Finished models with indices ``start <= i < stop``.

    Attributes:
      start: first index.
      stop: index after the last.
      summary: sums over the models.
      models: per-model integers, or ``None`` where only sums were kept.
      notable: with sums, label to uint64 indices: ``no_zero_sensitivity`` (K_0 = 0),
        ``named`` (non-constant functions of the census, or complements), ``undecided``.
    """

    start: int
    stop: int
    summary: Summary
    models: ModelArrays | None
    notable: dict[str, np.ndarray]


def make_shard(start: int, arrays: ModelArrays, length: int, *, keep_models: bool) -> Shard:
    """A shard of models ``start, start + 1, ...``; without ``keep_models`` only what is notable."""
    stop = start + len(arrays.ones)
    summary = Summary.of_models(arrays, length)
    if keep_models:
        return Shard(start, stop, summary, arrays, {})
    rows = {
        "no_zero_sensitivity": arrays.profile[:, 0] == 0,
        "named": is_named(arrays.fingerprint, length),
        "undecided": arrays.status != DECIDED,
    }
    notable = {
        label: np.uint64(start) + np.flatnonzero(mask).astype(np.uint64)
        for label, mask in rows.items()
    }
    return Shard(start, stop, summary, None, notable)


def write_atomically(path: pathlib.Path, write) -> None:
    """Calls ``write(file)`` on a temporary neighbour, syncs it and renames it to ``path``."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftover(temporary: pathlib.Path) -> None:
    """Removes a temporary file of :func:`write_atomically` whose process is gone."""
    process = temporary.name.rpartition("-")[2]
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        temporary.unlink(missing_ok=True)
    except (ValueError, OSError):
        # Alive (of another user), or not one of ours.
        pass


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes JSON atomically."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def write_shard(folder: pathlib.Path, shard: Shard, config_hash: str) -> pathlib.Path:
    """Writes ``START-STOP.npz`` into ``folder``: whole, synced, then renamed into place."""
    meta = {
        "format": FORMAT,
        "config_hash": config_hash,
        "start": shard.start,
        "stop": shard.stop,
        "keep": "sums" if shard.models is None else "models",
        "summary": shard.summary.to_json(),
    }
    arrays: dict[str, Any] = {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}
    arrays |= dict(shard.notable) if shard.models is None else shard.models._asdict()
    path = folder / f"{shard.start}-{shard.stop}.npz"
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))
    return path


def read_shard(path: pathlib.Path, config_hash: str) -> Shard:
    """Reads and checks one shard.

    Raises:
      ShardError: the file is truncated, damaged, of another run, or not what its name says.
    """
    advice = "remove it and run the same command again to recompute it"
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ShardError(f"{path}: not a shard (START-STOP.npz) of this run; remove it")
    try:
        # Opened here, not by np.load, which leaves a damaged archive open. Reading everything
        # checks every CRC.
        with open(path, "rb") as opened, np.load(opened) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(arrays.pop("meta").tobytes())
        start, stop = int(meta["start"]), int(meta["stop"])
        stored_hash, keep = meta["config_hash"], meta["keep"]
        summary = Summary.from_json(meta["summary"])
        models = ModelArrays(**arrays) if keep == "models" else None
    except (*_UNREADABLE, TypeError) as error:
        raise ShardError(
            f"{path}: truncated or damaged ({type(error).__name__}); {advice}"
        ) from None
    if stored_hash != config_hash:
        raise ShardError(
            f"{path}: written by another run (config hash {stored_hash[:12]}, this run has "
            f"{config_hash[:12]}); move it away"
        )
    if (start, stop) != (int(match[1]), int(match[2])) or summary.models != stop - start:
        raise ShardError(f"{path}: holds models {start}-{stop}, not what its name says; {advice}")
    width = summary.length + 1
    if models is not None and (
        any(len(column) != stop - start for column in models)
        or models.profile.shape[1:] != (width,)
        or len(summary.profile) != width
    ):
        raise ShardError(f"{path}: its arrays do not fit its name; {advice}")
    return Shard(start, stop, summary, models, arrays if models is None else {})


def list_shards(folder: pathlib.Path) -> list[pathlib.Path]:
    """Shard files by start index. Temporary files of killed writers are not shards.

    Raises:
      ShardError: an ``.npz`` has no shard's name, or two shards overlap in part.
    """
    named = []
    for path in folder.glob("*.npz"):
        match = _NAME.fullmatch(path.name)
        if match is None or int(match[1]) >= int(match[2]):
            raise ShardError(f"{path}: not a shard (START-STOP.npz) of this run; remove it")
        named.append((int(match[1]), -int(match[2]), path))
    kept: list[pathlib.Path] = []
    covered, last = -1, None
    for start, minus_stop, path in sorted(named):
        if last is not None and start < covered:
            # Inside a longer shard: the same models, written by a process with another cut.
            if -minus_stop <= covered:
                continue
            raise ShardError(f"{path}: overlaps {last.name} in part; remove one of the two")
        covered, last = -minus_stop, path
        kept.append(path)
    return kept


def range_of(path: pathlib.Path) -> tuple[int, int]:
    """(start, stop) of a shard's name."""
    start, stop = path.stem.split("-")
    return int(start), int(stop)


def missing_ranges(
    done: list[tuple[int, int]], start: int, stop: int, chunk: int
) -> list[tuple[int, int]]:
    """What of [start, stop) the sorted, disjoint ``done`` leave open, cut at chunk multiples."""
    gaps, at = [], start
    for a, b in [*done, (stop, stop)]:
        if a > at:
            gaps.append((at, min(a, stop)))
        at = max(at, b)
        if at >= stop:
            break
    pieces = []
    for a, b in gaps:
        while a < b:
            end = min(b, (a // chunk + 1) * chunk)
            pieces.append((a, end))
            a = end
    return pieces
