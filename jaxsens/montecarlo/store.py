"""A run on disk: manifest, shards, progress, and the rules for sharing a directory."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Iterator
from typing import IO, Any

import jax
import jaxlib.version
import numpy as np

from jaxsens import strings
from jaxsens.model import canonical_json
from jaxsens.montecarlo import shards
from jaxsens.montecarlo.evaluate import ModelArrays
from jaxsens.montecarlo.keys import IMPLEMENTATION
from jaxsens.montecarlo.shards import Shard, ShardError
from jaxsens.montecarlo.summary import Summary


class RunError(ValueError):
    """A run directory cannot be used as asked; the message is one line."""


def config_hash(config: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of what defines a run's integers."""
    return hashlib.sha256(canonical_json(config).encode()).hexdigest()


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for name, item in value.items():
        flat |= _flat(item, f"{prefix}.{name}" if prefix else name)
    return flat


def _first_difference(stored: dict, given: dict) -> str:
    old, new = _flat(stored), _flat(given)
    name = next(n for n in sorted(old.keys() | new.keys()) if old.get(n) != new.get(n))
    return f"{name}: the run holds {old.get(name)!r}, {new.get(name)!r} given"


class Run:
    """A run directory: ``manifest.json``, ``shards/START-STOP.npz``, ``progress.json``.

    Use :meth:`open` to read and :meth:`create` to write.
    """

    def __init__(self, path: pathlib.Path, manifest: dict[str, Any]):
        """Internal; see :meth:`open` and :meth:`create`."""
        self.path, self.manifest = path, manifest
        self.hash: str = manifest["config_hash"]
        self.shard_folder = path / "shards"

    @classmethod
    def open(cls, path: str | os.PathLike) -> "Run":
        """Opens an existing run for reading.

        Raises:
          RunError: there is no run, or its manifest is damaged.
        """
        path = pathlib.Path(path)
        file = path / "manifest.json"
        if not file.is_file():
            raise RunError(f"run: {str(path)!r} given; it holds no manifest.json of a run")
        try:
            manifest = json.loads(file.read_text())
            if config_hash(manifest["config"]) != manifest["config_hash"]:
                raise ValueError
            model = manifest["config"]["model"]
            if model["kind"] == "transformer":
                model = model["config"]
            strings.check_length(model["length"])
        except (ValueError, KeyError, TypeError):
            raise RunError(f"{file}: damaged manifest; restore it from a copy") from None
        if manifest["format"] != shards.FORMAT:
            raise RunError(
                f"{file}: format {manifest['format']!r}; this version reads {shards.FORMAT}"
            )
        return cls(path, manifest)

    @classmethod
    def create(cls, path: str | os.PathLike, config: dict[str, Any]) -> "Run":
        """Opens the run directory for writing, makes it where there is none.

        Raises:
          RunError: the directory cannot be written, holds something else, or another config.
        """
        if os.fspath(path) in ("", b""):
            raise RunError("out: '' given; it must be the name of a directory")
        path = pathlib.Path(path)
        if "\0" in str(path):
            raise RunError(f"out: {str(path)!r} given; it must not contain a null character")
        try:
            (path / "shards").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"out: {str(path)!r} given; it must be a writable directory ({error.strerror})"
            ) from None
        if not os.access(path / "shards", os.W_OK) or not os.access(path, os.W_OK):
            raise RunError(f"out: {str(path)!r} given; it must be a writable directory")
        file = path / "manifest.json"
        if not file.exists():
            if any((path / "shards").glob("*.npz")):
                raise RunError(f"out: {str(path)!r} holds shards but no manifest.json; move them")
            manifest = {
                "format": shards.FORMAT,
                "config_hash": config_hash(config),
                "config": config,
                "versions": versions(),
                "precision": "highest",
                "generator": IMPLEMENTATION,
            }
            _create_exclusively(file, manifest)
        run = cls.open(path)
        if run.hash != config_hash(config):
            difference = _first_difference(run.manifest["config"], config)
            raise RunError(f"out: {str(path)!r} belongs to another run ({difference})")
        return run

    @contextlib.contextmanager
    def writing(self, start: int, stop: int) -> Iterator[None]:
        """Holds the lock for [start, stop); another process on an overlapping range is refused."""
        lock = self.path / f".lock-{start}-{stop}"
        with open(lock, "w") as file:
            if not _try_lock(file):
                raise self._locked()
            try:
                for other in self.path.glob(".lock-*-*"):
                    a, b = (int(part) for part in other.name.split("-")[1:])
                    if other != lock and a < stop and start < b and _is_locked(other):
                        raise self._locked()
                for left in self.path.rglob("*.tmp-*"):
                    shards.remove_leftover(left)
                yield
            finally:
                lock.unlink(missing_ok=True)

    def _locked(self) -> RunError:
        return RunError(
            f"out: {str(self.path)!r} is being written by another process; wait for it, "
            "or give each process its own --shard"
        )

    def shards(self) -> Iterator[Shard]:
        """Every finished shard, in index order, each read and checked.

        Raises:
          ShardError: a file is truncated, damaged or foreign.
        """
        for path in shards.list_shards(self.shard_folder):
            yield shards.read_shard(path, self.hash)

    def ranges(self) -> list[tuple[int, int]]:
        """Half-open index ranges of the finished shards, sorted and disjoint."""
        return [shards.range_of(p) for p in shards.list_shards(self.shard_folder)]

    def write(self, shard: Shard) -> None:
        """Adds a finished shard."""
        shards.write_shard(self.shard_folder, shard, self.hash)

    def summary(self) -> Summary:
        """Sums over all finished models."""
        total = Summary.empty(self.length)
        for shard in self.shards():
            total = total + shard.summary
        return total

    def arrays(self) -> tuple[np.ndarray, ModelArrays]:
        """Indices uint64 ``(models,)`` and per-model integers of all models, in index order.

        Raises:
          RunError: some shards hold only sums.
        """
        index, columns = [], []
        for shard in self.shards():
            if shard.models is None:
                raise RunError(
                    f"run: {str(self.path)!r} keeps only sums for models {shard.start}-{shard.stop}"
                )
            index.append(
                np.uint64(shard.start) + np.arange(shard.stop - shard.start, dtype=np.uint64)
            )
            columns.append(shard.models)
        if not columns:
            raise RunError(f"run: {str(self.path)!r} holds no models yet")
        joined = (np.concatenate(column) for column in zip(*columns, strict=True))
        return np.concatenate(index), ModelArrays(*joined)

    def notable(self) -> dict[str, np.ndarray]:
        """Indices of notable models: K_0 = 0, named functions, undecided (from either form)."""
        found: dict[str, list[np.ndarray]] = {}
        for shard in self.shards():
            notable = shard.notable
            if shard.models is not None:
                rows = shards.make_shard(shard.start, shard.models, self.length, keep_models=False)
                notable = rows.notable
            for label, index in notable.items():
                found.setdefault(label, []).append(index)
        return {label: np.concatenate(parts) for label, parts in found.items()}

    @property
    def length(self) -> int:
        """N, bits of a string."""
        model = self.manifest["config"]["model"]
        return model["config"]["length"] if model["kind"] == "transformer" else model["length"]

    def record(self, summary: Summary, execution: dict[str, Any]) -> None:
        """Notes counts and the latest execution settings in the manifest (not hashed)."""
        counts = {
            "models": summary.models,
            "undecided": summary.undecided,
            "unresolved": summary.unresolved,
        }
        self.manifest |= {"counts": counts, "execution": execution}
        shards.write_json(self.path / "manifest.json", self.manifest)

    def write_progress(self, **values: Any) -> None:
        """Writes ``progress.json`` atomically."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        shards.write_json(self.path / "progress.json", values | {"updated": stamp})


def _try_lock(file: IO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_locked(path: pathlib.Path) -> bool:
    """A process holds the lock; one left by a killed process is removed."""
    try:
        with open(path) as file:
            if not _try_lock(file):
                return True
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    return False


def versions() -> dict[str, str]:
    """Versions that a run records."""
    import jaxsens

    return {
        "jaxsens": jaxsens.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "numpy": np.__version__,
    }


def _create_exclusively(file: pathlib.Path, value: Any) -> None:
    """Writes JSON to a file that must not exist: of two processes, the first one's stays."""
    temporary = file.with_name(f"{file.name}.new-{os.getpid()}")
    shards.write_json(temporary, value)
    try:
        os.link(temporary, file)
    except FileExistsError:
        pass
    except OSError:
        # A file system without hard links.
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def merge_runs(sources: list[str], out: str) -> Run:
    """Copies the shards of runs over disjoint index ranges into one run.

    Raises:
      RunError: the runs have different configs, or two of them hold the same models.
      ShardError: a shard cannot be read.
    """
    runs = [Run.open(source) for source in sources]
    if not runs:
        raise RunError("runs: none given; name at least one")
    for run in runs[1:]:
        if run.hash != runs[0].hash:
            difference = _first_difference(runs[0].manifest["config"], run.manifest["config"])
            raise RunError(f"run: {str(run.path)!r} differs from {sources[0]!r} ({difference})")
    held = sorted((a, b, str(run.path)) for run in runs for a, b in run.ranges())
    for (_, stop, one), (start, _, other) in zip(held, held[1:], strict=False):
        if start < stop:
            raise RunError(
                f"runs: {one!r} and {other!r} both hold model {start}; merge one of them"
            )
    for run in runs:
        # A damaged shard must be found before anything is written.
        for _ in run.shards():
            pass
    merged = Run.create(out, runs[0].manifest["config"])
    taken = merged.ranges()
    clash = [a for a, b, _ in held if any(c < b and a < d for c, d in taken)]
    if clash:
        raise RunError(f"out: {out!r} already holds model {clash[0]}; merge into a new directory")
    for run in runs:
        for shard in run.shards():
            merged.write(shard)
    merged.record(merged.summary(), {"merged_from": len(runs)})
    return merged


__all__ = ["Run", "RunError", "ShardError", "config_hash", "merge_runs"]
