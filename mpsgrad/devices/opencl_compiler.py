"""OpenCL's compiler in a process of its own: a compiler that ends its process, or never ends, is an error here.

The process begins while the source is translated, stays for the next one, and ends with this one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock, Timer
from typing import TypeVar

from mpsgrad.devices import opencl_compiler_process
from mpsgrad.devices.opencl_compiler_process import ANSWER, READY, REQUEST

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
# wrong, with 4, 8 and 16 threads.
SAFEGUARDS = "-disable-simple-loop-unswitch=1"

# Whole loops are unrolled up to this size. With Intel's own limit SHA-256 and ray marching took twice and half as long
# again to compile, and were not faster; tiles of 4x16 sums in registers are, by half.
UNROLLING = "-unroll-threshold=270"

_OPTIONS = "CL_CONFIG_LLVM_OPTIONS"

_Program = TypeVar("_Program")


class CompilerRefusal(Exception):
    """The source has errors; the message is the compiler's log."""


class CompilerFault(Exception):
    """The compiler ended or did not end in time; the message says how."""


class OpenCLCompiler:
    """The compiler of the device with this name, through the C interface of ``library``.

    ``safeguards`` and ``limits`` are options of LLVM's. Another version may not know some: the limits are left out
    first.
    """

    def __init__(
        self, library: str, platform_name: str, device_name: str, limits: str = "", safeguards: str = ""
    ) -> None:
        self._arguments = (library, platform_name, device_name)
        users = os.environ.get(_OPTIONS, "")
        options = (f"{safeguards} {limits} {users}".strip(), safeguards, "")
        self._environments = [{_OPTIONS: text} if text else {} for text in dict.fromkeys(options)]
        self._process: _Process | None = None
        self._lock = Lock()
        atexit.register(self._close)

    def start(self) -> None:
        """Starts the process, if it does not run, and does not wait for it."""
        with self._lock, contextlib.suppress(OSError):
            self._started()

    def find_errors(self, source: str, options: Sequence[str]) -> None:
        """Raises ``CompilerRefusal`` if ``source`` has errors, ``CompilerFault``, and ``OSError`` without a process."""
        with self._lock:
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
        """
        with self._lock:
            try:
                status, answer = self._ask(_request(source, options, True))
            except _Ended as fault:
                if is_bound_to_lanes:
                    raise
                return self._built_otherwise(source, options, load, fault)
        if status:
            raise CompilerRefusal(answer.decode(errors="replace"))
        program = load(answer)
        if program is None:
            raise OSError("the device does not load what its compiler makes")
        return program

    def _built_otherwise(
        self,
        source: str,
        options: Sequence[str],
        load: Callable[[bytes], _Program | None],
        fault: CompilerFault,
    ) -> _Program:
        for more, environment in _OTHER_WAYS:
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
        process = self._started()
        try:
            return process.ask(request)
        except _Idle:
            self._close()
            return self._started().ask(request)
        except _NotStarted:
            self._close()
            if len(self._environments) == 1:
                raise
            # Another version of the compiler ends at once for an option that it does not know.
            del self._environments[0]
            return self._ask(request)
        except BaseException:
            # Also an interrupted wait leaves a process behind whose next answer is to the last request.
            self._close()
            raise

    def _started(self) -> _Process:
        if self._process is None or not self._process.is_usable():
            self._close()
            self._process = _Process(self._arguments, self._environments[0])
        return self._process

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


class _Ended(CompilerFault):
    """The compiler's process ended before it answered."""


class _NotStarted(OSError):
    """The process ended before it was ready."""


class _Idle(Exception):
    """The process had ended by itself, after a pause."""


class _Process:
    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        if not sys.executable:
            raise OSError("it is not known how this Python is started")
        self._messages = tempfile.TemporaryFile()
        self._owner = os.getpid()
        # In a session of its own, so that what a terminal interrupts is not the compiler.
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(opencl_compiler_process.__file__)), *arguments],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                start_new_session=True,
            )
        except OSError:
            self._messages.close()
            raise
        self._is_ready = False

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
                if self._process.stdout.read(len(READY)) != READY:
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
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.kill()
        self._process.wait()
        self._messages.close()


def _request(source: str, options: Sequence[str], is_built: bool) -> bytes:
    text, words = source.encode(), " ".join(options).encode()
    return REQUEST.pack(is_built, len(words), len(text)) + words + text
