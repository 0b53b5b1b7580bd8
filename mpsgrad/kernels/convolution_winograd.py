"""3 x 3 and 5 x 5 convolutions and their gradients by Winograd's method, for GPUs: which kernels, which parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels import convolution_tiles
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import Packing, require_packable
from mpsgrad.kernels.convolution_tile import Products, Tile, all_tiles, tiling
from mpsgrad.kernels.pointwise import Layout
from mpsgrad.shader import ParameterStruct, ShaderFamily

Operand = Literal["source", "gradient", "destination", "packed", "weights", "biases", "workspace"]
"""A buffer: an image, packed weights, the gradients for weights and biases, or memory for planes and their products."""

POINTS = 6
"""Pixels of a source along each axis, and so many planes along each axis."""
TAPS = (3, 5)
"""Of a window along each axis."""
PLANES = POINTS**2
PART_MULTIPLE = 4
QUAD = 4
"""So many channels a thread owns; planes have a multiple of them."""
OF_SINGLES = "_of_singles"
"""What the kernels for images of any channels, or from any channel on, are called besides."""
THREADS = 128
FEW_WINDOWS = 64
"""Of weights, for each compute unit: a thread for each would leave half of them idle, so threadgroups share them."""
WINDOWS, PLANES_OF_THREAD, SPLITS_AT_ONCE = 32, 2, 8
"""Then a threadgroup owns so many, a thread so many of their planes, and so many splits of these are on their way at
once."""
SUM_OUTPUTS = 128
"""So many channels of a gradient a threadgroup adds up for the biases."""

FLOAT_COST = 16
"""So many products a busy GPU does in the time that it takes to move a float. Measured on an H200."""
DISPATCH_TIME = 3.0
"""The microseconds from the end of a dispatch to the next one's work."""
PLAIN_TIME = 1.2
"""The plain sum takes so many times the time of its products, or more where its tiles have lanes without a channel."""
SINGLES_DISPATCHES = 0.5
"""A dispatch for an image that is read or written one channel at a time waits longer: as long as so many more."""
WEIGHTS_SHARE, SINGLES_WEIGHTS_SHARE, FEWEST_SINGLES = 0.68, 0.85, 24
"""To be faster for sure, a gradient for weights has to take so much of the time of these tiles, which wait less than
is reckoned with. Of so many channels, those that read one at a time wait longer: it is the second share then. Measured
on an H200."""

LARGEST_WORKSPACE = 1 << 26
"""So many floats for the planes of images, 256 MiB: those of more tiles are computed one part after another."""
LARGEST_WEIGHTS = 1 << 27
"""Planes of weights with more floats than this are not used."""

IMAGE_PARAMETERS = ParameterStruct(
    "WinogradImageParameters",
    image=IMAGE_LAYOUT,
    origin_x="int",
    origin_y="int",
    tiles_x="int",
    tiles_y="int",
    first_tile="int",
    tiles="int",
    planes="int",
    biases="int",
)
WEIGHTS_PARAMETERS = ParameterStruct(
    "WinogradWeightsParameters", products="int", columns="int", transposed="int"
)
WEIGHTS_GRADIENT_PARAMETERS = ParameterStruct(
    "WinogradWeightsGradientParameters", outputs="int", channels="int", splits="int", accumulates="int", planes="int"
)
PRODUCT_PARAMETERS = ParameterStruct(
    "WinogradProductParameters",
    rows="int",
    columns="int",
    products="int",
    row_tiles="int",
    column_tiles="int",
    products_per_split="int",
    sum_tiles="int",
    adds="int",
    left="int",
    right="int",
    result="int",
)
# Transforms and sums need registers, which CPUs have not enough of, and compile in a tenth of the time without.
_UNROLLING = {"cpu": {"unroll": "#pragma clang loop unroll(disable)"}}
FAMILIES = {
    taps: ShaderFamily(
        f"convolution_winograd_{taps}x{taps}",
        (IMAGE_LAYOUT, IMAGE_PARAMETERS, WEIGHTS_PARAMETERS, WEIGHTS_GRADIENT_PARAMETERS),
        {
            "threads": THREADS,
            "windows": WINDOWS,
            "window_threads": PLANES // PLANES_OF_THREAD * WINDOWS,
            "planes_of_thread": PLANES_OF_THREAD,
            "splits_at_once": SPLITS_AT_ONCE,
            "unroll": "#pragma unroll",
            "taps": taps,
        },
        _UNROLLING,
        dtypes=("float",),
        template="convolution_winograd",
        ahead_of_time=False,
    )
    for taps in TAPS
}
PRODUCT_FAMILIES = {
    tile: ShaderFamily(
        f"convolution_winograd_product_{tile.name}",
        (PRODUCT_PARAMETERS,),
        {**tile.constants, "unroll": "#pragma unroll"},
        _UNROLLING,
        dtypes=("float",),
        template="convolution_winograd_product",
        ahead_of_time=False,
    )
    for kind, _, tile in sorted(all_tiles())
    if kind == "planes"
}


