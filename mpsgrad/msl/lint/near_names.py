"""Names that another one may have been meant to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def did_you_mean(names: Sequence[str]) -> str:
    """The question behind a message, if there is one name to ask for."""
    return f"; did you mean '{names[0]}'?" if len(names) == 1 else ""


def nearest(name: str, candidates: Iterable[str]) -> list[str]:
    """Those of ``candidates`` with the least distance from ``name``: two at most, and a third of its length."""
    most = min(len(name) // 3, 2)
    best: list[str] = []
    for candidate in candidates:
        if abs(len(candidate) - len(name)) <= most and (distance := _distance(name, candidate)) <= most:
            best = [candidate] if distance < most else [*best, candidate]
            most = distance
    return best


def _distance(one: str, other: str) -> int:
    """How many letters are put in, left out, changed or swapped with their neighbour to make one name the other."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        earlier, before, row = before, row, [i + 1]
        for j, target in enumerate(other):
            row.append(min(before[j + 1] + 1, row[j] + 1, before[j] + (letter != target)))
            if i and j and letter == other[j - 1] and one[i - 1] == target:
                row[-1] = min(row[-1], earlier[j - 1] + 1)
    return row[-1]
