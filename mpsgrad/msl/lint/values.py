"""Rules 28 to 33: conversions, vectors and matrices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mpsgrad.errors import with_article
from mpsgrad.msl.analysis.expressions import Expressions, expressions_of
from mpsgrad.msl.analysis.source import Source, is_buffer
from mpsgrad.msl.analysis.types import FLOATS, SIZES, Type, built_in, read_type
from mpsgrad.msl.backend import SWIZZLES
from mpsgrad.msl.lint.library import LIBRARY_FUNCTIONS
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.lint.statements import object_before, operand_start
from mpsgrad.msl.tokens import IDENTIFIER, matching_angle, spell

_PLAIN_VECTOR = re.compile(r"(?:bool|u?char|u?short|u?int|u?long|half|bfloat|float)[234]$")
_ASSIGNMENT = re.compile(r"[-+*/%&|^]?=|<<=|>>=")
_INTEGERS_ONLY = frozenset({"%", "&", "|", "^", "<<", ">>"})


def _converts(target: Type, value: Type) -> bool:
    """Whether ``value`` converts to ``target`` without a cast; True where it is not certain."""
    if target.pointers or value.pointers or target.base not in SIZES or value.base not in SIZES:
        return True
    if target.columns or value.columns:
        if target.columns and value.columns:
            return (target.base, target.width, target.columns) == (value.base, value.width, value.columns)
        return False
    if value.is_scalar or "bool" in (target.base, value.base):
        return not (target.is_scalar and value.is_vector)
    return (target.base, target.width) == (value.base, value.width)


@rule(
    28,
    "vector-conversion",
    words="cannot initialize a variable of type 'float4' with an lvalue of type 'int4'",
    why="Only a scalar converts to a vector by itself; from vector to vector the conversion must be written.",
)
def vectors_convert_only_when_asked(source: Source) -> Iterator[Found]:
    """Sees initialisations, plain assignments, returned values, conditions and operators whose types are written out or
    follow from such, and arguments of functions that are not overloaded; templates are left to the compiler."""
    expressions = Expressions(source)
    mismatches: dict[int, tuple[Type, Type]] = {}

    def note(index: int, left: Type | None, right: Type | None) -> None:
        if left is not None and right is not None and left.is_vector and right.is_vector:
            if (left.base, left.width) != (right.base, right.width) and "bool" not in (left.base, right.base):
                mismatches[index] = (left, right)
        if left is not None and right is not None and source.text(index) in _INTEGERS_ONLY:
            if {left.base, right.base} & FLOATS and not left.pointers and not right.pointers:
                mismatches[index] = (left, right)

    expressions.on_binary = note
    yield from _initialised(source, expressions)
    yield from _assigned_or_returned(source, expressions)
    yield from _passed(source, expressions)
    yield from _tested(source, expressions)
    for index, (left, right) in mismatches.items():
        if left.width != right.width:
            message = f"cannot convert between vector values of different size ('{left}' and '{right}')"
        else:
            message = f"invalid operands to binary expression ('{left}' and '{right}')"
        yield source.tokens[index], message
    yield from _casts_of_several(source)
    yield from casts_keep_the_number_of_components(source)


def _initialised(source: Source, expressions: Expressions) -> Iterator[Found]:
    for variables in source.variables.values():
        for variable in variables:
            target = variable.type
            if variable.initialiser is None:
                continue
            value = expressions.type_of(*variable.initialiser)
            if target is None or value is None or variable.extents or variable.is_reference:
                continue
            if not _converts(target, value):
                message = f"cannot initialize a variable of type '{target}' with an expression of type '{value}'"
                yield source.tokens[variable.place], message


def _assigned_or_returned(source: Source, expressions: Expressions) -> Iterator[Found]:
    for index in source.places("=", "+=", "-=", "*=", "/=", "return"):
        token = source.tokens[index]
        if token.text != "return":
            if not source.in_body(index):
                continue
            start = operand_start(source, index)
            end = source.expression_end(index + 1)
            if start is None:
                continue
            target = expressions.type_of(start, index)
            value = expressions.type_of(index + 1, end)
            if target is None or value is None or target.columns or value.columns:
                continue
            if not _converts(target, value):
                yield token, f"assigning to '{target}' from incompatible type '{value}'"
        elif source.text(index + 1) != ";":
            value = expressions.type_of(index + 1, source.expression_end(index + 1))
            if value is None:
                continue
            function = next((f for f in source.functions if f.body_open < index < f.body_close), None)
            if function is None:
                continue
            target = source.return_type(function)
            if target is not None and not target.pointers and not _converts(target, value):
                yield token, f"cannot initialize return object of type '{target}' with an expression of type '{value}'"


def _passed(source: Source, expressions: Expressions) -> Iterator[Found]:
    for index in source.calls(source.functions_by_name.keys() - LIBRARY_FUNCTIONS):
        functions = source.functions_by_name[source.text(index)]
        function = functions[0]
        if len(functions) != 1 or function.owner is not None or function.is_template or not source.in_body(index):
            continue
        if source.text(index - 1) in (".", "->", "::") or len(source.program.functions.get(function.name, ())) > 1:
            continue
        parameters, given = source.arguments(function.opening), source.arguments(index + 1)
        for (first, last), (start, end) in zip(parameters, given, strict=False):
            read = read_type(source.tokens, first, last, source.aliases, source.members)
            value = expressions.type_of(start, end)
            is_value = read is not None and not {"&", "*", "["} & set(source.texts[first:last])
            if read is not None and is_value and value is not None and not _converts(read[0], value):
                words = f"no matching function for call to '{function.name}': '{value}' does not convert to '{read[0]}'"
                yield source.tokens[index], words
                break


def _tested(source: Source, expressions: Expressions) -> Iterator[Found]:
    for index in source.places("if", "while"):
        opening = index + 1
        if source.text(opening) == "(" and source.close(opening) > 0 and source.in_body(index):
            value = expressions.type_of(opening + 1, source.close(opening))
            if value is not None and value.is_vector and value.base in SIZES:
                yield source.tokens[index], f"value of type '{value}' is not contextually convertible to 'bool'"


def _casts_of_several(source: Source) -> Iterator[Found]:
    for index in source.places("("):
        is_cast = _PLAIN_VECTOR.match(source.text(index + 1)) and source.texts[index + 2 : index + 4] == [")", "("]
        is_call = source.kind(index - 1) == IDENTIFIER and source.text(index - 1) != "return"
        if is_cast and not is_call and source.in_body(index) and len(source.arguments(index + 3)) > 1:
            written = source.text(index + 1)
            message = f"left operand of comma operator has no effect: a cast to '{written}' takes the last value alone"
            yield source.tokens[index], message, "warning"


def casts_keep_the_number_of_components(source: Source) -> Iterator[Found]:
    """Casts like ``(float3)v`` of names, components, elements and brackets that have another number of components."""
    expressions = expressions_of(source)
    for index in source.places("("):
        close = source.close(index)
        read = read_type(source.tokens, index + 1, close, {}, {}) if close == index + 2 else None
        is_call = source.kind(index - 1) == IDENTIFIER and source.text(index - 1) != "return"
        if read is None or is_call or source.text(index - 1) in ("]", ")", ">") or not source.in_body(index):
            continue
        start = end = close + 1
        if source.text(start) == "(" and source.close(start) > 0:
            end = source.close(start) + 1
        elif source.kind(start) == IDENTIFIER:
            end += 1
        while end > start and source.text(end) in (".", "->", "["):
            end = source.close(end) + 1 if source.text(end) == "[" and source.close(end) > 0 else end + 2
        if end == start or source.text(end) in ("(", "::", "<", "{"):
            continue
        target, value = read[0], expressions.type_of(start, end)
        if value is None or value.columns or target.columns or not value.is_vector or value.pointers:
            continue
        if target.base in SIZES and value.base in SIZES and target.width != value.width and not target.pointers:
            yield source.tokens[index], f"invalid conversion between vector type '{value}' and '{target}'"


def component_names_are_known(source: Source) -> Iterator[Found]:
    """Components of declared variables whose names no vector has."""
    for index, _ in _components(source):
        message = _unknown_component(source.text(index))
        if message is not None:
            yield source.tokens[index], message


def _unknown_component(name: str) -> str | None:
    """What is wrong with a name that no vector's components have."""
    unknown = next((letter for letter in name if letter not in "xyzwrgba"), None)
    if unknown is not None:
        return f"illegal vector component name '{unknown}'"
    if not any(set(name) <= set(letters) for letters in SWIZZLES):
        return f"illegal vector component name '{name}': it mixes xyzw and rgba"
    return None


