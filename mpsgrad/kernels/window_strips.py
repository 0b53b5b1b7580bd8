"""Normalization by the pixels around, its gradients and those of L2 norms on GPUs, whose threads go down strips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.geometry import ceiling_divide
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.pointwise import ASSUMED_COMPUTE_UNITS, Layout
from mpsgrad.shader import IMAGE_LAYOUT, ParameterStruct, ShaderFamily

THREADS = 256
MOST_LANES = 32, 16, 8
"""So many channels may be next to each other in a threadgroup of a gradient: as many as fill what memory delivers at
once, or fewer if more columns of pixels beside each other leave fewer of them for two threadgroups to find."""
THREADGROUPS_PER_UNIT = {"forward": 8, "gradient": 2}
"""Strips are as long as they can be with so many threadgroups for each unit of a GPU. Measured on an H200."""
FEWEST_ROWS = 4
"""Of a strip."""
FEWEST_ELEMENTS = 1 << 16
"""Of what is normalized: for fewer, threads with one pixel each are faster, which read more. Measured on an H200."""
SIZES = (3, 5)
FEW_CHANNELS = 16
"""Of so few, wide runs of columns leave what neighbouring threads read far apart."""

NUMBERS = dict.fromkeys(("alpha", "beta", "delta", "p0", "pm", "ps", "share", "slope"), "float")
"""Those of normalization, which norms have none of."""

PARAMETERS = ParameterStruct(
    "WindowStripsParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    offset_x="int",
    offset_y="int",
    shift_x="int",
    shift_y="int",
    first_x="int",
    step="int",
    rows="int",
    lanes="int",
    groups="int",
    channel_tiles="int",
    column_tiles="int",
    strips="int",
    by_lanes=DIVISOR,
    by_channel_tiles=DIVISOR,
    by_column_tiles=DIVISOR,
    by_strips=DIVISOR,
    **NUMBERS,
)
"""Window 0 is centred at pixel ``offset`` of the source, destination pixel 0 is in the place of window ``shift``, and
the first threads of a gradient have the columns from window ``first_x`` on. Threadgroups of a gradient have ``groups``
of threads with columns of their own, each of ``lanes`` channels, and results of ``step`` columns."""

COLUMNS = {"spatial_normalization": (2,), "local_contrast_normalization": (2,), "pooling_l2_norm": (2, 4)}
"""How many columns a thread has: of few channels, and of more."""
FAMILIES = {
    (operation, size, columns): ShaderFamily(
        f"{operation}_of_strips_{size}x{size}_by_{columns}",
        (IMAGE_LAYOUT, DIVISOR, PARAMETERS),
        {
            "operation": operation,
            "size": size,
            "columns": columns,
            "threads": THREADS,
            "most_lanes": MOST_LANES[0],
        },
        template="window_strips",
        ahead_of_time=False,
        device_families=("gpu",),
    )
    for operation, choices in COLUMNS.items()
    for columns in choices
    for size in SIZES
}


class Tiles(NamedTuple):
    """How the channels and columns of an image are shared out to threadgroups."""

    lanes: int
    groups: int
    channel_tiles: int
    column_tiles: int


def tiles_of(width: int, channels: int, columns: int, halo: int) -> Tiles:
    """Those of the fewest threadgroups; of several beside each other each finds ``halo`` columns for its neighbours."""
    found = []
    for most in MOST_LANES:
        channel_tiles = ceiling_divide(channels, most)
        lanes = ceiling_divide(channels, channel_tiles)
        groups = min(THREADS // lanes, ceiling_divide(width, columns))
        column_tiles = 1 if groups * columns >= width else ceiling_divide(width, groups * columns - halo)
        found.append(Tiles(lanes, groups, channel_tiles, column_tiles))
    return min(found, key=lambda tiles: tiles.channel_tiles * tiles.column_tiles)


def rows_of_strip(device: Device, kind: str, height: int, threadgroups: int, size: int) -> int:
    """How many rows strips have where there are so many ``threadgroups`` beside each other.

    A strip of the windows' results begins with the rows that others have, too.
    """
    resident = THREADGROUPS_PER_UNIT[kind] * (device.compute_units or ASSUMED_COMPUTE_UNITS)
    begun = 1.5 * (size - 1)

    def time(strips: int) -> float:
        return ceiling_divide(threadgroups * strips, resident) * (ceiling_divide(height, strips) + begun)

    return ceiling_divide(height, min(range(1, max(1, height // FEWEST_ROWS) + 1), key=time))


def _family(device: Device, operation: str, size: int, channels: int) -> tuple[ShaderFamily | None, int]:
    """The shaders for windows of ``size`` x ``size``, None if there are none, and the columns of a thread."""
    columns = COLUMNS.get(operation, (0,))[0 if channels < FEW_CHANNELS else -1]
    return None if device.family == "cpu" else FAMILIES.get((operation, size, columns)), columns


def add_forward(
    command_buffer: CommandBuffer,
    operation: str,
    size: int,
    metal_type: str,
    source: tuple[Buffer, Layout],
    destination: tuple[Buffer, Layout],
    offset: tuple[int, int],
    numbers: Mapping[str, float],
) -> bool:
    """Adds the ``operation`` with the ``NUMBERS``, if there is a kernel for it."""
    device = command_buffer.device
    *_, width, height, channels, images = destination[1]
    family, columns = _family(device, operation, size, channels)
    if family is None or width * height * channels * images < FEWEST_ELEMENTS:
        return False
    column_tiles = ceiling_divide(width, columns)
    threads = column_tiles * channels * images
    rows = rows_of_strip(device, "forward", height, ceiling_divide(threads, THREADS), size)
    threads *= ceiling_divide(height, rows)
    command_buffer.add_dispatch(
        family.function(device, f"{operation}_of_strips", metal_type),
        ceiling_divide(threads, THREADS),
        source[0],
        destination[0],
        device.constant_buffer(
            _packed(
                {"gradient": source[1], "source": source[1], "destination": destination[1]},
                Tiles(channels, 1, 1, column_tiles),
                rows,
                numbers,
                offset=offset,
                shift=(0, 0),
                first_x=0,
                step=columns,
            )
        ),
    )
    return True


def add_gradient(
    command_buffer: CommandBuffer,
    operation: str,
    size: int,
    metal_type: str,
    buffers: tuple[Buffer, Buffer, Buffer],
    layouts: Mapping[str, Layout],
    offset: tuple[int, int],
    shift: tuple[int, int],
    numbers: Mapping[str, float],
) -> bool:
    """Adds the gradient of the ``operation``, if there is a kernel for it.

    ``buffers`` and ``layouts`` are those of ``gradient``, ``source`` and ``destination``.
    """
    device = command_buffer.device
    *_, width, height, channels, images = layouts["destination"]
    family, columns = _family(device, operation, size, channels)
    if family is None or min(layouts["gradient"][4:]) < 1:
        return False
    # Windows that do not exist need no columns.
    is_whole = shift[0] == 0 and layouts["gradient"][4] == width
    tiles = tiles_of(width if is_whole else width + size - 1, channels, columns, size - 1)
    first_x, step = 0, width
    if not is_whole or tiles.column_tiles > 1:
        first_x, step = shift[0] - (size - 1) // 2, tiles.groups * columns - (size - 1)
        tiles = tiles._replace(column_tiles=ceiling_divide(width, step))
    threadgroups = tiles.channel_tiles * tiles.column_tiles * images
    rows = rows_of_strip(device, "gradient", height, threadgroups, size)
    command_buffer.add_dispatch(
        family.function(device, f"{operation}_gradient_of_strips", metal_type),
        threadgroups * ceiling_divide(height, rows),
        *buffers,
        device.constant_buffer(
            _packed(layouts, tiles, rows, numbers, offset=offset, shift=shift, first_x=first_x, step=step)
        ),
    )
    return True


def _packed(
    layouts: Mapping[str, Layout],
    tiles: Tiles,
    rows: int,
    numbers: Mapping[str, float],
    *,
    offset: tuple[int, int],
    shift: tuple[int, int],
    first_x: int,
    step: int,
) -> bytes:
    strips = ceiling_divide(layouts["destination"][5], rows)
    return PARAMETERS.pack(
        **layouts,
        **tiles._asdict(),
        offset_x=offset[0],
        offset_y=offset[1],
        shift_x=shift[0],
        shift_y=shift[1],
        first_x=first_x,
        step=step,
        rows=rows,
        strips=strips,
        by_lanes=divisor(tiles.lanes),
        by_channel_tiles=divisor(tiles.channel_tiles),
        by_column_tiles=divisor(tiles.column_tiles),
        by_strips=divisor(strips),
        **{name: numbers.get(name, 0.0) for name in NUMBERS},
    )
