"""Dispatches that one kernel can do at once if they follow each other.

Different kernels encode them, so that only the whole list of dispatches shows which neighbours there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpsgrad.devices import Dispatch
from mpsgrad.joined_dispatch import JoinedDispatch

Join = Callable[..., "Dispatch | None"]
"""Gives the dispatch that does what several do one after the other, or None if these do not belong together."""

_joins: dict[str, list[tuple[list[str], Join]]] = {}
"""By the name of the last function; with those before it."""


def join_when_adjacent(join: Join, *names: str) -> None:
    """Has ``join`` asked wherever dispatches of functions with these names follow each other.

    Others may have functions of these names: ``join`` has to look which they are.
    """
    *before, last = names
    _joins.setdefault(last, []).append((before, join))


def with_neighbours_joined(dispatches: Sequence[Dispatch]) -> Sequence[Dispatch]:
    """``dispatches``, for a device, with those joined that can be; the same list where there is only one."""
    if len(dispatches) == 1 and type(dispatches[0]) is Dispatch:
        return dispatches
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
