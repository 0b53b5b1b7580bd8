"""Dispatches that one kernel can do at once if they follow each other.

Different kernels encode them, so that only the whole list of dispatches shows which neighbours there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import Any

from mpsgrad.devices import Buffer, Dispatch, Function
from mpsgrad.joined_dispatch import JoinedDispatch
from mpsgrad.picks import Pick, picker

Join = Callable[..., "Dispatch | None"]
"""Gives the dispatch that does what several do one after the other, or None if these do not belong together.

That follows from their functions and threadgroups, from what constants hold, and from which buffers are the same ones.
"""

_joins: dict[str, list[tuple[list[str], Join]]] = {}
"""By the name of the last function; with those before it."""

LISTS_REMEMBERED = 256


def join_when_adjacent(join: Join, *names: str) -> None:
    """Has ``join`` asked wherever dispatches of functions with these names follow each other.

    Others may have functions of these names: ``join`` has to look which they are.
    """
    *before, last = names
    _joins.setdefault(last, []).append((before, join))


class _RememberedList:
    """What became of some dispatches, for others of the same patterns."""

    def __init__(self, dispatches: Sequence[Dispatch], joined: Sequence[Dispatch]) -> None:
        self.are_apart = not any(each.function.name in _joins for each in dispatches[1:])
        """Whether no dispatch becomes one with others, whatever its buffers are."""
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
        apart = {id(each): index for index, each in enumerate(dispatches)}
        # The number of one that was joined with nothing, or what is to be made.
        self._joined: list[int | tuple[Function, Any, Pick]] = [
            apart[id(each)]
            if id(each) in apart
            else (each.function, each.threadgroups, picker([places[buffer] for buffer in each.buffers]))
            for each in joined
        ]

    def joined(self, dispatches: Sequence[Dispatch]) -> list[Dispatch] | None:
        """What ``dispatches`` become; None if other buffers of them are the same ones."""
        buffers = _buffers_of(dispatches)
        if self._again(buffers) != self._first(buffers) or len({*buffers}) != self._different:
            return None
        buffers += self._constants
        return [
            dispatches[each]
            if type(each) is int
            else Dispatch(each[0], each[1], each[2](buffers), None, None, (), (), each)  # type: ignore[index]
            for each in self._joined
        ]


def _buffers_of(dispatches: Sequence[Dispatch]) -> list[Buffer]:
    return list(chain.from_iterable([each.buffers for each in dispatches]))


_remembered: dict[tuple[object, ...], _RememberedList] = {}
"""By the patterns of the dispatches."""


def with_neighbours_joined(dispatches: Sequence[Dispatch]) -> Sequence[Dispatch]:
    """``dispatches``, for a device, with those joined that can be; the same list where there is only one, or none."""
    if not dispatches:
        return dispatches
    if len(dispatches) == 1:
        only = dispatches[0]
        return [only.combined()] if isinstance(only, JoinedDispatch) else dispatches
    patterns = tuple([each.pattern for each in dispatches])
    if None not in patterns:
        return _joined_as_before(patterns, dispatches)
    joined: list[Dispatch] = []
    start = 0
    # Runs that were joined are joined with nothing else.
    for kind, group in groupby(map(type, dispatches)):
        end = start + len([*group])
        part, known = dispatches[start:end], patterns[start:end]
        is_known = kind is Dispatch and None not in known
        joined += _joined_as_before(known, part) if is_known else _joined(part)
        start = end
    return joined


def _joined_as_before(patterns: tuple[object, ...], dispatches: Sequence[Dispatch]) -> Sequence[Dispatch]:
    """What ``dispatches`` of these patterns become, as those before them of the same ones did."""
    known = _remembered.get(patterns)
    if known is not None and known.are_apart:
        return dispatches
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