def _components(source: Source) -> Iterator[tuple[int, Type]]:
    """Where components of vectors are named, and the types of these."""
    expressions = expressions_of(source)
    for index in source.places("."):
        if source.kind(index + 1) == IDENTIFIER and source.text(index + 2) != "(":
            kind = object_before(source, expressions, index)
            if kind is not None and kind.is_vector and kind.base in SIZES:
                yield index + 1, kind


@rule(
    29,
    "swizzle",
    words="illegal vector component name 'x'",
    why="Components are named x y z w or r g b a, as many as the vector has, and each once where it is written.",
)
def components_exist(source: Source) -> Iterator[Found]:
    """Sees components of declared variables and the constructors of vectors from scalars and vectors whose types can
    be told."""
    expressions = expressions_of(source)
    for index, kind in _components(source):
        name = source.text(index)
        place = source.tokens[index]
        message = _unknown_component(name)
        if message is not None:
            yield place, message
        elif not any(set(name) <= set(letters[: kind.width]) for letters in SWIZZLES) or len(name) > 4:
            yield place, f"vector component access exceeds type '{kind}'"
        elif source.text(index + 1) in ("=", "+=", "-=", "*=", "/=") and len(set(name)) < len(name):
            yield place, "vector is not assignable (contains duplicate components)"
        elif source.text(index - 3) == "&" and not kind.packed and source.kind(index - 2) == IDENTIFIER:
            before = source.text(index - 4)
            if before in ("(", ",", "=") or before == "return":
                yield place, "address of vector element requested"
    for index in source.calls(_PLAIN_VECTOR):
        target = built_in(source.text(index))
        if target is None or not source.in_body(index):
            continue
        ranges = source.arguments(index + 1)
        kinds = [expressions.type_of(start, end) for start, end in ranges]
        if not kinds or any(kind is None or kind.pointers or kind.columns for kind in kinds):
            continue
        if len(kinds) == 1 and kinds[0] is not None and kinds[0].is_scalar:
            continue
        if any(kind is not None and kind.base not in SIZES for kind in kinds):
            continue
        count = sum(kind.width for kind in kinds if kind is not None)
        if count != target.width:
            few = "few" if count < target.width else "many"
            message = f"too {few} elements in vector initialization (expected {target.width} elements, have {count})"
            yield source.tokens[index], message


