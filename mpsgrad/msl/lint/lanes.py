"""Which values of a kernel may differ between the lanes of one simdgroup, as far as that can be told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.statements import Range
from mpsgrad.msl.lint.flow import depends
from mpsgrad.msl.program import Kernel
from mpsgrad.msl.tokens import IDENTIFIER

_LANE = frozenset({"thread_index_in_simdgroup"})
_POSITIONS = _LANE | {"thread_position_in_grid", "thread_position_in_threadgroup", "thread_index_in_threadgroup"}
_OTHER_AXES = frozenset("yz")
"""Of a position: those along which the lanes of a simdgroup do not lie."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The places of variables: of those that follow from the lane or from what is read where lanes read apart, and of
    those that follow from any position of a thread, which index such reads."""

    values: frozenset[int]
    indices: frozenset[int]

    def differ(self, source: Source, part: Range) -> bool:
        """Whether an expression may have other values in other lanes; silent about the results of functions."""
        return depends(source, part, self.values) or any(
            depends(source, index, self.indices | self.values, ignored=_OTHER_AXES)
            for index in _subscripts(source, part)
        )


def lanes_of(source: Source, kernel: Kernel) -> Lanes:
    return source.keep((lanes_of, kernel.start), lambda: _lanes(source, kernel))


def _lanes(source: Source, kernel: Kernel) -> Lanes:
    assigned: dict[int, list[Range]] = {}
    for index in source.places("=", start=kernel.body_open, end=kernel.body_close):
        if source.kind(index - 1) == IDENTIFIER and source.text(index - 2) not in (".", "->"):
            variable = source.variable(source.text(index - 1), index - 1)
            if variable is not None:
                assigned.setdefault(variable.place, []).append((index + 1, source.expression_end(index + 1)))
    lanes = Lanes(_of_parameters(source, kernel, _LANE), _of_parameters(source, kernel, _POSITIONS))
    while True:
        values, indices = lanes.values, lanes.indices
        for place, parts in assigned.items():
            # What is also given one value for all, as simd_sum's, may have that where it is asked for.
            if all(lanes.differ(source, part) for part in parts):
                values |= {place}
            if all(depends(source, part, indices, ignored=_OTHER_AXES) for part in parts):
                indices |= {place}
        if (values, indices) == (lanes.values, lanes.indices):
            return lanes
        lanes = Lanes(values, indices)


def _of_parameters(source: Source, kernel: Kernel, attributes: frozenset[str]) -> frozenset[int]:
    variables = [
        source.variable(parameter.name, kernel.body_open)
        for parameter in kernel.parameters
        if any(attribute.name in attributes for attribute in parameter.attributes)
    ]
    return frozenset(variable.place for variable in variables if variable is not None)


def _subscripts(source: Source, part: Range) -> Iterator[Range]:
    """What stands in brackets behind arrays, but for those in arguments of functions."""
    index, end = part
    while index < end:
        text = source.text(index)
        if text == "[" and source.close(index) > 0:
            yield index + 1, source.close(index)
            index = source.close(index)
        elif text == "(" and source.kind(index - 1) == IDENTIFIER and not source.is_type(index - 1):
            index = max(source.close(index), index)
        index += 1
