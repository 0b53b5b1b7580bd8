"""Convolution and its gradients for few channels, on CPUs: threads that copy what their windows read."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels import convolution_gather, convolution_weights_gradient
from mpsgrad.kernels.convolution_gather import AXIS, EIGHTS_CHANNELS, Layout, gather, is_by_eights
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import Tunables

PIXELS = 6
"""Of a tile, and how many values of windows are multiplied with a gradient at a time."""
PATCH_VALUES = 4096
PART_PIXELS = 128
SUM_ROWS = 256
"""What a thread keeps for itself: so many values of the source, pixels of the gradient, and weights of 16 channels."""

MOST_VALUES = 192
"""With more values in a window, other kernels are as fast."""
MOST_CHANNELS = 15
"""With more, other kernels compute the gradient for weights."""
THREADS_WANTED = 128
"""So many keep every core busy."""

PARAMETERS = ParameterStruct(
    "ConvolutionPatchesParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    outputs="int",
    fold_channels="int",
    blocks="int",
    blocks_per_part="int",
    parts="int",
    part_pixels="int",
    parts_x="int",
    part_rows="int",
    parts_y="int",
    biases="int",
    replicates="int",
)
FAMILY = ShaderFamily(
    "convolution_patches",
    (IMAGE_LAYOUT, WINDOW, AXIS, PARAMETERS, convolution_weights_gradient.PARAMETERS),
    {
        "eight_pixels": PIXELS,
        "eight_values": PIXELS,
        "patch_values": PATCH_VALUES,
        "part_pixels": PART_PIXELS,
        "sum_rows": SUM_ROWS,
    },
    dtypes=("float",),
    ahead_of_time=False,
    device_families=("cpu",),
)


def _most_windows(taps: int, stride: int, pixels: int) -> int:
    """How many windows along one axis can be computed from so many pixels."""
    return max(0, (pixels - taps) // stride + 1)


@lru_cache(maxsize=4096)
def plan_gather(
    is_gradient: bool,
    source: Layout,
    destination: Layout,
    window: Layout,
    groups: int,
    replicates: bool,
    metal_type: str,
    numbers: Tunables,
) -> convolution_gather.Plan | None:
    """The dispatch for a convolution or its data gradient, or None where another kernel is to compute it."""
    if not numbers.convolution_by_eights or metal_type != "float" or groups > 1:
        return None
    if window[0] * window[1] * source[6] > MOST_VALUES:
        return None
    gathered = gather(is_gradient, source, destination, window, groups, replicates, lanes=EIGHTS_CHANNELS)
    x, y = gathered.x, gathered.y
    joins_taps = x.divisor == y.divisor == x.step == 1 and source[1] == source[6]
    if gathered.kernel not in ("convolution_dense", "convolution_fold") or not joins_taps:
        return None
    of_simdgroups = gather(is_gradient, source, destination, window, groups, replicates)
    if not is_by_eights(numbers, gathered.products_per_pixel(EIGHTS_CHANNELS), gathered, of_simdgroups):
        return None
    width = min(_most_windows(x.taps, x.stride, PATCH_VALUES // (y.taps * source[6])), x.size)
    if width == 0:
        return None
    height = 1
    if width == x.size and y.step == 1:
        columns = (width - 1) * x.stride + x.taps
        height = _most_windows(y.taps, y.stride, PATCH_VALUES // (columns * source[6]))
        height = max(1, min(height, y.size, PART_PIXELS // width, destination[7] * y.size // THREADS_WANTED))
    parts_x, parts_y = ceiling_divide(x.size, width), ceiling_divide(y.size, height)
    image_parts = parts_x * parts_y * destination[7]
    blocks = ceiling_divide(gathered.lanes, EIGHTS_CHANNELS)
    blocks_per_part = blocks if image_parts >= THREADS_WANTED else 1
    parts = ceiling_divide(blocks, blocks_per_part)
    parameters = PARAMETERS.pack(
        source=source,
        destination=destination,
        x=x.packed(),
        y=y.packed(),
        outputs=gathered.lanes,
        fold_channels=gathered.fold_channels,
        blocks=blocks,
        blocks_per_part=blocks_per_part,
        parts=parts,
        part_pixels=width,
        parts_x=parts_x,
        part_rows=height,
        parts_y=parts_y,
        biases=gathered.biases,
        replicates=int(replicates),
    )
    return convolution_gather.Plan(FAMILY, "convolution_patches", parts * image_parts, parameters, gathered.packing)


@lru_cache(maxsize=4096)
def plan_weights(
    gradient: Layout,
    source: Layout,
    window: Layout,
    groups: int,
    replicates: bool,
    accumulates: bool,
    metal_type: str,
    numbers: Tunables,
) -> convolution_weights_gradient.Plan | None:
    """The dispatch for the gradients of weights and biases, or None where another kernel is to compute them."""
    width, height, stride_x, stride_y, dilation_x, dilation_y, _, _ = window
    channels, outputs = source[6], gradient[6]
    values = width * height * channels
    joins_taps = source[1] == channels and (dilation_x == 1 or width == 1)
    if not numbers.convolution_by_eights or metal_type != "float" or groups > 1 or not joins_taps:
        return None
    if channels > MOST_CHANNELS or values > SUM_ROWS:
        return None
    columns = min(_most_windows(width, stride_x, PATCH_VALUES // (height * channels)), PART_PIXELS, gradient[4])
    if columns == 0:
        return None
    rows = 1
    if columns == gradient[4] and dilation_y == 1:
        patch_row = ((columns - 1) * stride_x + width) * channels
        rows = min(_most_windows(height, stride_y, PATCH_VALUES // patch_row), PART_PIXELS // columns)
    blocks, image_rows = ceiling_divide(outputs, EIGHTS_CHANNELS), gradient[5] * gradient[7]
    rows_per_split = ceiling_divide(image_rows, ceiling_divide(THREADS_WANTED, blocks))
    # Partial sums are no more than the images.
    row_values = gradient[4] * outputs + source[4] * channels
    rows_per_split = max(rows_per_split, ceiling_divide(outputs * (values + 1), max(row_values, 1)), 1)
    return convolution_weights_gradient.plan_of_rows(
        FAMILY,
        "convolution_gradient_weights_patches",
        gradient,
        source,
        window,
        channels=channels,
        group_outputs=outputs,
        row_tiles=columns,
        lane_tiles=rows,
        weight_tiles=blocks,
        tiles=blocks,
        rows_per_split=rows_per_split,
        replicates=replicates,
        accumulates=accumulates,
    )
