"""OpenCL's compiler in a process of its own: a compiler that ends its process, or never ends, is an error here.

The process begins while the source is translated, stays for the next one, and ends with this one. A second one compiles
what other threads ask for meanwhile, or what will probably be asked for next.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread, Timer
from typing import TypeVar

from mpsgrad.devices import opencl_compiler_process
from mpsgrad.devices.opencl_compiler_process import ANSWER, APART, READY, REQUEST

MOST_SECONDS = 300.0

# Fewer threads at a time, and no optimization. Machine code for other processors would be loaded too, but nothing that
# is for this one any more.
_OTHER_WAYS: tuple[tuple[tuple[str, ...], Mapping[str, str]], ...] = (
    ((), {"CL_CONFIG_CPU_VECTORIZER_MODE": "4"}),
    ((), {"CL_CONFIG_CPU_VECTORIZER_MODE": "1"}),
    (("-cl-opt-disable",), {}),
)

LONG_SOURCE = 4000
"""Characters of a source for which a limit on unrolling pays: short ones are compiled soon."""

# A block's operations are simplified in their order, and instructions are not put in order again after registers are
# allocated, which processors do by themselves. With AVX2 sources whose simdgroups have many vectors compile in 0.7 to
# 0.95 of the time, others in the same, and the code is as fast.
SAVINGS = "-combiner-topological-sorting=true -disable-post-ra"

# Conditions that a loop does not change stay inside of it. Where threads that run abreast disagree about one that was
# moved out, the vectorizer takes that of the first of them for all: one in seventy programs of loops and conditions was
# wrong, with 4, 8 and 16 threads. And arrays of threads that run abreast do not lie element by element where a pointer
# into one is chosen: of ``a[x > 0] = 1`` the vectorizer stored for one thread, at both places, and for no other. And
# loops are entered at one place, though a turn may know how the next one's first condition is: others the vectorizer
# leaves as they are, and each thread is a simdgroup of its own. Some it leaves for that only.
_ONE_ENTRY = "-jump-thread-loop-header=0"
SAFEGUARDS = f"-disable-simple-loop-unswitch=1 -vplan-enable-soa-phis=0 {_ONE_ENTRY}"

# Whole loops are unrolled up to this size. With Intel's own limit SHA-256 and ray marching took twice and half as long
# again to compile, and were not faster; tiles of 4x16 sums in registers are, by half.
UNROLLING = "-unroll-threshold=270"

_MOST_BEGUN = 4
"""Answers that nobody has asked for are kept until there are more."""

OPTIONS = "CL_CONFIG_LLVM_OPTIONS"
"""The variable with options of LLVM's."""

_Program = TypeVar("_Program")


class CompilerRefusal(Exception):
    """The source has errors; the message is the compiler's log."""


class CompilerFault(Exception):
    """The compiler ended, did not end in time, or made what would give wrong numbers; the message says how."""


def threads_apart(kernels: str) -> CompilerFault:
    """That simdgroups of ``kernels`` would have one thread each; see ``simdgroups_apart`` of the compiler's process."""
    return CompilerFault(
        f"the OpenCL compiler does not run the threads of {kernels} abreast, as functions of simdgroups need it:"
        " try a simpler flow of control"
    )


