"""Weights packed for the lanes of a simdgroup, on the device, once for all encodes until the weights change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.image_descriptor import LARGEST_ELEMENT_COUNT
from mpsgrad.joined_dispatch import JoinableKernel, JoinableRun, add_run, joined_struct, most_joined
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import tunables

LANES = 32
PACK_ROWS = 16
THREADS, MOST_THREADS = 256, 1024
MANY_SPLITS, VERY_MANY_SPLITS = 16, 256
"""From so many partial sums on, the simdgroups of a threadgroup add them up together, and those of a large one.
Measured on an H200."""
FEWEST_VALUES_OF_FOURS = 1 << 20
"""Fewer values of partial sums are added up by a thread each: too few threads would have four. Measured on an H200."""
HALVES_AT_ONCE = 8
"""Runs of packed half numbers are padded to a multiple of what a thread loads."""

PACK_AXIS = ParameterStruct(
    "PackAxis",
    taps="int",
    user_taps="int",
    tap_factor="int",
    fold_factor="int",
    shift="int",
    dilation="int",
    fold="int",
)
PACK_PARAMETERS = ParameterStruct(
    "PackParameters",
    x=PACK_AXIS,
    y=PACK_AXIS,
    blocks_per_group="int",
    outputs="int",
    channels="int",
    user_outputs="int",
    user_inputs="int",
    transposed="int",
    fold_channels="int",
    merged="int",
    runs="int",
    zero_rows="int",
    blocks="int",
    biases="int",
    groups="int",
    joins_columns="int",
    rounds="int",
    own_channels="int",
)
SUM_PARAMETERS = ParameterStruct("SumParameters", weights="int", splits="int", split_stride="int", accumulates="int")
COPY_PARAMETERS = ParameterStruct("CopyParameters", count="int", source_offset="int")
FAMILY = ShaderFamily(
    "convolution_parameters",
    (PACK_AXIS, PACK_PARAMETERS, SUM_PARAMETERS, COPY_PARAMETERS),
    {"threads": THREADS, "most_threads": MOST_THREADS, "pack_rows": PACK_ROWS, "packs": 1},
    measured=lambda numbers: {"sum_rows": numbers.convolution_sums_per_thread},
    dtypes=("float",),
)


PLAIN = "pack_plain"
_MOST_PACKS = most_joined(3, 0)
_PACK_PLAIN = JoinableKernel(
    PLAIN,
    FAMILY,
    ShaderFamily(
        "convolution_packing_joined",
        (PACK_AXIS, PACK_PARAMETERS, joined_struct(PACK_PARAMETERS, _MOST_PACKS)),
        {"pack_rows": PACK_ROWS, "packs": _MOST_PACKS},
        {"cpu": {"packs": 0}},
        dtypes=("float",),
        template="convolution_parameters",
        ahead_of_time=False,
    ),
    PACK_PARAMETERS,
    _MOST_PACKS,
)


def sum_of_splits(
    count: int, splits: int, tuning: str, *, has_many_threads: bool, has_fours: bool = False
) -> tuple[str, int]:
    """The kernel that adds up ``splits`` partial sums of ``count`` values, and its threadgroups.

    Weights and biases that it ``has_fours`` of are whole fours each.
    """
    if has_many_threads and splits >= MANY_SPLITS:
        kernel = "sum_of_very_many_splits" if splits >= VERY_MANY_SPLITS else "sum_of_many_splits"
        return kernel, -(-count // LANES)
    if has_many_threads and has_fours and count >= FEWEST_VALUES_OF_FOURS:
        return "sum_of_few_splits_in_fours", -(-count // (4 * THREADS))
    if has_many_threads:
        return "sum_of_few_splits", -(-count // THREADS)
    return "sum_of_splits", -(-count // (LANES * tunables(tuning).convolution_sums_per_thread))


@dataclass(frozen=True, slots=True)
class Packing:
    """How weights and biases are packed, into ``count`` floats, by a kernel of ``family``."""

    kernel: str
    threadgroups: int
    parameters: bytes
    count: int
    family: ShaderFamily = FAMILY


def half_packing(fields: Mapping[str, Any], joins_columns: bool, rounds: bool) -> tuple[Packing, int]:
    """How weights are packed as sums of two half numbers, and which float the scales and biases begin at.

    ``fields`` are those of ``PACK_PARAMETERS``. With ``joins_columns`` a row of taps is one run of values. If it
    ``rounds``, the second numbers are 0.
    """
    taps_x, taps_y, channels = fields["x"][0], fields["y"][0], fields["channels"]
    lanes = fields["groups"] * fields["outputs"]
    runs, length = (taps_y, taps_x * channels) if joins_columns else (taps_x * taps_y, channels)
    halves = 2 * lanes * runs * -(-length // HALVES_AT_ONCE) * HALVES_AT_ONCE
    require_packable(halves)
    parameters = PACK_PARAMETERS.pack(**{**fields, "joins_columns": int(joins_columns), "rounds": int(rounds)})
    return Packing("pack_halves", lanes, parameters, halves // 2 + 4 * lanes), halves // 2


def require_packable(count: int) -> None:
    """Raises ``NotImplementedError`` if packed weights of ``count`` floats are too large for kernels to count."""
    if count > LARGEST_ELEMENT_COUNT:
        raise NotImplementedError(
            f"convolution: the weights need {count} values when they are packed for lanes; the largest array has "
            f"{LARGEST_ELEMENT_COUNT}"
        )


class _Pack:
    """A buffer for one packing, and who fills it."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.run: JoinableRun | None = None
        """The one that fills it, once there was one."""

        self.makers: dict[CommandBuffer, bool] = {}
        """Command buffers that fill it, and whether it then stays right for those behind them."""

        self._is_filled = False

    def is_filled_for(self, command_buffer: CommandBuffer) -> bool:
        """Whether work that is added to ``command_buffer`` next finds the packed weights."""
        if not self._is_filled and any(lasts and _is_submitted(maker) for maker, lasts in self.makers.items()):
            self._is_filled = True
            self.makers.clear()
        return self._is_filled or command_buffer in self.makers


