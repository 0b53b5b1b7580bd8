"""Convolution and its gradients as products of matrices in tiles, for GPUs: which kernel, with which parameters."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels import convolution_depthwise
from mpsgrad.kernels.convolution_gather import AXIS, Layout, as_long_pixels, gather, is_fully_connected
from mpsgrad.kernels.convolution_gather import Plan as GatherPlan
from mpsgrad.kernels.convolution_packing import SUM_PARAMETERS, half_packing
from mpsgrad.kernels.convolution_tile import Tile, all_tiles, tiling
from mpsgrad.kernels.convolution_weights_gradient import Plan as WeightsPlan
from mpsgrad.shader import ParameterStruct, ShaderFamily

GATHER_PARAMETERS = ParameterStruct(
    "ConvolutionTilesParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    x=AXIS,
    y=AXIS,
    channels="int",
    lanes="int",
    fold_channels="int",
    groups="int",
    blocks_per_group="int",
    row_tiles="int",
    column_tiles="int",
    biases="int",
    joins_columns="int",
    replicates="int",
    stores_vectors="int",
)
WEIGHTS_PARAMETERS = ParameterStruct(
    "ConvolutionWeightsTilesParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    window=WINDOW,
    channels="int",
    group_outputs="int",
    groups="int",
    row_tiles="int",
    column_tiles="int",
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
_TEMPLATES = {
    ("gather", "float"): "convolution_tiles",
    ("gather", "half"): "convolution_matrices",
    ("weights", "float"): "convolution_weights_tiles",
    ("weights", "half"): "convolution_weights_matrices",
}
_STRUCTS = {"gather": (IMAGE_LAYOUT, AXIS, GATHER_PARAMETERS), "weights": (IMAGE_LAYOUT, WINDOW, WEIGHTS_PARAMETERS)}

FAMILIES = {
    (kind, metal_type, tile): ShaderFamily(
        f"{_TEMPLATES[kind, metal_type]}_{tile.name}",
        _STRUCTS[kind],
        {**tile.constants, "unroll": "#pragma unroll"},
        # Sums need registers, which CPUs have not enough of, and compile in a tenth of the time without.
        {"cpu": {"unroll": "#pragma clang loop unroll(disable)"}},
        dtypes=(metal_type,),
        template=_TEMPLATES[kind, metal_type],
        # A device compiles the tiles that it uses, at their first use.
        ahead_of_time=False,
    )
    for kind, metal_type, tile in sorted(all_tiles())
}


def _ceiling_divide(a: int, b: int) -> int:
    return -(-a // b)


def _is_aligned(layout: Layout, channels: int, values: int) -> bool:
    """Whether ``values`` channels of an image, from a multiple of that on, are always one aligned vector."""
    return all(n % values == 0 for n in (channels, *layout[:4]))


def _values_at_once(metal_type: str) -> int:
    return 8 if metal_type == "half" else 4


@lru_cache(maxsize=4096)
def plan_gather(
    is_gradient: bool,
    source: Layout,
    destination: Layout,
    window: Layout,
    groups: int,
    replicates: bool,
    metal_type: str,
    device_family: str,
    compute_units: int,
) -> GatherPlan | None:
    """What computes the result ``destination`` from ``source``, or the data gradient from the gradient ``source``.

    None for a gather that tiles do not compute: one that reads the weights as they are.
    """
    gathered = gather(is_gradient, source, destination, window, groups, replicates)
    if gathered.packing is None:
        return None
    if gathered.kernel == "convolution_depthwise":
        return convolution_depthwise.plan_gather(gathered)
    of_device = tiling(device_family)
    rows = gathered.destination[7] * gathered.y.size * gathered.x.size
    parts = gathered.groups * gathered.x.divisor * gathered.y.divisor

    def counts(tile: Tile) -> tuple[int, int]:
        return _ceiling_divide(rows, tile.rows), _ceiling_divide(gathered.lanes, tile.columns)

    def time(tile: Tile) -> float:
        row_tiles, column_tiles = counts(tile)
        rounds = _ceiling_divide(row_tiles * column_tiles * parts, compute_units or of_device.units_unless_known)
        return rounds * tile.time

    tile = min(of_device.tiles["gather", metal_type], key=time)
    row_tiles, column_tiles = counts(tile)
    values = _values_at_once(metal_type)
    width = values if _is_aligned(gathered.source, gathered.channels, values) else 1
    joins_columns = width == 1 and gathered.joins_columns and not gathered.replicates
    packing, biases = gathered.packing, gathered.biases
    if metal_type == "half":
        packing, biases = half_packing(gathered.pack_fields, joins_columns)
    is_folded = gathered.lanes != gathered.fold_channels
    parameters = GATHER_PARAMETERS.pack(
        source=gathered.source,
        destination=gathered.destination,
        x=gathered.x.packed(),
        y=gathered.y.packed(),
        channels=gathered.channels,
        lanes=gathered.lanes,
        fold_channels=gathered.fold_channels,
        groups=gathered.groups,
        blocks_per_group=gathered.blocks_per_group,
        row_tiles=row_tiles,
        column_tiles=column_tiles,
        biases=biases,
        joins_columns=int(joins_columns),
        replicates=int(gathered.replicates),
        stores_vectors=int(not is_folded and _is_aligned(gathered.destination, gathered.lanes, values)),
    )
    return GatherPlan(
        FAMILIES["gather", metal_type, tile],
        f"{_TEMPLATES['gather', metal_type]}_{tile.name}_by_{width}",
        row_tiles * column_tiles * parts,
        parameters,
        packing,
    )


@lru_cache(maxsize=4096)
def plan_weights(
    gradient: Layout,
    source: Layout,
    window: Layout,
    groups: int,
    replicates: bool,
    accumulates: bool,
    metal_type: str,
    device_family: str,
    compute_units: int,
) -> WeightsPlan | None:
    """What computes the gradients for weights and biases; None where there are no pixels."""
    if not gradient[4] * gradient[5] * gradient[7]:
        return None
    of_device = tiling(device_family)
    units = compute_units or of_device.units_unless_known
    if groups == source[6] == gradient[6] > 1:
        return convolution_depthwise.plan_weights(gradient, source, window, replicates, accumulates, units)
    if is_fully_connected(window, source, gradient, groups):
        long_pixels = as_long_pixels(source)
        if long_pixels is not None:
            source, window = long_pixels, (1, 1, 1, 1, 1, 1, 0, 0)
    channels, group_outputs = source[6] // groups, gradient[6] // groups
    columns = window[0] * window[1] * channels
    width, height = gradient[4:6]
    pixels = width * height * gradient[7]

    def counts(tile: Tile) -> tuple[int, int]:
        return _ceiling_divide(group_outputs, tile.rows), _ceiling_divide(columns, tile.columns)

    def splitting(tile: Tile) -> tuple[float, int]:
        """The time that the products take and the number of splits for which it is least."""
        row_tiles, column_tiles = counts(tile)
        tiles = row_tiles * column_tiles * groups
        found = []
        for rounds in range(1, of_device.rounds + 1):
            splits = max(1, min(rounds * units * tile.resident // tiles, pixels // of_device.pixels_per_split))
            # Partial sums cost a little: of several numbers of splits that fill the GPU as well, take the smallest.
            time = _ceiling_divide(tiles * splits, units) / splits * tile.time
            found.append((time * (1 + 0.01 * rounds), splits))
        return min(found)

    tile = min(of_device.tiles["weights", metal_type], key=splitting)
    splits = splitting(tile)[1]
    pixels_per_split = _ceiling_divide(_ceiling_divide(pixels, splits), tile.depth) * tile.depth
    splits = _ceiling_divide(pixels, pixels_per_split)
    row_tiles, column_tiles = counts(tile)
    weights = gradient[6] * columns
    split_stride = weights + gradient[6]
    values = _values_at_once(metal_type)
    row_width = values if _is_aligned(gradient, group_outputs, values) else 1
    column_width = values if row_width > 1 and _is_aligned(source, channels, values) else 1
    parameters = WEIGHTS_PARAMETERS.pack(
        gradient=gradient,
        source=source,
        window=window,
        channels=channels,
        group_outputs=group_outputs,
        groups=groups,
        row_tiles=row_tiles,
        column_tiles=column_tiles,
        chunk_x=tile.depth % width,
        chunk_y=tile.depth // width % height,
        chunk_n=tile.depth // width // height,
        pixels=pixels,
        pixels_per_split=pixels_per_split,
        splits=splits,
        split_stride=split_stride,
        weights=weights,
        replicates=int(replicates),
        accumulates=int(accumulates and splits == 1),
    )
    return WeightsPlan(
        FAMILIES["weights", metal_type, tile],
        f"convolution_gradient_weights_{_TEMPLATES['weights', metal_type].removeprefix('convolution_weights_')}"
        f"_{tile.name}_by_{row_width}_{column_width}",
        row_tiles * column_tiles * groups * splits,
        parameters,
        splits,
        split_stride,
        SUM_PARAMETERS.pack(weights=weights, splits=splits, split_stride=split_stride, accumulates=int(accumulates)),
    )
