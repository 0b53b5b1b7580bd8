"""Weights of 8 bits: what their numbers stand for."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from mpsgrad.archive import archivable
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import member


@archivable
class ConvolutionWeightsQuantizationType(enum.IntEnum):
    """Which number a weight of one byte stands for. Source: ``MPSCNNWeightsQuantizationType``.

    A data source of UINT8 weights says so by ``weights_quantization_type``.
    """

    NONE = 0
    """The weights stand for themselves: refused for weights of one byte."""
    LINEAR = 1
    """``w / 255 * (maximum - minimum) + minimum``; ``ranges_for_uint8_kernel`` has the two of each output channel."""
    LOOKUP_TABLE = 2
    """Entry ``w`` of the 256 in ``lookup_table_for_uint8_kernel``."""


def dequantized(owner: str, data_source: Any, weights: np.ndarray) -> np.ndarray:
    """The float32 numbers that the UINT8 ``weights`` of ``data_source`` stand for.

    LINEAR: ``w / 255 * (maximum - minimum) + minimum`` with the row of ``ranges_for_uint8_kernel`` [output channels][2]
    of the output channel. LOOKUP_TABLE: ``lookup_table_for_uint8_kernel[w]``, 256 numbers. Without a
    ``weights_quantization_type`` the one that is there is used. Raises ``NotImplementedError`` if there is none.
    """
    ranges = getattr(data_source, "ranges_for_uint8_kernel", None)
    table = getattr(data_source, "lookup_table_for_uint8_kernel", None)
    kind = getattr(data_source, "weights_quantization_type", None)
    if kind is None:
        known = ConvolutionWeightsQuantizationType
        kind = known.LINEAR if ranges is not None else known.LOOKUP_TABLE if table is not None else known.NONE
    kind = member(owner, "weights_quantization_type", ConvolutionWeightsQuantizationType, kind)
    if kind is ConvolutionWeightsQuantizationType.NONE:
        raise NotImplementedError(
            f"{owner}: data_type is UINT8 without ranges_for_uint8_kernel or lookup_table_for_uint8_kernel"
        )
    if kind is ConvolutionWeightsQuantizationType.LOOKUP_TABLE:
        return _numbers(owner, "lookup_table_for_uint8_kernel", table, (256,))[weights]
    limits = _numbers(owner, "ranges_for_uint8_kernel", ranges, (len(weights), 2)).astype(np.float64)
    low, high = (limits[:, k].reshape(-1, *[1] * (weights.ndim - 1)) for k in (0, 1))
    return (weights / 255.0 * (high - low) + low).astype(np.float32)


def _numbers(owner: str, name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    if values is None:
        raise FormatError(f"{owner}: {name} is None but weights_quantization_type asks for it")
    array = np.asarray(values, np.float32)
    if array.shape != shape:
        raise GeometryError(f"{owner}: {name} has shape {array.shape}; it has to be {shape}")
    return array
