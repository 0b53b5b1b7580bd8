"""What a checked run of a kernel finds, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpsgrad.devices.contract import Extents
from mpsgrad.msl import Diagnostic


@dataclass(frozen=True, slots=True)
class Mistake:
    """A kind of finding: how bad it is, why it matters, and what a run cannot show."""

    severity: Literal["error", "warning"]
    why: str
    limits: str


MISTAKES: dict[str, Mistake] = {
    "out-of-bounds": Mistake(
        "error",
        "On a GPU an access outside a buffer reads or overwrites what lies there, or ends the command buffer.",
        "The threads, sizes and values of this run are looked at. An index that leaves a row of an array of arrays "
        "counts, one that leaves a member of a struct through a pointer does not. An array of one element in device "
        "memory is taken for one without a known extent, which goes to the end of the buffer. Pointers to what is a "
        "thread's own are looked at where they point to arrays, objects with arrays, and variables whose address is "
        "taken, but not to parameters and to what is declared between the labels of a switch.",
    ),
    "uninitialised-memory": Mistake(
        "error",
        "Threadgroup memory holds what another threadgroup left, a new buffer anything, a thread's own variable what a "
        "register held: no two runs are alike.",
        "Device memory counts as uninitialised only where the call says that an argument is undefined. A copy of a "
        "struct is reported where none of its bytes has a value. What is a thread's own is looked at where its type "
        "is known, but not what a lambda expression names. A struct is taken to have a value in each member when "
        "it is assigned as an element or a member of another, and so is a union, or one with a base that the source "
        "lacks, when a method of it was called. A vector is reported where no component that is read has one, a matrix "
        "that a calculation reads where a column has none.",
    ),
    "data-race": Mistake(
        "error",
        "Two threads touch one place, one of them writes, and nothing orders them: what comes out depends on chance.",
        "A threadgroup_barrier orders the threads of a threadgroup for the memory that its flags name, a "
        "simdgroup_barrier those of a simdgroup; nothing orders threadgroups. Atomic functions do not race with each "
        "other, but with the atomic store that gives memory its first value, and atomic_fetch_add and its like with a "
        "store that they may come before or behind; whoever counted, too, may set the counter back. Several threads "
        "that write one value are let pass.",
    ),
    "divergent-barrier": Mistake(
        "error",
        "A threadgroup_barrier that not every thread of the threadgroup reaches hangs the GPU or orders nothing.",
        "Threads that come to a barrier equally often are taken to meet there, though it were in different rounds of a "
        "loop. What a threadgroup does after such a barrier is not checked.",
    ),
    "inactive-lane": Mistake(
        "error",
        "What a simdgroup function reads from a thread that does not call it is undefined.",
        "Functions that combine the threads that are there, such as simd_sum, may be called by some of them.",
    ),
    "division-by-zero": Mistake(
        "error", "An integer divided by zero is undefined.", "Divisors that are constants are not looked at."
    ),
    "endless-loop": Mistake(
        "error",
        "A loop that does not end hangs the GPU until the system resets it.",
        "A thread may take 10 million steps in all. Threads run one after another between barriers here, so one that "
        "waits for another waits for ever, as it may on a GPU.",
    ),
    "unwritten-output": Mistake(
        "warning",
        "Elements of an output that no thread writes keep what was in the buffer.",
        "Looks at arguments that the call says are undefined.",
    ),
    "aliased-arguments": Mistake(
        "warning",
        "A compiler may take a kernel's buffers to be different memory; a write through one may not show in the other.",
        "Looks at the arguments of the call.",
    ),
    "not-checked": Mistake("warning", "This part of the source runs, but what it does is not checked.", ""),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where another thread was: its position in the grid, and the source that it ran, if known."""

    thread: Extents
    file: str | None = None
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True, slots=True)
class KernelFinding(Diagnostic):
    """What a kernel did wrong when it ran; ``name`` is a key of ``MISTAKES``.

    ``thread`` and ``threadgroup`` are the positions in the grid of the first thread that did it, ``count`` says how
    often it was seen at this place. ``argument`` is the buffer or the threadgroup variable, ``index`` the element and
    ``length`` the number of elements, counted in what was accessed. ``other`` is the thread that it happened with.
    """

    name: str = ""
    kernel: str = ""
    count: int = 1
    thread: Extents | None = None
    threadgroup: Extents | None = None
    argument: str | None = None
    index: int | None = None
    length: int | None = None
    other: Place | None = None
