"""What one encode reads and writes: the parts of images and the windows, as layouts for the shaders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpsgrad.errors import GeometryError
from mpsgrad.geometry import LARGEST_POSITION, Region
from mpsgrad.image import Image
from mpsgrad.shader import ParameterStruct

if TYPE_CHECKING:
    from mpsgrad.base_kernel import BaseKernel

WINDOW = ParameterStruct(
    "Window",
    width="int",
    height="int",
    stride_x="int",
    stride_y="int",
    dilation_x="int",
    dilation_y="int",
    origin_x="int",
    origin_y="int",
)
"""A window: ``origin`` is the source pixel of the first tap of the first output pixel."""


@dataclass(frozen=True, slots=True)
class Regions:
    """What one encode reads and writes, as layouts for the shaders (the fields of ``ImageLayout``).

    ``width``, ``height``, ``images`` are the extents of the destination region; the layouts hold the channels in use.
    """

    sources: tuple[tuple[int, ...], ...]
    destination: tuple[int, ...]
    width: int
    height: int
    images: int

    @classmethod
    def of_whole(cls, destination: Image, *sources: Image) -> Regions:
        """Those of an encode that reads all of ``sources`` and fills ``destination``."""
        *_, width, height, _, images = layout = destination.layout
        return cls(tuple(source.layout for source in sources), layout, width, height, images)


def share_memory(a: Image, b: Image) -> bool:
    """Whether two images have an element in common; views of one are judged by image and channel ranges."""
    if a._root is not b._root:
        if not (a._is_borrowed or b._is_borrowed):
            return False
        first, second = a._addresses, b._addresses
        return first.start < second.stop and second.start < first.stop
    stride = a._strides[2]
    pixel = a._strides[0]
    a_image, b_image = a._first_element // stride, b._first_element // stride
    if a_image + a.number_of_images <= b_image or b_image + b.number_of_images <= a_image:
        return False
    a_channel, b_channel = a._first_element % pixel, b._first_element % pixel
    return a_channel < b_channel + b.feature_channels and b_channel < a_channel + a.feature_channels


def source_layout(image: Image, first_channel: int, channels: int, first_image: int, images: int) -> tuple[int, ...]:
    """The layout of the part of ``image`` that a kernel reads."""
    start, pixel, row, step, width, height, _, _ = image.layout
    return (start + first_image * step + first_channel, pixel, row, step, width, height, channels, images)


def require_reach(kernel: BaseKernel, offset: str, window: tuple[int, ...], width: int, height: int) -> None:
    """Raises ``GeometryError`` if the windows of ``width`` x ``height`` pixels lie beyond 32-bit coordinates.

    ``window`` is in the order of ``BaseKernel._window``; ``offset`` is the name of the property with the first centre.
    """
    taps_x, taps_y, stride_x, stride_y, dilation_x, dilation_y = window
    first = getattr(kernel, offset)
    for axis, start, taps, stride, dilation, count in (
        ("x", first.x, taps_x, stride_x, dilation_x, width),
        ("y", first.y, taps_y, stride_y, dilation_y, height),
    ):
        extent = (taps - 1) * dilation + 1
        last = start + stride * max(count - 1, 0)
        if start - extent < -LARGEST_POSITION or last + extent > LARGEST_POSITION:
            raise GeometryError(
                f"{type(kernel).__name__}: the windows of {extent} pixels along {axis} have their centres at pixels "
                f"{start} to {last}; they have to lie between {-LARGEST_POSITION} and {LARGEST_POSITION}"
            )


def require_first_window(owner: str, x: int, y: int) -> None:
    """Raises ``GeometryError`` if the first window, which begins at ``(x, y)``, lies beyond 32-bit coordinates."""
    if max(abs(x), abs(y)) > LARGEST_POSITION:
        raise GeometryError(
            f"{owner}: offset and kernel_offset put the first window at ({x}, {y}); it has to lie between "
            f"{-LARGEST_POSITION} and {LARGEST_POSITION}"
        )


def clip_layout(layout: tuple[int, ...], clip_rect: Region) -> tuple[int, ...]:
    """``layout`` cut to the columns and rows of ``clip_rect``; its pixel 0 is the clip rectangle's first."""
    start, pixel, row, step, width, height, channels, images = layout
    (x, y, _), size = clip_rect
    return (
        start + y * row + x * pixel,
        pixel,
        row,
        step,
        max(min(size.width, width - x), 0),
        max(min(size.height, height - y), 0),
        channels,
        images,
    )
