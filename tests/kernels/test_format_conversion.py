"""Images copied into those of another format."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.kernels.format_conversion import convert_format


@pytest.mark.parametrize("shape", [(2, 3, 5, 3), (1, 1, 3, 4), (2, 3, 5, 16)])
@pytest.mark.parametrize(("given", "wanted"), [(np.float32, np.float16), (np.float16, np.float32)])
def test_values_are_rounded_to_the_nearest(given, wanted, shape):
    values = np.random.default_rng(0).standard_normal(shape).astype(given)
    values.flat[:3] = [np.inf, 2.0**-24, -0.0]
    source = mg.Image.from_array(values)
    result = mg.Image.from_array(np.full(values.shape, np.nan, wanted))
    with mg.CommandBuffer() as commands:
        convert_format(commands, source, result)
    np.testing.assert_array_equal(np.asarray(result), values.astype(wanted))
