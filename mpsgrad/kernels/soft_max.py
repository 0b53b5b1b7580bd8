"""SoftMax and LogSoftMax over the feature channels of each pixel, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.geometry import EdgeMode, Offset
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import IMAGE_LAYOUT, GradientKernel, Kernel, Regions
from mpsgrad.kernels.divisor import DIVISOR, divisor
from mpsgrad.kernels.pointwise import (
    ASSUMED_COMPUTE_UNITS,
    VECTORS,
    Layout,
    Operand,
    exceeds_caches,
    merge_pixels,
    pieces,
    require_no_clamped_reads,
    rows_per_thread,
    values_of_vector,
)
from mpsgrad.kernels.soft_max_few_channels import few_channels, vector_length
from mpsgrad.shader import DTYPES, ParameterStruct, ShaderFamily, family_of
from mpsgrad.state import ForwardSnapshot, GradientState
from mpsgrad.tunables import tunables

THREADS = 256
IN_REGISTERS = ((32, 4), (64, 4), (128, 2), (192, 2), (256, 2), (384, 1), (512, 1), (768, 1), (1024, 1))
"""Rows of up to so many channels stay in registers, at most so many at once."""
LEAST_SPREAD, SPREAD_ROWS_PER_UNIT = 128, 3
"""Longer rows are spread over threadgroups of a GPU where a compute unit has so many at most: that is done sooner."""
SPREAD = (1024, 2048, 4096)
"""Longer rows of up to so many channels are spread over the threads of a GPU's threadgroup."""
LONG_ROW_THREADS = 1024
"""Those of a threadgroup of a GPU for a row that is longer still: as many simdgroups as a simdgroup has lanes."""
FEW_CHANNELS = {"float": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), "half": (1, 2, 3, 4, 5, 6, 7, 8, 10)}
"""Rows of so many channels are for a thread of a GPU alone."""
ROW_THREADS = 128
MOST_CHANNELS_TOGETHER = {"soft_max": {8: 24, 16: 96}, "log_soft_max": {8: 48, 16: 128}}
"""No longer rows of a forward kernel are taken by eights or sixteens of rows by a thread of a CPU: that saves
logarithms, too."""
FEWEST_THREADGROUPS_PER_UNIT = 4
FEWEST_OF_LONG_ROW = 256
"""Rows of so many channels may be written past the caches of a CPU though they end within a line of them."""
MOST_KEPT = 1024
"""Of so many channels in halves a thread of a CPU keeps the powers as floats; of longer rows it computes them again."""

PARAMETERS = ParameterStruct(
    "SoftMaxParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    rows_per_simdgroup="int",
    rows_per_thread="int",
    exceeds_caches="int",
    by_vectors="int",
)


def _vectors(channels: int, metal_type: str) -> int:
    """How many vectors hold whole rows."""
    return channels // math.gcd(channels, values_of_vector(metal_type))


def _family(operation: str) -> ShaderFamily:
    return ShaderFamily(
        operation,
        (IMAGE_LAYOUT, PARAMETERS),
        {
            "operation": operation,
            "threads": THREADS,
            "by_eights": False,
            "spread": SPREAD,
            "long_row_threads": LONG_ROW_THREADS,
            "row_threads": ROW_THREADS,
            "fewest_of_long_row": FEWEST_OF_LONG_ROW,
            "most_kept": MOST_KEPT,
            "most_channels_together": MOST_CHANNELS_TOGETHER[operation],
            "few_channels": {
                metal_type: {n: _vectors(n, metal_type) for n in FEW_CHANNELS[metal_type]} for metal_type in DTYPES
            },
        },
        {"cpu": {"by_eights": True, "spread": (), "few_channels": {metal_type: {} for metal_type in DTYPES}}},
        lambda numbers: {
            "in_registers": tuple((most, min(rows, numbers.soft_max_rows_at_once)) for most, rows in IN_REGISTERS),
            "by_sixteens": numbers.has_many_registers,
        },
        template="soft_max",
        ahead_of_time=operation == "soft_max",
    )


