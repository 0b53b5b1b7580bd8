"""Runs of one kernel on different buffers, joined into one dispatch.

A network has many small vectors, and each dispatch has its price. A kernel that can be joined has a second form, in a
family of its own, whose threadgroups share several runs among them (``shaders/lib/several.metal.j2``). On CPUs it finds
the buffers of any number of runs by their addresses, in a table.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING

from mpsgrad.devices import Buffer, Device, Dispatch
from mpsgrad.shader import ParameterStruct, ShaderFamily

if TYPE_CHECKING:
    from mpsgrad.command import CommandBuffer

MOST_ARGUMENTS = 31
"""Buffers that a kernel can have, on Apple GPUs and so everywhere."""
MOST_IN_A_TABLE = 4096
"""Runs of one dispatch, where buffers are found by their addresses."""

_address = attrgetter("address")


def most_joined(buffers: int, shared: int) -> int:
    """How many runs of ``buffers`` each, and ``shared`` ones and parameters for all, one kernel has arguments for."""
    return (MOST_ARGUMENTS - shared - 1) // buffers


def joined_struct(struct: ParameterStruct, count: int) -> ParameterStruct:
    """The parameters of ``count`` runs, and the first threadgroup of each but the first one."""
    runs = {f"run_{index}": struct for index in range(count)}
    firsts = {f"first_{index}": "int" for index in range(1, count)}
    return ParameterStruct(f"{struct.name}Of{count}", **runs, **firsts)


@dataclass(frozen=True)
class JoinableKernel:
    """The kernel ``name`` of ``family``, and the one of ``joined_family`` that makes up to ``most`` runs of it.

    On CPUs the joined one takes a table of runs and an array of their ``struct``s.
    """

    name: str
    family: ShaderFamily
    joined_family: ShaderFamily
    struct: ParameterStruct
    most: int

    @cached_property
    def joined_struct(self) -> ParameterStruct:
        return joined_struct(self.struct, self.most)

    def most_on(self, device: Device) -> int:
        """How many runs one dispatch makes there."""
        return MOST_IN_A_TABLE if device.family == "cpu" else self.most


@dataclass(slots=True)  # Not frozen: each step of an optimizer makes one, and that would take five times as long.
class JoinableRun:
    """One run: its buffers in the order of the kernel's arguments, and the bytes of the kernel's struct."""

    buffers: tuple[Buffer, ...]
    written: tuple[Buffer, ...]
    threadgroups: int
    parameters: bytes


class JoinedDispatch(Dispatch):
    """A dispatch of runs, which may happen in any order. ``shared`` are further buffers, of all of them.

    It has no buffers yet: ``combined`` gives the dispatch that a device can run.
    """

    __slots__ = ("_device", "_touched_and_written", "kernel", "most_runs", "runs", "shared")

    def __init__(self, device: Device, kernel: JoinableKernel, shared: tuple[Buffer, ...], run: JoinableRun) -> None:
        super().__init__(kernel.family.function(device, kernel.name, "float"), run.threadgroups, ())
        self._device = device
        self.kernel = kernel
        self.shared = shared
        self.most_runs = kernel.most_on(device)
        self.runs = [run]
        # Of most dispatches nobody asks.
        self._touched_and_written: tuple[set[Buffer], set[Buffer]] | None = None

    def has_to_precede(self, run: JoinableRun) -> bool:
        """Whether ``run`` reads or overwrites what one of the runs writes, or overwrites what one of them reads."""
        if self._touched_and_written is None:
            self._touched_and_written = (
                {buffer for each in self.runs for buffer in each.buffers},
                {buffer for each in self.runs for buffer in each.written},
            )
        touched, written = self._touched_and_written
        return not (touched.isdisjoint(run.written) and written.isdisjoint(run.buffers))

    def add(self, run: JoinableRun) -> None:
        """Makes ``run``, too."""
        assert isinstance(self.threadgroups, int)
        self.runs.append(run)
        self.threadgroups += run.threadgroups
        if self._touched_and_written is not None:
            touched, written = self._touched_and_written
            touched.update(run.buffers)
            written.update(run.written)

    def take_back(self) -> None:
        """Makes all runs but the last one."""
        assert isinstance(self.threadgroups, int)
        self.threadgroups -= self.runs.pop().threadgroups
        self._touched_and_written = None

    def exchange(self, others: Mapping[Buffer, Buffer]) -> None:
        """Has the runs read from ``others`` in the place of the buffers that these are for."""
        for run in self.runs:
            run.buffers = tuple([others.get(buffer, buffer) for buffer in run.buffers])
        self._touched_and_written = None

    def combined(self) -> Dispatch:
        """The same for a device."""
        device, kernel, runs = self._device, self.kernel, self.runs
        assert isinstance(self.threadgroups, int)
        if len(runs) == 1:
            run, threadgroups = runs[0], self.threadgroups
            buffers = (*run.buffers, *self.shared, device.constant_buffer(run.parameters))
            pattern = self.function, threadgroups, run.parameters
            return Dispatch(self.function, threadgroups, buffers, None, None, (), (), pattern)
        function = kernel.joined_family.function(device, kernel.name, "float")
        if device.family == "cpu":
            held = tuple(chain.from_iterable([run.buffers for run in runs]))
            parameters = device.constant_buffer(b"".join([run.parameters for run in runs]))
            buffers = device.constant_buffer(_table(runs)), *self.shared, parameters
            return Dispatch(function, self.threadgroups, buffers, held=held)
        given = [*runs, *[runs[-1]] * (kernel.most - len(runs))]
        firsts = [*accumulate(run.threadgroups for run in runs[:-1])]
        firsts += [self.threadgroups] * (kernel.most - 1 - len(firsts))
        packed = [*(run.parameters for run in given), struct.pack(f"={len(firsts)}i", *firsts)]
        parameters = device.constant_buffer(b"".join(packed))
        buffers_of_runs = (buffer for run in given for buffer in run.buffers)
        return Dispatch(function, self.threadgroups, (*buffers_of_runs, *self.shared, parameters))


def _table(runs: list[JoinableRun]) -> bytes:
    """The number of runs, and for each its first threadgroup and its addresses."""
    words = [len(runs)]
    first = 0
    for run in runs:
        words.append(first)
        words += map(_address, run.buffers)
        first += run.threadgroups
    return array("Q", words).tobytes()


def add_run(
    command_buffer: CommandBuffer, kernel: JoinableKernel, run: JoinableRun, shared: tuple[Buffer, ...] = ()
) -> None:
    """Adds ``run`` of ``kernel`` to ``command_buffer``.

    It joins the last dispatch of the kernel that was added, unless there is something else than such dispatches in
    between, or something there that has to precede it.
    """
    if not command_buffer._is_open:
        command_buffer._require_open("add_run")
    dispatches = command_buffer._dispatches
    for earlier in reversed(dispatches):
        if type(earlier) is not JoinedDispatch or earlier.has_to_precede(run):
            break
        if earlier.kernel is kernel and len(earlier.runs) < earlier.most_runs and earlier.shared == shared:
            earlier.add(run)
            if command_buffer._undo is not None:
                command_buffer._if_taken_back(earlier.take_back)
            return
    dispatches.append(JoinedDispatch(command_buffer.device, kernel, shared, run))
