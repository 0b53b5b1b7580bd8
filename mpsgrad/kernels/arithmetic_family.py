"""The kernels of arithmetic and their parameters."""

from __future__ import annotations

from mpsgrad.kernels.strides import EXTENTS, REDUCED, STRIDES, strided_family
from mpsgrad.shader import ParameterStruct

PARAMETERS = ParameterStruct(
    "ArithmeticParameters",
    primary=STRIDES,
    secondary=STRIDES,
    destination=STRIDES,
    mask=STRIDES,
    derivative=STRIDES,
    extents=EXTENTS,
    primary_scale="float",
    secondary_scale="float",
    bias="float",
    minimum="float",
    maximum="float",
    threshold="float",
    of_equal="float",
    of_less="float",
    of_greater="float",
    otherwise="float",
)
FAMILY = strided_family("arithmetic", (PARAMETERS,))
GRADIENT_PARAMETERS = ParameterStruct(
    "ArithmeticGradientParameters",
    gradient=STRIDES,
    other=STRIDES,
    mask=STRIDES,
    parts=STRIDES,
    destination=STRIDES,
    extents=EXTENTS,
    reduced=REDUCED,
    scale="float",
)
GRADIENT_FAMILY = strided_family("arithmetic_gradient", (PARAMETERS, GRADIENT_PARAMETERS))
"""Those of the gradients, and of forward kernels that record something for them."""