class OpenCLCompiler:
    """The compiler of the device with this name, through the C interface of ``library``.

    ``safeguards`` and ``limits`` are options of LLVM's. Another version may not know some: the limits are left out
    first, then the last of the safeguards.
    """

    def __init__(
        self,
        library: str,
        platform_name: str,
        device_name: str,
        limits: str = "",
        safeguards: str = "",
        processes: int = 1,
    ) -> None:
        self._arguments = (library, platform_name, device_name)
        users = os.environ.get(OPTIONS, "")
        kept = safeguards.split()
        fewer = (" ".join(kept[:count]) for count in range(len(kept), -1, -1))
        options = (f"{safeguards} {limits} {users}".strip(), *fewer)
        self._environments = [{OPTIONS: text} if text else {} for text in dict.fromkeys(options)]
        self._seats = tuple(_Seat(self._arguments, self._environments) for _ in range(processes))
        self._begun: dict[bytes, _Begun] = {}
        self._expected: bytes | None = None
        self._lock = Lock()
        self._owner = os.getpid()
        atexit.register(self._close)

    @property
    def arguments(self) -> Sequence[str]:
        """What a process is told when it is started."""
        return self._arguments

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that a process has beside this one's."""
        return self._environments[0]

    def start(self) -> None:
        """Starts the process, if it does not run, and does not wait for it."""
        with self._own_lock():
            seat = self._free_seat()
            if seat is not None:
                seat.start()
                seat.busy.release()

    def expect(self, source: str, options: Sequence[str]) -> None:
        """Says what will probably be built behind the next request: it is begun beside that, if a process runs."""
        with self._own_lock():
            self._expected = _request(source, options, True)

    def find_errors(self, source: str, options: Sequence[str]) -> None:
        """Raises ``CompilerRefusal`` if ``source`` has errors, ``CompilerFault``, and ``OSError`` without a process."""
        status, answer = self._ask(_request(source, options, False))
        if status:
            raise CompilerRefusal(answer.decode(errors="replace"))

    def build(
        self,
        source: str,
        options: Sequence[str],
        load: Callable[[bytes], _Program | None],
        *,
        is_bound_to_lanes: bool,
    ) -> _Program:
        """What ``load`` makes of the machine code; raises what ``find_errors`` does.

        What ends the compiler is compiled in other ways, unless it needs the lanes of simdgroups: 32 threads at a time.
        So is what would have simdgroups of one thread.
        """
        try:
            status, answer = self._ask(_request(source, options, True))
        except _Ended as fault:
            if is_bound_to_lanes:
                raise
            return self._built_otherwise(_OTHER_WAYS, source, options, load, fault)
        if status == APART:
            others = {OPTIONS: self._environments[0].get(OPTIONS, "").replace(_ONE_ENTRY, "")}
            return self._built_otherwise([((), others)], source, options, load, threads_apart(answer.decode()))
        if status:
            raise CompilerRefusal(answer.decode(errors="replace"))
        program = load(answer)
        if program is None:
            raise OSError("the device does not load what its compiler makes")
        return program

    def _built_otherwise(
        self,
        ways: Sequence[tuple[Sequence[str], Mapping[str, str]]],
        source: str,
        options: Sequence[str],
        load: Callable[[bytes], _Program | None],
        fault: CompilerFault,
    ) -> _Program:
        for more, environment in ways:
            with contextlib.suppress(OSError, CompilerFault):
                process = _Process(self._arguments, {**self._environments[0], **environment})
                try:
                    status, answer = process.ask(_request(source, (*options, *more), True))
                finally:
                    process.close()
                program = None if status else load(answer)
                if program is not None:
                    return program
        raise fault

    def _ask(self, request: bytes) -> tuple[int, bytes]:
        with self._own_lock():
            expected, self._expected = self._expected, None
            begun = self._begun.pop(request, None)
            seat = self._free_seat() if begun is None else None
            if expected is not None:
                self._begin(expected)
        if begun is not None:
            return begun.wait()
        if seat is None:
            seat = self._seats[0]
            seat.busy.acquire()
        try:
            return seat.ask(request)
        finally:
            seat.busy.release()

    def _free_seat(self) -> _Seat | None:
        """One that nobody has, ready if there is one such; the caller has it then."""
        free = [seat for seat in self._seats if seat.busy.acquire(blocking=False)]
        ready = (seat for seat in free if seat.is_ready()) if len(free) > 1 else iter(free)
        chosen = next(ready, free[0] if free else None)
        for seat in free:
            if seat is not chosen:
                seat.busy.release()
        return chosen

    def _begin(self, request: bytes) -> None:
        """Has a process that runs answer ``request``; where none does one starts, for the next such request."""
        if request in self._begun:
            return
        seat = self._free_seat()
        if seat is None:
            return
        if seat.is_started():
            while len(self._begun) >= _MOST_BEGUN:
                del self._begun[next(iter(self._begun))]
            self._begun[request] = _Begun(seat, request)
        else:
            seat.start()
            seat.busy.release()

    def _own_lock(self) -> Lock:
        """The lock of this process: another thread of the one that this was forked from may have had the last."""
        if self._owner != os.getpid():
            self._forget()
        return self._lock

    def _forget(self) -> None:
        """Forgets processes of the one that this one was forked from."""
        self._lock = Lock()
        self._owner = os.getpid()
        self._seats = tuple(_Seat(self._arguments, self._environments) for _ in self._seats)
        self._begun = {}

    def _close(self) -> None:
        for seat in self._seats:
            seat.close()


class _Seat:
    """Where one process after the other compiles, one source at a time; whoever asks has ``busy``."""

    def __init__(self, arguments: Sequence[str], environments: list[dict[str, str]]) -> None:
        self._arguments = arguments
        self._environments = environments
        self._process: _Process | None = None
        self.busy = Lock()

    def start(self) -> None:
        with contextlib.suppress(OSError):
            self._started()

    def is_started(self) -> bool:
        return self._process is not None and self._process.is_usable()

    def is_ready(self) -> bool:
        """Whether a process waits for a request; to be asked by who has ``busy``."""
        return self._process is not None and self.is_started() and self._process.is_ready()

    def ask(self, request: bytes) -> tuple[int, bytes]:
        process = self._started()
        try:
            return process.ask(request)
        except _Idle:
            self.close()
            return self._started().ask(request)
        except _NotStarted:
            self.close()
            # Another version of the compiler ends at once for an option that it does not know.
            if not process.is_early and self._environments[0] == process.environment:
                if len(self._environments) == 1:
                    raise
                del self._environments[0]
            return self.ask(request)
        except BaseException:
            # Also an interrupted wait leaves a process behind whose next answer is to the last request.
            self.close()
            raise

    def _started(self) -> _Process:
        if self._process is None or not self._process.is_usable():
            self.close()
            early = _taken_early(self._arguments, self._environments[0])
            self._process = early or _Process(self._arguments, self._environments[0])
        return self._process

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


