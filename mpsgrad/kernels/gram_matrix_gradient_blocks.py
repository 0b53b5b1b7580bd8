"""Gradients of Gram matrices of few channels on GPUs, in blocks that have all of them, by one dispatch."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.gram_matrix_layouts import FIELDS, fields_of
from mpsgrad.kernels.pointwise import Layout
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 256
MOST_CHANNELS, MOST_ROWS = 48, 64
"""The most channels of a block, and the most of its threads that have the same ones and four pixels each."""
SUITABLE: dict[str, dict[int, Collection[int]]] = {
    "float": {4: range(5, 37), 2: range(5, 39), 1: range(5, 40)},
    "half": {4: range(5, 12), 2: range(5, 10), 1: range(5, 20)},
}
"""For how many channels blocks are the fastest, by the Metal type of the images and how many channels are copied at a
time. Measured on an H200: with fewer, sums of each result take less time, and with more tiles do."""
SUITABLE_MATRICES: dict[int, Collection[int]] = {
    8: range(8, 49),
    4: range(12, 37),
    2: range(10, 35),
    1: (*range(9, 17), *range(20, 65)),
}
"""The same of blocks of halves that are multiplied as matrices, which come first."""
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

SIDE = 16
"""Of the squares of a matrix: so many pixels has a simdgroup, and there is room for the channels of some squares."""
PIXELS_OF_MATRICES = THREADS // 32 * SIDE
MATRICES = {
    columns: ShaderFamily(
        f"gram_matrix_gradient_of_{columns}",
        (PARAMETERS,),
        {
            "threads": THREADS,
            "pixels": PIXELS_OF_MATRICES,
            "columns": columns,
            "widths": [width for width, suitable in SUITABLE_MATRICES.items() if columns - SIDE < max(suitable)],
        },
        dtypes=("half",),
        template="gram_matrix_gradient_matrices",
        ahead_of_time=False,
    )
    for columns in range(SIDE, max(map(max, SUITABLE_MATRICES.values())) + 1, SIDE)
}
"""By the channels that they have room for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The kernel, its threadgroups and its parameters."""

    family: ShaderFamily
    kernel: str
    threadgroups: int
    parameters: bytes


def _width(widest: int, *layouts: Layout) -> int:
    """How many channels are copied at a time, ``widest`` at most."""
    numbers = (number for start, pixel, _, image, *_ in layouts for number in (start, pixel, image))
    return math.gcd(widest, layouts[0][6], *numbers)


@lru_cache(maxsize=512)
def _packed(
    gradient: Layout, source: Layout, destination: Layout, columns: int, rows: int, pixels: int, scale: float
) -> tuple[int, bytes]:
    """The threadgroups, each of so many ``pixels``, and the parameters."""
    *_, width, height, _, images = source
    row_blocks = ceiling_divide(width * height, pixels)
    fields = fields_of(source, gradient, destination)
    parameters = PARAMETERS.pack(**fields, columns=columns, rows=rows, row_blocks=row_blocks, scale=scale)
    return row_blocks * images, parameters


def plan(metal_type: str, gradient: Layout, source: Layout, destination: Layout, alpha: float) -> Plan | None:
    """What makes the gradient in blocks, if that is the fastest; the pixels of ``source`` are at even distances."""
    channels, layouts = source[6], (gradient, source, destination)
    of_matrices, of_blocks = _width(8, source, destination, gradient), _width(4, source, destination)
    if metal_type == "half" and channels in SUITABLE_MATRICES[of_matrices]:
        room = ceiling_divide(channels, SIDE) * SIDE
        kernel = f"gram_matrix_gradient_of_{room}_by_{of_matrices}"
        return Plan(MATRICES[room], kernel, *_packed(*layouts, 0, 0, PIXELS_OF_MATRICES, alpha))
    if channels in SUITABLE[metal_type][of_blocks]:
        columns = ceiling_divide(channels, 4) * 4
        rows = min(MOST_ROWS, THREADS // (columns // 4))
        return Plan(FAMILY, KERNELS[of_blocks], *_packed(*layouts, columns, rows, 4 * rows, alpha))
    return None
