"""Brief work, which the thread that submits it does best itself: to wake another one takes about 10 us."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpsgrad.devices.contract import Dispatch, Submission
from mpsgrad.devices.opencl_launch import enqueued, entry_point

if TYPE_CHECKING:
    import pyopencl

SURELY_BRIEF_BYTES = 4 << 10
SURELY_BRIEF_BYTES_OF_A_THREADGROUP = 128 << 10
"""A threadgroup has one thread anyway, which need not be another one."""
MOST_BYTES = 2 << 20
"""More would put out of a core's cache what the caller has there. What two dispatches use counts twice."""
LONGEST_SECONDS = 11e-6
"""For each dispatch. What takes longer, two threads do sooner that have to be woken, and wait for each other."""
LONGEST_SECONDS_OF_A_THREADGROUP = 60e-6
"""Where no dispatch has several threadgroups another thread is no sooner; but the one that submits could go on."""
TRIALS = 5
"""What was too long so many times is not tried again: the first times memory is new and caches are cold."""
WORK_REMEMBERED = 4096


class FinishedWork(Submission):
    """Work that the thread that submitted it has done, in so many ``seconds`` by its clock."""

    is_complete = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wait(self) -> None:
        return

    @property
    def gpu_time(self) -> float:
        return self._seconds


class ImmediateQueue:
    """A queue whose work the thread does that puts it there, before that returns.

    Whether that suits some work, memory alone does not say: it is timed. Work of the same functions on as many
    threadgroups and as much memory is taken for the same work.
    """

    def __init__(self, queue: pyopencl.CommandQueue) -> None:
        self._queue = queue
        self._pointer = ctypes.c_void_p(queue.int_ptr)
        self._trials: dict[tuple[Any, ...], int] = {}
        """How often work may still be too long. Once it was not, it is not timed any more: -1."""

    def run_if_brief(self, dispatches: Sequence[Dispatch]) -> FinishedWork | None:
        """Does the work of ``dispatches``, or gives None if that takes one thread too long.

        What kernels of users do is not known, which is why they are left to others.
        """
        nbytes, may_be_long = 0, False
        work: list[Any] = []
        for dispatch in dispatches:
            function, before = dispatch.function, nbytes
            for buffer in dispatch.buffers:
                nbytes += buffer.nbytes
            for buffer in dispatch.held:
                nbytes += buffer.nbytes
            if nbytes > MOST_BYTES or function.box is not None:  # type: ignore[attr-defined]
                return None
            may_be_long = may_be_long or dispatch.threadgroups != 1
            work += function, dispatch.threadgroups, nbytes - before
        if nbytes <= (SURELY_BRIEF_BYTES if may_be_long else SURELY_BRIEF_BYTES_OF_A_THREADGROUP):
            return FinishedWork(self._run(dispatches))
        key = tuple(work)
        trials = self._trials.get(key, TRIALS)
        if trials == 0:
            return None
        seconds = self._run(dispatches)
        if trials > 0:
            longest = LONGEST_SECONDS * len(dispatches) if may_be_long else LONGEST_SECONDS_OF_A_THREADGROUP
            if len(self._trials) >= WORK_REMEMBERED:
                self._trials.clear()
            self._trials[key] = trials - 1 if seconds > longest else -1
        return FinishedWork(seconds)

    def _run(self, dispatches: Sequence[Dispatch]) -> float:
        """Does the work; the seconds that it took."""
        enqueue = entry_point()
        started = time.perf_counter()
        if enqueue is None:
            enqueued(self._queue, dispatches)
        else:
            for dispatch in dispatches:
                dispatch.function.launch(enqueue, self._pointer, dispatch)  # type: ignore[attr-defined]
        return time.perf_counter() - started
