"""Ctrl-C and SIGTERM (a preempted job) as one thing that no library can swallow for good."""

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Both signals raise ``KeyboardInterrupt``, at once and again at the next ``check()``.

    An exception raised inside somebody's garbage-collection hook is printed and dropped; the check
    between two chunks makes up for that.
    """
    requested: list[int] = []

    def on_signal(number: int, _: object) -> None:
        requested.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if requested:
            raise KeyboardInterrupt

    before = {s: signal.signal(s, on_signal) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
