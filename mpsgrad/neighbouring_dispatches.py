"""Dispatches that one kernel can do at once if they follow each other.

Different kernels encode them, so that only the whole list of dispatches shows which neighbours there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpsgrad.devices import Dispatch, Function

Join = Callable[[Dispatch, Dispatch], "Dispatch | None"]
"""Gives the dispatch that does what two do one after the other, or None if these two do not belong together."""

_joins: dict[Function, dict[Function, Join]] = {}
"""By the second function and the first."""


def join_when_adjacent(first: Function, second: Function, join: Join) -> None:
    """Has ``join`` asked wherever a dispatch of ``second`` follows one of ``first``."""
    _joins.setdefault(second, {})[first] = join


def joins_others(second: Function) -> bool:
    """Whether ``join_when_adjacent`` was called with ``second``."""
    return second in _joins


def with_neighbours_joined(dispatches: Sequence[Dispatch]) -> list[Dispatch]:
    """``dispatches`` with those joined that can be."""
    joined: list[Dispatch] = []
    for dispatch in dispatches:
        joins = _joins.get(dispatch.function)
        if joins is not None and joined:
            join = joins.get(joined[-1].function)
            both = join(joined[-1], dispatch) if join is not None else None
            if both is not None:
                joined[-1] = both
                continue
        joined.append(dispatch)
    return joined