FAMILIES = tuple(_family(operation) for operation in ("soft_max", "log_soft_max"))
"""The names of their functions begin with their own."""


def _family_of_few_channels(operation: str, is_gradient: bool) -> ShaderFamily:
    """Kernels for rows of few channels of CPUs."""
    name = f"{operation}_gradient" if is_gradient else operation
    return ShaderFamily(
        f"{name}_of_few_channels",
        (IMAGE_LAYOUT, PARAMETERS),
        {"operation": operation, "backwards": is_gradient},
        measured=lambda numbers: {
            "by_sixteens": numbers.has_many_registers,
            "few_channels": few_channels(is_gradient, numbers),
        },
        template="soft_max_of_few_channels",
        ahead_of_time=False,
        device_families=("cpu",),
    )


FEW_CHANNELS_FAMILIES = {
    f"{operation}{'_gradient' * is_gradient}": _family_of_few_channels(operation, is_gradient)
    for operation in ("soft_max", "log_soft_max")
    for is_gradient in (False, True)
}
"""By the names with which those of their functions begin."""

TEAM_VECTORS = {"float": (1, 4, 8), "half": (1, 4)}
SPREAD_VECTORS, ROWS_AT_ONCE = {"float": 4, "half": 2}, {1: 4, 4: 1, 8: 1}
"""Of the kernels for whole vectors: how many of these a lane has of a row, and how many short rows at once."""
TEAM_PARTS = 1, 4, 8
"""The same of those for half a vector of halves, or two elements."""
LARGEST_TEAM = 32
VECTOR_PARAMETERS = ParameterStruct(
    "SoftMaxVectors",
    gradient="int",
    gradient_stride="int",
    source="int",
    source_stride="int",
    destination="int",
    destination_stride="int",
    rows="int",
    channels="int",
    team="int",
)
"""``gradient``, ``source`` and ``destination`` are first elements; the strides of their pixels count vectors."""


def _vector_family(name: str, part: int, dtypes: Sequence[str]) -> ShaderFamily:
    """Kernels for rows of whole vectors, or of parts of so many elements."""
    return ShaderFamily(
        name,
        (IMAGE_LAYOUT, VECTOR_PARAMETERS),
        {
            "threads": THREADS,
            "part": part,
            "shapes": {
                metal_type: [(False, each, ROWS_AT_ONCE[each]) for each in TEAM_PARTS]
                if part
                else [
                    *((False, each, ROWS_AT_ONCE[each]) for each in TEAM_VECTORS[metal_type]),
                    (True, SPREAD_VECTORS[metal_type], 1),
                ]
                for metal_type in dtypes
            },
        },
        dtypes=tuple(dtypes),
        template="soft_max_of_vectors",
        ahead_of_time=False,
    )


VECTOR_FAMILY = _vector_family("soft_max_of_vectors", 0, DTYPES)
PART_FAMILIES = {
    4: _vector_family("soft_max_of_fours", 4, ["half"]),
    2: _vector_family("soft_max_of_pairs", 2, DTYPES),
}
ENDINGS_OF_PARTS = {4: "_of_fours", 2: "_of_pairs"}
FEWEST_CHANNELS_OF_PARTS = {4: 12, 2: 257}
"""By how many elements fit: rows of fewer channels are taken one by one sooner."""
LEAST_FILLED, LEAST_FILLED_INSTEAD_OF_RUNS = 0.4, {False: 0.6, True: 0.65}
"""Of the elements that a team has room for, so many are to exist; more, forward and backward, where rows that follow
each other have another kernel. Measured on an H200."""

