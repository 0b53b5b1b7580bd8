"""The dispatches of the gradients of arithmetic: element by element, or summed over what was spread."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.geometry import Offset
from mpsgrad.image import Image
from mpsgrad.kernels.arithmetic_family import GRADIENT_FAMILY, GRADIENT_PARAMETERS
from mpsgrad.kernels.arithmetic_operand import channels_and_extents, spread_operand
from mpsgrad.kernels.copies import add_copy
from mpsgrad.kernels.pointwise import Layout, Operand, dense_layout, pieces
from mpsgrad.kernels.strided_reductions import add_reduction
from mpsgrad.kernels.strides import View, add_elementwise, zeros
from mpsgrad.tunables import tunables


@dataclass(frozen=True, slots=True)
class Factor:
    """What the incoming gradient is multiplied or divided by, addressed as a forward kernel addresses a source."""

    buffer: Buffer
    layout: Layout
    offset: Offset
    strides: tuple[int, int, int]
    clamps: bool

    def operand(self, dx: int, dy: int, width: int, height: int) -> Operand:
        """The operand of an image of ``width`` x ``height`` whose pixel 0 is pixel ``(dx, dy)`` of the gradient."""
        _, x, y = self.strides
        offset = Offset(self.offset.x + x * dx, self.offset.y + y * dy)
        return spread_operand(self.layout, offset, (x, y), self.clamps, width, height)

    def used(self, part: Layout | None, device: Device) -> tuple[Buffer, View]:
        return zeros(device) if part is None else (self.buffer, View.of(part, self.strides[0]))


class GradientWork:
    """Adds the dispatches of one gradient; ``layout`` is that of the incoming gradient's pixels that were produced."""

    def __init__(self, command_buffer: CommandBuffer, gradient: Image, layout: Layout, scale: float) -> None:
        self.command_buffer = command_buffer
        self.device = command_buffer.device
        self.metal_type = gradient.channel_format.metal_type
        self.itemsize = gradient.dtype.itemsize
        self.buffer, self.layout, self.scale = gradient.buffer, layout, scale
        self.name = ""
        self.factor: Factor | None = None

    def _add(self, name: str, operands: dict[str, tuple[Buffer, View]], layout: Layout) -> None:
        add_elementwise(
            self.command_buffer,
            GRADIENT_FAMILY,
            GRADIENT_PARAMETERS,
            name,
            self.metal_type,
            operands,
            channels_and_extents(layout),
            scale=self.scale,
        )

    def _dense(self, width: int, height: int, images: int, itemsize: int) -> tuple[Buffer, Layout]:
        """Scratch memory for all channels of so many pixels."""
        channels = self.layout[6]
        buffer = self.command_buffer.scratch(itemsize * width * height * channels * images)
        return buffer, dense_layout(width, height, channels, images)

    def mask(self, buffer: Buffer, record: Layout) -> None:
        """Sets the incoming gradient to 0 where the mask in ``buffer`` is."""
        _, _, _, _, width, height, _, images = self.layout
        result, dense = self._dense(width, height, images, self.itemsize)
        operands = {
            "gradient": (self.buffer, View.of(self.layout)),
            "mask": (buffer, View.of(record)),
            "destination": (result, View.of(dense)),
        }
        self._add("mask", operands, dense)
        self.buffer, self.layout = result, dense

    def add_elements(self, destination: Image, layout: Layout, dx: int, dy: int) -> None:
        """The gradient of an image that was not spread. Its pixel 0 is pixel ``(dx, dy)`` of the incoming gradient."""
        operands = [Operand(self.layout, dx, dy)]
        if self.factor is not None:
            operands.append(self.factor.operand(dx, dy, *layout[4:6]))
        for piece in pieces(layout, tuple(operands)):
            part, *factors = piece.operands
            if part is None:
                self._add_zeros(destination, piece.destination)
                continue
            used = {"gradient": (self.buffer, View.of(part))}
            if self.factor is not None:
                used["other"] = self.factor.used(factors[0], self.device)
            used["destination"] = (destination.buffer, View.of(piece.destination))
            if self.factor is None and self.scale == 1.0 and self._copies_faster:
                extents = channels_and_extents(piece.destination)
                add_copy(self.command_buffer, self.metal_type, used["gradient"], used["destination"], extents)
                continue
            self._add("gradient" + self.name, used, piece.destination)

    @property
    def _copies_faster(self) -> bool:
        """Whether copies take less time than products with 1: those of halves on CPUs with few registers."""
        is_cpu = self.device.family == "cpu" and not tunables(self.device.tuning).has_many_registers
        return is_cpu and self.metal_type == "half"

    def _add_zeros(self, destination: Image, layout: Layout) -> None:
        operands = {"gradient": zeros(self.device), "destination": (destination.buffer, View.of(layout))}
        self._add("gradient", operands, layout)

    def add_sums(
        self,
        destination: Image,
        layout: Layout,
        strides: tuple[int, int, int],
        offset: Offset,
        dx: int,
        dy: int,
        clamps: bool,
    ) -> None:
        """The gradient of an image that was spread from ``offset`` where ``strides`` are 0; other pixels get 0."""
        _, _, _, _, width, height, channels, images = self.layout
        x, across, columns = _box(layout[4], width, strides[1], offset.x, dx, clamps)
        y, down, rows = _box(layout[5], height, strides[2], offset.y, dy, clamps)
        reached = (0, 0, 0, 0, columns if strides[1] else 1, rows if strides[2] else 1, layout[6], layout[7])
        if not columns or not rows:
            reached = (0, 0, 0, 0, 0, 0, *reached[6:])
        for piece in pieces(layout, (Operand(reached, -x, -y),)):
            if piece.operands[0] is None:
                self._add_zeros(destination, piece.destination)
            else:
                target = (destination.buffer, View.of(piece.destination))
                self._add_box(target, (across, down), (channels, columns, rows, layout[7]), strides)

    def _add_box(
        self,
        destination: tuple[Buffer, View],
        first: tuple[int, int],
        extents: tuple[int, int, int, int],
        strides: tuple[int, int, int],
    ) -> None:
        """The sums over the incoming gradient from pixel ``first`` on along the axes where ``strides`` are 0."""
        x, y = first
        _, columns, rows, images = extents
        start, pixel, row, *_ = self.layout
        used = {"gradient": (self.buffer, replace(View.of(self.layout), offset=start + x * pixel + y * row))}
        name = "sum" + self.name
        if self.factor is not None:
            operand = self.factor.operand(x, y, columns, rows)
            if operand.covers(columns, rows):
                begin, pixel, row, *_ = operand.layout
                part = (begin + operand.dx * pixel + operand.dy * row, *operand.layout[1:])
                used["other"] = self.factor.used(part, self.device)
            else:
                name, used = "sum_parts", {"parts": self._terms(operand, x, y, columns, rows, images)}
        add_reduction(
            self.command_buffer,
            GRADIENT_FAMILY,
            GRADIENT_PARAMETERS,
            name,
            self.metal_type,
            {**used, "destination": destination},
            extents,
            (bool(strides[0]), bool(strides[1]), bool(strides[2]), True),
            merge="sum_parts",
            scale=self.scale,
        )

    def _terms(self, operand: Operand, x: int, y: int, columns: int, rows: int, images: int) -> tuple[Buffer, View]:
        """The products or quotients in scratch memory, for a factor that does not have all pixels."""
        assert self.factor is not None
        result, dense = self._dense(columns, rows, images, 4)
        for piece in pieces(dense, (Operand(self.layout, x, y), operand)):
            part, factor = piece.operands
            assert part is not None
            used = {
                "gradient": (self.buffer, View.of(part)),
                "other": self.factor.used(factor, self.device),
                "parts": (result, View.of(piece.destination)),
            }
            self._add("term" + self.name, used, piece.destination)
        return result, View.of(dense)


def _box(size: int, length: int, stride: int, offset: int, shift: int, clamps: bool) -> tuple[int, int, int]:
    """Along one axis: the first pixel of ``size`` that has a gradient, the first of its ``length`` that it takes, and
    how many there are: of both for a stride of 1, of the gradient for one of 0."""
    if stride:
        first = max(0, -shift)
        return first, first + shift, max(0, min(size, length - shift) - first)
    position = min(max(offset, 0), size - 1) if clamps else offset
    return position, 0, length if 0 <= position < size else 0
