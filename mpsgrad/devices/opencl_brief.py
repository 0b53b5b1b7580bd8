"""Brief work, which the thread that submits it does best itself: to wake another one takes about 10 us."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpsgrad.devices.contract import Dispatch, Submission
from mpsgrad.devices.opencl_launch import OpenCLSubmission, engine_error, enqueued, entry_point

if TYPE_CHECKING:
    import pyopencl

SURELY_BRIEF_BYTES = 4 << 10
SURELY_BRIEF_BYTES_OF_A_THREADGROUP = 128 << 10
"""A threadgroup has one thread anyway, which need not be another one."""
MOST_BYTES = 2 << 20
"""More would put out of a core's cache what the caller has there. What two dispatches use counts twice."""
LONGEST_SECONDS = 60e-6
"""The thread that submits could go on while others do what takes longer, even if they are no sooner."""
SECONDS_OF_THE_QUEUE = 2e-6
"""What the host does for work on the queue before it is there and after its end, and not for work at once."""
TRIALS = 5
"""So often work is timed on either way: the first times memory is new and caches are cold, and others disturb some."""
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


class Trials:
    """How long some work took at once and on the queue, until it is known which is faster."""

    def __init__(self) -> None:
        self._at_once: list[float] = []
        self._queued: list[float] = []
        self._events: tuple[pyopencl.Event, pyopencl.Event] | None = None

    @property
    def is_next_at_once(self) -> bool:
        """Which way is tried next: they take turns, as everything may take longer for a while."""
        return len(self._at_once) <= len(self._queued)

    def add_at_once(self, seconds: float) -> None:
        """Notes a time of work at once."""
        self._at_once.append(seconds)

    def watch(self, submission: OpenCLSubmission) -> None:
        """Has the time of work on the queue noted by ``note_queued``, once that has run."""
        self._events = submission.events

    def note_queued(self) -> None:
        """Notes the time of the work that was watched last, which has run."""
        if self._events is not None:
            first, last = self._events
            self._events = None
            with contextlib.suppress(engine_error()):
                self._queued.append((last.profile.end - first.profile.queued) * 1e-9 + SECONDS_OF_THE_QUEUE)

    @property
    def is_faster_at_once(self) -> bool | None:
        """None as long as that is not known."""
        if len(self._at_once) > 1 and min(self._at_once) > LONGEST_SECONDS:
            return False
        if len(self._queued) < TRIALS:
            return None
        return statistics.median(self._at_once) <= statistics.median(self._queued)


class ImmediateQueue:
    """A queue whose work the thread does that puts it there, before that returns.

    Whether that suits some work, memory alone does not say: it is timed on either way. Work of the same functions on as
    many threadgroups and as much memory is taken for the same work.
    """

    def __init__(self, queue: pyopencl.CommandQueue) -> None:
        self._queue = queue
        self._pointer = ctypes.c_void_p(queue.int_ptr)
        self._ways: dict[tuple[Any, ...], bool | Trials] = {}
        """Whether work is done at once."""
        self._on_trial: Trials | None = None
        """Of the work that is to be put on the other queue next."""

    def run_if_brief(self, dispatches: Sequence[Dispatch]) -> FinishedWork | None:
        """Does the work of ``dispatches``, or gives None if others do that sooner: their queue is idle.

        What kernels of users do is not known, which is why they are left to others.
        """
        nbytes, may_be_long = 0, False
        work: list[Any] = []
        for dispatch in dispatches:
            function, threadgroups, before = dispatch.function, dispatch.threadgroups, nbytes
            for buffer in dispatch.buffers:
                nbytes += buffer.nbytes
            for buffer in dispatch.held:
                nbytes += buffer.nbytes
            if nbytes > MOST_BYTES or function.box is not None:  # type: ignore[attr-defined]
                return None
            if threadgroups != 1:
                may_be_long = True
            work += function, threadgroups, nbytes - before
        if nbytes <= (SURELY_BRIEF_BYTES if may_be_long else SURELY_BRIEF_BYTES_OF_A_THREADGROUP):
            return FinishedWork(self._run(dispatches))
        key = tuple(work)
        way = self._ways.get(key)
        if way is False:
            return None
        if way is True:
            return FinishedWork(self._run(dispatches))
        return self._try(key, way or Trials(), dispatches)

    def watch(self, submission: OpenCLSubmission) -> None:
        """Called with what ``run_if_brief`` left to the other queue."""
        if self._on_trial is not None:
            self._on_trial.watch(submission)
            self._on_trial = None

    def _try(self, key: tuple[Any, ...], trials: Trials, dispatches: Sequence[Dispatch]) -> FinishedWork | None:
        """Does the work on the way whose turn it is."""
        trials.note_queued()
        is_at_once = trials.is_faster_at_once
        if len(self._ways) >= WORK_REMEMBERED:
            self._ways.clear()
        self._ways[key] = trials if is_at_once is None else is_at_once
        if is_at_once or (is_at_once is None and trials.is_next_at_once):
            seconds = self._run(dispatches)
            trials.add_at_once(seconds)
            return FinishedWork(seconds)
        if is_at_once is None:
            self._on_trial = trials
        return None

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