VALUES_OF_THREAD, COUNTS_OF_VALUES = 8, (8, 12)
"""Of rows that follow each other: so many a thread of a GPU keeps, and so many of one row a lane adds up at most."""
FEWEST_CHANNELS_OF_RUNS, CHANNELS_OF_THREADS = {"float": 7, "half": 9}, (8, 10)
MOST_CHANNELS_OF_RUNS = {"float": 48, "half": 64}
MOST_CHANNELS_OF_RUNS_OF_GRADIENTS = {"float": 40, "half": 256}
"""Of such rows; threads that own rows of few channels, or so many, are faster. Measured on an H200."""
RUNS_PARAMETERS = ParameterStruct(
    "SoftMaxRuns",
    gradient="int",
    source="int",
    destination="int",
    rows="int",
    rows_at_once="int",
    channels="int",
    team="int",
    by_channels=DIVISOR,
)
"""``gradient``, ``source`` and ``destination`` are first elements."""
RUNS_FAMILY = ShaderFamily(
    "soft_max_of_runs",
    (IMAGE_LAYOUT, DIVISOR, RUNS_PARAMETERS),
    {"threads": THREADS, "elements_of_thread": VALUES_OF_THREAD, "counts_of_values": COUNTS_OF_VALUES},
    ahead_of_time=False,
    device_families=("apple", "nvidia"),
)


