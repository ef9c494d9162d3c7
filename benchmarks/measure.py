"""What the timed benchmarks share: the machine, interleaved timing, its matrix-product rate."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def start_backend(device: str) -> None:
    """Chooses the device; on the CPU one device a core. Before the first array, or not at all.

    Raises:
      SystemExit: the device is not there.
    """
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", cores())
    else:
        # By default JAX takes most of the GPU's memory; the PyTorch peers need theirs.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if jax.default_backend() != device:
        raise SystemExit(f"--device {device}: jax has the backend {jax.default_backend()!r} only")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def environment() -> dict[str, Any]:
    """Versions and device."""
    versions = {"python": platform.python_version()}
    for package in ("jax", "jaxlib", "numpy", "torch"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "versions": versions,
        "backend": jax.default_backend(),
        "device_kind": jax.devices()[0].device_kind,
        "devices": len(jax.devices()),
        "cores": cores(),
        "cpu": _cpu_model(),
    }


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes: what else the machine did."""
    return [round(x, 2) for x in os.getloadavg()]


def seconds(run: Callable[[], object]) -> float:
    """Duration of a call; the call itself waits for its results."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


class Timed(NamedTuple):
    """Timings of one contestant: seconds per model, best and median over the rounds."""

    best: float
    median: float
    rounds: int
    models: int

    def as_json(self) -> dict[str, Any]:
        """Milliseconds, rounded."""
        return {
            "best_ms_per_model": round(1e3 * self.best, 5),
            "median_ms_per_model": round(1e3 * self.median, 5),
            "rounds": self.rounds,
            "models_per_round": self.models,
        }


def interleave(
    contestants: Mapping[str, tuple[Callable[[], object], int]], rounds: int
) -> dict[str, Timed]:
    """Times everyone once a round, so that a busy neighbour hits all of them alike.

    Args:
      contestants: name to (call that waits for its results, models that it evaluates).
      rounds: how often.
    """
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, (run, models) in contestants.items():
            taken[name].append(seconds(run) / models)
    return {
        name: Timed(min(times), float(np.median(times)), rounds, contestants[name][1])
        for name, times in taken.items()
    }


def _jax_products(size: int) -> Callable[[], object]:
    """One float32 product on every device at the same time."""
    mesh = Mesh(np.asarray(jax.devices()), ("device",))
    split = NamedSharding(mesh, PartitionSpec("device"))
    a = jax.device_put(jnp.full((mesh.size, size, size), 0.5, jnp.float32), split)

    def on_device(a: jax.Array) -> jax.Array:
        return jnp.matmul(a[0], a[0], precision="highest")[None]

    spec = PartitionSpec("device")
    product = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=spec))
    jax.block_until_ready(product(a))
    return lambda: jax.block_until_ready(product(a))


def product_rate(torch_product: Callable[[int], Callable[[], object]] | None) -> dict[str, Any]:
    """Float32 matrix-product rate of the machine in GFLOP/s: the best of JAX and PyTorch.

    Args:
      torch_product: size to a call that multiplies two matrices of that size, ``None`` without
        PyTorch.
    """
    sizes = (512, 1024, 2048) if jax.default_backend() == "cpu" else (2048, 4096, 8192)
    rates: dict[str, float] = {}
    for size in sizes:
        runs = {"jax": (_jax_products(size), len(jax.devices()))}
        if torch_product is not None:
            runs["torch"] = (torch_product(size), 1)
        for name, timed in interleave(runs, 5).items():
            rates[f"{name} {size}"] = round(2 * size**3 / timed.best / 1e9, 1)
    return {"best_gflops": max(rates.values()), "by_size": rates}