@rule(
    30,
    "as-type-size",
    words="as_type cast from 'X' to 'Y' is not allowed",
    why="as_type keeps the bits, so both types must have the same size, and neither may be a pointer.",
)
def as_type_keeps_the_size(source: Source) -> Iterator[Found]:
    """Sees operands whose type is written out; what integer promotion widens is let pass."""
    expressions = expressions_of(source)
    for index in source.words("as_type"):
        close = matching_angle(source.tokens, index + 1) if source.text(index + 1) == "<" else None
        if close is None or source.text(close) != ">" or source.text(close + 1) != "(" or source.close(close + 1) < 0:
            continue
        read = read_type(source.tokens, index + 2, close, source.aliases, source.members)
        if read is None or read[1] != close:
            continue
        target = read[0]
        start, end = close + 2, source.close(close + 1)
        value = expressions.type_of(start, end)
        if target.pointers or value is not None and value.pointers:
            written = value if value is not None else "value"
            yield source.tokens[index], f"as_type cast from '{written}' to '{target}' is not allowed"
            continue
        if value is None or value.base not in SIZES or target.base not in SIZES or not target.known:
            continue
        sizes = source.size(value.value), source.size(target.value)
        operators = {source.text(position) for position in range(start, end)} & {
            "|",
            "&",
            "^",
            "+",
            "-",
            "<<",
            ">>",
            "~",
        }
        if sizes[0] != sizes[1] and not (operators and value.base == "int"):
            yield source.tokens[index], f"as_type cast from '{value}' to '{target}' is not allowed"


