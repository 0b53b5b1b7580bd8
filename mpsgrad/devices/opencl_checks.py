"""Runs an instrumented kernel on a CPU, one threadgroup after another, and reads what its checks found.

The structs are those of ``msl/include/opencl/80_checks.h``. Host and device share one memory, so that the program finds
its tables by their addresses.
"""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache as once
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.devices.contract import LARGEST_THREADGROUP, Extents, require_constants
from mpsgrad.devices.opencl import OpenCLDevice
from mpsgrad.errors import DeviceError
from mpsgrad.geometry import ceiling_divide
from mpsgrad.msl import KernelSignature, Launch, Translation
from mpsgrad.msl.instrument import Instrumentation

if TYPE_CHECKING:
    import pyopencl

# Threads run 32 abreast, as the lanes of a simdgroup have to, only where the compiler optimizes.
SCALAR_OPTIONS = ("-cl-std=CLC++2021", "-cl-opt-disable", "-DONE_BY_ONE_MTL")
ABREAST_OPTIONS = ("-cl-std=CLC++2021",)

BOUNDS, EXTENT, UNINITIALISED, RACE, BARRIER, LANES, DIVISION, LOOP, KINDS = range(9)
NOTHING, READ, WRITE, UPDATE, DESIGNATE, LEND, PLACE, ATOMIC, ATOMIC_READ, ATOMIC_WRITE, ATOMIC_SWAP = range(11)
NOWHERE = 0xFFFFFFFF
MOST_STEPS = 10_000_000

_GAP = 1 << 20
"""Bytes between regions: an access that leaves one is not in the next."""
_FENCE = 256
"""Bytes behind threadgroup memory that is an argument."""
_LOCAL_BYTES = 1 << 20
"""Bytes of threadgroup memory that have a shadow."""
_DEVICE_SPACE = 1
_MOST_BARRIERS = 4096
_SPARE_BYTES = 256
_MOST_LENGTHS = 128
_MOST_OWN = 64
_SUSPECTS = 1 << 18
_FLIPPED = 0xFFFFFFFF
_MOST_REVERSED = 64
"""Threadgroups that run a second time."""

