"""How the kernels of pooling and of its gradients are dispatched: their families, parameters and shares of threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device, Function
from mpsgrad.errors import GeometryError
from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernel import IMAGE_LAYOUT, WINDOW
from mpsgrad.kernels.divisor import DIVISOR
from mpsgrad.kernels.walk import (
    CONSTANTS,
    CONSTANTS_WITH_PAIRS,
    CPU_CONSTANTS_WITH_EIGHTS,
    DIVISORS,
    divisors_of,
    threads_of,
    walk_of,
)
from mpsgrad.shader import ParameterStruct, ShaderFamily, family_of
from mpsgrad.tunables import Tunables, tunables

LARGEST_RECORDED_WINDOW = 254
"""Taps of the largest window whose maxima are recorded in one byte each."""
LARGEST_POSITION = 2**29
"""Of the first pixel of a window, so that sums with it are 32-bit integers."""

PARAMETERS = ParameterStruct(
    "PoolingParameters",
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    windows=IMAGE_LAYOUT,
    window=WINDOW,
    clamp_edge="int",
    zero_pad_x="int",
    zero_pad_y="int",
    blocks_x="int",
    blocks_y="int",
    **DIVISORS,
)
"""``windows`` is a second image with one element for each window: the taps to record, or the gradient."""

GRADIENT_PARAMETERS = ParameterStruct(
    "PoolingGradientParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    windows=IMAGE_LAYOUT,
    window=WINDOW,
    first_x="int",
    first_y="int",
    first_block_x="int",
    first_block_y="int",
    blocks_x="int",
    blocks_y="int",
    clamp_edge="int",
    replicates="int",
    zero_pad_x="int",
    zero_pad_y="int",
    exceeds_caches="int",
    by_stride_x=DIVISOR,
    by_stride_y=DIVISOR,
    **DIVISORS,
)
"""Window 0 is pixel 0 of ``gradient`` and of ``windows``; ``first`` is the source pixel of destination pixel 0.

