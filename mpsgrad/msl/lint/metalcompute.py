"""Rules 19, 50 and 51: what metalcompute can launch."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.source import Source, is_buffer
from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.argument_buffers import PointerMembers
from mpsgrad.msl.backend import POSITION_ATTRIBUTES
from mpsgrad.msl.lint.flow import ThreadNames, has_guard, thread_names
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.tokens import IDENTIFIER


@rule(
    19,
    "contiguous-buffers",
    why="A missing [[buffer(n)]] is legal and takes the first free index; metalcompute binds 0, 1, 2, ... in order.",
)
def buffers_are_contiguous(source: Source) -> Iterator[Found]:
    """Checked for metalcompute only."""
    if not source.metalcompute:
        return
    for kernel in source.program.kernels:
        buffers = [parameter for parameter in kernel.parameters if is_buffer(parameter)]
        attributes = [parameter.attribute("buffer") for parameter in buffers]
        values = [source.attribute_value(attribute) for attribute in attributes if attribute is not None]
        explicit = {value for value in values if value is not None}
        if len(explicit) != len(attributes) - attributes.count(None):
            continue
        used = set(explicit)
        for attribute in attributes:
            if attribute is None:
                used.add(next(index for index in range(len(used) + 1) if index not in used))
        if used != set(range(len(buffers))):
            found = ", ".join(str(index) for index in sorted(used))
            message = f"buffers of '{kernel.name.text}' are at {found}; metalcompute binds them from 0 without gaps"
            yield kernel.name, message


_NOT_PASSED = {
    "texture": "textures",
    "sampler": "samplers",
    "stage_in": "[[stage_in]]",
    "threadgroup": "threadgroup memory as an argument",
    "function_constant": "function constants",
}


@rule(
    50,
    "metalcompute-arguments",
    why="metalcompute sets buffers and a 1-D grid, and nothing else.",
)
def metalcompute_can_pass_every_argument(source: Source) -> Iterator[Found]:
    """Checked for metalcompute only."""
    if not source.metalcompute:
        return
    pointers = PointerMembers(source.tokens)
    for kernel in source.program.kernels:
        for parameter in kernel.parameters:
            if is_buffer(parameter) and (parameter.holds_pointers or pointers.are_in(parameter.pointee)):
                yield parameter.place, f"metalcompute cannot pass what holds pointers, as '{parameter.name}' does"
            for attribute in parameter.attributes:
                if attribute.name in _NOT_PASSED:
                    yield attribute.token, f"metalcompute cannot pass {_NOT_PASSED[attribute.name]}"
                elif attribute.name in POSITION_ATTRIBUTES:
                    kind = built_in("".join(token.text for token in parameter.type))
                    if kind is not None and kind.width > 1:
                        message = f"metalcompute launches 1-D grids only: '{attribute.name}' has nothing beyond x"
                        yield parameter.place, message, "warning"
            space = parameter.address_space
            if space is not None and space.text == "threadgroup" and parameter.attribute("threadgroup") is None:
                yield parameter.place, f"metalcompute cannot pass {_NOT_PASSED['threadgroup']}"
            elif not parameter.attributes and any(t.text.startswith("texture") for t in parameter.type):
                yield parameter.place, f"metalcompute cannot pass {_NOT_PASSED['texture']}"
            elif not parameter.attributes and any(t.text == "sampler" for t in parameter.type):
                yield parameter.place, f"metalcompute cannot pass {_NOT_PASSED['sampler']}"
    for index in source.words("function_constant"):
        if source.text(index - 1) == "[" and not source.in_body(index) and _at_program_scope(source, index):
            yield source.tokens[index], f"metalcompute cannot pass {_NOT_PASSED['function_constant']}"


def _at_program_scope(source: Source, index: int) -> bool:
    return any(start <= index < stop for start, stop in source.program.variables)


@rule(
    51,
    "bounds-guard",
    severity="warning",
    why="metalcompute rounds the grid up to whole threadgroups, so threads beyond the count run and must be kept out.",
)
def rounded_up_grids_are_guarded(source: Source) -> Iterator[Found]:
    """Checked for metalcompute only. A comparison, min or clamp of anything that follows from the position counts as a
    guard, and so does an index that is masked or taken modulo a bound."""
    if not source.metalcompute:
        return
    for kernel in source.program.kernels:
        grid = [p for p in kernel.parameters if p.attribute("thread_position_in_grid")]
        if not grid:
            continue
        names = thread_names(source, kernel)
        if has_guard(source, kernel, names, kernel.body_close):
            continue
        place = _unguarded_write(source, kernel.body_open, kernel.body_close, names)
        if place is not None:
            count = grid[0].name
            message = f"'{source.text(place)}' is written without a bounds check of '{count}': the grid is rounded up"
            yield source.tokens[place], message


def _unguarded_write(source: Source, start: int, end: int, names: ThreadNames) -> int | None:
    for opening in source.places("[", start=start + 1, end=end + 1):
        index = opening - 1
        if source.close(opening) < 0:
            continue
        variable = source.variable(source.text(index), index)
        if variable is None or variable.type is None or variable.type.space != "device":
            continue
        close = source.close(index + 1)
        indexed = {source.text(position) for position in range(index + 2, close)}
        after = close + 1
        while source.text(after) == "." and source.kind(after + 1) == IDENTIFIER:
            after += 2
        if indexed & names.follows and (source.text(after) in _ASSIGNMENTS or _is_bound(source, index, close)):
            return index
    for star in source.places("*", start=start + 1, end=end + 1):
        opening, close = star + 1, source.close(star + 1)
        if source.text(star - 1) not in (";", "{", "}") or close < 0 or source.text(close + 1) not in _ASSIGNMENTS:
            continue
        pointed = {source.text(position) for position in range(opening + 1, close)}
        for index in range(opening + 1, close):
            variable = source.variable(source.text(index), index)
            is_device = variable is not None and variable.type is not None and variable.type.space == "device"
            if is_device and pointed & names.follows:
                return index
    return _write_through_pointer(source, start, end, names)


def _write_through_pointer(source: Source, start: int, end: int, names: ThreadNames) -> int | None:
    """Where an object is written that a pointer to device memory points to which follows from the position."""
    for index in source.places(*names.follows, start=start + 1, end=end):
        variable = source.variable(source.text(index), index) if source.kind(index) == IDENTIFIER else None
        if variable is None or variable.place == index or variable.type is None or variable.type.space != "device":
            continue
        if not variable.type.pointers or source.text(index - 1) in (".", "->"):
            continue
        after = index + 1
        if source.text(after) == "[" and source.close(after) > 0:
            after = source.close(after) + 1
        is_object = after > index + 1 or source.text(after) == "->" or source.text(index - 1) == "*"
        while source.text(after) in (".", "->"):
            after += 2
        statement = index - (source.text(index - 1) == "*")
        after += source.text(after) in ("++", "--") and source.text(statement) == "*"
        if is_object and source.text(statement - 1) in (";", "{", "}", ")") and source.text(after) in _ASSIGNMENTS:
            return index
    return None


_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "|=", "&=", "^=", "++", "--"})


def _is_bound(source: Source, index: int, close: int) -> bool:
    """Whether the element is what a reference is bound to through which it may be written."""
    if source.text(close + 1) != ";" or source.text(index - 1) != "=" or source.text(index - 3) != "&":
        return False
    return "const" not in source.words_before(index, "(")