_RECORD = np.dtype(
    [(name, "u4") for name in ("group", "epoch", "lanes")]
    + [(name, "u2") for name in ("barriers", "thread", "site", "access")]
)  # fmt: skip
_GRANULE = np.dtype([("records", _RECORD, 7), ("initialised", "u4")])
_REGION = np.dtype(
    [(name, "u8") for name in ("start", "end", "shadow")]
    + [(name, "u4") for name in ("name", "space", "undefined", "_")]
)  # fmt: skip
FINDING = np.dtype(
    [
        (name, "u4")
        for name in (
            "count", "group", "thread", "site", "other_group", "other_thread", "other_site", "region", "access",
            "other_access", "size", "reached",
        )
    ]
    + [("address", "u8"), ("index", "i8"), ("extent", "u8")]
)  # fmt: skip
_OWN = np.dtype([(name, "u8") for name in ("start", "end", "known")] + [("numbers", "u4", 4)])
_CONTEXT = np.dtype(
    [
        (name, "u8")
        for name in ("low", "high", "granule", "local_granules", "local_shadow", "findings", "lanes", "suspects")
    ]
    + [(name, "u4") for name in ("sites", "lane_sites", "most_steps", "device_regions")]
    + [("argument_bytes", "u4", _MOST_LENGTHS)]
    + [(name, "u4") for name in ("group", "threads", "stopped", "regions")]
    + [(name, "u4") for name in ("local_used", "deepest", "reversed", "flipped", "came", "came_before")]
    + [
        ("region", _REGION, 96),
        ("thread", "u4", (LARGEST_THREADGROUP, 13)),
        ("barriers", "u4", (2, _MOST_BARRIERS)),
        ("own", _OWN, (LARGEST_THREADGROUP, _MOST_OWN)),
        ("spare", "u1", (LARGEST_THREADGROUP, _SPARE_BYTES)),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes that an argument stands for. ``undefined`` ones have no value until the kernel stores one.

    ``pointers`` says to which other region the pointer at a byte of it points.
    """

    data: np.ndarray
    undefined: bool
    pointers: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a checked run found.

    ``findings`` are records of ``FINDING`` by kind and site, empty where ``count`` is 0; ``regions`` the contents
    afterwards; ``unwritten`` for each undefined region which of its granules got no value. ``stopped`` says that a loop
    did not end.
    """

    findings: np.ndarray
    regions: tuple[np.ndarray, ...]
    unwritten: tuple[np.ndarray | None, ...]
    stopped: bool

    def unwritten_as_in(self, other: Outcome) -> tuple[np.ndarray | None, ...]:
        """What is ``unwritten`` after both runs."""
        pairs = zip(self.unwritten, other.unwritten, strict=True)
        return tuple(mine & its if mine is not None and its is not None else None for mine, its in pairs)


@dataclass(frozen=True, slots=True)
class CheckedLaunch:
    """``grid`` threads in threadgroups of ``threadgroup``. Argument ``k`` is ``regions[numbers[k]]``."""

    grid: Extents
    threadgroup: Extents
    regions: Sequence[Region]
    numbers: Sequence[int]
    threadgroup_memory: Sequence[int]


class CheckedKernel:
    """One kernel of a source, compiled with checks: what ``compile`` gives for a launch."""

    def __init__(
        self, device: OpenCLDevice, compile: Callable[[Launch], tuple[pyopencl.Program, Translation]]
    ) -> None:
        self._device = device
        # The program finds its tables by a variable of its own.
        self._lock = Lock()
        self._compile = once(compile)

    @property
    def signature(self) -> KernelSignature:
        return next(iter(self._compile("row")[1].kernels.values()))

    @property
    def instrumentation(self) -> Instrumentation:
        found = self._compile("row")[1].instrumentation
        assert found is not None
        return found

    def run(self, launch: CheckedLaunch) -> Outcome:
        """Runs the kernel.

        What seems to have no value may have one that looks like it: where such is found, the kernel runs again with
        memory that looks otherwise, and what is not found then, too, is none.

        What threads find may depend on their order where they have atomic functions, and only there: else such threads
        race, which is found in any order. So if nothing is found, the first threadgroups run again, in the other order.
        """
        require_constants(self.signature)
        suspects = np.zeros(_SUSPECTS, np.uint64)
        run = partial(self._run, launch, suspects)
        outcome = run()
        is_unwritten = any(each is not None and each.any() for each in outcome.unwritten)
        if is_unwritten or outcome.findings[UNINITIALISED]["count"].any():
            first, outcome = outcome, run(is_flipped=True)
            outcome = replace(outcome, unwritten=outcome.unwritten_as_in(first))
        checks = self.instrumentation
        has_order = self.signature.uses_simdgroups or not checks.has_constructors
        if outcome.findings["count"].any() or not (has_order and any("atomic_" in site.text for site in checks.sites)):
            return outcome
        return replace(outcome, findings=run(is_reversed=True).findings)

    def _form(self, launch: CheckedLaunch) -> Launch:
        """How threadgroups lie: simdgroups are along a row."""
        return "box" if self.signature.uses_simdgroups and launch.threadgroup[1:] != (1, 1) else "row"

    def _run(
        self, launch: CheckedLaunch, suspects: np.ndarray, *, is_flipped: bool = False, is_reversed: bool = False
    ) -> Outcome:
        import pyopencl as cl

        signature = self.signature
        form = self._form(launch)
        program, translation = self._compile(form)
        checks = translation.instrumentation
        assert checks is not None
        entry_point = next(iter(translation.kernels.values())).entry_point
        device = self._device
        context, queue = device._context, device.queue

        shared_arguments = [each.name for each in signature.arguments if each.address_space == "threadgroup"]
        lengths = dict(zip(shared_arguments, launch.threadgroup_memory, strict=True))
        memory = _CheckMemory(checks, launch.regions, lengths)
        memory.context["reversed"] = is_reversed
        memory.context["suspects"] = _address(suspects)
        memory.context["flipped"] = _FLIPPED if is_flipped else 0
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        with self._lock, _device_errors(signature.name):
            shared = cl.Buffer(context, flags, hostbuf=memory.context)
            buffers = [cl.Buffer(context, flags, hostbuf=memory.arena.bytes_of(k)) for k in range(len(launch.regions))]
            begin = cl.Kernel(program, "begin_checks_mtl")
            begin.set_args(shared)
            cl.enqueue_nd_range_kernel(queue, begin, (1,), (1,))
            next_group = cl.Kernel(program, "next_group_mtl")
            kernel = cl.Kernel(program, entry_point)
            arguments: list[Any] = [buffers[number] for number in launch.numbers]
            arguments += [cl.LocalMemory(nbytes + _FENCE) for nbytes in launch.threadgroup_memory]
            threadgroups = itertools.islice(
                _threadgroups(launch.grid, launch.threadgroup), _MOST_REVERSED if is_reversed else None
            )
            for number, (at, extents, described) in enumerate(threadgroups, 1):
                next_group.set_args(np.uint32(number), np.uint32(math.prod(extents)))
                cl.enqueue_nd_range_kernel(queue, next_group, (1,), (1,))
                kernel.set_args(*arguments, described)
                first = tuple(i * size for i, size in zip(at, launch.threadgroup, strict=True))
                local, offset = ((math.prod(extents), 1, 1), None) if form == "box" else (extents, first)
                cl.enqueue_nd_range_kernel(queue, kernel, local, local, offset)
                if number % 256 == 0:
                    queue.finish()
                    if memory.has_stopped:
                        break
            next_group.set_args(np.uint32(0), np.uint32(0))
            cl.enqueue_nd_range_kernel(queue, next_group, (1,), (1,)).wait()
        return memory.outcome()


@contextmanager
def _device_errors(name: str) -> Iterator[None]:
    """Raises ``DeviceError`` for what the runtime raises."""
    import pyopencl as cl

    try:
        yield
    except cl.Error as error:
        raise DeviceError(f"{name}: the device failed to run the checked kernel: {error}") from error


class _CheckMemory:
    """What the checks of one run read and write: copies of the regions, shadows of all memory, and the findings.

    ``lengths`` are the bytes of the threadgroup memory that is an argument, by its name.
    """

    def __init__(self, checks: Instrumentation, regions: Sequence[Region], lengths: Mapping[str, int]) -> None:
        self._regions = regions
        self._granule = checks.granule
        self.arena = _Arena([region.data for region in regions])
        self._granules = [np.zeros(self._granules_of(region) + 1, _GRANULE) for region in regions]
        self._local_granules = np.zeros(_LOCAL_BYTES // checks.granule, _GRANULE)
        self._findings = np.zeros((KINDS, max(len(checks.sites), 1)), FINDING)
        self._lanes = np.zeros((max(checks.lane_sites, 1), LARGEST_THREADGROUP), np.uint32)
        self.context = context = np.zeros((), _CONTEXT)
        context["low"], context["high"] = self.arena.low, self.arena.high
        context["granule"], context["local_granules"] = checks.granule, len(self._local_granules)
        context["local_shadow"] = _address(self._local_granules)
        context["findings"], context["lanes"] = _address(self._findings), _address(self._lanes)
        context["sites"], context["lane_sites"] = self._findings.shape[1], checks.lane_sites
        context["most_steps"], context["device_regions"] = MOST_STEPS, len(regions)
        for number, name in enumerate(checks.threadgroup_arguments[:_MOST_LENGTHS]):
            context["argument_bytes"][number] = lengths.get(name, 0)
        for position, region in enumerate(regions):
            start = self.arena.address(position)
            context["region"][position] = (
                start, start + region.data.nbytes, _address(self._granules[position]), position, _DEVICE_SPACE,
                region.undefined, 0,
            )  # fmt: skip
            for place, other in region.pointers.items():
                self.arena.bytes_of(position)[place : place + 8].view(np.uint64)[0] = self.arena.address(other)

    def _granules_of(self, region: Region) -> int:
        return ceiling_divide(region.data.nbytes, self._granule)

    @property
    def has_stopped(self) -> bool:
        """Whether a loop did not end, so that the threads were made to."""
        return bool(self.context["stopped"] == 2)

    def outcome(self) -> Outcome:
        """What the run found, with copies of the regions."""
        unwritten: list[np.ndarray | None] = []
        for granules, region in zip(self._granules, self._regions, strict=True):
            written = granules["initialised"][: self._granules_of(region)]
            unwritten.append(np.equal(written, 0) if region.undefined else None)
        contents = tuple(
            self.arena.bytes_of(position)[: region.data.nbytes].copy() for position, region in enumerate(self._regions)
        )
        return Outcome(self._findings, contents, tuple(unwritten), self.has_stopped)


class _Arena:
    """Copies of regions in one stretch of addresses, so far apart that what leaves one does not get into another."""

    def __init__(self, data: Sequence[np.ndarray]) -> None:
        self._offsets = []
        self._sizes = [max(each.nbytes, 1) for each in data]
        position = _GAP
        for size in self._sizes:
            self._offsets.append(position)
            position += ceiling_divide(size, mmap.PAGESIZE) * mmap.PAGESIZE + _GAP
        self._memory = np.frombuffer(mmap.mmap(-1, position), np.uint8)
        for offset, each in zip(self._offsets, data, strict=True):
            self._memory[offset : offset + each.nbytes] = each
        self.low = _address(self._memory)
        self.high = self.low + position

    def address(self, position: int) -> int:
        return self.low + self._offsets[position]

    def bytes_of(self, position: int) -> np.ndarray:
        return self._memory[self._offsets[position] : self._offsets[position] + self._sizes[position]]


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _threadgroups(grid: Extents, threadgroup: Extents) -> Iterator[tuple[Extents, Extents, np.ndarray]]:
    """Position, extents and launch description of each threadgroup, in the order of their numbers."""
    counts = tuple(ceiling_divide(size, group) for size, group in zip(grid, threadgroup, strict=True))
    for z, y, x in itertools.product(*(range(count) for count in reversed(counts))):
        position = (x, y, z)
        extents = tuple(min(t, g - i * t) for i, t, g in zip(position, threadgroup, grid, strict=True))
        launch = np.array([*grid, *threadgroup, *counts, *position, *extents], np.uint32)
        yield position, extents, launch  # type: ignore[misc]
