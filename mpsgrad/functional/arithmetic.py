"""Arithmetic of two images and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import FormatError
from mpsgrad.functional.arrays import array_like, image_of
from mpsgrad.functional.kept import kept
from mpsgrad.geometry import member
from mpsgrad.kernels.arithmetic import Add, Arithmetic, Compare, ComparisonType, Divide, Multiply, Subtract
from mpsgrad.kernels.arithmetic_gradient import (
    AddGradient,
    ArithmeticGradient,
    DivideGradient,
    MultiplyGradient,
    SubtractGradient,
)


def _arithmetic(cls: type[Arithmetic], primary: Any, secondary: Any, properties: dict[str, float]) -> Any:
    """The kernel, which spreads extents of 1 over the other image's, and both images."""
    images = image_of("primary", primary), image_of("secondary", secondary)
    spread = []
    for which, own, other in (("primary", *images), ("secondary", *images[::-1])):
        for name, extent in (("pixels_x", "width"), ("pixels_y", "height"), ("feature_channels", "feature_channels")):
            if getattr(own, extent) == 1 and getattr(other, extent) > 1:
                spread.append(f"{which}_stride_in_{name}")
    return kept(_kernel, cls, tuple(spread), **properties), *images


def _kernel(cls: type[Arithmetic], spread: tuple[str, ...], /, **properties: float) -> Arithmetic:
    """The kernel with strides of 0 that ``spread`` names, and these properties."""
    kernel = cls(records_clamp=True) if {"minimum_value", "maximum_value"} & properties.keys() else cls()
    for name in spread:
        setattr(kernel, name, 0)
    for name, value in properties.items():
        if name not in ("primary_scale", "secondary_scale", "bias", "minimum_value", "maximum_value"):
            raise FormatError(f"{cls.__name__}: {name!r} is not a property that can be given")
        setattr(kernel, name, value)
    return kernel


def _gradient(
    gradient: type[ArithmeticGradient], is_secondary: bool, cls: type[Arithmetic], /, **properties: float
) -> ArithmeticGradient:
    return gradient.of(_kernel(cls, (), **properties), is_secondary_source_filter=is_secondary)


def _arithmetic_result(cls: type[Arithmetic], primary: Any, secondary: Any, properties: dict[str, float]) -> np.ndarray:
    kernel, *images = _arithmetic(cls, primary, secondary, properties)
    with CommandBuffer() as commands:
        result = kernel.encode(commands, *images)
    return array_like(result, primary)


def _arithmetic_gradients(
    cls: type[Arithmetic],
    gradient: type[ArithmeticGradient],
    source_gradient: Any,
    primary: Any,
    secondary: Any,
    properties: dict[str, float],
) -> tuple[np.ndarray, np.ndarray]:
    kernel, *images = _arithmetic(cls, primary, secondary, properties)
    incoming, results = image_of("source_gradient", source_gradient), []
    with CommandBuffer() as commands:
        _, state = kernel.encode(commands, *images, return_state=True)
        for is_secondary in (False, True):
            image = images[is_secondary ^ gradient.takes_the_other_image]
            made = kept(_gradient, gradient, is_secondary, cls, **properties)
            results.append(made.encode(commands, incoming, image, state))
    return array_like(results[0], primary), array_like(results[1], secondary)


def add(primary: Any, secondary: Any, **properties: float) -> np.ndarray:
    """``primary_scale x + secondary_scale y + bias``, kept between ``minimum_value`` and ``maximum_value``.

    Heights, widths and channels of 1 are spread over the other image's; the batches have to be equal. The
    ``properties`` are those five, 1, 1, 0 and the least and largest finite float32 at first: an infinity becomes one of
    these. Source: ``Add``.
    """
    return _arithmetic_result(Add, primary, secondary, properties)


def add_gradient(
    source_gradient: Any, primary: Any, secondary: Any, **properties: float
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of ``add`` for both images, summed where an extent of 1 was spread.

    With a limit among ``properties``, 0 for results that it changed. Source: ``AddGradient``.
    """
    return _arithmetic_gradients(Add, AddGradient, source_gradient, primary, secondary, properties)


def subtract(primary: Any, secondary: Any, **properties: float) -> np.ndarray:
    """``primary_scale x - secondary_scale y + bias``, otherwise as ``add``. Source: ``Subtract``."""
    return _arithmetic_result(Subtract, primary, secondary, properties)


def subtract_gradient(
    source_gradient: Any, primary: Any, secondary: Any, **properties: float
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of ``subtract`` for both images, otherwise as ``add_gradient``. Source: ``SubtractGradient``."""
    return _arithmetic_gradients(Subtract, SubtractGradient, source_gradient, primary, secondary, properties)


def multiply(primary: Any, secondary: Any, **properties: float) -> np.ndarray:
    """``primary_scale x secondary_scale y + bias``, otherwise as ``add``. Source: ``Multiply``."""
    return _arithmetic_result(Multiply, primary, secondary, properties)


def multiply_gradient(
    source_gradient: Any, primary: Any, secondary: Any, **properties: float
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of ``multiply`` for both images, otherwise as ``add_gradient``. Source: ``MultiplyGradient``."""
    return _arithmetic_gradients(Multiply, MultiplyGradient, source_gradient, primary, secondary, properties)


def divide(primary: Any, secondary: Any, **properties: float) -> np.ndarray:
    """``primary_scale x / (secondary_scale y) + bias``, otherwise as ``add``. Source: ``Divide``."""
    return _arithmetic_result(Divide, primary, secondary, properties)


def divide_gradient(
    source_gradient: Any, primary: Any, secondary: Any, **properties: float
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of ``divide`` for both images, otherwise as ``add_gradient``. Source: ``DivideGradient``."""
    return _arithmetic_gradients(Divide, DivideGradient, source_gradient, primary, secondary, properties)


def compare(
    primary: Any, secondary: Any, comparison: str | ComparisonType = "equal", *, threshold: float = 0.0
) -> np.ndarray:
    """1 where the ``comparison`` holds, else 0; extents of 1 are spread as by ``add``.

    It is ``"equal"``, ``"not_equal"``, ``"less"``, ``"less_or_equal"``, ``"greater"`` or ``"greater_or_equal"``;
    ``|x - y| <= threshold`` is equality. Source: ``Compare``.
    """
    comparison = member("compare", "comparison", ComparisonType, comparison)
    kernel, *images = _arithmetic(Compare, primary, secondary, {})
    kernel.comparison_type, kernel.threshold = comparison, threshold
    with CommandBuffer() as commands:
        result = kernel.encode(commands, *images)
    return array_like(result, primary)
