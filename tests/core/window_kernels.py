"""A kernel with one source and one with two, to test the base classes with, and their references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mpsgrad import EdgeMode
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW, BinaryKernel, Kernel
from mpsgrad.reference.window import Window
from mpsgrad.shader import ParameterStruct, ShaderFamily

PARAMETERS = ParameterStruct(
    "WindowSumParameters",
    primary=IMAGE_LAYOUT,
    secondary=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    primary_window=WINDOW,
    secondary_window=WINDOW,
    primary_clamps="int",
    secondary_clamps="int",
)
FAMILY = ShaderFamily(
    "window_sum", (IMAGE_LAYOUT, WINDOW, PARAMETERS), directory=Path(__file__).parent / "shaders"
)


def _add_dispatch(kernel, command_buffer, name, images, regions, windows, clamps) -> None:
    first, second = regions.sources[0], regions.sources[-1]
    parameters = PARAMETERS.pack(
        primary=first,
        secondary=second,
        destination=regions.destination,
        primary_window=windows[0],
        secondary_window=windows[-1],
        primary_clamps=int(clamps[0]),
        secondary_clamps=int(clamps[-1]),
    )
    elements = regions.width * regions.height * regions.images * regions.destination[6]
    command_buffer.add_dispatch(
        FAMILY.function(kernel.device, name, images[-1].channel_format.metal_type),
        -(-elements // 64),
        *(image.buffer for image in images),
        kernel.device.constant_buffer(parameters),
    )


class WindowSum(Kernel):
    """``y = sum over taps p of (p + 1) * x[tap p]``."""

    def __init__(
        self,
        *,
        kernel_width: int,
        kernel_height: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
        dilation_rate_x: int = 1,
        dilation_rate_y: int = 1,
        device: Any = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        self._set_window(
            kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y, dilation_rate_x, dilation_rate_y
        )

    def _dispatch(self, command_buffer, source, destination, regions, state) -> None:
        window = self._window_layout(self.offset.x, self.offset.y)
        clamps = [self.edge_mode is EdgeMode.CLAMP]
        _add_dispatch(self, command_buffer, "window_sum", (source, destination), regions, [window], clamps)


class WindowDifference(BinaryKernel):
    """The window sum of the primary source minus that of the secondary."""

    def __init__(self, *, kernel_width: int = 1, kernel_height: int = 1, device: Any = None, label: Any = None) -> None:
        super().__init__(device=device, label=label)
        self._set_window(kernel_width, kernel_height, 1, 1, 1, 1)

    def _dispatch(self, command_buffer, primary, secondary, destination, regions, state) -> None:
        windows, clamps = [], []
        for which in ("primary", "secondary"):
            offset = getattr(self, f"{which}_offset")
            window = list(self._window_layout(offset.x, offset.y))
            window[2:4] = self._window_of(which)[2:4]
            windows.append(tuple(window))
            clamps.append(getattr(self, f"{which}_edge_mode") is EdgeMode.CLAMP)
        images = (primary, secondary, destination)
        _add_dispatch(self, command_buffer, "window_difference", images, regions, windows, clamps)


def window_sum(source, *, kernel, stride=(1, 1), dilation=(1, 1), offset=(0, 0), size, edge="zero") -> np.ndarray:
    """The reference of ``WindowSum``; pairs are (y, x). A stride of 0 reads the same window for every pixel."""
    source = np.asarray(source, np.float64)
    spread = tuple(max(step, 1) for step in stride)
    window = Window(source.shape[1:3], kernel, spread, dilation, offset, size, edge)
    extended = window.extend(source)
    result = np.zeros((source.shape[0], *size, source.shape[3]))
    for number, (_, index) in enumerate(window.taps()):
        result += (number + 1) * extended[index]
    for axis, step in ((1, stride[0]), (2, stride[1])):
        if step == 0:
            result = np.repeat(np.take(result, [0], axis), size[axis - 1], axis)
    return result
