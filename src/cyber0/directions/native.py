"""The backend `cpu`: the stream compiled from C, on as many threads as there are cores."""

import ctypes
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.directions.backend import Buffer, Packed
from cyber0.errors import BackendError
from cyber0.threads import cores, run_in_threads

__all__ = ["WHOLE", "Cpu", "available", "library"]

NAME = "cyber0.directions._stream"
WORTH_A_THREAD = 2**17  # least coordinates for a thread: they take 100 to 200 us, and so does waking it
WORTH_A_PART = 2**15  # the same for a thread of torch's, which is awake if torch has just computed something
TILE = 2**11  # coordinates that `fold` keeps in the first-level cache
LONGEST = 2**27  # numbers of directions that `fold` computes in one call, which nothing interrupts: a fifth of a second
WHOLE = 2**16  # most coordinates of a direction that stays in the second-level cache
WORTH_MEMORY = (
    1.5  # how many times longer writing into caches takes where writing past them is better for the product, too
)
RETRIED, LATEST = 64, 4  # after how many calls the slower way is tried again, and how many times are remembered of each
UPDATES = 2**22  # most coordinates of updates in memory at a time
_VOID, _INT, _I64, _U64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_uint64
_SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "fill": ([_VOID, _I64, _U64, _VOID], None),
    "squared_length": ([_I64, _U64, _VOID], _I64),
    "move": ([_VOID, _INT, _VOID, _VOID, _INT, _I64, _U64, _VOID], None),
    "move_rows": ([_VOID, _INT, _VOID, _I64, _I64, _VOID, _VOID, _INT, _U64, _VOID], None),
    "descend": ([_VOID, _INT, _VOID, _INT, _I64, _U64, _VOID, _I64], None),
    "share": ([_VOID, _INT, _I64, _VOID, _VOID, _INT, _VOID, _VOID, _INT, _I64, _U64, _VOID, _I64], None),
    "fold": ([_VOID, _INT, _I64, _U64, _VOID, _I64, _I64], None),
    "spheres": ([_VOID, _VOID, _VOID, _I64, _VOID, _I64], None),
    "updates": ([_VOID, _I64, _VOID, _I64, _I64, _VOID], None),
    "subtract": ([_VOID, _INT, _I64, _U64, _VOID, _I64, _VOID, _I64, _I64], None),
    "fingerprint": ([_VOID, _INT, _I64, _U64], _U64),
}


def available() -> bool:
    """Return whether the extension was compiled when cyber0 was installed."""
    return find_spec(NAME) is not None


@lru_cache(maxsize=1)
def library() -> Any:
    """Return the compiled library."""
    spec = find_spec(NAME)
    if spec is None or spec.origin is None:
        raise BackendError("backend 'cpu' was not compiled: install a C compiler and reinstall cyber0, or use 'numpy'")
    return declared(ctypes.CDLL(spec.origin))


class Team(ctypes.Structure):
    """The threads that torch computes on: the address of what runs work on them, and of what tells them apart."""

    _fields_ = (("run", _VOID), ("number", _VOID), ("threads", ctypes.c_uint))


