"""Batches as a pure function of (seed, step): nothing to save, nothing to restore.

Row r of the batch at a step starts at

    floor(u n / 2^64),    u = Threefry-2x32(key = (seed, tag), counter = (step, r)),

where n is the number of places a window can start (Salmon et al., Parallel Random Numbers: As Easy
as 1, 2, 3, 2011). It is written twice: in JAX, to run inside a compiled step and under `vmap` over
seeds, and in NumPy, so that a loader on the host never waits for a busy device. Both give the same
bits, and no version of a library can change them.
"""

import queue
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Integer

_TAG = 0x71666C77
_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_DEVICE_BYTES = 1 << 30
_DEVICE_TOKENS = 1 << 31


def fits_on_device(num_tokens: int, itemsize: int = 4) -> bool:
    """Whether a split should live on the device: at most a gibibyte, and 32-bit positions."""
    return num_tokens * itemsize <= _DEVICE_BYTES and num_tokens < _DEVICE_TOKENS


def window_starts(
    seed: int | Integer[Array, ""],
    step: int | Integer[Array, ""],
    batch_size: int,
    num_tokens: int,
    context: int,
) -> Int[Array, " batch"]:
    """Where the windows of one batch start, in JAX; `seed` and `step` may be traced."""
    places = _places(num_tokens, context)
    if num_tokens >= _DEVICE_TOKENS:
        raise ValueError("positions beyond 31 bits need BatchLoader")
    rows = jnp.arange(batch_size, dtype=jnp.uint32)
    steps = jnp.broadcast_to(_word(step), (batch_size,))
    high, low = threefry(_word(seed), jnp.uint32(_TAG), steps, rows)
    # floor((high 2^32 + low) n / 2^64) in 32-bit words: the carry of the middle sum counts.
    n = jnp.uint32(places)
    middle = high * n
    carry = (middle + _multiply_high(low, n)) < middle
    return (_multiply_high(high, n) + carry.astype(jnp.uint32)).astype(jnp.int32)


def host_window_starts(
    seed: int, step: int, batch_size: int, num_tokens: int, context: int
) -> np.ndarray:
    """The same in NumPy, for any number of tokens."""
    places = _places(num_tokens, context)
    rows = np.arange(batch_size, dtype=np.uint32)
    steps = np.full(batch_size, step & 0xFFFFFFFF, dtype=np.uint32)
    first = np.full(batch_size, seed & 0xFFFFFFFF, dtype=np.uint32)
    second = np.full(batch_size, _TAG, dtype=np.uint32)
    high, low = threefry(first, second, steps, rows)
    # Python's integers do not overflow, and a batch is short.
    starts = [
        ((h << 32 | w) * places) >> 64 for h, w in zip(high.tolist(), low.tolist(), strict=True)
    ]
    return np.asarray(starts, dtype=np.int64)


def threefry(key0: Any, key1: Any, counter0: Any, counter1: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds on arrays of 32-bit words, NumPy's or JAX's."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(_PARITY))
    x, y = counter0 + keys[0], counter1 + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))
            y = y ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def gather_windows(
    tokens: Integer[Array, " tokens"], starts: Int[Array, " batch"], context: int
) -> tuple[Int[Array, "batch seq"], Int[Array, "batch seq"]]:
    """Inputs and targets (the next tokens) of windows; past the end, the last token repeats."""
    places = starts[:, None] + jnp.arange(context + 1, dtype=starts.dtype)[None, :]
    windows = tokens.at[places].get(mode="clip").astype(jnp.int32)
    return windows[:, :-1], windows[:, 1:]


