"""Where images and their Gram matrices lie, as the kernels of GPUs that make these in tiles or blocks take it."""

from __future__ import annotations

from mpsgrad.kernels.pointwise import Layout

FIELDS = {
    "source": "int",
    "pixel_stride": "int",
    "source_image_stride": "int",
    "destination": "int",
    "destination_stride": "int",
    "destination_image_stride": "int",
    "matrix": "int",
    "column_stride": "int",
    "matrix_image_stride": "int",
    "channels": "int",
    "pixels": "int",
}
"""``destination`` is where a gradient for the source lies."""


def fields_of(source: Layout, matrices: Layout, destination: Layout | None) -> dict[str, int]:
    """The values of ``FIELDS`` for images whose pixels are at even distances; without ``destination`` its are 0."""
    start, pixel, _, image, width, height, channels, _ = source
    at, across, _, far, *_ = destination or (0,) * len(source)
    first, column, _, step, *_ = matrices
    return {
        "source": start,
        "pixel_stride": pixel,
        "source_image_stride": image,
        "destination": at,
        "destination_stride": across,
        "destination_image_stride": far,
        "matrix": first,
        "column_stride": column,
        "matrix_image_stride": step,
        "channels": channels,
        "pixels": width * height,
    }
