"""Runs a kernel with checks and says in the words of its source what went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mpsgrad.devices import opencl_checks as checks
from mpsgrad.devices.contract import Buffer, Extents, Function
from mpsgrad.devices.opencl import OpenCLDevice
from mpsgrad.errors import FormatError
from mpsgrad.geometry import ceiling_divide
from mpsgrad.msl import Argument
from mpsgrad.msl.instrument import CONSTANT_NAMES, OWN_NAMES, THREADGROUP_NAMES, Instrumentation, Site
from mpsgrad.runtime.argument_buffers import add_with_pointers, places_of_pointers
from mpsgrad.runtime.arguments import BoundArguments, element_of, is_device_memory
from mpsgrad.runtime.findings import MISTAKES, KernelFinding, Place
from mpsgrad.runtime.grid import extents, threadgroup_extents
from mpsgrad.runtime.tensors import DeviceTensor

_VERBS = {
    checks.READ: "read", checks.WRITE: "write", checks.PLACE: "write", checks.UPDATE: "update",
    checks.DESIGNATE: "access", checks.LEND: "access", checks.ATOMIC: "atomic update",
    checks.ATOMIC_READ: "atomic load", checks.ATOMIC_WRITE: "atomic store", checks.ATOMIC_SWAP: "atomic update",
}  # fmt: skip
_DOES = {
    checks.READ: "reads it", checks.WRITE: "writes it", checks.UPDATE: "updates it",
    checks.ATOMIC: "updates it atomically", checks.ATOMIC_READ: "loads it atomically",
    checks.ATOMIC_WRITE: "stores it atomically", checks.ATOMIC_SWAP: "updates it atomically",
}  # fmt: skip


def check_kernel(
    device: OpenCLDevice,
    function: Function,
    compiled: checks.CheckedKernel,
    grid: Any,
    values: Sequence[Any],
    layouts: Sequence[np.dtype | None],
    *,
    threadgroup: Any,
    grid_of_threadgroups: bool,
    rounded_up: bool,
    threadgroup_memory: Sequence[int],
    undefined: Sequence[str | int],
) -> tuple[KernelFinding, ...]:
    """What the kernel does wrong in a run over ``grid``; see ``KernelFunction.check``.

    ``layouts`` are the types of the arguments that hold pointers, None for the others.
    """
    name = function.name
    arguments = [each for each in function.signature.arguments if each.address_space != "threadgroup"]
    sizes = [*(function.pointee_sizes or (1,) * len(arguments))]
    bound = BoundArguments(name, device)
    for argument, size, layout, value in zip(arguments, sizes, layouts, values, strict=False):
        copy = _copied_to(device, value)
        if argument.holds_pointers:
            add_with_pointers(bound, argument, layout, copy)
        else:
            bound.add(argument, size, copy)
    count = len(arguments)
    arguments = [replace(each, name=f"shape of {each.name}") if each.tensor else each for each in arguments]
    pointed = [argument for argument, _ in bound.pointed]
    arguments += pointed
    sizes += [element.size if element is not None else 0 for element in map(element_of, pointed)]
    buffers = [*bound.buffers, *(buffer for _, buffer in bound.pointed)]
    unset = _undefined_arguments(name, arguments, undefined)
    regions: list[checks.Region] = []
    numbers: list[int] = []
    for position, buffer in enumerate(buffers):
        first = buffers.index(buffer)
        if first < position:
            numbers.append(numbers[first])
            continue
        value = values[position] if position < count else None
        nbytes = value.nbytes if isinstance(value, np.ndarray) and value.nbytes == 0 else buffer.nbytes
        numbers.append(len(regions))
        regions.append(checks.Region(buffer.read(0, nbytes), position in unset))
    addresses = {buffer.address: number for buffer, number in zip(buffers[count:], numbers[count:], strict=True)}
    for layout, number in zip(layouts, numbers, strict=False):
        if layout is not None:
            data = regions[number].data
            for place in places_of_pointers(layout, data.nbytes):
                address = int(data[place : place + 8].view(np.uint64)[0])
                if address:
                    regions[number].pointers[place] = addresses[address]
    counts = extents(name, "grid", grid)
    shape = threadgroup_extents(name, function, counts, threadgroup, whole=grid_of_threadgroups or rounded_up)
    asked = tuple(c * s for c, s in zip(counts, shape, strict=True)) if grid_of_threadgroups else counts
    threads = tuple(ceiling_divide(c, s) * s for c, s in zip(asked, shape, strict=True)) if rounded_up else asked
    launch = checks.CheckedLaunch(threads, shape, regions, numbers[:count], threadgroup_memory)  # type: ignore[arg-type]
    outcome = compiled.run(launch)
    words = _Words(function, arguments, sizes, numbers, compiled.instrumentation, asked, threads, shape)  # type: ignore[arg-type]
    return words.findings(outcome, [number for number in range(len(regions))])


def _copied_to(device: OpenCLDevice, value: Any) -> Any:
    """``value``, or a copy of it on ``device`` if it is memory of another device, also where it holds such."""
    if isinstance(value, Mapping):
        return {name: _copied_to(device, each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        copies = [_copied_to(device, each) for each in value]
        return copies if isinstance(value, list) else tuple(copies)
    if isinstance(value, DeviceTensor):
        return DeviceTensor(_copied_to(device, value.buffer), value.dtype)
    if getattr(value, "device", device) is device or not is_device_memory(value):
        return value
    if isinstance(value, Buffer):
        copy = device.allocate(value.nbytes)
        copy.write(value.read(0, value.nbytes))
        return copy
    assert not isinstance(value, DeviceTensor)
    return type(value).from_array(np.asarray(value), device)


def _undefined_arguments(name: str, arguments: Sequence[Argument], undefined: Sequence[str | int]) -> set[int]:
    names = [argument.name for argument in arguments]
    if isinstance(undefined, str) or not isinstance(undefined, Iterable):
        raise FormatError(f"{name}: undefined is {undefined!r}; it has to be a sequence of names of arguments")
    found = set()
    for each in undefined:
        position = names.index(each) if each in names else each
        if not isinstance(position, int) or not 0 <= position < len(names):
            raise FormatError(f"{name}: undefined names {each!r}, but the arguments are {', '.join(names) or 'none'}")
        found.add(position)
    return found


class _Words:
    """Turns the records of a run into findings."""

    def __init__(
        self,
        function: Function,
        arguments: Sequence[Argument],
        sizes: Sequence[int],
        numbers: Sequence[int],
        instrumentation: Instrumentation,
        asked: Extents,
        threads: Extents,
        threadgroup: Extents,
    ) -> None:
        self._signature = function.signature
        self._arguments = arguments
        self._sizes = sizes
        self._numbers = numbers
        self._checks = instrumentation
        self._asked = asked
        self._threads = threads
        self._threadgroup = threadgroup
        self._dimensions = 3 if threads[2] > 1 else 2 if threads[1] > 1 else 1

    def findings(self, outcome: checks.Outcome, regions: Sequence[int]) -> tuple[KernelFinding, ...]:
        found: list[KernelFinding] = []
        raced: set[tuple[int, int]] = set()
        pairs: set[tuple[int, ...]] = set()
        for kind, describe in (
            (checks.BOUNDS, self._bounds),
            (checks.EXTENT, self._extent),
            (checks.RACE, self._race),
            (checks.UNINITIALISED, self._uninitialised),
            (checks.BARRIER, self._barrier),
            (checks.LANES, self._lanes),
            (checks.DIVISION, self._division),
            (checks.LOOP, self._loop),
        ):
            for record in self._records(outcome, kind):
                region, site, other = (int(record[key]) for key in ("region", "site", "other_site"))
                if kind == checks.RACE:
                    # One race shows at both of its places.
                    pair = (region, *sorted((site, other)))
                    if pair in pairs:
                        continue
                    pairs.add(pair)
                    raced |= {(region, site), (region, other)}
                # What is read too early was written by another thread too late: the race says more.
                if kind == checks.UNINITIALISED and (region, site) in raced:
                    continue
                # What is not understood may give a thread's own variables their values.
                if kind == checks.UNINITIALISED and region >= OWN_NAMES and self._checks.unchecked:
                    continue
                found.append(describe(record))
        found += self._aliased()
        if not outcome.stopped:
            found += self._unwritten(outcome, regions)
        for file, line, column in self._checks.unchecked:
            message = "this statement is not understood, so what it does is not checked"
            found.append(KernelFinding(file, line, column, "warning", message, "not-checked", self._signature.name))
        found.sort(key=lambda each: (each.file, each.line, each.column or 0, each.name))
        unique: dict[tuple[str, int, str], KernelFinding] = {}
        for each in found:
            unique.setdefault((each.file, each.line, each.message), each)
        return tuple(unique.values())

    @staticmethod
    def _records(outcome: checks.Outcome, kind: int) -> list[np.void]:
        return [record for record in outcome.findings[kind] if record["count"]]

    # Threads and memory.

    def _position(self, group: int, thread: int) -> tuple[Extents, Extents]:
        """The positions in the grid of a thread and of its threadgroup, from their numbers."""
        counts = [ceiling_divide(size, side) for size, side in zip(self._threads, self._threadgroup, strict=True)]
        number = group - 1
        at = (number % counts[0], number // counts[0] % counts[1], number // (counts[0] * counts[1]))
        first = [i * size for i, size in zip(at, self._threadgroup, strict=True)]
        inside = [min(t, g - f) for t, g, f in zip(self._threadgroup, self._threads, first, strict=True)]
        local = (thread % inside[0], thread // inside[0] % inside[1], thread // (inside[0] * inside[1]))
        return tuple(f + i for f, i in zip(first, local, strict=True)), at  # type: ignore[return-value]

    def _thread(self, position: Extents) -> str:
        shown = ", ".join(map(str, position[: self._dimensions]))
        return f"thread {shown if self._dimensions == 1 else f'({shown})'}"

    def _stray(self, position: Extents) -> str:
        if all(at < size for at, size in zip(position, self._asked, strict=True)):
            return ""
        grid = "x".join(map(str, self._asked[: self._dimensions]))
        threads = "x".join(map(str, self._threads[: self._dimensions]))
        return f", a stray one: the grid of {grid} threads is rounded up to {threads}"

    def _memory(self, record: np.void) -> tuple[str | None, int | None]:
        """The name of what was accessed, and the bytes of one of its elements."""
        region = int(record["region"])
        if region == checks.NOWHERE:
            return None, None
        if region >= OWN_NAMES:
            return self._checks.own[region - OWN_NAMES], int(record["reached"])
        if region >= CONSTANT_NAMES:
            return self._checks.constants[region - CONSTANT_NAMES], None
        if region >= THREADGROUP_NAMES:
            return self._checks.threadgroup[region - THREADGROUP_NAMES], None
        position = self._numbers.index(region)
        return self._arguments[position].name, self._sizes[position]

    def _place(self, record: np.void, site: int | None) -> Place | None:
        if not record["other_group"]:
            return None
        thread = self._position(int(record["other_group"]), int(record["other_thread"]))[0]
        if site is None:
            return Place(thread)
        where = self._checks.sites[site]
        return Place(thread, where.file, where.line, where.column)

    def _line(self, here: Site, there: Place) -> str:
        if there.file == here.file:
            if there.line == here.line:
                return "here too" if there.column == here.column else "in this line"
            return f"in line {there.line}"
        return f"in {there.file}:{there.line}"

    def _element(self, record: np.void) -> str:
        name, size = self._memory(record)
        size = size or int(record["size"])
        first = int(record["index"])
        part = self._checks.sites[int(record["site"])].part
        if record["region"] >= OWN_NAMES and part not in ("", name):
            return f"'{part}' of '{name}'"
        if record["region"] >= OWN_NAMES and record["size"] == record["extent"]:
            return f"'{name}'"
        if first % size == 0 and size == record["size"]:
            return f"element {first // size} of '{name}'"
        return f"{record['size']} bytes from byte {first} on of '{name}'"

    def _made(self, kind: str, record: np.void, message: str, other: Place | None = None) -> KernelFinding:
        site = self._checks.sites[int(record["site"])]
        thread, group = self._position(int(record["group"]), int(record["thread"]))
        name = self._memory(record)[0]
        index: int | None = None
        length: int | None = None
        if name is not None:
            index, length = (int(record[key]) // int(record["size"]) for key in ("index", "extent"))
        elif record["access"]:
            index, length = int(record["index"]), int(record["extent"])
        return KernelFinding(
            site.file,
            site.line,
            site.column,
            MISTAKES[kind].severity,
            message,
            kind,
            self._signature.name,
            int(record["count"]),
            thread,
            group,
            name,
            index,
            length,
            other,
        )

    def _by(self, record: np.void) -> str:
        thread = self._position(int(record["group"]), int(record["thread"]))[0]
        return f"by {self._thread(thread)}{self._stray(thread)}"

    # One kind each.

    def _bounds(self, record: np.void) -> KernelFinding:
        name, size = self._memory(record)
        verb = _VERBS[int(record["access"])]
        if name is None:
            what = "through a pointer into no buffer,"
        elif size in (None, int(record["size"])) and record["index"] % record["size"] == 0:
            length = int(record["extent"]) // int(record["size"])
            elements = f"{length} element{'s' if length != 1 else ''}"
            what = f"of element {int(record['index']) // int(record['size'])} of '{name}', which has {elements},"
        else:
            what = f"of {self._element(record)}, which has {record['extent']} bytes,"
        return self._made("out-of-bounds", record, f"out-of-bounds {verb} {what} {self._by(record)}")

    def _extent(self, record: np.void) -> KernelFinding:
        name = self._checks.sites[int(record["site"])].text
        elements = f"{record['extent']} element{'s' if record['extent'] != 1 else ''}"
        message = f"out-of-bounds {_VERBS[int(record['access'])]} of element {record['index']} of '{name}', "
        message += f"which has {elements}, {self._by(record)}"
        return self._made("out-of-bounds", record, message)

    def _uninitialised(self, record: np.void) -> KernelFinding:
        message = f"{self._element(record)} is read before it has a value, {self._by(record)}"
        return self._made("uninitialised-memory", record, message)

    def _race(self, record: np.void) -> KernelFinding:
        site = self._checks.sites[int(record["site"])]
        other = self._place(record, int(record["other_site"]))
        assert other is not None
        thread = self._position(int(record["group"]), int(record["thread"]))[0]
        does = _DOES[int(record["access"])]
        did = _DOES[int(record["other_access"])]
        message = (
            f"data race on {self._element(record)}: {self._thread(thread)} {does}, "
            f"{self._thread(other.thread)} {did} {self._line(site, other)}, "
        )
        region = int(record["region"])
        if record["group"] != record["other_group"]:
            message += "and nothing orders their threadgroups"
        elif record["reached"]:
            flag = "mem_threadgroup" if region >= THREADGROUP_NAMES else "mem_device"
            message += f"and the barrier between them does not have mem_flags::{flag}"
        else:
            message += "with no barrier between them"
        return self._made("data-race", record, message, other)

    def _barrier(self, record: np.void) -> KernelFinding:
        site = self._checks.sites[int(record["site"])]
        thread = self._position(int(record["group"]), int(record["thread"]))[0]
        if not record["reached"]:
            other = self._place(record, int(record["other_site"]))
            assert other is not None
            where = self._line(site, other)
            message = f"{self._thread(thread)} comes to this barrier while {self._thread(other.thread)} is at the one "
            message += where
            return self._made("divergent-barrier", record, message, other)
        left = int(record["other_site"])
        other = self._place(record, left - 1 if left else None)
        assert other is not None
        message = f"only {record['reached']} of {record['extent']} threads of the threadgroup come to this barrier: "
        message += f"{self._thread(other.thread)} " + (f"returned {self._line(site, other)}" if left else "does not")
        return self._made("divergent-barrier", record, message, other)

    def _lanes(self, record: np.void) -> KernelFinding:
        text = self._checks.sites[int(record["site"])].text
        called = text.split("(")[0]
        message = f"only {record['reached']} of {record['extent']} threads of the simdgroup call '{called}' here: "
        other = self._place(record, None)
        if other is None:
            message += f"{self._by(record)[3:]} reads from one that does not exist"
        else:
            message += f"{self._thread(other.thread)}, which {self._by(record)[3:]} needs, does not"
        return self._made("inactive-lane", record, message, other)

    def _division(self, record: np.void) -> KernelFinding:
        return self._made("division-by-zero", record, f"integer division by zero, {self._by(record)}")

    def _loop(self, record: np.void) -> KernelFinding:
        message = f"this loop had not ended after {record['extent']} steps, {self._by(record)}; the run was stopped"
        return self._made("endless-loop", record, message)

    # What shows before or after the run.

    def _at_kernel(
        self, kind: str, message: str, argument: str, index: int | None = None, length: int | None = None
    ) -> KernelFinding:
        signature = self._signature
        return KernelFinding(
            signature.file, signature.line, None, MISTAKES[kind].severity, message, kind, signature.name,
            argument=argument, index=index, length=length,
        )  # fmt: skip

    def _aliased(self) -> list[KernelFinding]:
        found = []
        for second, number in enumerate(self._numbers):
            first = self._numbers.index(number)
            pair = self._arguments[first], self._arguments[second]
            if first < second and any(argument.is_writable for argument in pair):
                message = f"'{pair[0].name}' and '{pair[1].name}' are the same memory, and the kernel may write it"
                found.append(self._at_kernel("aliased-arguments", message, pair[1].name))
        return found

    def _unwritten(self, outcome: checks.Outcome, regions: Sequence[int]) -> list[KernelFinding]:
        found = []
        for region in regions:
            granules = outcome.unwritten[region]
            if granules is None:
                continue
            position = self._numbers.index(region)
            name = self._arguments[position].name
            per_element = max(self._sizes[position] // self._checks.granule, 1)
            elements: np.ndarray = granules[: len(granules) // per_element * per_element].reshape(-1, per_element)
            whole: np.ndarray = np.all(elements, axis=1)
            missing = np.flatnonzero(whole)
            if len(missing):
                message = f"{len(missing)} of {len(whole)} elements of '{name}' were never written, "
                message += f"the first is {missing[0]}"
                found.append(self._at_kernel("unwritten-output", message, name, int(missing[0]), len(whole)))
        return found


