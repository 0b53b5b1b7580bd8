"""Weights of 8 bits, and weights rounded to float16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import reference

GENERATOR = np.random.default_rng(0)
WEIGHTS = GENERATOR.integers(0, 256, (3, 3, 3, 4)).astype(np.uint8)
RANGES = np.sort(GENERATOR.standard_normal((3, 2)), 1).astype(np.float32)
TABLE = GENERATOR.standard_normal(256).astype(np.float32)
X = GENERATOR.standard_normal((2, 5, 6, 4)).astype(np.float32)


class Quantized(mg.ConvolutionDataSource):
    def __init__(self, weights: np.ndarray = WEIGHTS, **attributes: Any) -> None:
        self._weights = weights
        for name, value in attributes.items():
            setattr(self, name, value)

    @property
    def data_type(self) -> mg.DataType:
        return mg.DataType.UINT8 if self._weights.dtype == np.uint8 else mg.DataType.FLOAT32

    @property
    def descriptor(self) -> mg.ConvolutionDescriptor:
        return mg.ConvolutionDescriptor(3, 3, 4, 3)

    @property
    def weights(self) -> np.ndarray:
        return self._weights


def linear() -> np.ndarray:
    low, high = (RANGES[:, k].reshape(3, 1, 1, 1).astype(np.float64) for k in (0, 1))
    return WEIGHTS / 255 * (high - low) + low


TYPE = mg.ConvolutionWeightsQuantizationType
CASES = {
    "ranges": ({"ranges_for_uint8_kernel": RANGES}, linear()),
    "a table": ({"lookup_table_for_uint8_kernel": TABLE}, TABLE[WEIGHTS]),
    "a table and ranges": (
        {"ranges_for_uint8_kernel": RANGES, "lookup_table_for_uint8_kernel": TABLE,
         "weights_quantization_type": TYPE.LOOKUP_TABLE},
        TABLE[WEIGHTS],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("attributes", "weights"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("kernel", [mg.Convolution, mg.ConvolutionTranspose])
def test_convolutions_use_what_the_numbers_stand_for(kernel, attributes, weights):
    made = kernel(Quantized(**attributes))
    np.testing.assert_allclose(made.weights_and_biases[0], weights, rtol=1e-6, atol=1e-6)
    with mg.CommandBuffer() as commands:
        y = made.encode(commands, mg.Image.from_array(X))
    name = "convolution" if kernel is mg.Convolution else "convolution_transpose"
    exact = getattr(reference, name)(X, weights, size=(5, 6))
    np.testing.assert_allclose(np.asarray(y), exact, rtol=1e-4, atol=1e-4)


def test_weights_are_rounded_to_float16_if_the_data_source_wants_that():
    weights = GENERATOR.standard_normal((3, 3, 3, 4)).astype(np.float32)
    for kind, expected in ((mg.DataType.FLOAT16, weights.astype(np.float16)), (mg.DataType.FLOAT32, weights)):
        kernel = mg.Convolution(Quantized(weights, kernel_weights_data_type=kind))
        np.testing.assert_array_equal(kernel.weights_and_biases[0], expected.astype(np.float32))
    shared = mg.ConvolutionWeightsAndBiasesState.from_arrays(weights, None)
    with_state = type("WithState", (Quantized,), {"weights_and_biases_state": shared})
    kernel = mg.Convolution(with_state(weights, kernel_weights_data_type=mg.DataType.FLOAT16))
    np.testing.assert_array_equal(kernel.weights_and_biases[0], weights)


BAD_INPUT = {
    "nothing that says how to read them": ({}, NotImplementedError, "UINT8 without ranges_for_uint8_kernel"),
    "type NONE": ({"weights_quantization_type": 0, "ranges_for_uint8_kernel": RANGES}, NotImplementedError, "UINT8"),
    "an unknown type": ({"weights_quantization_type": 7}, mg.FormatError, "weights_quantization_type is 7"),
    "ranges of fewer channels": ({"ranges_for_uint8_kernel": RANGES[:2]}, mg.GeometryError, r"has shape \(2, 2\)"),
    "ranges in one row": ({"ranges_for_uint8_kernel": RANGES.ravel()}, mg.GeometryError, r"it has to be \(3, 2\)"),
    "a table that is too short": (
        {"lookup_table_for_uint8_kernel": TABLE[:255]}, mg.GeometryError, r"has shape \(255,\); .* \(256,\)"),
    "no table": (
        {"weights_quantization_type": TYPE.LOOKUP_TABLE}, mg.FormatError, "lookup_table_for_uint8_kernel is None"),
    "no ranges": ({"weights_quantization_type": TYPE.LINEAR}, mg.FormatError, "ranges_for_uint8_kernel is None"),
    "a precision that is none": (
        {"ranges_for_uint8_kernel": RANGES, "kernel_weights_data_type": mg.DataType.UINT8}, mg.FormatError,
        "kernel_weights_data_type is .*UINT8"),
}  # fmt: skip


@pytest.mark.parametrize(("attributes", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(attributes, error, words):
    with pytest.raises(error, match=words):
        mg.Convolution(Quantized(**attributes))


def test_quantized_weights_cannot_be_trained():
    for kernel in (mg.ConvolutionGradient, mg.ConvolutionTransposeGradient):
        with pytest.raises(NotImplementedError, match="UINT8; quantized weights cannot be trained"):
            kernel(Quantized(ranges_for_uint8_kernel=RANGES))


def test_a_gradient_kernel_that_refuses_a_reload_keeps_its_weights():
    source = Quantized(np.ones((3, 3, 3, 4), np.float32), ranges_for_uint8_kernel=RANGES)
    for kernel in (mg.ConvolutionGradient(source), mg.ConvolutionTransposeGradient(source)):
        source._weights = WEIGHTS
        with pytest.raises(NotImplementedError, match="quantized weights cannot be trained"):
            kernel.reload_weights_and_biases_from_data_source()
        np.testing.assert_array_equal(kernel.weights_and_biases[0], np.ones((3, 3, 3, 4)))
        source._weights = np.ones((3, 3, 3, 4), np.float32)
