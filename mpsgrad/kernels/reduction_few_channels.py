"""Reductions over few feature channels on CPUs, and the gradients of those over any number of channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.kernels.pointwise import Layout, exceeds_caches, merge_pixels, rows_per_thread
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import tunables

FEW_CHANNELS = range(2, 8)
PIXELS_AT_ONCE = 8
MOST_CHANNELS_OF_SPREAD = 256
"""Of more, elementwise kernels spread a gradient as fast, and with many registers multiply it; those write past the
caches what these do not hold, too."""
MOST_CHANNELS_OF_EIGHTS = {"sum": 40, "product": 40, "min": 256, "max": 256}
"""Of more, kernels for axes of any strides reduce a pixel as fast. Sums read pixels of more channels four at a time,
because memory follows few rows best."""

Lanes = tuple[int, ...]


@dataclass(frozen=True)
class Merged:
    """An eight that is ``first`` of several with lanes of ``others`` put in, one after another, by shuffles of two."""

    first: int
    others: tuple[tuple[int, Lanes], ...]

    @classmethod
    def of(cls, places: Sequence[tuple[int, int]]) -> Merged:
        """That whose lanes are these: pairs of an eight and a lane of it."""
        first, second, *more = sorted({eight for eight, _ in places})
        begin = tuple(lane + (8 if eight == second else 0) for eight, lane in places)
        rest = (
            (other, tuple(8 + lane if eight == other else own for own, (eight, lane) in enumerate(places)))
            for other in more
        )
        return cls(first, ((second, begin), *rest))


@dataclass(frozen=True)
class Orders:
    """How the eights of the elements of eight pixels become one eight for each channel, and the other way round."""

    channels: int
    of_channels: tuple[Merged, ...]
    of_elements: tuple[Merged, ...]
    spread: tuple[Lanes, ...]
    """Which of eight pixels each element of the eights of elements is of."""

    @classmethod
    def of(cls, channels: int) -> Orders:
        """Those for so many channels."""
        eight = range(8)
        return cls(
            channels,
            tuple(Merged.of([divmod(pixel * channels + c, 8) for pixel in eight]) for c in range(channels)),
            tuple(
                Merged.of([divmod(8 * number + lane, channels)[::-1] for lane in eight]) for number in range(channels)
            ),
            tuple(tuple((8 * number + lane) // channels for lane in eight) for number in range(channels)),
        )


PARAMETERS = ParameterStruct(
    "FewChannels",
    gradient="int",
    source="int",
    weights="int",
    destination="int",
    channels="int",
    pixels="int",
    pixels_of_thread="int",
    scale="float",
)
"""``gradient``, ``source``, ``weights`` and ``destination`` are first elements."""

FAMILY = ShaderFamily(
    "reduction_of_few_channels",
    (PARAMETERS,),
    {"few_channels": tuple(Orders.of(channels) for channels in FEW_CHANNELS)},
    ahead_of_time=False,
    device_families=("cpu",),
)


def add_over_few_channels(
    command_buffer: CommandBuffer,
    operation: str,
    metal_type: str,
    images: Mapping[str, tuple[Buffer, Layout]],
    scale: float,
) -> bool:
    """Adds the ``operation`` of ``images``: some of ``gradient``, ``source``, ``weights``, and last ``destination``.

    False if there is no such kernel, or the pixels of an image do not follow each other.
    """
    device = command_buffer.device
    layouts = [layout for _, layout in images.values()]
    channels = max(layout[6] for layout in layouts)
    numbers = tunables(device.tuning)
    has_no_limit = operation == "weigh" and not numbers.has_many_registers
    is_spread = operation in ("spread", "weigh") and (has_no_limit or channels <= MOST_CHANNELS_OF_SPREAD)
    has_eights = (
        operation.endswith("_gradient")
        or channels <= MOST_CHANNELS_OF_EIGHTS.get(operation, 0)
        or (is_spread and not exceeds_caches(layouts[-1], len(layouts) - 1, numbers))
    )
    has_kernel = channels in FEW_CHANNELS or (has_eights and channels >= 8)
    if device.family != "cpu" or not has_kernel or len({each[4:6] + each[7:] for each in layouts}) > 1:
        return False
    merged = merge_pixels(layouts)
    _, _, _, _, pixels, height, _, count = merged[0]
    # Those with one number for each pixel come before the source, or behind it.
    if height * count > 1 or any(pixel != layout[6] for (_, pixel, *_), layout in zip(merged, layouts, strict=True)):
        return False
    pixels_of_thread = rows_per_thread(pixels, channels, device.compute_units, numbers)
    pixels_of_thread = -(-pixels_of_thread // PIXELS_AT_ONCE) * PIXELS_AT_ONCE
    starts = dict.fromkeys(("gradient", "source", "weights", "destination"), 0)
    starts |= dict(zip(images, (start for start, *_ in merged), strict=True))
    parameters = PARAMETERS.pack(
        **starts, channels=channels, pixels=pixels, pixels_of_thread=pixels_of_thread, scale=scale
    )
    channels_of_name = f"{channels}_channels" if channels in FEW_CHANNELS else "eights"
    command_buffer.add_dispatch(
        FAMILY.function(device, f"{operation}_of_{channels_of_name}", metal_type),
        -(-pixels // pixels_of_thread),
        *(buffer for buffer, _ in images.values()),
        device.constant_buffer(parameters),
    )
    return True