def openmp() -> Team | None:
    """Return torch's threads, if it has several.

    A forked process must not use them: they are its parent's.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or _forked or torch.get_num_threads() < 2 or (found := _functions()) is None:
        return None
    return Team(*found, torch.get_num_threads())


@lru_cache(maxsize=1)
def _functions() -> tuple[int | None, ...] | None:
    """Return the addresses of two functions of torch's OpenMP, which is GNU's."""
    try:
        lines = [line for line in Path("/proc/self/maps").read_bytes().splitlines() if b"libgomp" in line]
        mapped = {os.fsdecode(line.split(maxsplit=5)[-1]) for line in lines}  # a path may have spaces
        ours = {each for each in mapped if "torch" in each} if len(mapped) > 1 else mapped  # others bring their own
        library = ctypes.CDLL(ours.pop()) if len(ours) == 1 else None
        functions = None if library is None else (library.GOMP_parallel, library.omp_get_thread_num)
    except (OSError, AttributeError):
        return None
    return functions and tuple(ctypes.cast(each, _VOID).value for each in functions)


def _note_fork() -> None:
    global _forked
    _forked = True


_forked = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def declared(loaded: Any) -> Any:
    """Return a library with the types of its functions declared."""
    for name, (arguments, result) in _SIGNATURES.items():
        function = getattr(loaded, f"cyber0_{name}")
        function.argtypes, function.restype = arguments, result
    return loaded


class _Writing:
    """How both signs of a tensor are written: into the caches, or past them. No bit depends on it.

    Products read them on all cores. Where these share no cache, as on two dies or two sockets, a line that is written
    again is first taken back from the others, which takes two or three times as long as writing to memory. Where they
    do, writing to memory is slower. A virtual machine may move from one to the other at any time. So both are timed,
    and what was slower is tried again now and then.
    """

    def __init__(self) -> None:
        self._calls = count()
        self._spent = {past_caches: deque[float](maxlen=LATEST) for past_caches in (False, True)}

    @contextmanager
    def timed(self) -> Generator[bool]:
        """Yield whether to write past the caches, and note how long that took."""
        into, past = (min(self._spent[way], default=0.0) for way in (False, True))
        past_caches = (into > WORTH_MEMORY * past) != (next(self._calls) % RETRIED == 0)
        begin = time.perf_counter()
        yield past_caches
        self._spent[past_caches].append(time.perf_counter() - begin)


@lru_cache(maxsize=64)
def _writing(size: int, itemsize: int, bits: int) -> _Writing:  # noqa: ARG001
    """Return what is known of tensors of this size and type, along directions of this family."""
    return _Writing()


@dataclass(frozen=True, slots=True)
class Cpu:
    """The fast CPU backend; `threads` (default: all cores this process may use) changes the speed, never a bit.

    What it moves and descends may be torch tensors on the CPU, too.

    >>> from cyber0.directions import DirectionKey, sample
    >>> key = DirectionKey(seed=1, round=0)
    >>> (sample(key, 10**5, backend=Cpu(threads=1)) == sample(key, 10**5, backend=Cpu(threads=2))).all()
    np.True_
    """

    threads: int | None = None
    name: str = "cpu"

    def fill(self, out: Buffer, packed: Packed, start: int) -> None:
        at, width = out.ctypes.data, out.shape[1]
        self._share_rows(
            packed,
            width,
            lambda row, direction, first, size: library().cyber0_fill(
                at + (row * width + first) * 4, size, start + first, direction
            ),
        )

    def fill_spheres(self, out: Buffer, packed: Packed) -> NDArray[np.float32]:
        """Write whole sphere directions of a small model, packed with units of 1; return their units.

        Each is generated once, where `squared_lengths` and `fill` would generate it twice.
        """
        units = np.empty(len(packed), dtype=np.float32)
        rows, width = out.shape
        team = self._team(out, rows * width)

        def some(first: int, count: int) -> None:
            buffers = _at(out, first * width), _at(units, first), width, packed[first:].ctypes.data, count
            library().cyber0_spheres(None if team is None else ctypes.addressof(team), *buffers)

        if team is None:
            self._share(rows, some, cost=width, whole=1)
        else:
            some(0, rows)
        return units

    def squared_lengths(self, packed: Packed, dimension: int, device: Any) -> list[int]:  # noqa: ARG002
        return self._share_rows(
            packed,
            dimension,
            lambda _, direction, first, size: library().cyber0_squared_length(size, first, direction),
        )

    def move(self, weights: Buffer, packed: Packed, start: int, plus: Buffer, minus: Buffer | None) -> None:
        if self._on_team(weights, plus, minus, packed, start, 0):
            return
        self._share(
            len(weights),
            lambda first, size: library().cyber0_move(
                *(_at(weights, first), _is16(weights), _at(plus, first), _at(minus, first), _is16(plus)),
                *(size, start + first, packed.ctypes.data),
            ),
        )

    def move_rows(
        self, weights: Buffer, rows: NDArray[np.int64], packed: Packed, start: int, plus: Buffer, minus: Buffer
    ) -> None:
        """Do what `move` does for some rows of a matrix alone; plus and minus are [rows, width]."""
        width = plus.shape[1]
        self._share(
            len(rows),
            lambda first, count: library().cyber0_move_rows(
                *(_at(weights, 0), _is16(weights), _at(rows, first), count, width),
                *(_at(plus, first * width), _at(minus, first * width), _is16(plus), start, packed.ctypes.data),
            ),
            cost=width,
            whole=1,
        )

    def descend(self, weights: Buffer | None, packed: Packed, start: int, out: Buffer) -> None:
        if self._on_team(weights, out, None, packed, start, len(packed)):
            return
        self._share(
            len(out),
            lambda first, size: library().cyber0_descend(
                *(_at(weights, first), _is16(weights), _at(out, first), _is16(out)),
                *(size, start + first, packed.ctypes.data, len(packed)),
            ),
        )

    def descend_all(self, tensors: Sequence[tuple[Buffer, int]], packed: Packed) -> None:
        for flat, start in tensors:
            self.descend(flat, packed, start, flat)

    def fold(self, weights: Buffer, packed: Packed, start: int) -> None:
        self._share(
            len(weights),
            lambda first, size: library().cyber0_fold(
                *(_at(weights, first), _is16(weights), size, start + first, packed.ctypes.data), *packed.shape
            ),
            cost=packed.size,
            whole=TILE,
            most=LONGEST,
        )

    def fold_spheres(self, tensors: Sequence[tuple[Buffer, int]], packed: Packed, dimension: int) -> None:
        """Descend by sphere directions of a small model, packed as [commits, directions] with units of 1.

        The update of a commit does not depend on the weights: so threads share the commits, and generate each direction
        once, where `squared_lengths` and `fold` would generate it twice.
        """
        commits, width = packed.shape
        most = max(1, UPDATES // dimension)
        for part in (packed[first : first + most] for first in range(0, commits, most)):
            updates = self._updates(part, dimension)
            for weights, start in tensors:
                library().cyber0_subtract(
                    *(_at(weights, 0), _is16(weights), len(weights), start, updates.ctypes.data, dimension),
                    *(part.ctypes.data, len(part), width),
                )

    def _updates(self, packed: Packed, dimension: int) -> NDArray[np.float32]:
        updates = np.empty((len(packed), dimension), dtype=np.float32)
        width = packed.shape[1]

        def some(first: int, count: int) -> None:
            room = np.empty(dimension, dtype=np.float32)
            library().cyber0_updates(
                *(_at(updates, first * dimension), dimension, packed[first:].ctypes.data, count, width),
                room.ctypes.data,
            )

        self._share(len(packed), some, cost=dimension * width, whole=1)
        return updates

    def fingerprint(self, weights: Buffer, start: int) -> int:
        parts = self._share(
            len(weights),
            lambda first, size: library().cyber0_fingerprint(_at(weights, first), _is16(weights), size, start + first),
        )
        return sum(parts) % 2**64

    def _on_team(
        self, weights: Buffer | None, out: Buffer, minus: Buffer | None, packed: Packed, start: int, count: int
    ) -> bool:
        """Move or descend a tensor on torch's own threads; return whether it has any, and the work is worth them."""
        size, cost = len(out), max(1, count)
        team = self._team(out, size * cost)
        if team is None:
            return False
        parts = min(team.threads, size * cost // WORTH_A_PART)
        step, taken = -(-size // parts // 128) * 128, ctypes.create_string_buffer(parts)
        buffers = _at(weights, 0), _is16(weights), _at(out, 0), _at(minus, 0), _is16(out)
        writing = nullcontext(False) if minus is None else _writing(size, out.itemsize, int(packed["bits"][0])).timed()
        with writing as past_caches:
            library().cyber0_share(
                *(ctypes.addressof(team), past_caches, step, taken, *buffers, size, start, packed.ctypes.data, count)
            )
        return True

    def _team(self, out: Buffer, cost: int) -> Team | None:
        """Return torch's threads: None if `out` is not torch's, or the work is not worth them.

        These spin for some milliseconds after each operation, and would keep other threads from their cores. The team
        is always as large as torch's own: for another size its threads would be ended, and started again.
        """
        if isinstance(out, np.ndarray) or cost < 2 * WORTH_A_PART:
            return None
        team = openmp()
        return None if team is None or (self.threads or team.threads) < team.threads else team

    def _share_rows(self, packed: Packed, size: int, work: Callable[[int, int, int, int], Any]) -> list[Any]:
        """Run work(row, address of its direction, first, size) on threads, which share the rows or a single row."""
        at = packed.ctypes.data
        if len(packed) == 1:
            parts = self._share(size, lambda first, part: work(0, at, first, part))
            return [sum(parts)] if parts[0] is not None else parts

        def some(first: int, count: int) -> list[Any]:
            return [work(row, at + row * packed.itemsize, 0, size) for row in range(first, first + count)]

        parts = self._share(len(packed), some, cost=size, whole=1)
        return [result for part in parts for result in part]

    def _share(
        self, size: int, work: Callable[[int, int], Any], cost: int = 1, whole: int = 128, most: int | None = None
    ) -> list[Any]:
        """Run work(first, size) on equal parts of the range, in multiples of `whole`, on threads.

        There is a part for each thread, or more, so that one costs at most `most`. 128 coordinates are whole blocks in
        every family, so that no block is generated by two threads.
        """
        threads = min(self.threads or cores(), max(1, size * cost // WORTH_A_THREAD))
        count = threads if most is None else threads * max(1, -(-size * cost // (threads * most)))
        step = -(-size // count // whole) * whole
        if step >= size:
            return [work(0, size)]
        parts = [partial(work, first, min(step, size - first)) for first in range(0, size, step)]
        return run_in_threads(threads, parts)


def _at(buffer: Buffer | None, first: int) -> int | None:
    if buffer is None:
        return None
    begin = buffer.ctypes.data if isinstance(buffer, np.ndarray) else buffer.data_ptr()
    return begin + first * buffer.itemsize


def _is16(buffer: Buffer | None) -> int:
    return int(buffer is not None and buffer.itemsize == 2)
