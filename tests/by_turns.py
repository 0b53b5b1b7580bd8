"""Combinations of parameters of which a run has some, and the nightly run all."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def by_turns(*axes: Iterable[Any], of: int) -> list[Any]:
    """Each combination of a value of each of ``axes``, for ``pytest.mark.parametrize``.

    Those one in ``of`` are in every run whose places add up to a multiple of it, so that each value is among them if
    another axis has ``of`` values; all others are nightly.
    """
    found = []
    for places_and_values in product(*map(list, map(enumerate, axes))):
        places, values = zip(*places_and_values, strict=True)
        found.append(pytest.param(*values, marks=[pytest.mark.nightly] if sum(places) % of else []))
    return found
