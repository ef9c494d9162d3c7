"""Flags of the execution, what must be set before jax starts, and the progress bar."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Annotated, TypeAlias

import tyro

from jaxsens.estimate import Proportion

Batch: TypeAlias = Annotated[
    int | None, tyro.conf.arg(help="Models in one compiled call. Execution only.")
]
Devices: TypeAlias = Annotated[
    int | None, tyro.conf.arg(help="Devices to use, by default all. Execution only.")
]
CpuDevices: TypeAlias = Annotated[
    int | None,
    tyro.conf.arg(
        help="Split the CPU into this many devices, by default one a core. Execution only."
    ),
]
CompileCache: TypeAlias = Annotated[
    str | None, tyro.conf.arg(help="Directory of a persistent compile cache. Off by default.")
]
ShowProgress: TypeAlias = Annotated[bool, tyro.conf.arg(help="Show a bar (only on a terminal).")]


def configure_backend(cpu_devices: int | None, compile_cache: str | None) -> None:
    """Sets what must be set before jax starts: CPU devices and the compile cache.

    Raises:
      ValueError: no such number of CPU devices, or jax has started with another one.
    """
    import jax

    chosen = cpu_devices is not None
    if cpu_devices is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        cpu_devices = min(cores or 1, 64)
    if cpu_devices < 1:
        raise ValueError(f"cpu-devices: {cpu_devices} given; it must be at least 1")
    try:
        jax.config.update("jax_num_cpu_devices", cpu_devices)
    except RuntimeError:
        # The backend of this process has started already (main called from Python).
        if chosen:
            raise ValueError(
                f"cpu-devices: {cpu_devices} given; jax has started with another number"
            ) from None
    if compile_cache is not None:
        jax.config.update("jax_compilation_cache_dir", compile_cache)


@contextlib.contextmanager
def progress_bar(
    show: bool,
) -> Iterator[Callable[[int, int, float, Proportion], None] | None]:
    """A progress bar on stderr, drawn from the host loop; None where it is not a terminal.

    The function that it gives takes the models done, the models wanted, the seconds since the
    start, and the running P(K_0 >= 1).
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeRemaining

    console = Console(stderr=True)
    if not (show and console.is_terminal):
        yield None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, TimeRemaining(), console=console) as bar:
        task = bar.add_task("models", total=None, state="compiling")

        def update(done: int, wanted: int, seconds: float, p: Proportion) -> None:
            rate = done / seconds if seconds else 0.0
            state = f"{rate:,.0f}/s  P(K_0>=1) in [{p.low:.5f}, {p.high:.5f}]"
            bar.update(task, total=wanted, completed=done, state=state if done else "compiling")

        yield update
