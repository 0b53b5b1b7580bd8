"""Softmax on CPUs for images of few channels: in which order eights of elements give the rows' maxima and sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Lanes = tuple[int, ...]

FEW_CHANNELS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
"""Other rows of eight channels or more are taken one by one about as fast."""
FEW_CHANNELS_OF_GRADIENTS = (9, 11, 13, 14, 15, 18, 20, 22, 28)
"""But not by gradients on CPUs with few registers, which take such rows together as well."""


@dataclass(frozen=True)
class Orders:
    """How ``eights`` of elements hold ``rows`` of ``channels``.

    The lanes are those of shuffles of two eights, the second of which has lanes 8 to 15. An eight of the units of one
    number, a row's unit in each place, is the eight ``first`` with others blended in, one after another; the rotation
    gives it the order of rows of units number 0. ``exchanges`` join the channels of units inside an eight.
    ``rows_of_elements`` has the places of the rows to which the elements of each eight belong.
    """

    channels: int
    eights: int
    rows: int
    exchanges: tuple[Lanes, ...]
    units: tuple[tuple[int, tuple[tuple[int, Lanes], ...], Lanes], ...]
    rows_of_elements: tuple[Lanes, ...]

    @classmethod
    def of(cls, channels: int) -> Orders:
        """The orders for rows of so many channels."""
        unit = min(8, channels & -channels)
        eights, rows = channels // unit, 8 // unit

        def lanes(places: Sequence[int]) -> Lanes:
            return tuple(unit * place + lane for place in places for lane in range(unit))

        units = []
        for number in range(eights):
            eight_at = {(eights * row + number) % rows: (eights * row + number) // rows for row in range(rows)}
            first, *others = sorted(set(eight_at.values()))
            blends = tuple(
                (other, lanes([place + (rows if eight_at[place] == other else 0) for place in range(rows)]))
                for other in others
            )
            units.append((first, blends, lanes([(place + number) % rows for place in range(rows)])))
        return cls(
            channels,
            eights,
            rows,
            tuple(tuple(lane ^ step for lane in range(8)) for step in (1, 2, 4) if step < unit),
            tuple(units),
            tuple(
                lanes([(rows * eight + place) // eights * eights % rows for place in range(rows)])
                for eight in range(eights)
            ),
        )