class _Begun:
    """A request that a thread waits for; it has ``seat``, and leaves it free."""

    def __init__(self, seat: _Seat, request: bytes) -> None:
        self._seat = seat
        self._outcome: tuple[int, bytes] | BaseException = OSError("there is no such thread in a forked process")
        self._thread = Thread(target=self._ask, args=(request,), daemon=True)
        self._thread.start()

    def _ask(self, request: bytes) -> None:
        try:
            self._outcome = self._seat.ask(request)
        except BaseException as error:
            self._outcome = error
        finally:
            self._seat.busy.release()

    def wait(self) -> tuple[int, bytes]:
        try:
            self._thread.join()
        except BaseException:
            self._seat.close()
            raise
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


class _Ended(CompilerFault):
    """The compiler's process ended before it answered."""


class _NotStarted(OSError):
    """The process ended before it was ready."""


class _Idle(Exception):
    """The process had ended by itself, after a pause."""


class _Process:
    """``only_here`` are variables that this process will have, too, once it has found the device."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], only_here: Mapping[str, str] | None = None
    ) -> None:
        if not sys.executable:
            raise OSError("it is not known how this Python is started")
        self.arguments, self.environment = arguments, environment
        self.is_early = only_here is not None
        self._messages = tempfile.TemporaryFile()
        self._owner = os.getpid()
        # In a session of its own, so that what a terminal interrupts is not the compiler.
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(opencl_compiler_process.__file__)), *arguments],
                env={**os.environ, **(only_here or {}), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                start_new_session=True,
            )
        except BaseException:
            self._messages.close()
            raise
        self._is_ready = False

    def is_ready(self) -> bool:
        """Whether a request would be answered at once; for POSIX only."""
        assert self._process.stdout is not None
        if not self._is_ready:
            # Unlike select() for any number of open files.
            said = select.poll()
            said.register(self._process.stdout, select.POLLIN)
            self._is_ready = bool(said.poll(0)) and self._read_ready()
        return self._is_ready

    def _read_ready(self) -> bool:
        assert self._process.stdout is not None
        return self._process.stdout.read(len(READY)) == READY

    def is_usable(self) -> bool:
        """Whether the process runs and this one started it: one that a fork shares with its parent answers to both."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, request: bytes) -> tuple[int, bytes]:
        assert self._process.stdin is not None and self._process.stdout is not None
        is_late = False

        def stop() -> None:
            nonlocal is_late
            is_late = True
            self._process.kill()

        timer = Timer(MOST_SECONDS, stop)
        timer.daemon = True
        timer.start()
        try:
            if not self._is_ready:
                if not self._read_ready():
                    if is_late and not self.is_early:
                        raise CompilerFault(f"the OpenCL compiler did not start in {MOST_SECONDS:g} s")
                    raise _NotStarted("the process with the compiler did not start")
                self._is_ready = True
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(request)
                self._process.stdin.flush()
            head = self._process.stdout.read(ANSWER.size)
            if len(head) == ANSWER.size:
                status, length = ANSWER.unpack(head)
                answer = self._process.stdout.read(length)
                if len(answer) == length:
                    return status, answer
        finally:
            timer.cancel()
        if is_late:
            raise CompilerFault(f"the OpenCL compiler was not done after {MOST_SECONDS:g} s")
        if self._process.wait() == 0:
            raise _Idle
        raise _Ended(f"the OpenCL compiler ended ({self._cause()}): a fault of the compiler, not of the source")

    def _cause(self) -> str:
        """The signal or the code that the process ended with, and what it said."""
        code = self._process.wait()
        cause = f"exit status {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                cause = signal.Signals(-code).name
        self._messages.seek(0)
        said = [line.strip() for line in self._messages.read().decode(errors="replace").splitlines()]
        telling = [line for line in said if "Running pass" in line or "error:" in line.lower() or "Assertion" in line]
        return f"{cause}; {telling[-1]}" if telling else cause

    def close(self) -> None:
        # A thread that waits for an answer has the pipe until the process has ended.
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._messages.close()


_early: list[_Process] = []


def start_early(arguments: Sequence[str], environment: Mapping[str, str], only_here: Mapping[str, str]) -> None:
    """Starts a process for the compiler that will have these arguments and variables; raises ``OSError``."""
    process = _Process(arguments, environment, only_here)
    atexit.register(process.close)
    _early.append(process)


def _taken_early(arguments: Sequence[str], environment: Mapping[str, str]) -> _Process | None:
    """A process that was started early for this compiler; all others end."""
    taken = None
    while (process := _popped_early()) is not None:
        fits = (process.arguments, process.environment) == (arguments, environment) and process.is_usable()
        if fits and taken is None:
            taken = process
        else:
            process.close()
    return taken


def _popped_early() -> _Process | None:
    """One that no other thread gets, if there is one."""
    try:
        return _early.pop()
    except IndexError:
        return None


def _request(source: str, options: Sequence[str], is_built: bool) -> bytes:
    text, words = source.encode(), " ".join(options).encode()
    return REQUEST.pack(is_built, len(words), len(text)) + words + text
