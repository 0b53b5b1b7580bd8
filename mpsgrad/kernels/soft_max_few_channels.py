"""Softmax on CPUs for images of few channels: in which order vectors of elements give the rows' maxima and sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpsgrad.tunables import Tunables

Lanes = tuple[int, ...]

FEW_CHANNELS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
"""Other rows of eight channels or more are taken one by one about as fast by CPUs with few registers."""
FEW_CHANNELS_OF_GRADIENTS = (9, 11, 13, 14, 15, 18, 20, 22, 28)
"""But not by their gradients, which take such rows together as well."""
MOST_CHANNELS_OF_SIXTEENS, MOST_UNITS_OF_SIXTEENS, MOST_UNITS_OF_SIXTEENS_OF_GRADIENTS = 40, 7, 15
"""Of CPUs with more registers: of rows of more channels, or of more units, lanes would be exchanged too often."""


def vector_length(channels: int, rows: int, is_gradient: bool, numbers: Tunables) -> int:
    """How many elements the vectors have of the kernel for so many rows of few channels; 0 if there is none.

    Of fewer rows than make up sixteens eights give the same bits.
    """
    length = numbers.floats_of_register
    if rows < 8 or not _has_kernel(channels, is_gradient, numbers):
        return 0
    return length if rows >= length or channels % length == 0 else 8


def _has_kernel(channels: int, is_gradient: bool, numbers: Tunables) -> bool:
    """Whether there is one for rows of so many channels."""
    if not numbers.has_many_registers:
        return channels in FEW_CHANNELS or (is_gradient and channels in FEW_CHANNELS_OF_GRADIENTS)
    length = numbers.floats_of_register
    most_units = MOST_UNITS_OF_SIXTEENS_OF_GRADIENTS if is_gradient else MOST_UNITS_OF_SIXTEENS
    # Forward kernels whose vectors have a channel each of as many rows compute fewer logarithms than of whole vectors.
    return (
        channels <= MOST_CHANNELS_OF_SIXTEENS
        and channels // _unit(channels, length) <= most_units
        and (is_gradient or channels % length > 0)
    )


def few_channels(is_gradient: bool, numbers: Tunables) -> tuple[Orders, ...]:
    """The orders of all kernels."""
    most = max(*FEW_CHANNELS, MOST_CHANNELS_OF_SIXTEENS)
    return tuple(
        Orders.of(channels, length)
        for channels in range(1, most + 1)
        for length in sorted({vector_length(channels, rows, is_gradient, numbers) for rows in (8, 16)})
        if length
    )


def _unit(channels: int, length: int) -> int:
    """So many channels are a unit where vectors have ``length`` elements."""
    return min(length, channels & -channels)


@dataclass(frozen=True)
class Orders:
    """How ``vectors`` of ``length`` elements hold ``rows`` of ``channels``.

    The lanes are those of shuffles of two vectors, those of the second counted on. A vector of the units of one number,
    a row's unit in each place, is the vector ``first`` with others blended in, one after another; the rotation gives it
    the order of rows of units number 0. ``exchanges`` join the channels of units inside a vector.

    Of as many ``groups`` of such vectors as are taken together, ``sums_of_groups`` put the sums of each but the first
    in places of their own. For each group ``rows_of_elements`` has the places of the rows to which the elements of its
    vectors belong.
    """

    channels: int
    length: int
    vectors: int
    rows: int
    exchanges: tuple[Lanes, ...]
    units: tuple[tuple[int, tuple[tuple[int, Lanes], ...], Lanes], ...]
    groups: int
    sums_of_groups: tuple[Lanes, ...]
    rows_of_elements: tuple[tuple[Lanes, ...], ...]

    @classmethod
    def of(cls, channels: int, length: int) -> Orders:
        """The orders for rows of so many channels, and vectors of ``length`` elements."""
        unit = _unit(channels, length)
        vectors, rows = channels // unit, length // unit
        # CPUs with shorter vectors have too few registers for several groups.
        groups = unit if length > 8 and rows > 1 else 1

        def lanes(places: Sequence[int]) -> Lanes:
            return tuple(unit * place + lane for place in places for lane in range(unit))

        units = []
        for number in range(vectors):
            vector_at = {(vectors * row + number) % rows: (vectors * row + number) // rows for row in range(rows)}
            first, *others = sorted(set(vector_at.values()))
            blends = tuple(
                (other, lanes([place + (rows if vector_at[place] == other else 0) for place in range(rows)]))
                for other in others
            )
            units.append((first, blends, lanes([(place + number) % rows for place in range(rows)])))
        rows_of_elements = [
            lanes([(rows * vector + place) // vectors * vectors % rows for place in range(rows)])
            for vector in range(vectors)
        ]
        return cls(
            channels,
            length,
            vectors,
            rows,
            tuple(tuple(lane ^ step for lane in range(length)) for step in (1, 2, 4, 8) if step < unit),
            tuple(units),
            groups,
            tuple(
                tuple(lane + length * (lane % unit == group) for lane in range(length)) for group in range(1, groups)
            ),
            tuple(
                tuple(tuple(lane // groups * groups + group for lane in each) for each in rows_of_elements)
                for group in range(groups)
            ),
        )
