"""Brief work, which the thread that submits it does best itself: to wake another one takes about 10 us."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mpsgrad.devices.contract import Dispatch, Submission
from mpsgrad.devices.opencl_launch import HostTime, OpenCLSubmission, enqueued, entry_point, pointer_argument

if TYPE_CHECKING:
    import pyopencl

SURELY_BRIEF_BYTES = 4 << 10
SURELY_BRIEF_BYTES_OF_A_THREADGROUP = 128 << 10
"""A threadgroup has one thread anyway, which need not be another one."""
MOST_BYTES, MOST_BYTES_OF_A_THREADGROUP = 2 << 20, 8 << 20
"""More would put out of a core's cache what the caller has there. What two dispatches use counts twice."""
SURELY_SHORT_SECONDS = 12e-6
"""Others are no sooner: to hand them the work takes nearly as long, even while they are awake."""
LONGEST_SECONDS, LONGEST_SECONDS_OF_A_THREADGROUP, SURELY_LONG_SECONDS = 60e-6, 120e-6, 1e-3
"""The thread that submits could go on while others do what takes longer, even if they are no sooner. On cold caches a
few runs may take so long; of what takes longer by far there are two."""
TRIALS = 5
"""So often work is timed on either way, as others disturb some."""
WARMING_RUNS = 10
"""On either way, before those that count: memory is new, caches are cold, and the queue's threads sleep."""
RUNS_BETWEEN_TRIALS, MOST_RUNS_BETWEEN_TRIALS = 1000, 16_000
"""Of the same work: the other way may have become the faster one, as others use the machine or no longer do. As long as
it has not, twice as many each time, since trials take longer than what they decide about."""
WORK_REMEMBERED = 4096

_nbytes = attrgetter("nbytes")


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


class TimedWork:
    """Some work, and how long it took at once and on the queue, until it is known which is faster."""

    is_at_once = False
    """Which way is the faster one, for ``runs_left`` more runs."""
    runs_left: float = 0

    def __init__(self, is_of_one_thread: bool = False) -> None:
        """``is_of_one_thread`` says that no other would share it."""
        self._is_of_one_thread = is_of_one_thread
        self._at_once: list[float] = []
        self._queued: list[HostTime] = []
        self._runs_between_trials = 0

    @property
    def is_tried_at_once(self) -> bool:
        """Which way is tried next: the queue last, several times in a row, as its threads sleep between two runs."""
        return len(self._at_once) < WARMING_RUNS + TRIALS

    def add_at_once(self, seconds: float) -> None:
        """Notes a time of the work at once."""
        self._at_once.append(seconds)

    def add_queued(self, time: HostTime) -> None:
        """Notes what the host spends on the work on the queue; the waiting is added to ``time`` when it is over."""
        self._queued.append(time)

    def decide(self) -> bool:
        """Whether it is known which way is faster."""
        runs = len(self._at_once)
        longest = LONGEST_SECONDS_OF_A_THREADGROUP if self._is_of_one_thread else LONGEST_SECONDS
        is_tried = not self.is_tried_at_once
        is_too_long = runs > 1 and min(self._at_once) > (longest if is_tried else SURELY_LONG_SECONDS)
        if not (is_too_long or is_tried):
            return False
        is_at_once = not is_too_long
        if is_at_once and not self._is_of_one_thread:
            import statistics

            seconds = statistics.median(self._at_once[WARMING_RUNS:])
            if seconds > SURELY_SHORT_SECONDS:
                if len(self._queued) < WARMING_RUNS + TRIALS:
                    return False
                is_at_once = seconds <= statistics.median([time.seconds for time in self._queued[WARMING_RUNS:]])
        is_as_before = is_at_once == self.is_at_once and self._runs_between_trials > 0
        more = min(2 * self._runs_between_trials, MOST_RUNS_BETWEEN_TRIALS)
        self.runs_left = self._runs_between_trials = more if is_as_before else RUNS_BETWEEN_TRIALS
        self.is_at_once = is_at_once
        self._at_once, self._queued = [], []
        return True


