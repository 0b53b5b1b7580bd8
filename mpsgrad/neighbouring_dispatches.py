"""Dispatches that one kernel can do at once if they follow each other.

Different kernels encode them, so that only the whole list of dispatches shows which neighbours there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from mpsgrad.devices import Buffer, Dispatch
from mpsgrad.joined_dispatch import JoinedDispatch
from mpsgrad.picks import picker

Join = Callable[..., "Dispatch | None"]
"""Gives the dispatch that does what several do one after the other, or None if these do not belong together.

That follows from their functions and threadgroups, from what constants hold, and from which buffers are the same ones.
"""

_joins: dict[str, list[tuple[list[str], Join]]] = {}
"""By the name of the last function; with those before it."""

MOST_REMEMBERED_DISPATCHES, LISTS_REMEMBERED = 16, 256
"""So short lists are remembered with what became of them: of long ones kernels take longer than the host."""


def join_when_adjacent(join: Join, *names: str) -> None:
    """Has ``join`` asked wherever dispatches of functions with these names follow each other.

    Others may have functions of these names: ``join`` has to look which they are.
    """
    *before, last = names
    _joins.setdefault(last, []).append((before, join))


class _RememberedList:
    """What became of some dispatches, for others of the same patterns."""

    def __init__(self, dispatches: Sequence[Dispatch], joined: Sequence[Dispatch]) -> None:
        buffers = _buffers_of(dispatches)
        places: dict[Buffer, int] = {}
        for place, buffer in enumerate(buffers):
            places.setdefault(buffer, place)
        self._different = len(places)
        again = [place for place, buffer in enumerate(buffers) if places[buffer] != place]
        self._again = picker(again)
        self._first = picker([places[buffers[place]] for place in again])
        self._constants: list[Buffer] = []
        for buffer in _buffers_of(joined):
            if buffer not in places:
                places[buffer] = len(buffers) + len(self._constants)
                self._constants.append(buffer)
        self._joined = [
            (each.function, each.threadgroups, picker([places[buffer] for buffer in each.buffers])) for each in joined
        ]

    def joined(self, dispatches: Sequence[Dispatch]) -> list[Dispatch] | None:
        """What ``dispatches`` become; None if other buffers of them are the same ones."""
        buffers = _buffers_of(dispatches)
        if self._again(buffers) != self._first(buffers) or len({*buffers}) != self._different:
            return None
        buffers += self._constants
        return [Dispatch(function, threadgroups, pick(buffers)) for function, threadgroups, pick in self._joined]


def _buffers_of(dispatches: Sequence[Dispatch]) -> list[Buffer]:
    return list(chain.from_iterable([each.buffers for each in dispatches]))


_remembered: dict[tuple[object, ...], _RememberedList] = {}
"""By the patterns of the dispatches."""


def with_neighbours_joined(dispatches: Sequence[Dispatch]) -> Sequence[Dispatch]:
    """``dispatches``, for a device, with those joined that can be; the same list where there is only one, or none."""
    if not dispatches or (len(dispatches) == 1 and type(dispatches[0]) is Dispatch):
        return dispatches
    if len(dispatches) > MOST_REMEMBERED_DISPATCHES:
        return _joined(dispatches)
    patterns = tuple([each.pattern for each in dispatches])
    if None in patterns:
        return _joined(dispatches)
    known = _remembered.get(patterns)
    joined = known.joined(dispatches) if known is not None else None
    if joined is None:
        joined = _joined(dispatches)
        if len(_remembered) >= LISTS_REMEMBERED:
            _remembered.clear()
        _remembered[patterns] = _RememberedList(dispatches, joined)
    return joined


def _joined(dispatches: Sequence[Dispatch]) -> list[Dispatch]:
    joined: list[Dispatch] = []
    names: list[str] = []
    for dispatch in dispatches:
        one = dispatch.combined() if isinstance(dispatch, JoinedDispatch) else dispatch
        if one is dispatch:
            for before, join in _joins.get(dispatch.function.name, ()):
                if names[-len(before) :] == before:
                    all_of_them = join(*joined[-len(before) :], dispatch)
                    if all_of_them is not None:
                        del joined[-len(before) :], names[-len(before) :]
                        one = all_of_them
                        break
        joined.append(one)
        names.append(one.function.name)
    return joined
