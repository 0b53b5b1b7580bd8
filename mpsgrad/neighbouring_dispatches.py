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
    for dispatch in dispatches:
        if isinstance(dispatch, JoinedDispatch):
            joined.append(dispatch.combined())
            continue
        for names, join in _joins.get(dispatch.function.name, ()):
            before = joined[-len(names) :]
            if [each.function.name for each in before] == names:
                all_of_them = join(*before, dispatch)
                if all_of_them is not None:
                    joined[-len(names) :] = [all_of_them]
                    break
        else:
            joined.append(dispatch)
    return joined
