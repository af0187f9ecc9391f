"""Groups of sequences side by side, one for each core of a CPU.

What one token takes is too little for XLA to divide it over threads: a batch is hardly faster on
two cores than on one. Its halves, each in a thread of its own, are. JAX compiles what both need
once.
"""

import collections
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from qkvflow.limits import cpu_limit

_FEW = 4
"""Sequences of a group that are too few to make more groups of: each reads all weights."""


def lanes(sequences: int) -> int:
    """How many groups run at once: where there is one CPU device, up to one for each core."""
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        return 1
    return max(1, min(cpu_limit(), sequences, max(2, sequences // _FEW)))


def side_by_side(work: Iterable[Iterator[Any]], at_once: int) -> None:
    """Exhaust iterators, `at_once` of them at a time, each in a thread."""
    if at_once < 2:
        for each in work:
            collections.deque(each, maxlen=0)
        return
    stopped = threading.Event()

    def exhaust(each: Iterator[Any]) -> None:
        for _ in each:
            if stopped.is_set():
                return

    with ThreadPoolExecutor(at_once) as pool:
        try:
            for future in [pool.submit(exhaust, each) for each in work]:
                future.result()
        except BaseException:  # Ctrl-C as well: the others end after what they are about.
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
