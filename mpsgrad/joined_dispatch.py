"""Runs of one kernel on different buffers, joined into one dispatch.

A network has many small vectors, and each dispatch has its price. A kernel that can be joined has a second form, in a
family of its own, whose threadgroups share several runs among them (``shaders/lib/several.metal.j2``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Dispatch
from mpsgrad.shader import ParameterStruct, ShaderFamily

MOST_ARGUMENTS = 31
"""Buffers that a kernel can have, on Apple GPUs and so everywhere."""


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
    """The kernel ``name`` of ``family``, and the one of ``joined_family`` that makes up to ``most`` runs of it."""

    name: str
    family: ShaderFamily
    joined_family: ShaderFamily
    struct: ParameterStruct
    most: int

    @cached_property
    def joined_struct(self) -> ParameterStruct:
        return joined_struct(self.struct, self.most)


@dataclass(frozen=True, slots=True)
class JoinableRun:
    """One run: its buffers in the order of the kernel's arguments, and the scalars of the kernel's struct."""

    buffers: tuple[Buffer, ...]
    written: frozenset[Buffer]
    threadgroups: int
    parameters: tuple[Any, ...]


@dataclass(slots=True)
class JoinedDispatch(Dispatch):
    """A dispatch of ``runs``, which may happen in any order. ``shared`` are further buffers, of all of them."""

    kernel: JoinableKernel | None = None
    shared: tuple[Buffer, ...] = ()
    runs: tuple[JoinableRun, ...] = ()

    def has_to_precede(self, run: JoinableRun) -> bool:
        """Whether ``run`` reads or overwrites what one of the runs writes, or overwrites what one of them reads."""
        touched = {*run.buffers}
        return any(not run.written.isdisjoint(each.buffers) or touched & each.written for each in self.runs)


def add_run(
    command_buffer: CommandBuffer, kernel: JoinableKernel, run: JoinableRun, shared: tuple[Buffer, ...] = ()
) -> None:
    """Adds ``run`` of ``kernel`` to ``command_buffer``.

    It joins the last dispatch of the kernel that was added, unless there is something else than such dispatches in
    between, or something there that has to precede it.
    """
    command_buffer._require_open("add_run")
    dispatches = command_buffer._dispatches
    for position in range(len(dispatches) - 1, -1, -1):
        earlier = dispatches[position]
        if not isinstance(earlier, JoinedDispatch) or earlier.has_to_precede(run):
            break
        if earlier.kernel is kernel and earlier.shared == shared and len(earlier.runs) < kernel.most:
            dispatches[position] = _dispatch_of(command_buffer, kernel, (*earlier.runs, run), shared)
            command_buffer._if_taken_back(_Replacement(command_buffer, position, earlier))
            return
    dispatches.append(_dispatch_of(command_buffer, kernel, (run,), shared))


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Puts a dispatch back in its place, if that is still there."""

    command_buffer: CommandBuffer
    position: int
    dispatch: Dispatch

    def __call__(self) -> None:
        dispatches = self.command_buffer._dispatches
        if self.position < len(dispatches):
            dispatches[self.position] = self.dispatch


def _dispatch_of(
    command_buffer: CommandBuffer, kernel: JoinableKernel, runs: tuple[JoinableRun, ...], shared: tuple[Buffer, ...]
) -> JoinedDispatch:
    device = command_buffer.device
    threadgroups = sum(run.threadgroups for run in runs)
    if len(runs) == 1:
        family, given = kernel.family, [*runs]
        parameters = kernel.struct.pack_scalars(runs[0].parameters)
    else:
        family, given = kernel.joined_family, [*runs, *[runs[-1]] * (kernel.most - len(runs))]
        firsts = [*accumulate(run.threadgroups for run in runs[:-1])]
        firsts += [threadgroups] * (kernel.most - 1 - len(firsts))
        scalars = [scalar for run in given for scalar in run.parameters]
        parameters = kernel.joined_struct.pack_scalars((*scalars, *firsts))
    return JoinedDispatch(
        family.function(device, kernel.name, "float"),
        threadgroups,
        (*(buffer for run in given for buffer in run.buffers), *shared, device.constant_buffer(parameters)),
        kernel=kernel,
        shared=shared,
        runs=runs,
    )