def host_windows(
    tokens: np.ndarray, starts: np.ndarray, context: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same in NumPy, from a mapped array."""
    places = starts.astype(np.int64)[:, None] + np.arange(context + 1)[None, :]
    windows = tokens[np.minimum(places, len(tokens) - 1)].astype(np.int32)
    return windows[:, :-1], windows[:, 1:]


class EvaluationWindows(NamedTuple):
    """A full pass over a split in batches of windows; row `[i, j]` is window j of batch i.

    The first `lengths` targets of a window count; a short last window has fewer than a context,
    and the rows that fill the last batch have none.
    """

    starts: np.ndarray
    lengths: np.ndarray


def evaluation_windows(num_tokens: int, context: int, batch_size: int) -> EvaluationWindows:
    """Windows side by side: every token but the first is a target exactly once."""
    targets = max(num_tokens - 1, 0)
    windows = -(-targets // context)
    batches = -(-windows // batch_size)
    dtype = np.int32 if num_tokens < _DEVICE_TOKENS else np.int64
    starts = np.zeros(batches * batch_size, dtype=dtype)
    lengths = np.zeros(batches * batch_size, dtype=np.int32)
    starts[:windows] = np.arange(windows, dtype=np.int64) * context
    lengths[:windows] = np.minimum(targets - starts[:windows].astype(np.int64), context)
    shape = (batches, batch_size)
    return EvaluationWindows(starts.reshape(shape), lengths.reshape(shape))


def window_mask(lengths: Int[Array, " batch"], context: int) -> Bool[Array, "batch seq"]:
    """Which targets of each window count."""
    return jnp.arange(context)[None, :] < lengths[:, None]


class BatchLoader:
    """Batches of a mapped array, made ahead of time by a thread.

    Iterating gives the batches of `first_step`, `first_step + 1`, and so on, without end, as
    `(inputs, targets)` of 32-bit integers: the same as `window_starts` and `gather_windows`.
    With `rows`, only that part of each batch: one process's share.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        seed: int,
        batch_size: int,
        context: int,
        first_step: int = 0,
        rows: slice | None = None,
        prefetch: int = 4,
    ) -> None:
        _places(len(tokens), context)
        self._tokens = tokens
        self._seed, self._batch_size, self._context = seed, batch_size, context
        self._rows = slice(None) if rows is None else rows
        self._queue: queue.Queue[Any] = queue.Queue(max(prefetch, 1))
        self._stopped = threading.Event()
        self._first_step = first_step
        self._thread: threading.Thread | None = None

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The batch of one step; asking for it changes nothing."""
        starts = host_window_starts(
            self._seed, step, self._batch_size, len(self._tokens), self._context
        )
        return host_windows(self._tokens, starts[self._rows], self._context)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return self

    def __next__(self) -> tuple[np.ndarray, np.ndarray]:
        if self._stopped.is_set():
            raise StopIteration
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="batches")
            self._thread.start()
        item = self._queue.get()
        if isinstance(item, BaseException):
            self.close()
            raise item
        return item

    def close(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> "BatchLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        step = self._first_step
        while not self._stopped.is_set():
            try:
                item: Any = self.batch(step)
            except Exception as error:  # Raised where the batch is asked for.
                item = error
            while not self._stopped.is_set():
                try:
                    self._queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, Exception):
                return
            step += 1


def _places(num_tokens: int, context: int) -> int:
    """How many places a window of `context` inputs and their targets can start."""
    if num_tokens < context + 1:
        raise ValueError(f"{num_tokens} tokens have no window of {context} and its targets")
    return num_tokens - context


def _word(number: int | np.integer | Array) -> Array:
    if isinstance(number, int | np.integer):
        return jnp.uint32(int(number) & 0xFFFFFFFF)
    return jnp.asarray(number).astype(jnp.uint32)


def _multiply_high(a: Array, b: Array) -> Array:
    """The upper 32 bits of a 64-bit product, out of 16-bit halves."""
    half = jnp.uint32(0xFFFF)
    a1, a0, b1, b0 = a >> 16, a & half, b >> 16, b & half
    low = a0 * b0
    one = a1 * b0 + (low >> 16)
    two = a0 * b1 + (one & half)
    return a1 * b1 + (one >> 16) + (two >> 16)


__all__ = [
    "BatchLoader",
    "EvaluationWindows",
    "evaluation_windows",
    "fits_on_device",
    "gather_windows",
    "host_window_starts",
    "host_windows",
    "threefry",
    "window_mask",
    "window_starts",
]
