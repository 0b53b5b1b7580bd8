"""Gradients of Gram matrices of few channels on GPUs, in blocks that are as wide as suits these, by one dispatch."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.gram_matrix_layouts import FIELDS, fields_of
from mpsgrad.kernels.pointwise import Layout
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 256
DEPTH = 8
"""So many channels are copied at a time."""
MOST_COLUMNS, MOST_ROWS = 64, 64
"""The most channels of a block, and the most of its threads that have the same ones and four pixels each."""


class Suitable(NamedTuple):
    """From how many channels on, and up to how many, blocks are the fastest. If no vector fits them there may be more.

    Numbers of channels that are a multiple of ``vector`` have one.
    """

    fewest: int
    most: int
    most_without_vectors: int
    vector: int


SUITABLE = {"float": Suitable(5, 24, 79, 4), "half": Suitable(5, 22, 31, 2)}
"""By the Metal type of the images. Measured on an H200: with fewer, sums of each result take less time, and with more
tiles do."""

PARAMETERS = ParameterStruct(
    "GramMatrixBlocksParameters",
    **FIELDS,
    columns="int",
    column_blocks="int",
    rows="int",
    row_blocks="int",
    scale="float",
)
FAMILY = ShaderFamily(
    "gram_matrix_gradient_blocks",
    (PARAMETERS,),
    {
        "threads": THREADS,
        "depth": DEPTH,
        "most_columns": MOST_COLUMNS,
        "most_rows": MOST_ROWS,
    },
    ahead_of_time=False,
)


def suits(metal_type: str, channels: int) -> bool:
    """Whether blocks are the fastest for images of so many ``channels``."""
    fewest, most, most_without_vectors, vector = SUITABLE[metal_type]
    return fewest <= channels <= (most if channels % vector == 0 else most_without_vectors)


@lru_cache(maxsize=512)
def plan(gradient: Layout, source: Layout, destination: Layout, alpha: float) -> tuple[int, bytes]:
    """The threadgroups and the parameters of the kernel; the pixels of ``source`` are at even distances."""
    *_, width, height, channels, images = source
    wanted = ceiling_divide(channels, MOST_COLUMNS)
    columns = ceiling_divide(ceiling_divide(channels, wanted), 4) * 4
    column_blocks = ceiling_divide(channels, columns)
    rows = min(MOST_ROWS, THREADS // (columns // 4))
    row_blocks = ceiling_divide(width * height, 4 * rows)
    parameters = PARAMETERS.pack(
        **fields_of(source, gradient, destination),
        columns=columns,
        column_blocks=column_blocks,
        rows=rows,
        row_blocks=row_blocks,
        scale=alpha,
    )
    return row_blocks * column_blocks * images, parameters
