"""Gradients of Gram matrices of few channels on GPUs, in blocks that have all of them, by one dispatch."""

from __future__ import annotations

import math
from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.gram_matrix_layouts import FIELDS, fields_of
from mpsgrad.kernels.pointwise import Layout
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 256
MOST_CHANNELS, MOST_ROWS = 48, 64
"""The most channels of a block, and the most of its threads that have the same ones and four pixels each."""
SUITABLE = {
    "float": {4: range(5, 37), 2: range(5, 39), 1: range(5, 40)},
    "half": {4: range(5, 25), 2: range(5, 23), 1: range(5, 46)},
}
"""For how many channels blocks are the fastest, by the Metal type of the images and how many channels are copied at a
time. Measured on an H200: with fewer, sums of each result take less time, and with more tiles do."""
KERNELS = {
    width: f"gram_matrix_gradient_in_blocks_of_{name}" for width, name in ((4, "fours"), (2, "pairs"), (1, "singles"))
}
"""By how many channels are copied at a time."""

PARAMETERS = ParameterStruct(
    "GramMatrixBlocksParameters",
    **FIELDS,
    columns="int",
    rows="int",
    row_blocks="int",
    scale="float",
)
FAMILY = ShaderFamily(
    "gram_matrix_gradient_blocks",
    (PARAMETERS,),
    {"threads": THREADS, "most_channels": MOST_CHANNELS},
    ahead_of_time=False,
)


def kernel_for(metal_type: str, source: Layout, destination: Layout) -> str | None:
    """The name of the kernel whose blocks are the fastest for these images, if any are."""
    channels = source[6]
    numbers = (number for start, pixel, _, image, *_ in (source, destination) for number in (start, pixel, image))
    width = math.gcd(4, channels, *numbers)
    return KERNELS[width] if channels in SUITABLE[metal_type][width] else None


@lru_cache(maxsize=512)
def plan(gradient: Layout, source: Layout, destination: Layout, alpha: float) -> tuple[int, bytes]:
    """The threadgroups and the parameters of the kernel; the pixels of ``source`` are at even distances."""
    *_, width, height, channels, images = source
    columns = ceiling_divide(channels, 4) * 4
    rows = min(MOST_ROWS, THREADS // (columns // 4))
    row_blocks = ceiling_divide(width * height, 4 * rows)
    parameters = PARAMETERS.pack(
        **fields_of(source, gradient, destination), columns=columns, rows=rows, row_blocks=row_blocks, scale=alpha
    )
    return row_blocks * images, parameters
