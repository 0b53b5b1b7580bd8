"""The order of filters: each after those that it depends on. Cycles are found here."""

from __future__ import annotations

from collections.abc import Iterable

from mpsgrad.errors import StateError
from mpsgrad.graph.nodes import FilterNode, ImageNode, StateNode


def producers(node: FilterNode) -> list[FilterNode]:
    """The filters whose results ``node`` reads: of its images, then of its states, each in order."""
    sources: tuple[ImageNode | StateNode, ...] = (*node.source_images, *node.source_states)
    return [source.producer for source in sources if source.producer is not None]


def in_order(last: Iterable[FilterNode]) -> list[FilterNode]:
    """All filters that those of ``last`` depend on, and themselves: a depth-first walk, producers first.

    Raises ``StateError`` with the filters of a cycle, if there is one.
    """
    order: list[FilterNode] = []
    done: set[FilterNode] = set()
    for start in last:
        path: list[tuple[FilterNode, list[FilterNode]]] = []
        open_nodes: dict[FilterNode, None] = {}
        if start not in done:
            path.append((start, producers(start)[::-1]))
            open_nodes[start] = None
        while path:
            node, waiting = path[-1]
            if not waiting:
                path.pop()
                del open_nodes[node]
                done.add(node)
                order.append(node)
                continue
            following = waiting.pop()
            if following in open_nodes:
                between = list(open_nodes)
                cycle = [*between[between.index(following) :], following]
                text = " reads ".join(map(repr, cycle))
                raise StateError(f"Graph: the nodes form a cycle: {text}")
            if following not in done:
                path.append((following, producers(following)[::-1]))
                open_nodes[following] = None
    return order
