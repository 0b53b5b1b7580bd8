"""Convolutions and data gradients whose values are sums of few products, on GPUs: which kernel, which parameters."""

from __future__ import annotations

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.convolution_axis import AXIS, Axis, axes_in_order, reach
from mpsgrad.kernels.convolution_gather import Plan as GatherPlan
from mpsgrad.kernels.convolution_gather import packing_in_order
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.pointwise import values_of_vector
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 128
PIXELS = (4, 1)
"""So many a thread may have."""
FEWEST_THREADS_PER_UNIT = 512
"""A thread has several pixels where a compute unit has so many threads nevertheless."""
CHANNELS, FOURS = 4, (3, 2, 1)
"""Of the result, that a thread has, so many times if it has several pixels; in groups it has one."""
MOST_PRODUCTS = {"float": 48, "half": 36}
MOST_PRODUCTS_OF_PIXEL = {"float": 10000, "half": 640}
"""So many products are added up for a value at most, and for all values of a pixel. Of halves simdgroups multiply many
times as many at once. Measured on an H200, like the others."""
MOST_PRODUCTS_OF_FOURS = 48, 720
"""The same of halves whose source has whole fours of channels, which a thread loads at once."""
MOST_CHANNELS_OF_RUNS, MOST_PRODUCTS_OF_RUNS = 2, 16
"""Of floats of one channel or two, of which tiles read runs of taps, unless they would have four columns."""
MOST_PRODUCTS_OF_SINGLES = 512
"""The second of floats whose source has no four channels, which a thread loads one by one."""
FEW_RESULTS, MOST_PRODUCTS_OF_FEW_RESULTS, MOST_CHANNELS_OF_FEW_RESULTS = 12, 144, 32
"""So few values of a pixel leave most columns of a tile empty. Neighbouring threads would read the channels of distant
pixels if these had more."""
FEW_PRODUCTS, RESULTS_OF_VECTORS = 9, 16
"""Of halves sums of so few products are faster for pixels of any size, unless tiles store these in whole vectors."""
MOST_STEPS = 10
"""Products of a thread that follow one another, in fours where channels of the source are many: where there are few
threads, each waits for them."""

RANGE = ParameterStruct("InsideRange", first="int", last="int")
"""Between which the number of a pixel, times the stride, has all taps of any phase inside the source along one axis."""
PARAMETERS = ParameterStruct(
    "ConvolutionDirectParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    inside_x=RANGE,
    inside_y=RANGE,
    pixels="int",
    slots="int",
    blocks="int",
    block_size="int",
    biases="int",
    stores_fours="int",
    inputs="int",
    by_phases=DIVISOR,
    by_divisor=DIVISOR,
    by_blocks=DIVISOR,
    by_width=DIVISOR,
    by_height=DIVISOR,
)
FAMILY = ShaderFamily(
    "convolution_direct",
    (IMAGE_LAYOUT, AXIS, DIVISOR, RANGE, PARAMETERS),
    {
        "threads": THREADS,
        "most_pixels": PIXELS,
        "most_fours": FOURS,
        "of_simdgroup": "simd_all",
        "unroll": "#pragma unroll",
    },
    # Each thread of a CPU goes its own way.
    {"cpu": {"of_simdgroup": "bool", "unroll": "#pragma clang loop unroll(disable)"}},
    ahead_of_time=False,
)


def is_faster(metal_type: str, products: int, channels: int, results: int) -> bool:
    """Whether pixels of so many ``results``, sums of ``products``, are made of ``channels`` sooner than in tiles."""
    of_pixel = products * ceiling_divide(results, CHANNELS) * CHANNELS
    most = MOST_PRODUCTS[metal_type], MOST_PRODUCTS_OF_PIXEL[metal_type]
    if metal_type == "half" and channels % CHANNELS == 0:
        most = MOST_PRODUCTS_OF_FOURS
    fits = products <= most[0] and of_pixel <= most[1]
    if metal_type == "half":
        if results > RESULTS_OF_VECTORS and results % values_of_vector(metal_type) == 0:
            return False
        return fits or products <= FEW_PRODUCTS or (results <= CHANNELS and products <= MOST_PRODUCTS["float"])
    if channels < CHANNELS and of_pixel > MOST_PRODUCTS_OF_SINGLES:
        return False
    if channels <= MOST_CHANNELS_OF_RUNS and products > MOST_PRODUCTS_OF_RUNS and results > CHANNELS:
        return False
    if results <= FEW_RESULTS:
        return products <= MOST_PRODUCTS_OF_FEW_RESULTS and channels <= MOST_CHANNELS_OF_FEW_RESULTS
    return fits