@rule(
    31,
    "size-and-alignment",
    severity="warning",
    words="static assertion failed due to requirement 'sizeof(S) == 12'",
    why="float3 takes 16 bytes and packed_float3 12; a host that packs a struct otherwise gives wrong numbers.",
)
def layouts_are_what_they_look_like(source: Source) -> Iterator[Found]:
    """Looks at structs in a kernel's buffers, at casts of pointers to numbers, and at static assertions about sizes;
    an assertion that fails is an error."""
    tokens = source.tokens
    for name in sorted(_buffer_structs(source)):
        offset = 0
        before: Type | None = None
        for member, (kind, extents) in source.members[name].items():
            size = source.size(kind) if kind is not None and not extents else None
            if kind is None or size is None:
                break
            alignment = source.alignment(kind) or 1
            start = -(-offset // alignment) * alignment
            if before is not None and start == offset and alignment <= SIZES.get(before.base, 0):
                place = source.member_place(name, member)
                if place is not None:
                    taken = f"{with_article(before)} takes {source.size(before)} bytes"
                    sizes = f"{taken}, a packed_{before} {3 * SIZES[before.base]}"
                    yield tokens[place], f"'{member}' begins at byte {start} of '{name}': {sizes}"
            offset = start + size
            before = kind if kind.is_vector and kind.width == 3 and not kind.packed else None
    expressions = expressions_of(source)
    for index in source.places("(", "<", "static_assert"):
        if source.text(index) != "static_assert":
            if source.in_body(index):
                yield from _three_element_cast(source, expressions, index)
        elif source.text(index + 1) == "(":
            yield from _failed_assertion(source, index)


def _buffer_structs(source: Source) -> set[str]:
    """The structs that kernels' buffers hold."""
    found = set()
    for kernel in source.program.kernels:
        for parameter in kernel.parameters:
            if is_buffer(parameter):
                found |= {token.text for token in parameter.type if token.text in source.members}
    return found


def _three_element_cast(source: Source, expressions: Expressions, opening: int) -> Iterator[Found]:
    """A cast of a pointer to numbers that makes it one to vectors of three."""
    named = source.text(opening) == "<"
    if named and source.text(opening - 1) != "reinterpret_cast":
        return
    close = matching_angle(source.tokens, opening) if named else source.close(opening)
    if close is None or close < 0:
        return
    read = read_type(source.tokens, opening + 1, close, source.aliases, source.members)
    if read is None or read[1] != close or read[0].pointers != 1 or read[0].width != 3 or read[0].packed:
        return
    if named:
        start, end = close + 2, source.close(close + 1)
    else:
        start = end = close + 1
        if source.text(start) == "(":
            end = source.close(start) + 1
        elif source.kind(start) == IDENTIFIER:
            end = start + 1
    kind = expressions.type_of(start, end) if end > start else None
    if kind is None:
        # A pointer and a number.
        first = start + (source.text(start) == "(")
        kind = expressions.type_of(first, first + 1) if source.text(first + 1) in ("+", "-") else None
    target = read[0]
    if kind is not None and kind.pointers == 1 and kind.width == 1 and kind.base == target.base:
        name = f"{target.base}3"
        message = f"{with_article(name)} takes {4 * SIZES[target.base]} bytes, so its elements are four numbers apart"
        yield source.tokens[opening], f"{message}; those of packed_{name} are three"


def _failed_assertion(source: Source, index: int) -> Iterator[Found]:
    """``static_assert(sizeof(T) == n)`` where the size is another."""
    if source.places("packed", "__packed__"):
        return
    arguments = source.arguments(index + 1)
    if not arguments:
        return
    start, end = arguments[0]
    words = [source.text(position) for position in range(start, end)]
    close = source.close(start + 1) if words[:2] in (["sizeof", "("], ["alignof", "("]) else -1
    if close < 0 or source.text(close + 1) != "==":
        return
    read = read_type(source.tokens, start + 2, close, source.aliases, source.members)
    expected = source.integer(source.tokens[close + 2 : end])
    measure = source.size if words[0] == "sizeof" else source.alignment
    size = measure(read[0]) if read is not None and read[1] == close and read[0].known else None
    if size is not None and expected is not None and size != expected:
        requirement = f"{words[0]}({spell(source.tokens[start + 2 : close])}) == {expected}"
        message = f"static assertion failed due to requirement '{requirement}': it is {size}"
        yield source.tokens[index], message, "error"


@rule(
    32,
    "threadgroup-matrix",
    words="no matching constructor for initialization of 'half4x4'",
    why="A matrix has no default constructor that works in threadgroup memory; an array of vectors does the same.",
)
def threadgroup_memory_holds_no_matrices(source: Source) -> Iterator[Found]:
    for variables in source.variables.values():
        for variable in variables:
            kind = variable.type
            if kind is None or not kind.columns or variable.initialiser is not None:
                continue
            place = variable.place - 1
            while place > 0 and source.text(place) not in (";", "{", "}", "("):
                place -= 1
            declared = {source.text(position) for position in range(place, variable.place)}
            if "threadgroup" not in declared:
                continue
            is_array = len(variable.extents) == kind.pointers
            if is_array and source.text(place) != "(" and not variable.is_reference and source.in_body(place + 1):
                name = str(Type(kind.base, kind.width, kind.columns))
                yield source.tokens[variable.place], f"no matching constructor for initialization of '{name}'"


@rule(
    33,
    "scalar-condition",
    why="The conditional operator evaluates one side only, so its condition is one bool; select() takes vectors.",
)
def conditions_are_scalar(source: Source) -> Iterator[Found]:
    """Sees conditions whose type is written out or follows from such."""
    expressions = expressions_of(source)
    for index in source.places("?"):
        token = source.tokens[index]
        if not source.in_body(index):
            continue
        start = index - 1
        while start > 0:
            text = source.text(start)
            if text in (")", "]") and source.close(start) >= 0:
                start = source.close(start)
            elif text in (";", "{", "}", "(", "[", ",", "?", ":", "return") or (_ASSIGNMENT.fullmatch(text)):
                break
            start -= 1
        kind = expressions.type_of(start + 1, index)
        if kind is not None and kind.is_vector and kind.base in SIZES:
            yield token, f"the condition of '?:' must be a scalar, not '{kind}'; select() chooses by component"
