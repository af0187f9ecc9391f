"""Signals that ask a run to stop, noted for the loop to act on between program calls."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals() -> Iterator[list[int]]:
    """SIGINT, SIGTERM and SIGHUP are appended to the list; a second one of any does what it always
    did."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(signum: int, _: Any) -> None:
        caught.append(signum)
        signal.signal(signum, before[signum])

    before: dict[int, Any] = {each: signal.signal(each, note) for each in STOPPING}
    try:
        yield caught
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