@dataclass(frozen=True)
class Step:
    """One dispatch of a kernel of ``family``."""

    family: ShaderFamily
    kernel: str
    threadgroups: int
    operands: tuple[Operand, ...]
    parameters: bytes


@dataclass(frozen=True)
class Plan:
    """Dispatches in order, with a workspace of so many bytes. ``packing`` is None for a weight gradient."""

    steps: tuple[Step, ...]
    workspace: int
    packing: Packing | None


def _is_computable(geometry: ConvolutionGeometry) -> bool:
    """Whether the kernels can do it."""
    images = geometry.source, geometry.result
    return (
        geometry.window[0] in TAPS
        and geometry.window[:6] == (*geometry.window[:1] * 2, 1, 1, 1, 1)
        and geometry.groups == 1
        and not geometry.replicates
        and all(0 not in image[4:] for image in images)
        and PLANES * _in_quads(geometry.inputs) * _in_quads(geometry.outputs) <= LARGEST_WEIGHTS
    )


def _in_quads(channels: int) -> int:
    """The channels of planes, which are whole vectors, where images have ``channels``."""
    return ceiling_divide(channels, QUAD) * QUAD


def _is_aligned(image: Layout) -> bool:
    """Whether vectors of four channels fit it."""
    return all(n % QUAD == 0 for n in (image[6], *image[:4]))


def _dispatches_of_singles(*images: Layout) -> float:
    """What the dispatches for those of ``images`` that vectors do not fit count more."""
    return SINGLES_DISPATCHES * sum(not _is_aligned(image) for image in images)


def _variant(kernel: str, is_aligned: bool) -> str:
    """The name of ``kernel`` for vectors of four channels, or for single ones."""
    return kernel if is_aligned else kernel + OF_SINGLES


def pays(
    plain: int, product_time: float, moved_floats: int, dispatches: float, rate: float, tiles_time: float
) -> bool:
    """Whether the method is faster than the plain sum of ``plain`` products, whose tiles take ``tiles_time`` at least.

    It takes ``product_time`` for its own products, the reads and writes of ``moved_floats``, and ``dispatches`` more
    dispatches. Times are in microseconds, in which the device does ``rate`` products. This is the rule for all three
    kernels: with few channels the transforms take longer than they save, with few pixels the dispatches.
    """
    time = product_time + FLOAT_COST * moved_floats / rate + DISPATCH_TIME * dispatches
    return time < max(PLAIN_TIME * plain / rate, tiles_time)


@dataclass(frozen=True)
class _Tiles:
    """The tiles of a result, or of its gradient, counted row by row and image by image, for windows of ``taps``."""

    x: int
    y: int
    images: int
    taps: int

    @classmethod
    def of(cls, image: Layout, taps: int) -> _Tiles:
        pixels = POINTS - taps + 1
        return cls(ceiling_divide(image[4], pixels), ceiling_divide(image[5], pixels), image[7], taps)

    @property
    def count(self) -> int:
        return self.x * self.y * self.images

    def parts(self, floats_per_tile: int) -> Iterator[tuple[int, int]]:
        """The first tile and the number of tiles of parts that fit into the workspace."""
        parts = ceiling_divide(self.count * floats_per_tile, LARGEST_WORKSPACE)
        tiles_per_part = ceiling_divide(ceiling_divide(self.count, parts), PART_MULTIPLE) * PART_MULTIPLE
        for first in range(0, self.count, tiles_per_part):
            yield first, min(tiles_per_part, self.count - first)

    def step(
        self,
        kernel: str,
        operands: tuple[Operand, ...],
        image: Layout,
        part: tuple[int, int],
        *,
        origin: tuple[int, int] = (0, 0),
        planes: int = 0,
        biases: int = 0,
    ) -> Step:
        """A transform of the tiles of ``part``, of which tile 0 begins at pixel ``origin`` (x, y) of ``image``."""
        parameters = IMAGE_PARAMETERS.pack(
            image=image,
            origin_x=origin[0],
            origin_y=origin[1],
            tiles_x=self.x,
            tiles_y=self.y,
            first_tile=part[0],
            tiles=part[1],
            planes=planes,
            biases=biases,
        )
        threads = part[1] * ceiling_divide(image[6], QUAD)
        kernel = _variant(kernel, _is_aligned(image))
        return Step(FAMILIES[self.taps], kernel, ceiling_divide(threads, THREADS), operands, parameters)