def _fours(blocks: int, threads_of_block: int, compute_units: int) -> int:
    """How many of so many fours of channels a thread has: as many as leave each compute unit enough threads."""
    fewest = FEWEST_THREADS_PER_UNIT * compute_units
    return next((n for n in FOURS if blocks % n == 0 and threads_of_block * blocks // n >= fewest), 1)


def _inside(axis: Axis, extent: int) -> tuple[int, int]:
    """The ``RANGE`` of ``axis`` in a source of ``extent`` pixels."""
    lowest, span = reach(axis)
    return -lowest, extent - lowest - span


def plan_gather(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, compute_units: int
) -> GatherPlan | None:
    """What computes the result or the data gradient, or None where tiles are to do it."""
    source, destination = geometry.ends(is_gradient)
    has_groups = geometry.groups > 1
    channels, results, lanes = source[6] // geometry.groups, destination[6], destination[6] // geometry.groups
    x, y = axes_in_order(geometry, is_gradient)
    taps = x.phase_taps * y.phase_taps
    width = 4 if all(n % 4 == 0 for n in (channels, *source[:4])) else 1
    if has_groups:
        # One channel of a group leaves nearly all columns of a tile empty, and strides most products. Measured, too.
        is_single = channels > lanes == 1 and x.divisor * y.divisor > 1 and (width == 4 or metal_type == "float")
        suits = is_single and taps * channels <= MOST_PRODUCTS[metal_type]
    else:
        suits = is_faster(metal_type, taps * channels, channels, results)
    if geometry.replicates or not suits:
        return None
    of_unit = 1 if has_groups else CHANNELS
    blocks, phases, pixels = ceiling_divide(results, of_unit), x.divisor * y.divisor, x.size * y.size * destination[7]
    are_few = pixels * phases * blocks < PIXELS[0] * FEWEST_THREADS_PER_UNIT * compute_units
    if are_few and taps * (channels if channels < CHANNELS else ceiling_divide(channels, CHANNELS)) > MOST_STEPS:
        return None
    of_thread = PIXELS[-1 if are_few else 0]
    slots = ceiling_divide(pixels, of_thread)
    fours = 1 if has_groups or are_few else _fours(blocks, slots * phases, compute_units)
    blocks //= fours
    packing, biases = packing_in_order(
        geometry,
        transposed=is_gradient,
        outputs=results,
        channels=channels,
        biases=results,
        own_channels=has_groups,
    )
    parameters = PARAMETERS.pack(
        source=source,
        destination=destination,
        x=x.packed(),
        y=y.packed(),
        inside_x=_inside(x, source[4]),
        inside_y=_inside(y, source[5]),
        pixels=pixels,
        slots=slots,
        blocks=blocks,
        block_size=x.taps * y.taps * channels * LANES,
        biases=biases,
        stores_fours=int(all(n % 4 == 0 for n in (results, *destination[:4]))),
        inputs=channels,
        by_phases=divisor(phases),
        by_divisor=divisor(x.divisor),
        by_blocks=divisor(blocks),
        by_width=divisor(x.size),
        by_height=divisor(y.size),
    )
    name = f"by_{width}_of_{of_thread}"
    kernel = f"convolution_direct_in_groups_{name}" if has_groups else f"convolution_direct_{name}_to_{4 * fours}"
    threadgroups = ceiling_divide(slots * blocks, THREADS) * phases
    return GatherPlan(FAMILY, kernel, threadgroups, parameters, packing)