class PackedWeights:
    """The packed forms of the weights and the biases of a result, a gradient's being 0, in two buffers.

    Work sees what the two buffers hold when it runs, in whatever order command buffers were filled and committed. So
    the first use packs at once, ahead of the work, and a command buffer that changes the weights packs them again into
    the buffers that exist. While it is open, and for ever if it was recorded, others pack for themselves: it may run
    behind them, and it does not know what they packed.
    """

    def __init__(self, weights: Buffer, biases: Buffer) -> None:
        self._sources = weights, biases
        self._packs: dict[Packing, _Pack] = {}
        self._changing: list[CommandBuffer] = []

    @property
    def buffers(self) -> dict[Packing, Buffer]:
        """The buffers that were filled so far."""
        return {packing: pack.buffer for packing, pack in self._packs.items()}

    def buffer(self, command_buffer: CommandBuffer, packing: Packing) -> Buffer:
        """The buffer with the packed weights, for work that is added to ``command_buffer`` next."""
        pack = self._packs.get(packing)
        if pack is None:
            pack = self._packs[packing] = _Pack(command_buffer.device.allocate(4 * packing.count))
        if not pack.is_filled_for(command_buffer):
            self._forget_changes()
            if self._changing:
                self._fill(command_buffer, packing, pack)
            else:
                ahead = CommandBuffer(command_buffer.device, label="packing of weights")
                self._fill(ahead, packing, pack)
                ahead.commit()
        return pack.buffer

    def _forget_changes(self) -> None:
        """Forgets the command buffers that will not change the weights any more."""
        self._changing = [each for each in self._changing if each.is_open or each.is_recorded]

    def change_in(self, command_buffer: CommandBuffer) -> None:
        """Packs once more what is packed, after work in ``command_buffer`` that changes the weights."""
        for packing, pack in self._packs.items():
            self._fill(command_buffer, packing, pack)
        self._forget_changes()
        self._changing.append(command_buffer)

    def _fill(self, command_buffer: CommandBuffer, packing: Packing, pack: _Pack) -> None:
        device = command_buffer.device
        if packing.kernel == PLAIN:
            if pack.run is None:
                buffers = (*self._sources, pack.buffer)
                pack.run = JoinableRun(buffers, (pack.buffer,), packing.threadgroups, packing.parameters)
            add_run(command_buffer, _PACK_PLAIN, pack.run)
        else:
            command_buffer.add_dispatch(
                packing.family.function(device, packing.kernel, "float"),
                packing.threadgroups,
                *self._sources,
                pack.buffer,
                device.constant_buffer(packing.parameters),
            )
        if not pack.is_filled_for(command_buffer) or command_buffer in pack.makers:
            command_buffer._if_taken_back(partial(setattr, pack, "makers", dict(pack.makers)))
            self._forget_changes()
            pack.makers[command_buffer] = all(other is command_buffer for other in self._changing)


def _is_submitted(command_buffer: CommandBuffer) -> bool:
    return command_buffer._submission is not None and command_buffer._error is None