Block ``i`` of an axis is the ``stride`` source pixels from the first tap of window ``i`` on. With ``exceeds_caches``,
which only the walk by eights knows, blocks are written past the caches of a CPU.
"""

BLOCKS = ((2, 2), (3, 2), (3, 1))
"""Window size and stride of the common windows, whose gradients are computed block by block."""
COLUMN_ROWS = 7
"""On GPUs a block of windows of 3 x 3 and stride 1 is a column of so many pixels: threads share nothing but what they
load."""

MOST_IN_TILE, MOST_IN_TILE_OF_EIGHTS = 2048, 4096
"""Of each kind, where CPUs go through tiles of columns: the nearest cache holds as many. Sums of eight channels and
more are of two kinds at most."""
CHANNELS_OF_TILE, FEWEST_CHANNELS_OF_TILE = 512, 16
"""Up to so many channels have tiles of columns, and fewer where windows are wide: the second number at least. Parts of
pixels are short pieces, which lie far apart."""
THREADS_BY_TILES_PER_UNIT = 8
SHARES_PER_UNIT = 4
"""So many are even enough, whatever the number of compute units."""
MOST_CHANNELS_BY_TILES = 63
"""With more channels, reading each pixel of a window is as fast, except for gradients of average pooling."""
COLUMNS_OF_TAPS = 2, 3
"""Gradients of max pooling go through tiles for windows of so many taps at stride 1."""
BY_EIGHTS = "pooling_max_gradient_3x3_stride_2"
"""A kernel that is faster by eights than by simdgroups, whatever the channels, on CPUs with few registers, and on
others where that lets them write past the caches."""
BY_FEW_EIGHTS, FEW_FLOATS = "pooling_max_gradient_3x3_stride_1", 64
"""One that is faster so on CPUs with few registers, for halves and for fewer channels of floats than these."""
SEARCHED_BLOCKS = (*BLOCKS, (2, 1))
"""Window size and stride of those that search for winners of few channels and take them in one kernel."""
MOST_IN_SEARCHED_TILE = 1024
"""It keeps more kinds of numbers, of which the nearest cache holds fewer."""
BLOCKS_AT_ONCE = ((2, 1), (3, 2), (4, 2), (4, 3), (5, 2), (5, 3), (3, 1))
"""The same for eight channels and more. Larger windows are searched faster row by row."""
RECORDED_BLOCKS = ((2, 1), (3, 1), (4, 3), (5, 3))
"""Those of which CPUs with few registers take what is recorded in the same kernel: others are as fast or faster."""
CHANNELS_AT_ONCE, MOST_WINNERS_AT_ONCE = 512, 8192
"""Up to so many channels have tiles there, with so many winners in a row of windows: parts of pixels are short pieces
that lie far apart. CPUs with few registers have ints, for they have no time to convert winners for each comparison."""
ROWS_AT_STRIDE_1, ROWS_AT_ONCE = (4, 2, 1), (2, 1)
"""So many rows of windows are searched at once, where these share rows of taps, and as many as are left last."""
LARGEST_OF_HALVES_AT_ONCE = 4
"""Halves are converted for each tap, which larger windows are too many for."""
MOST_ROWS_OF_WINDOW, MOST_IN_TILE_OF_ROWS = 64, 4096
"""Windows that span no more rows of pixels may be searched row by row, so many numbers of all these rows at a time."""
FEWEST_THREADS_TO_PAIR = 1 << 16
"""Fewer threads of a GPU with a channel each are not made half as many with two."""
MOST_WINDOWS_OF_ELEMENTS = 25
"""Threads of a GPU take gradients of several channels that fit no vector where a pixel is in no more windows: what they
share is then worth more than what they read. Measured on an H200."""

_CONSTANTS: dict[str, Any] = {
    "blocks": BLOCKS,
    "row_widths": (),
    "column_rows": COLUMN_ROWS,
    "largest_recorded_window": LARGEST_RECORDED_WINDOW,
    "is_for_large_windows": False,
    "most_in_tile": MOST_IN_TILE,
    "most_in_tile_of_eights": MOST_IN_TILE_OF_EIGHTS,
    "columns_of_taps": COLUMNS_OF_TAPS,
    "few_at_once": False,
    "doubles": False,
    **CONSTANTS_WITH_PAIRS,
}
_CPU_CONSTANTS: dict[str, Any] = {"column_rows": 0, **CPU_CONSTANTS_WITH_EIGHTS}
_STRUCTS = (IMAGE_LAYOUT, WINDOW, DIVISOR, PARAMETERS, GRADIENT_PARAMETERS)


def doubling(numbers: Tunables) -> dict[str, Any]:
    """Whether halves are doubled before they are compared. Of comparisons of halves compilers make choices between
    halves, which CPUs with AVX2 only pack and convert again each time."""
    return {"doubles": not numbers.has_many_registers}


LARGE_WINDOWS_FAMILY = ShaderFamily(
    "pooling_max_of_large_windows",
    _STRUCTS,
    {**_CONSTANTS, "is_for_large_windows": True},
    {"cpu": _CPU_CONSTANTS},
    template="pooling_max",
    ahead_of_time=False,
)
FAMILIES = (
    LARGE_WINDOWS_FAMILY,
    ShaderFamily("pooling_max", _STRUCTS, _CONSTANTS, {"cpu": _CPU_CONSTANTS}, measured=doubling),
    *(
        ShaderFamily(
            name,
            _STRUCTS,
            {**_CONSTANTS, **CONSTANTS},
            {"cpu": _CPU_CONSTANTS},
            measured=lambda numbers: {"few_at_once": not numbers.has_many_registers},
            ahead_of_time=False,
        )
        for name in ("pooling_average", "pooling_l2_norm")
    ),
)
"""The names of their functions begin with their own."""
WINDOWS_FAMILY = ShaderFamily(
    "pooling_max_windows",
    _STRUCTS,
    _CONSTANTS,
    {"cpu": _CPU_CONSTANTS},
    ahead_of_time=False,
    device_families=("cpu",),
)
SEARCH_FAMILY = ShaderFamily(
    "pooling_max_search",
    _STRUCTS,
    {**_CONSTANTS, "most_in_tile": MOST_IN_SEARCHED_TILE, "searched_blocks": SEARCHED_BLOCKS},
    {"cpu": _CPU_CONSTANTS},
    measured=lambda numbers: {"floats_of_register": numbers.floats_of_register},
    dtypes=("float",),
    ahead_of_time=False,
    device_families=("cpu",),
)
FEW_CHANNELS_FAMILY = ShaderFamily(
    "pooling_max_few_channels",
    _STRUCTS,
    _CONSTANTS,
    {"cpu": _CPU_CONSTANTS},
    measured=lambda numbers: {"floats_of_register": numbers.floats_of_register, **doubling(numbers)},
    ahead_of_time=False,
    device_families=("cpu",),
)


def _family_at_once(size: int) -> ShaderFamily:
    def measured(numbers: Tunables) -> dict[str, Any]:
        strides = tuple(stride for taps, stride in BLOCKS_AT_ONCE if taps == size)
        has_many = numbers.has_many_registers
        recorded = () if has_many else RECORDED_BLOCKS
        return {
            "strides": strides,
            "counts_of_strides": tuple(_rows_at_once(size, stride) for stride in strides),
            "has_many_registers": has_many,
            "recorded_strides": tuple(stride for taps, stride in recorded if taps == size),
            "winner": "uchar" if has_many else "int",
            **doubling(numbers),
        }

    return ShaderFamily(
        f"pooling_max_at_once_{size}x{size}",
        _STRUCTS,
        {
            **_CONSTANTS,
            "channels_of_tile": CHANNELS_AT_ONCE,
            "most_in_tile": MOST_WINNERS_AT_ONCE,
            "size": size,
            "vectors": (("Eight", 8), ("Sixteen", 16)),
        },
        {"cpu": _CPU_CONSTANTS},
        measured=measured,
        template="pooling_max_at_once",
        dtypes=("float", "half") if size <= LARGEST_OF_HALVES_AT_ONCE else ("float",),
        ahead_of_time=False,
        device_families=("cpu",),
    )


def _rows_at_once(size: int, stride: int) -> tuple[int, ...]:
    """How many rows of windows are searched at once: one where they share fewer rows of taps than each has new ones."""
    return ROWS_AT_STRIDE_1 if stride == 1 else ROWS_AT_ONCE if size - stride >= stride - 1 else (1,)


AT_ONCE_FAMILIES = {size: _family_at_once(size) for size in sorted({size for size, _ in BLOCKS_AT_ONCE})}
"""By the size of windows."""
ROWS_FAMILY = ShaderFamily(
    "pooling_max_rows",
    _STRUCTS,
    {
        **_CONSTANTS,
        "most_in_tile": MOST_IN_TILE_OF_ROWS,
        "most_rows": MOST_ROWS_OF_WINDOW,
        "channels_of_tile": CHANNELS_OF_TILE,
    },
    {"cpu": _CPU_CONSTANTS},
    ahead_of_time=False,
    device_families=("cpu",),
)
DISJOINT_FAMILY = ShaderFamily(
    "pooling_max_disjoint",
    _STRUCTS,
    _CONSTANTS,
    {"cpu": _CPU_CONSTANTS},
    measured=doubling,
    ahead_of_time=False,
    device_families=("cpu",),
)
ROW_WIDTHS, MOST_FEW_THREADS = range(2, 9), 1 << 17
"""So few threads of a GPU have all taps of a row of so many on their way together; more hide that they wait, and take
longer with the registers that it needs. Measured on an H200."""
FEW_THREADS_FAMILY = ShaderFamily(
    "pooling_max_of_few_threads",
    _STRUCTS,
    {**_CONSTANTS, "row_widths": ROW_WIDTHS},
    template="pooling_max",
    ahead_of_time=False,
    device_families=("gpu",),
)
COLUMN_WINDOWS, FEWEST_THREADS_OF_COLUMNS = 4, 1 << 15
"""A thread of a GPU owns so many windows below each other at stride 1, where that leaves so many threads."""
SIZES_OF_COLUMNS = {"max": (2, 3, 4, 5, 7), "average": (3, 4, 5, 7), "l2_norm": (3, 4, 5, 7)}
_KERNELS_OF_COLUMNS = {
    "max": ("pooling_max", "pooling_max_recorded", "pooling_max_search"),
    "average": ("pooling_average",),
    "l2_norm": ("pooling_l2_norm", "pooling_l2_norm_ratio"),
}
COLUMN_FAMILIES = {
    (operation, size): ShaderFamily(
        f"pooling_{operation}_of_columns_{size}x{size}",
        _STRUCTS,
        {
            **_CONSTANTS,
            "operation": operation,
            "size": size,
            "rows": COLUMN_WINDOWS,
            "kernels": _KERNELS_OF_COLUMNS[operation],
        },
        template="pooling_columns",
        ahead_of_time=False,
        device_families=("gpu",),
    )
    for operation, sizes in SIZES_OF_COLUMNS.items()
    for size in sizes
}
"""By the operation and the size of windows."""
_LAYOUTS = ("source", "gradient", "destination", "windows")


def add_dispatch(
    device: Device,
    command_buffer: CommandBuffer,
    name: str,
    metal_type: str,
    *buffers: Buffer,
    blocks: bool = False,
    **parameters: Any,
) -> None:
    """Adds one run of the kernel function ``name`` over the pixels, or the blocks, of the destination."""
    struct = GRADIENT_PARAMETERS if "gradient" in parameters else PARAMETERS
    layouts = [parameters["destination"], *(value for key, value in parameters.items() if key in _LAYOUTS)]
    is_max = name.startswith("pooling_max")
    has_eights = blocks or "gradient" not in name or not name.startswith("pooling_l2_norm")
    size = (parameters["blocks_x"], parameters["blocks_y"]) if blocks else ()
    has_pairs = is_max and threads_of("element", parameters["destination"], *size) >= FEWEST_THREADS_TO_PAIR
    taps_x, taps_y, stride_x, stride_y, *_ = parameters["window"]
    windows = -(-taps_x // stride_x) * -(-taps_y // stride_y)
    has_elements = not blocks and ("gradient" not in parameters or windows <= MOST_WINDOWS_OF_ELEMENTS)
    walk = walk_of(
        device,
        layouts,
        has_element2=has_pairs,
        has_eights=has_eights,
        has_elements=has_elements,
    )
    if walk == "row" and _is_faster_by_eights(device, name, metal_type, parameters):
        walk = "eights"
    of_columns = _family_of_columns(name, walk, parameters)
    if of_columns is not None:
        *_, width, height, _, _ = parameters["destination"]
        size = width, ceiling_divide(height, COLUMN_WINDOWS)
        parameters["blocks_y"] = size[1]
        function = of_columns.function(device, f"{name}_of_columns_{taps_x}x{taps_y}_by_{walk}", metal_type)
    else:
        family = FEW_THREADS_FAMILY if _has_few_threads(name, walk, parameters) else family_of(FAMILIES, name)
        function = family.function(device, f"{name}_by_{walk}", metal_type)
    threads = threads_of(walk, parameters["destination"], *size)
    packed = struct.pack(**parameters, **divisors_of(walk, parameters["destination"], *size))
    command_buffer.add_dispatch(
        function, -(-threads // function.threadgroup_size), *buffers, device.constant_buffer(packed)
    )


def _family_of_columns(name: str, walk: str, parameters: dict[str, Any]) -> ShaderFamily | None:
    """That of the kernel ``name`` whose threads own a column of windows; None if there is none or it does not suit."""
    taps_x, taps_y, *steps, _, _ = parameters["window"]
    operation = next((each for each, names in _KERNELS_OF_COLUMNS.items() if name in names), "")
    family = COLUMN_FAMILIES.get((operation, taps_x))
    if family is None or walk not in ("element4", "elements") or taps_x != taps_y or steps != [1, 1, 1, 1]:
        return None
    *_, width, height, _, _ = parameters["destination"]
    threads = threads_of(walk, parameters["destination"], width, ceiling_divide(height, COLUMN_WINDOWS))
    return family if threads >= FEWEST_THREADS_OF_COLUMNS and _are_all_inside(parameters) else None


def _has_few_threads(name: str, walk: str, parameters: dict[str, Any]) -> bool:
    """Whether the kernel ``name`` is to be that of few threads of a GPU, which wait for the taps of wide windows."""
    takes_rows = name in _KERNELS_OF_COLUMNS["max"] and walk in ("element", "element2", "element4")
    return (
        takes_rows
        and parameters["window"][0] in ROW_WIDTHS
        and threads_of(walk, parameters["destination"]) <= MOST_FEW_THREADS
    )


def _are_all_inside(parameters: dict[str, Any]) -> bool:
    """Whether at least one tap of each window at stride 1 lies inside the source."""
    *taps, _, _, _, _, origin_x, origin_y = parameters["window"]
    axes = zip(taps, (origin_x, origin_y), parameters["source"][4:6], parameters["destination"][4:6], strict=True)
    return all(origin + size > 0 and origin + count - 1 < extent for size, origin, extent, count in axes)


def _is_faster_by_eights(device: Device, name: str, metal_type: str, parameters: dict[str, Any]) -> bool:
    """Whether the kernel ``name`` of a CPU is to be that of threads with eight channels rather than of simdgroups."""
    has_few_registers = bool(tunables(device.tuning).pooling_gradient_by_eights)
    if name == BY_FEW_EIGHTS:
        return has_few_registers and (metal_type == "half" or parameters["destination"][6] < FEW_FLOATS)
    return name == BY_EIGHTS and (has_few_registers or bool(parameters["exceeds_caches"]))


def require_positions(owner: str, window: tuple[int, ...], width: int, height: int) -> None:
    """Raises ``GeometryError`` if the windows lie so far out that their pixels have no 32-bit coordinates."""
    tap_width, tap_height, stride_x, stride_y, _, _, origin_x, origin_y = window
    for axis, origin, stride, count in (("x", origin_x, stride_x, width), ("y", origin_y, stride_y, height)):
        last = origin + stride * max(count - 1, 0)
        if origin < -LARGEST_POSITION or last > LARGEST_POSITION:
            raise GeometryError(
                f"{owner}: the windows along {axis} begin at pixels {origin} to {last}; they have to lie between "
                f"{-LARGEST_POSITION} and {LARGEST_POSITION}"
            )


def most_in_tile_of_sums(channels: int) -> int:
    """How many sums of each kind a tile of columns has."""
    return MOST_IN_TILE if channels < 8 else MOST_IN_TILE_OF_EIGHTS


def shares_of_channels(channels: int, strides: int, stride: int, most_in_tile: int = MOST_IN_TILE) -> int | None:
    """Into how many shares channels are cut, so that tiles have some columns; None if windows are too wide for that.

    ``strides`` of pixels cover a window.
    """
    halo = (strides - 1) * stride
    most = max(FEWEST_CHANNELS_OF_TILE, min(CHANNELS_OF_TILE, most_in_tile // (2 * halo + 1)))
    shares = -(-channels // most)
    return None if most_in_tile // -(-channels // shares) <= halo else shares


def shares_of_rows(device: Device, shares: int, most: int) -> int:
    """Into how many shares, ``most`` at most, rows are cut where there are ``shares``: so that all cores have work."""
    return max(1, min(-(-THREADS_BY_TILES_PER_UNIT * max(1, device.compute_units) // shares), most))


def shares_with_edges(device: Device, shares: int, most: int, threads_per_unit: int = THREADS_BY_TILES_PER_UNIT) -> int:
    """As ``shares_of_rows``, where the windows at the edge of a share are those of its neighbour, too.

    CPUs with few registers have no more shares than keep their cores busy to the end.
    """
    compute_units = max(1, device.compute_units)
    if tunables(device.tuning).has_many_registers:
        wanted = -(-threads_per_unit * compute_units // shares)
    elif shares >= SHARES_PER_UNIT * compute_units:
        wanted = 1
    else:
        wanted = compute_units // math.gcd(shares, compute_units)
    return max(1, min(wanted, most))


def shares_of_images(
    device: Device, images: int, most_rows: int, channels: int, fewest_channels: int
) -> tuple[int, int]:
    """Into how many shares channels, of ``fewest_channels`` at least, and rows of each image are cut.

    Rows come first: threads with other channels of the same pixels write to the same lines of caches.
    """
    rows = shares_with_edges(device, images, most_rows)
    wanted = shares_with_edges(device, images * rows, channels)
    return max(1, min(wanted, channels // fewest_channels)), rows


def add_dispatch_of_shares(
    command_buffer: CommandBuffer,
    function: Function,
    buffers: Sequence[Buffer],
    struct: ParameterStruct,
    parameters: dict[str, Any],
    shares_of_channels: int,
    shares_of_rows: int,
) -> None:
    """Adds a kernel of whose threads each has a share of the channels and of the rows of an image."""
    shares = {"blocks_x": shares_of_channels, "blocks_y": shares_of_rows}
    packed = struct.pack(**parameters | shares, **divisors_of("channels", parameters["destination"]))
    threads = parameters["destination"][7] * shares_of_channels * shares_of_rows
    command_buffer.add_dispatch(function, threads, *buffers, command_buffer.device.constant_buffer(packed))