def _product(
    tile: Tile, form: str, operands: tuple[Operand, ...], *, rows: int, columns: int, splits: int = 1, **fields: int
) -> Step:
    """The products of the planes, for ``rows`` x ``columns`` sums; ``fields`` are others of ``PRODUCT_PARAMETERS``."""
    row_tiles, column_tiles = ceiling_divide(rows, tile.rows), ceiling_divide(columns, tile.columns)
    fields = {"sum_tiles": 0, "adds": 0, "left": 0, "right": 0, **fields}
    return Step(
        PRODUCT_FAMILIES[tile],
        f"winograd_product_{tile.name}_{form}",
        splits * (fields["sum_tiles"] + PLANES * row_tiles * column_tiles),
        operands,
        PRODUCT_PARAMETERS.pack(
            rows=rows, columns=columns, row_tiles=row_tiles, column_tiles=column_tiles, **fields
        ),
    )


def _packing(taps: int, inputs: int, outputs: int, is_gradient: bool) -> Packing:
    """The planes of the weights, and behind them the biases."""
    packing = Packing(
        kernel=_variant("winograd_weights", inputs % QUAD == outputs % QUAD == 0),
        threadgroups=ceiling_divide(_in_quads(inputs) * _in_quads(outputs) // QUAD, THREADS),
        parameters=WEIGHTS_PARAMETERS.pack(products=inputs, columns=outputs, transposed=int(is_gradient)),
        count=(PLANES * _in_quads(inputs) + 1) * _in_quads(outputs),
        family=FAMILIES[taps],
    )
    require_packable(packing.count)
    return packing


@lru_cache(maxsize=4096)
def plan_gather(
    geometry: ConvolutionGeometry, is_gradient: bool, metal_type: str, tiling_name: str, compute_units: int
) -> Plan | None:
    """What computes the result, or the data gradient.

    None where the method cannot do it or does not pay. Source: Lavin, Gray: Fast algorithms for convolutional neural
    networks, with the points that shaders/convolution_winograd.metal.j2 names.
    """
    if metal_type != "float" or not _is_computable(geometry):
        return None
    source, destination = geometry.ends(is_gradient)
    taps, inputs, outputs = geometry.window[0], _in_quads(source[6]), _in_quads(destination[6])
    tiles = _Tiles.of(destination, taps)
    parts = list(tiles.parts(PLANES * (inputs + outputs)))
    of_device = tiling(tiling_name)
    units = compute_units or of_device.units_unless_known

    def time(tile: Tile) -> float:
        """Of the products of the first part."""
        threadgroups = PLANES * ceiling_divide(parts[0][1], tile.rows) * ceiling_divide(outputs, tile.columns)
        step_time = of_device.step_time("planes", tile, metal_type, ceiling_divide(threadgroups, units))
        return ceiling_divide(inputs, tile.depth) * step_time

    tile = min(of_device.tiles["planes", metal_type], key=time)
    pixels = destination[4] * destination[5] * destination[7]
    moved = (pixels + 2 * PLANES * tiles.count) * (inputs + outputs)
    rate = units * of_device.products[metal_type]
    plain, products = pixels * geometry.weights_count, time(tile) * tiles.count / parts[0][1]
    by_tiles = convolution_tiles.plan_gather(geometry, is_gradient, metal_type, tiling_name, compute_units)
    dispatches = (3 + _dispatches_of_singles(source, destination)) * len(parts) - 1
    if not pays(plain, products, moved, dispatches, rate, by_tiles.time if by_tiles else 0.0):
        return None
    origin_x, origin_y = geometry.window[6:]
    origin = (1 - taps - origin_x, 1 - taps - origin_y) if is_gradient else (origin_x, origin_y)
    biases = PLANES * inputs * outputs
    steps = []
    for part in parts:
        rows, planes = part[1], PLANES * part[1] * inputs
        sums = {"products": inputs, "products_per_split": inputs, "result": planes}
        steps += [
            tiles.step("winograd_source", ("source", "workspace"), source, part, origin=origin),
            _product(tile, "by_rows", ("workspace", "packed", "workspace"), rows=rows, columns=outputs, **sums),
            tiles.step(
                "winograd_result",
                ("workspace", "packed", "destination"),
                destination,
                part,
                planes=planes,
                biases=biases,
            ),
        ]
    workspace = 4 * PLANES * parts[0][1] * (inputs + outputs)
    return Plan(tuple(steps), workspace, _packing(taps, source[6], destination[6], is_gradient))


def _step_of_windows(
    geometry: ConvolutionGeometry, splits: int, planes: int, units: int, accumulates: bool
) -> Step:
    """The sums over splits, from float ``planes`` of the workspace on, and their transform to gradients for weights."""
    parameters = WEIGHTS_GRADIENT_PARAMETERS.pack(
        outputs=geometry.outputs,
        channels=geometry.inputs,
        splits=splits,
        accumulates=int(accumulates),
        planes=planes,
    )
    windows = geometry.outputs * (geometry.inputs + 1)
    are_few = windows <= FEW_WINDOWS * units
    return Step(
        FAMILIES[geometry.window[0]],
        "winograd_weights_gradient" + "_of_few" * are_few,
        ceiling_divide(windows, WINDOWS if are_few else THREADS),
        ("workspace", "weights", "biases"),
        parameters,
    )


@lru_cache(maxsize=4096)
def plan_weights(
    geometry: ConvolutionGeometry, accumulates: bool, metal_type: str, tiling_name: str, compute_units: int
) -> Plan | None:
    """What computes the gradients for weights and biases; None where the method cannot do it or does not pay.

    The sums over tiles are divided into splits of one length, and the sums of a part of the tiles are added to those of
    the part before it: the order is fixed by the shapes and the device.
    """
    if metal_type != "float" or not _is_computable(geometry):
        return None
    source, gradient, (taps, *_, origin_x, origin_y) = geometry.source, geometry.result, geometry.window
    of_device, tiles = tiling(tiling_name), _Tiles.of(gradient, taps)
    inputs, outputs = _in_quads(geometry.inputs), _in_quads(geometry.outputs)
    parts = list(tiles.parts(PLANES * (inputs + outputs) + outputs))
    units = compute_units or of_device.units_unless_known
    split_stride = PLANES * inputs * outputs + outputs

    def product_tiles(tile: Tile) -> int:
        return PLANES * ceiling_divide(outputs, tile.rows) * ceiling_divide(inputs, tile.columns)

    products = Products("planes", metal_type, product_tiles, run_length=parts[0][1], values=split_stride)
    tile, splits = of_device.divided(products, units)
    step_time = of_device.step_time("planes", tile, metal_type, ceiling_divide(splits * product_tiles(tile), units))
    time = ceiling_divide(ceiling_divide(tiles.count, tile.depth), splits) * step_time
    moved = (geometry.pixels + 2 * PLANES * tiles.count) * (inputs + outputs) + 2 * splits * split_stride * len(parts)
    rate = units * of_device.products[metal_type]
    by_tiles = convolution_tiles.plan_weights(geometry, accumulates, metal_type, tiling_name, compute_units)
    of_singles = _dispatches_of_singles(source, gradient)
    are_few = min(geometry.inputs, geometry.outputs) < FEWEST_SINGLES
    share = SINGLES_WEIGHTS_SHARE if of_singles and not are_few else WEIGHTS_SHARE
    tiles_time, dispatches = share * by_tiles.time if by_tiles else 0.0, (3 + of_singles) * len(parts)
    if not pays(geometry.pixels * geometry.weights_count, time, moved, dispatches, rate, tiles_time):
        return None
    products_per_split = ceiling_divide(ceiling_divide(parts[0][1], splits), tile.depth) * tile.depth
    splits = ceiling_divide(parts[0][1], products_per_split)
    gradient_planes = PLANES * parts[0][1] * inputs
    result = gradient_planes + (PLANES + 1) * parts[0][1] * outputs
    steps = []
    for part in parts:
        steps += [
            tiles.step("winograd_source", ("source", "workspace"), source, part, origin=(origin_x, origin_y)),
            tiles.step("winograd_gradient", ("gradient", "workspace"), gradient, part, planes=gradient_planes),
            _product(
                tile,
                "by_products",
                ("workspace", "workspace", "workspace"),
                rows=outputs,
                columns=inputs,
                splits=splits,
                products=part[1],
                products_per_split=products_per_split,
                sum_tiles=ceiling_divide(outputs, SUM_OUTPUTS),
                adds=int(part != parts[0]),
                left=gradient_planes,
                result=result,
            ),
        ]
    steps.append(_step_of_windows(geometry, splits, result, units, accumulates))
    return Plan(tuple(steps), 4 * (result + splits * split_stride), None)