@dataclass(frozen=True, slots=True)
class Runs:
    """How a threadgroup of a GPU has rows that follow each other: ``rows`` at once, and for each a ``team`` of lanes
    with ``values`` at most."""

    rows: int
    team: int
    values: int

    @classmethod
    @lru_cache(maxsize=512)
    def of(cls, channels: int, values_of_vector: int) -> Runs:
        """Those that keep most threads busy; the rows of each threadgroup begin at a vector."""
        step = values_of_vector // math.gcd(channels, values_of_vector)
        options = []
        for values in COUNTS_OF_VALUES:
            team = 1 << (-(-channels // values) - 1).bit_length()
            rows = min(THREADS // team, THREADS * VALUES_OF_THREAD // channels) // step * step
            if team <= LARGEST_TEAM and rows > 0:
                # Threads take as long for a value that they keep as for one that they add up, existing or not.
                options.append(((VALUES_OF_THREAD + values) / (rows * channels), cls(rows, team, values)))
        return min(options, key=lambda option: option[0])[1]


def _most_channels_of_runs(metal_type: str, is_gradient: bool) -> int:
    return (MOST_CHANNELS_OF_RUNS_OF_GRADIENTS if is_gradient else MOST_CHANNELS_OF_RUNS)[metal_type]


def _add_by_runs(
    command_buffer: CommandBuffer,
    function_name: str,
    metal_type: str,
    buffers: Sequence[Buffer],
    layouts: Sequence[Layout],
) -> bool:
    """Adds the kernel for rows that follow each other and no vector fits; False if it does not suit."""
    device, (_, _, _, _, rows, _, channels, _) = command_buffer.device, layouts[0]
    most = _most_channels_of_runs(metal_type, len(layouts) > 2)
    if (
        device.family == "cpu"
        or not FEWEST_CHANNELS_OF_RUNS[metal_type] <= channels <= most
        or channels in CHANNELS_OF_THREADS
        or not _is_run_of_vectors(layouts, metal_type)
    ):
        return False
    runs = Runs.of(channels, values_of_vector(metal_type))
    destination, *sources = (layout[0] for layout in layouts)
    parameters = RUNS_PARAMETERS.pack(
        gradient=sources[0],
        source=sources[-1],
        destination=destination,
        rows=rows,
        rows_at_once=runs.rows,
        channels=channels,
        team=runs.team,
        by_channels=divisor(channels),
    )
    command_buffer.add_dispatch(
        RUNS_FAMILY.function(device, f"{function_name}_of_runs_{runs.values}", metal_type),
        -(-rows // runs.rows),
        *buffers,
        device.constant_buffer(parameters),
    )
    return True


def _add_by_vectors(
    command_buffer: CommandBuffer,
    function_name: str,
    metal_type: str,
    buffers: Sequence[Buffer],
    layouts: Sequence[Layout],
) -> bool:
    """Adds the kernel for rows of whole vectors, or of parts of them; False if there is none. The first layout is the
    destination's."""
    device, (_, _, _, _, rows, height, channels, images) = command_buffer.device, layouts[0]
    widest = values_of_vector(metal_type)
    values = math.gcd(widest, channels, *(number for start, pixel, *_ in layouts for number in (start, pixel)))
    if device.family == "cpu" or channels in FEW_CHANNELS[metal_type] or height * images > 1:
        return False
    if values == widest:
        family, ending, of_team, of_spread = VECTOR_FAMILY, "", TEAM_VECTORS[metal_type], SPREAD_VECTORS[metal_type]
    elif values > 1 and channels >= FEWEST_CHANNELS_OF_PARTS[values]:
        family, ending, of_team, of_spread = PART_FAMILIES[values], ENDINGS_OF_PARTS[values], TEAM_PARTS, 0
    else:
        return False
    vectors = channels // values
    team = min(1 << (vectors - 1).bit_length(), LARGEST_TEAM)
    few_rows = rows <= SPREAD_ROWS_PER_UNIT * (device.compute_units or ASSUMED_COMPUTE_UNITS)
    most = of_team[1 if few_rows else -1] * team
    each = next((count for count in of_team if vectors <= min(count * team, most)), 0)
    is_gradient = len(layouts) > 2
    if ending:
        has_runs = channels <= _most_channels_of_runs(metal_type, is_gradient)
        least = LEAST_FILLED_INSTEAD_OF_RUNS[is_gradient] if has_runs else LEAST_FILLED
        if vectors < least * each * team:
            return False
    if each:
        at_once = max(1, ROWS_AT_ONCE[each] // (2 if is_gradient else 1))
        variant, rows_of_a_threadgroup = f"_of_teams_{each}{ending}", THREADS // team * at_once
    elif vectors <= THREADS * of_spread:
        variant, rows_of_a_threadgroup = f"_spread_{of_spread}{ending}", 1
    else:
        return False
    destination, *sources = ((layout[0], layout[1] // values) for layout in layouts)
    parameters = VECTOR_PARAMETERS.pack(
        gradient=sources[0][0],
        gradient_stride=sources[0][1],
        source=sources[-1][0],
        source_stride=sources[-1][1],
        destination=destination[0],
        destination_stride=destination[1],
        rows=rows,
        channels=channels,
        team=team,
    )
    command_buffer.add_dispatch(
        family.function(device, function_name + variant, metal_type),
        -(-rows // rows_of_a_threadgroup),
        *buffers,
        device.constant_buffer(parameters),
    )
    return True


def _variant(device: Device, metal_type: str, rows: int, channels: int) -> str:
    """The end of the names of the kernels for ``rows`` of ``channels``; CPUs have eights of eight and more."""
    if device.family != "cpu" and channels in FEW_CHANNELS[metal_type]:
        return f"_of_{channels}"
    few_rows = rows <= SPREAD_ROWS_PER_UNIT * (device.compute_units or ASSUMED_COMPUTE_UNITS)
    for most, _ in IN_REGISTERS:
        if channels <= most and not (few_rows and channels > LEAST_SPREAD):
            return f"_up_to_{most}"
    return next((f"_spread_up_to_{most}" for most in SPREAD if channels <= most), f"_spread_over_{LONG_ROW_THREADS}")


def _is_run(layouts: Sequence[Layout]) -> bool:
    """Whether ``layouts``, merged, are one run each of rows without gaps."""
    _, _, _, _, _, height, channels, images = layouts[0]
    return height == images == 1 and all(pixel == channels for _, pixel, *_ in layouts)


def _is_run_of_vectors(layouts: Sequence[Layout], metal_type: str) -> bool:
    """Whether that is so, and each begins at a vector."""
    return _is_run(layouts) and all(start % values_of_vector(metal_type) == 0 for start, *_ in layouts)


def _rows_per_simdgroup(device: Device, rows: int, channels: int) -> int:
    longest = tunables(device.tuning).soft_max_elements_per_simdgroup // channels
    units = device.compute_units or ASSUMED_COMPUTE_UNITS
    simdgroups = units * FEWEST_THREADGROUPS_PER_UNIT * (THREADS // 32)
    share = max(1, min(longest, -(-rows // simdgroups)))
    if device.family == "cpu":
        return share
    # Fewer rows than are taken at once would be repeated.
    at_once = next((count for most, count in IN_REGISTERS if channels <= most), 1)
    return -(-share // at_once) * at_once


def _function(
    device: Device, function_name: str, metal_type: str, rows: int, channels: int, together: int
) -> tuple[ShaderFamily, str]:
    """The family that has the kernel for ``rows`` of ``channels``, and the end of its name.

    So many rows of few channels are taken ``together`` by vectors of as many elements; 0 stands for others.
    """
    if together:
        return FEW_CHANNELS_FAMILIES[function_name], f"_of_{channels}_channels_by_{VECTORS[together]}"
    family = family_of(FAMILIES, function_name)
    if device.family != "cpu" or channels < 8:
        return family, _variant(device, metal_type, rows, channels)
    floats = tunables(device.tuning).floats_of_register
    # What is only loaded and stored takes longer by vectors that are parts of two cache lines each.
    by_eights = channels < floats or (function_name == "soft_max_gradient" and channels % floats > 0)
    if channels <= MOST_CHANNELS_TOGETHER.get(function_name, {}).get(floats, 0):
        return family, f"_of_short_rows_by_{VECTORS[floats]}"
    return family, f"_of_{VECTORS[8 if by_eights else floats]}"


def _add_dispatches(
    kernel: Kernel | GradientKernel,
    command_buffer: CommandBuffer,
    function_name: str,
    destination: Image,
    layout: tuple[int, ...],
    operands: Sequence[tuple[Image, Operand]],
) -> None:
    """One run of ``function_name`` for each piece of ``layout``; the last operand is the source or the result."""
    device, channels, metal_type = kernel.device, layout[6], destination.channel_format.metal_type
    numbers = tunables(device.tuning)
    for piece in pieces(layout, tuple(operand for _, operand in operands)):
        buffers = [image.buffer for image, _ in operands]
        layouts: list[tuple[int, ...]] = [part for part in piece.operands if part is not None]
        if len(layouts) < len(operands):
            buffers = [device.constant_buffer(bytes(4 * channels))] * len(operands)
            layouts = [(0, 0, 0, 0, *piece.destination[4:])] * len(operands)
        merged = target, *parts = merge_pixels([piece.destination, *layouts])
        arguments = command_buffer, function_name, metal_type, (*buffers, destination.buffer), merged
        if _add_by_vectors(*arguments) or _add_by_runs(*arguments):
            continue
        _, _, _, _, width, height, _, images = target
        rows = width * height * images
        takes_few_channels = device.family == "cpu" and _is_run(merged)
        together = vector_length(channels, rows, len(operands) == 2, numbers) if takes_few_channels else 0
        family, variant = _function(device, function_name, metal_type, rows, channels, together)
        rows_per_simdgroup = _rows_per_simdgroup(device, rows, channels)
        rows_per_threadgroup = 1 if "spread" in variant else rows_per_simdgroup * (THREADS // 32)
        rows_of_thread = rows_per_thread(rows, channels, device.compute_units, numbers)
        if together:
            rows_per_threadgroup = rows_of_thread = -(-rows_of_thread // together) * together
        elif variant.endswith(("eights", "sixteens")):
            rows_per_threadgroup = rows_of_thread
        elif "_of_" in variant:
            values = _vectors(channels, metal_type) * values_of_vector(metal_type)
            rows_per_threadgroup = ROW_THREADS * values // channels
        command_buffer.add_dispatch(
            family.function(device, function_name + variant, metal_type),
            -(-rows // rows_per_threadgroup),
            *buffers,
            destination.buffer,
            device.constant_buffer(
                PARAMETERS.pack(
                    gradient=parts[0],
                    source=parts[-1],
                    destination=target,
                    rows_per_simdgroup=rows_per_simdgroup,
                    rows_per_thread=rows_of_thread,
                    exceeds_caches=int(exceeds_caches(target, len(merged), numbers)),
                    by_vectors=int(_is_run_of_vectors(merged, metal_type)),
                )
            ),
        )


class SoftMax(Kernel[GradientState]):
    """``y[k] = exp(x[k]) / sum_j exp(x[j])`` over the feature channels of each pixel. Source: ``MPSCNNSoftMax``.

    The largest channel is subtracted first, so no finite input overflows. A pixel outside the source reads as zeros, or
    with ``EdgeMode.CLAMP`` as the nearest one inside.
    """

    remembers_encodes = True

    _function: ClassVar[str] = "soft_max"

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        operand = Operand(regions.sources[0], self.offset.x, self.offset.y, self.edge_mode is EdgeMode.CLAMP)
        _add_dispatches(self, command_buffer, self._function, destination, regions.destination, [(source, operand)])


class LogSoftMax(SoftMax):
    """``y[k] = x[k] - log(sum_j exp(x[j]))`` over the feature channels of each pixel. Source: ``MPSCNNLogSoftMax``."""

    _function = "log_soft_max"


class SoftMaxGradient(GradientKernel):
    """``dx[k] = y[k] * (g[k] - sum_j g[j] * y[j])``. Source: ``MPSCNNSoftMaxGradient``.

    ``source_image`` of ``encode`` is the forward **result** ``y``, not its source: with the log variant the only
    gradient kernels for which that is so. A forward result that was read from beyond the edge of its source with
    ``EdgeMode.CLAMP`` has no gradient here: ``encode`` raises ``NotImplementedError``.
    """

    remembers_encodes = True

    forward_kernels = ("SoftMax",)
    reads_secondary_edge_mode = True
    _function: ClassVar[str] = "soft_max_gradient"

    def _forward_image(self, snapshot: ForwardSnapshot) -> ImageDescriptor:
        return snapshot.destination

    def _configure_geometry(self, snapshot: ForwardSnapshot) -> None:
        # Gradient and forward result share their pixels, so both are addressed from the forward clip rectangle.
        super()._configure_geometry(snapshot)
        self._configure(
            secondary_offset=Offset(self.primary_offset.x, self.primary_offset.y, snapshot.clip_rect.origin.z),
            secondary_source_feature_channel_offset=snapshot.destination_feature_channel_offset,
            secondary_source_feature_channel_max_count=snapshot.source_channels,
        )

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        require_no_clamped_reads(type(self).__name__, state.snapshot)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        gradient = Operand(*self._pointwise_gradient(regions.sources[0], state))
        clamps = self.secondary_edge_mode is EdgeMode.CLAMP
        result = Operand(regions.sources[1], self.secondary_offset.x, self.secondary_offset.y, clamps)
        _add_dispatches(
            self,
            command_buffer,
            self._function,
            destination,
            regions.destination,
            [(source_gradient, gradient), (source_image, result)],
        )


class LogSoftMaxGradient(SoftMaxGradient):
    """``dx[k] = g[k] - exp(y[k]) * sum_j g[j]``, ``y`` the forward **result**. Source: ``MPSCNNLogSoftMaxGradient``."""

    forward_kernels = ("LogSoftMax",)
    _function = "log_soft_max_gradient"
