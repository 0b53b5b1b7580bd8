"""What the calls share: arrays as images, windows and their padding, and kernels that run alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.data_type import require_unmasked
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import EdgeMode
from mpsgrad.image import Image
from mpsgrad.kernel import GradientKernel, Kernel
from mpsgrad.padding import DefaultPadding, ExplicitPadding, Padding, PaddingMethod

Pair = int | tuple[int, int]

_SIZES = {
    "same": PaddingMethod.SIZE_SAME,
    "valid": PaddingMethod.SIZE_VALID_ONLY,
    "full": PaddingMethod.SIZE_FULL,
}


def pair_of(name: str, value: Pair) -> tuple[int, int]:
    """``value``, the argument ``name``, as (y, x)."""
    if isinstance(value, (int, np.integer)):
        return value, value
    try:
        y, x = value
    except (TypeError, ValueError):
        raise FormatError(f"{name} is {value!r}; it has to be an integer or a pair (y, x)") from None
    return y, x


def padding_of(value: str | Pair | Padding) -> Padding:
    """What the argument ``padding`` means."""
    if isinstance(value, str):
        if value not in _SIZES:
            raise FormatError(f"padding is {value!r}; it has to be 'same', 'valid', 'full', or pixels")
        return DefaultPadding(_SIZES[value])
    if isinstance(value, Padding):
        return value
    y, x = pair_of("padding", value)
    return ExplicitPadding(x=x, y=y)


def array_of(name: str, value: Any) -> np.ndarray:
    """``value``, the argument ``name``, as a C-contiguous array."""
    require_unmasked(name, value)
    try:
        values = np.asarray(value, order="C")
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise FormatError(f"{name}: {type(value).__name__} cannot be read as a NumPy array: {error}") from error
    if values.dtype.kind not in "biufc":
        raise FormatError(f"{name} is {type(value).__name__}; it has to be an array of numbers")
    return values


def image_of(name: str, array: Any) -> Image:
    """An image or a batch with the values of ``array``, the argument ``name``."""
    values = array_of(name, array)
    try:
        return Image.from_array(values)
    except (FormatError, GeometryError) as error:
        raise type(error)(f"{name}: {error}") from None


def shape_of(name: str, array: Any) -> tuple[int, ...]:
    """The shape of ``array``, the argument ``name``, which has to be that of an image or a batch."""
    shape = array_of(name, array).shape
    if len(shape) not in (3, 4):
        raise GeometryError(
            f"{name} has shape {shape}; it has to be (images, height, width, channels) or (height, width, channels)"
        )
    return shape


def channels_of(name: str, array: Any) -> int:
    """The feature channels of ``array``, the argument ``name``."""
    return shape_of(name, array)[-1]


def array_like(image: Image, array: Any) -> np.ndarray:
    """The values of ``image``, without the axis of images where ``array`` has none."""
    values = np.array(image)
    return values[0] if np.ndim(array) == 3 else values


def run_forward(kernel: Kernel, source: Any) -> np.ndarray:
    """The result of a forward kernel."""
    with CommandBuffer() as commands:
        result = kernel.encode(commands, image_of("source", source))
    return array_like(result, source)


def run_gradient(
    forward: Kernel, gradient: GradientKernel, source_gradient: Any, source: Any
) -> tuple[np.ndarray, Any]:
    """The gradient's result and the state, made without running the forward kernel."""
    image = image_of("source", source)
    destination = Image(forward.destination_image_descriptor([image]))
    state = forward.result_state(image, destination_image=destination)
    with CommandBuffer() as commands:
        result = gradient.encode(commands, image_of("source_gradient", source_gradient), image, state)
    return array_like(result, source), state


def run_both(forward: Any, gradient: Any, source_gradient: Any, source: Any) -> tuple[np.ndarray, Any]:
    """The gradient's result and the state, which the forward kernel has filled."""
    image = image_of("source", source)
    with CommandBuffer() as commands:
        _, state = forward.encode(commands, image, return_state=True)
        result = gradient.encode(commands, image_of("source_gradient", source_gradient), image, state)
    return array_like(result, source), state


def window_of(kernel: Pair, stride: Pair) -> dict[str, Any]:
    """A kernel's properties for these arguments."""
    (height, width), (stride_y, stride_x) = pair_of("kernel", kernel), pair_of("stride", stride)
    return {
        "kernel_width": width,
        "kernel_height": height,
        "stride_in_pixels_x": stride_x,
        "stride_in_pixels_y": stride_y,
    }


def dilated_window_of(kernel: Pair, stride: Pair, dilation: Pair) -> dict[str, Any]:
    """The same with a dilation."""
    y, x = pair_of("dilation", dilation)
    return {**window_of(kernel, stride), "dilation_rate_x": x, "dilation_rate_y": y}


def with_edges(kernel: Any, padding: str | Pair | Padding, edge_mode: str | EdgeMode) -> Any:
    """``kernel``, which outside its source works as these arguments say."""
    kernel.padding = padding_of(padding)
    kernel.edge_mode = edge_mode
    return kernel
