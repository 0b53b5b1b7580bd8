"""Room for the threads that Intel's runtime works with, on cores that the thread which submits is not on.

Linux mostly wakes them on the core of the thread that wakes them. That goes on with its own share of the work, so they
wait for milliseconds until they are moved to a core that is idle: what took two cores 60 us took 110 half of the time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Collection
from functools import cache as once
from pathlib import Path

_TASKS = Path("/proc/self/task")
_OWN_PLACES = ("DPCPP_CPU_CU_AFFINITY", "SYCL_CPU_CU_AFFINITY")
"""Environment variables by which a user has the runtime choose a core for each thread."""
MOST_THREADS = 15
"""On larger machines others do the work of the one that waits, and it would take longer to move all of them."""


def threads_of_process() -> frozenset[int]:
    """The numbers that Linux gives the threads there are; none on other systems."""
    with contextlib.suppress(OSError):
        return frozenset(int(task.name) for task in _TASKS.iterdir())
    return frozenset()


@once
def _core_of() -> Callable[[], int] | None:
    """What says which core the calling thread is on, or None."""
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.PyDLL(None).sched_getcpu
    return None


class RuntimeThreads:
    """``threads`` of the runtime, which may be on any core but that of the thread that submitted last.

    Where there are many, or the runtime chooses their cores, they are left alone.
    """

    def __init__(self, threads: Collection[int]) -> None:
        are_left_alone = len(threads) > MOST_THREADS or any(name in os.environ for name in _OWN_PLACES)
        self.threads = () if are_left_alone else tuple(threads)
        self._core_of = _core_of() if self.threads else None
        self._core = -1

    def make_room(self) -> None:
        """Keeps them off the core that the calling thread is on, as far as it may use another one."""
        if self._core_of is None:
            return
        core = self._core_of()
        if core != self._core:
            self._core = core
            others = os.sched_getaffinity(0) - {core}
            for thread in self.threads if others else ():
                # A forked process has none of them.
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, others)
