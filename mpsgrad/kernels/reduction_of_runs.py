"""Reductions over feature channels on GPUs where pixels follow each other, and gradients of extremes, by one kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.pointwise import ASSUMED_COMPUTE_UNITS, Layout, merge_pixels, values_of_vector
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS, LARGEST_TEAM = 256, 32
THREADGROUPS_PER_UNIT = 4
"""So many are to have work, if there is so much."""
COUNTS_OF_VALUES, FEWEST_PIXELS = (8, 16, 32), 6
"""So many elements a thread keeps, the fewest that make so many pixels: otherwise lanes would have none."""
COUNTS_ON_APPLE = (8, 16)
"""Those for which there is threadgroup memory."""

PARAMETERS = ParameterStruct(
    "ReductionRuns",
    gradient="int",
    source="int",
    weights="int",
    destination="int",
    channels="int",
    pixels="int",
    pixels_at_once="int",
    team="int",
    scale="float",
    by_channels=DIVISOR,
)
"""``gradient``, ``source``, ``weights`` and ``destination`` are first elements."""
FAMILY = ShaderFamily(
    "reduction_of_runs",
    (IMAGE_LAYOUT, DIVISOR, PARAMETERS),
    {"threads": THREADS, "counts_of_values": COUNTS_OF_VALUES, "most_pixels": THREADS * COUNTS_OF_VALUES[0]},
    tunables={"apple": {"counts_of_values": COUNTS_ON_APPLE}},
    ahead_of_time=False,
    device_families=("apple", "nvidia"),
)

FEWEST_FOR_ARGUMENTS, MOST_CHANNELS, SIMDGROUP = 16, 128, 32
"""Threads that have a pixel of fewer channels each find positions as fast. Threads that share a pixel of more channels
than a simdgroup has lanes reduce it as fast to a sum or an extreme where it has whole vectors or pairs, and any with
still more. Measured on an H200."""
SLOW_FLOATS = 8
"""Pixels of so many floats lie in few of the banks of a threadgroup's memory."""


def _is_faster(operation: str, channels: int, values: int) -> bool:
    """Whether others reduce slower to a sum or an extreme, or to the position of one."""
    is_long = channels > MOST_CHANNELS
    if operation.startswith("argument"):
        return channels >= FEWEST_FOR_ARGUMENTS and not (is_long and channels % values == 0)
    if channels < SIMDGROUP:
        return not (channels == SLOW_FLOATS and values == 4)
    return channels % 2 == 1 and not is_long


def add_over_runs(
    command_buffer: CommandBuffer,
    operation: str,
    metal_type: str,
    images: Mapping[str, tuple[Buffer, Layout]],
    scale: float,
) -> bool:
    """Adds the ``operation`` of ``images``: ``gradient`` if it is that of min or max, ``source``, ``weights`` if it is
    the product with them, and ``destination``.

    False if the pixels of an image do not follow each other, or begin at no vector, or others are as fast.
    """
    device, layouts = command_buffer.device, [layout for _, layout in images.values()]
    channels, values = images["source"][1][6], values_of_vector(metal_type)
    step = values // math.gcd(channels, values)
    counts = COUNTS_ON_APPLE if device.family == "apple" else COUNTS_OF_VALUES
    fitting = {count: THREADS * count // channels // step * step for count in counts}
    count = next((count for count, most in fitting.items() if most >= FEWEST_PIXELS), None)
    if "gradient" not in images and not _is_faster(operation, channels, values):
        return False
    if device.family == "cpu" or count is None or len({each[4:6] + each[7:] for each in layouts}) > 1:
        return False
    merged = merge_pixels(layouts)
    _, _, _, _, pixels, height, _, batch = merged[0]
    if height * batch > 1 or any(pixel != layout[6] for (_, pixel, *_), layout in zip(merged, layouts, strict=True)):
        return False
    wide = (start for (start, *_), layout in zip(merged, layouts, strict=True) if layout[6] == channels)
    if any(start % values for start in wide):
        return False
    wanted = -(-pixels // (THREADGROUPS_PER_UNIT * (device.compute_units or ASSUMED_COMPUTE_UNITS)))
    pixels_at_once = min(fitting[count], -(-wanted // step) * step)
    lanes = min(LARGEST_TEAM, channels, max(1, THREADS // pixels_at_once))
    team = 1 << (lanes.bit_length() - 1)
    parameters = PARAMETERS.pack(
        **{"gradient": 0, "weights": 0, **dict(zip(images, (start for start, *_ in merged), strict=True))},
        channels=channels,
        pixels=pixels,
        pixels_at_once=pixels_at_once,
        team=team,
        scale=scale,
        by_channels=divisor(channels),
    )
    command_buffer.add_dispatch(
        FAMILY.function(device, f"{operation}_of_runs_{count}", metal_type),
        -(-pixels // pixels_at_once),
        *(buffer for buffer, _ in images.values()),
        device.constant_buffer(parameters),
    )
    return True