_SURELY_BRIEF = TimedWork()
_SURELY_BRIEF.is_at_once, _SURELY_BRIEF.runs_left = True, math.inf
LEFT_TO_OTHERS = TimedWork()
LEFT_TO_OTHERS.runs_left = math.inf
"""Work of users, and on much memory."""


class ImmediateQueue:
    """A queue whose work the thread does that puts it there, before that returns.

    Whether that suits some work, memory alone does not say: it is timed on either way. Work of the same functions on as
    many threadgroups and as much memory is taken for the same work.
    """

    def __init__(self, queue: pyopencl.CommandQueue) -> None:
        self._queue = queue
        self._pointer = pointer_argument(queue)
        self._work: dict[tuple[Any, ...], TimedWork] = {}
        self._work_of_patterns: dict[object, TimedWork] = {}
        """That of dispatches with patterns, by these: what follows from them need not be looked up again. That of one
        dispatch by its pattern, not by a tuple of it."""
        self._on_trial: TimedWork | None = None
        """What is to be put on the other queue next."""

    def run_if_brief(self, dispatches: Sequence[Dispatch]) -> FinishedWork | None:
        """Does the work of ``dispatches``, or gives None if others do that sooner: their queue is idle.

        What kernels of users do is not known, which is why they are left to others.
        """
        patterns: object = None
        if len(dispatches) == 1:
            patterns = dispatches[0].pattern
        else:
            of_each = tuple([each.pattern for each in dispatches])
            if None not in of_each:
                patterns = of_each
        known = self._work_of_patterns.get(patterns)
        if known is None:
            known = self._work_of(dispatches)
            if patterns is not None:
                if len(self._work_of_patterns) >= WORK_REMEMBERED:
                    self._work_of_patterns.clear()
                self._work_of_patterns[patterns] = known
        if known.runs_left > 0 or known.decide():
            known.runs_left -= 1
            return FinishedWork(self._run(dispatches)) if known.is_at_once else None
        if known.is_tried_at_once:
            seconds = self._run(dispatches)
            known.add_at_once(seconds)
            return FinishedWork(seconds)
        self._on_trial = known
        return None

    def _work_of(self, dispatches: Sequence[Dispatch]) -> TimedWork:
        """What is known of the work of ``dispatches``; what is a user's or on much memory is left to others."""
        nbytes, may_be_long = 0, False
        work: list[Any] = []
        for dispatch in dispatches:
            function, threadgroups, before = dispatch.function, dispatch.threadgroups, nbytes
            for buffer in dispatch.buffers:
                nbytes += buffer.nbytes
            if dispatch.held:
                nbytes += sum(map(_nbytes, dispatch.held))
            if nbytes > MOST_BYTES_OF_A_THREADGROUP or function.box is not None:  # type: ignore[attr-defined]
                return LEFT_TO_OTHERS
            if threadgroups != 1:
                may_be_long = True
            work += function, threadgroups, nbytes - before
        if may_be_long and nbytes > MOST_BYTES:
            return LEFT_TO_OTHERS
        if nbytes <= (SURELY_BRIEF_BYTES if may_be_long else SURELY_BRIEF_BYTES_OF_A_THREADGROUP):
            return _SURELY_BRIEF
        key = tuple(work)
        known = self._work.get(key)
        if known is None:
            if len(self._work) >= WORK_REMEMBERED:
                self._work.clear()
            known = self._work[key] = TimedWork(is_of_one_thread=not may_be_long)
        return known

    def watch(self, submission: OpenCLSubmission, started: float) -> None:
        """Called with what ``run_if_brief`` left to the other queue, where it is by now; its way there ``started``."""
        if self._on_trial is not None:
            submission.host_time = HostTime(perf_counter() - started)
            self._on_trial.add_queued(submission.host_time)
            self._on_trial = None

    def _run(self, dispatches: Sequence[Dispatch]) -> float:
        """Does the work; the seconds that it took."""
        enqueue = entry_point()
        started = perf_counter()
        if enqueue is None:
            enqueued(self._queue, dispatches)
        else:
            for dispatch in dispatches:
                dispatch.function.launch(enqueue, self._pointer, dispatch)  # type: ignore[attr-defined]
        return perf_counter() - started
