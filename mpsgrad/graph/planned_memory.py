"""The buffers that the memory plans of a graph speak of."""

from __future__ import annotations

from mpsgrad.devices import Buffer, Device
from mpsgrad.graph.memory import MemoryPlan


class PlannedMemory:
    """Memory that a graph keeps from encode to encode. All plans use the same, made larger where one needs that."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffers: list[Buffer] = []
        self._plan: MemoryPlan | None = None
        self._parts: dict[int, Buffer] = {}
        self.replaced = 0
        """How often memory was given back for larger one."""

    @property
    def nbytes(self) -> int:
        """Bytes that there are now."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def buffer(self, plan: MemoryPlan, image: int) -> Buffer:
        """The memory of image number ``image`` of ``plan``; raises ``DeviceError`` if there is not enough."""
        if plan is not self._plan:
            self._parts.clear()
            self._plan = plan
        part = self._parts.get(image)
        if part is None:
            index, offset = plan.places[image]
            whole = self._whole(index, plan.buffer_sizes[index])
            is_divided = self._device.part_alignment is not None
            part = whole.part(offset, plan.lifetimes[image].nbytes) if is_divided else whole
            self._parts[image] = part
        return part

    def _whole(self, index: int, nbytes: int) -> Buffer:
        if index < len(self._buffers) and self._buffers[index].nbytes < nbytes:
            # Given back first, so that there are not both at once.
            del self._buffers[index:]
            self._parts.clear()
            self.replaced += 1
        while len(self._buffers) <= index:
            self._buffers.append(self._device.allocate(nbytes))
        return self._buffers[index]
