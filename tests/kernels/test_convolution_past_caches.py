"""Convolutions of CPUs whose results exceed the caches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_convolution_variants import make

import mpsgrad as mg
from mpsgrad.shader import use_tunables
from mpsgrad.testing import assert_within
from mpsgrad.tunables import NEVER, tunables

pytestmark = pytest.mark.skipif(
    mg.default_device().family != "cpu" or tunables(mg.default_device().tuning).convolution_by_eights == NEVER,
    reason="for CPUs that compute by eights",
)


MARGIN = 16
"""Values before and after an image: a cache line."""


def _memory(values: int, start: int) -> np.ndarray:
    """Sevens for so many values and a margin on either side, ``start`` values after the beginning of a cache line."""
    memory = np.full(values + 3 * MARGIN, 7, np.float32)
    begin = -memory.ctypes.data // 4 % MARGIN + start
    return memory[begin : begin + values + 2 * MARGIN]


@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize(
    ("arguments", "options", "kernel_name"),
    [
        (((40, 39), 32, 32, (3, 3)), {"groups": 32}, "convolution_depthwise_rows"),
        (((40, 39), 16, 16, (3, 3)), {"groups": 16, "stride": (2, 2)}, "convolution_depthwise_rows"),
        (((40, 39), 48, 48, (3, 3)), {"groups": 48}, "convolution_depthwise_of_eights"),
        (((41, 40), 48, 48, (3, 3)), {"groups": 48, "stride": (2, 1)}, "convolution_depthwise_of_eights"),
        (((40, 39), 3, 48, (3, 3)), {}, "convolution_patches"),
        (((40, 39), 24, 96, (1, 1)), {}, "convolution_point_of_eights_past_caches"),
        (((40, 39), 64, 32, (1, 1)), {"groups": 2}, "convolution_point_of_eights_past_caches"),
    ],
)
def test_results_that_exceed_the_caches(arguments, options, kernel_name, start):
    """They are written past the caches where a destination begins at a vector, and as others where it does not."""
    tuning = mg.default_device().tuning
    before = tunables(tuning)
    layer = make(*arguments, **options, padding=tuple(size // 2 for size in arguments[3]), images=9)
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    gradient_kernel.gradient_option = mg.ConvolutionGradientOption.GRADIENT_WITH_DATA
    use_tunables(tuning, before.with_number("cached_bytes", 1 << 20))
    try:
        memories = [_memory(math.prod(shape), start) for shape in (layer.result_shape, layer.source.shape)]
        y = mg.Image.from_dlpack(memories[0][MARGIN:-MARGIN].reshape(layer.result_shape))
        dx = mg.Image.from_dlpack(memories[1][MARGIN:-MARGIN].reshape(layer.source.shape))
        source, gradient = mg.Image.from_array(layer.source), mg.Image.from_array(layer.gradient)
        state = kernel.result_state(source, destination_image=y)
        commands = mg.CommandBuffer()
        kernel.encode(commands, source, destination_image=y, destination_state=state)
        gradient_kernel.encode(commands, gradient, source, state, destination_gradient=dx)
        ran = [dispatch.function.name for dispatch in commands._dispatches]
        assert any(name.startswith(kernel_name) for name in ran), ran
        commands.commit()
    finally:
        use_tunables(tuning, before)
    assert_within(np.array(y), layer.expected, layer.forward_bound, name="result")
    assert_within(np.array(dx), layer.expected_data, layer.data_bound, name="gradient for the source")
    for memory in memories:
        assert (memory[:MARGIN] == 7).all() and (memory[-MARGIN:] == 7).all(), "written outside the image"
