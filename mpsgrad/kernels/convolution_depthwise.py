"""Convolutions with one input channel for each output channel, on GPUs: which kernel, with which parameters."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels.convolution_axis import AXIS, Axis
from mpsgrad.kernels.convolution_depthwise_weights import plan_runs
from mpsgrad.kernels.convolution_gather import Gather
from mpsgrad.kernels.convolution_gather import Plan as GatherPlan
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import LANES
from mpsgrad.kernels.convolution_weights_gradient import Plan as WeightsPlan
from mpsgrad.kernels.convolution_weights_gradient import plan_of_splits
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.pointwise import Layout
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 128
STRIP = 4
SLIDING_SIZES = (3, 5, 7)
"""Of windows of neighbouring pixels whose threads own two rows."""
TAPS = 9
"""So many weights of a channel are added up by one thread."""
THREADGROUPS_PER_UNIT = 5
"""As many as a unit of NVIDIA's has registers for at once: more would begin when the first ones end."""
FEWEST_CHUNKS = 4
"""A split has at least so many times the pixels that a threadgroup reads at once."""

GATHER_PARAMETERS = ParameterStruct(
    "ConvolutionDepthwiseParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    slots="int",
    strips="int",
    row_groups="int",
    threads="int",
    biases="int",
    by_slots=DIVISOR,
    by_strips=DIVISOR,
    by_row_groups=DIVISOR,
    by_images=DIVISOR,
)
WEIGHTS_PARAMETERS = ParameterStruct(
    "ConvolutionDepthwiseWeightsParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    window=WINDOW,
    channels="int",
    blocks="int",
    tap_groups="int",
    chunk="int",
    chunk_x="int",
    chunk_y="int",
    chunk_n="int",
    pixels="int",
    pixels_per_split="int",
    splits="int",
    split_stride="int",
    weights="int",
    replicates="int",
    accumulates="int",
)
FAMILY = ShaderFamily(
    "convolution_depthwise",
    (IMAGE_LAYOUT, WINDOW, AXIS, DIVISOR, GATHER_PARAMETERS, WEIGHTS_PARAMETERS),
    {"threads": THREADS, "strip": STRIP, "sliding_sizes": SLIDING_SIZES, "taps": TAPS, "unroll": "#pragma unroll"},
    {"cpu": {"unroll": "#pragma clang loop unroll(disable)"}},
    ahead_of_time=False,
)


def _width(*layouts: Layout) -> int:
    """How many channels a thread owns: 4 where those of all images are aligned."""
    return 4 if all(n % 4 == 0 for layout in layouts for n in (*layout[:4], layout[6])) else 1


def _slides(axis: Axis, size: int) -> bool:
    """Whether the taps are ``size`` neighbouring pixels, and those of the next pixel lie one further."""
    return axis[1:3] == (size, 1) and axis.step == axis.divisor == 1


def plan_gather(gathered: Gather) -> GatherPlan:
    """What computes a depthwise convolution or its data gradient."""
    x, y, images = gathered.x, gathered.y, gathered.destination[7]
    width = _width(gathered.source, gathered.destination)
    size = next((size for size in SLIDING_SIZES if _slides(x, size) and _slides(y, size)), None)
    slots, strips = gathered.lanes // width, ceiling_divide(x.size, STRIP)
    row_groups = ceiling_divide(y.size, 2) if size else y.size
    threads = slots * strips * row_groups * images * gathered.phases
    parameters = GATHER_PARAMETERS.pack(
        source=gathered.source,
        destination=gathered.destination,
        x=x.packed(),
        y=y.packed(),
        slots=slots,
        strips=strips,
        row_groups=row_groups,
        threads=threads,
        biases=gathered.biases,
        by_slots=divisor(slots),
        by_strips=divisor(strips),
        by_row_groups=divisor(row_groups),
        by_images=divisor(images),
    )
    kernel = f"convolution_depthwise_{f'{size}x{size}' if size else 'any'}_by_{width}"
    return GatherPlan(FAMILY, kernel, ceiling_divide(threads, THREADS), parameters, gathered.packing)


@lru_cache(maxsize=4096)
def plan_weights(geometry: ConvolutionGeometry, accumulates: bool, compute_units: int) -> WeightsPlan:
    """What computes the gradients for weights and biases of a depthwise convolution."""
    channels, pixels = geometry.outputs, geometry.pixels
    image_width, image_height = geometry.result[4:6]
    width = _width(geometry.result, geometry.source)
    of_runs = plan_runs(geometry, accumulates, compute_units) if width == 1 or geometry.taps > TAPS else None
    if of_runs is not None:
        return of_runs
    chunk = THREADS * width // LANES
    blocks, tap_groups = ceiling_divide(channels, LANES), ceiling_divide(geometry.taps, TAPS)
    wanted = THREADGROUPS_PER_UNIT * compute_units // (blocks * tap_groups)
    splits = max(1, min(wanted, pixels // (FEWEST_CHUNKS * chunk)))
    pixels_per_split = max(ceiling_divide(pixels, splits), 1)
    splits = max(ceiling_divide(pixels, pixels_per_split), 1)
    return plan_of_splits(
        FAMILY,
        f"convolution_gradient_weights_depthwise_by_{width}",
        blocks * tap_groups * splits,
        WEIGHTS_PARAMETERS,
        geometry,
        accumulates,
        splits=splits,
        channels=channels,
        blocks=blocks,
        tap_groups=tap_groups,
        chunk=chunk,
        chunk_x=chunk % max(image_width, 1),
        chunk_y=chunk // max(image_width, 1) % max(image_height, 1),
        chunk_n=chunk // max(image_width, 1) // max(image_height, 1),
        pixels=pixels,
        pixels_per_split=pixels_per_split,
    )
