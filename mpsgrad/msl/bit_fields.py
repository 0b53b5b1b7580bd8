"""Bit-fields for a target whose language has none: objects that read and write some bits of what they share.

A run of bit-fields becomes a union of objects that all hold the same words, at the bits where Metal's compiler puts
them: one after the other from the lowest bit of the first byte on, none across a multiple of its type's size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from mpsgrad.msl.analysis.expressions import Expressions
from mpsgrad.msl.analysis.source import Source, element_of
from mpsgrad.msl.analysis.types import FLOATS, INTEGERS, SIZES, Type, read_type
from mpsgrad.msl.backend import is_swizzle
from mpsgrad.msl.declarations import read_program
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.equal_class_names import tell_classes_apart
from mpsgrad.msl.program import Program
from mpsgrad.msl.tokens import ASSIGNMENTS, IDENTIFIER, PUNCTUATION, Token, error, split_commas, tokenize_lines
from mpsgrad.msl.unions import class_bodies, name_place

BITS = f"bits{RENAMED_SUFFIX}"
_VALUE, _PROMOTED = "value_of_bits", "promoted_bits"
_WORDS = {8: "uchar", 16: "ushort", 32: "uint", 64: "ulong"}
_BEFORE_CONSTRUCTORS = frozenset({"{", "}", ";", ":", ")", ">", "]", "explicit", "constexpr", "inline"})
_CHANGES = ASSIGNMENTS | {"++", "--"}


@dataclass(frozen=True, slots=True)
class _Field:
    """One bit-field of a declaration; without a name it is space. ``first`` is its first bit in the class."""

    name: Token | None
    kind: Type
    width: int
    first: int


def has_bit_fields(tokens: Sequence[Token]) -> bool:
    """Whether something stands anywhere that looks like ``uint a : 3``; a false answer is certain."""
    return any(
        tokens[index].text == ":" and tokens[index - 1].kind == tokens[index - 2].kind == IDENTIFIER
        for index in range(2, len(tokens))
    )


def carry_bit_fields(program: Program, filename: str) -> list[Token]:
    """The tokens of ``program`` without bit-fields; raises ``ShaderError`` for a form that is not carried."""
    source = Source(program.tokens, program, (2, 3), False, "", filename)
    apart = tell_classes_apart(source)
    if apart is not None:
        program = read_program(apart)
        source = Source(program.tokens, program, (2, 3), False, "", filename)
    tokens = program.tokens
    pieces: dict[int, tuple[int, list[Token]]] = {}
    owners: dict[str, set[str]] = {}
    for start, close in class_bodies(source):
        fields: set[str] = set()
        if not source.places(":", start=start, end=close):
            continue
        for first, end, parts in _Layout(source, start, close).runs():
            is_union = tokens[start].text == "union"
            pieces[first] = (end, [t for part in parts for t in _declaration(tokens[first], part, is_union)])
            fields |= {field.name.text for part in parts for field in part if field.name is not None}
        if fields:
            owners.setdefault(_name(source, start, close), set()).update(fields)
    if not owners:
        return tokens
    constructors = dict(_constructors(source, owners))
    behind = dict(_reads(source, owners))
    output: list[Token] = []
    index = 0
    while index < len(tokens):
        if index in constructors:
            made = [each.at(tokens[index]) for line in tokenize_lines(constructors[index], "") for each in line]
            output += made
        if index in pieces:
            index, made = pieces[index]
            output += made
            continue
        output.append(tokens[index])
        if index in behind:
            place = tokens[index]
            output += [place.replaced(".", PUNCTUATION), place.replaced(behind[index], IDENTIFIER)]
            output += [place.replaced("(", PUNCTUATION), place.replaced(")", PUNCTUATION)]
            for token in output[-4:]:
                token.spaced = False
        index += 1
    return output


class _Layout:
    """Where the members of one class lie."""

    def __init__(self, source: Source, start: int, close: int) -> None:
        self._source = source
        self._close = close
        self._opening = start
        while source.text(self._opening) != "{":
            self._opening += 1
        self._is_union = source.text(start) == "union"
        self._is_derived = ":" in source.texts[start : self._opening]

    def runs(self) -> Iterator[tuple[int, int, list[list[_Field]]]]:
        """The ranges of the declarations that make up each run of bit-fields, and the fields."""
        run: list[_Field] = []
        first = end = 0
        offset: int | None = None if self._is_derived else 0
        for begin, stop in self._statements():
            fields = self._fields(begin, stop, 0 if self._is_union else offset)
            if fields is None:
                start, offset = self._behind(begin, stop, offset)
                if run:
                    yield first, end, self._divided(run, start)
                run = []
                continue
            if self._is_union:
                yield begin, stop + 1, self._divided(fields, None)
                continue
            first = begin if not run else first
            run += fields
            end = stop + 1
            offset = run[-1].first + run[-1].width
        if run:
            yield first, end, self._divided(run, None)

    def _statements(self) -> Iterator[tuple[int, int]]:
        """The declarations of data in the body, each with the ``;`` that ends it."""
        source = self._source
        index = begin = self._opening + 1
        while index < self._close:
            text = source.text(index)
            if text == ";":
                is_enumeration = source.text(begin) == "enum" and source.text(index - 1) == "}"
                words = {"using", "typedef", "static", "friend", "static_assert"} & set(source.texts[begin:index])
                if not words and not is_enumeration:
                    yield begin, index
                begin = index + 1
            elif text in ("(", "{", "[") and source.close(index) > 0:
                is_function = text == "(" and source.kind(index - 1) == IDENTIFIER
                index = source.close(index)
                is_body = text == "{" and source.text(index + 1) != ";" and source.kind(index + 1) != IDENTIFIER
                if is_body or is_function:
                    while source.text(index) not in (";", "{"):
                        index += 1
                    index = source.close(index) if source.text(index) == "{" else index
                    begin = index + 1
            elif text == ":" and source.text(index - 1) in ("public", "private", "protected"):
                begin = index + 1
            index += 1

    def _fields(self, begin: int, stop: int, offset: int | None) -> list[_Field] | None:
        """The bit-fields of a declaration, or None if it is one of other members."""
        source, tokens = self._source, self._source.tokens
        head = begin
        if source.text(begin) == "enum":
            # A colon before its braces is followed by the type of an enumeration.
            head = next((source.close(place) for place in source.places("{", start=begin, end=stop)), begin)
        colon = next((place for place in source.places(":", start=head, end=stop)), None)
        if colon is None or "?" in source.texts[begin:colon] or "{" in source.texts[begin:colon]:
            return None
        place = tokens[colon]
        read = read_type(tokens, begin, stop, source.aliases, {})
        if read is not None and read[0].base in FLOATS:
            raise error(f"bit-field has non-integral type '{read[0]}'", place)
        if read is None or not read[0].is_scalar or read[0].base not in INTEGERS:
            raise error("bit-fields of other types than integers are not supported on CPUs", place)
        if offset is None:
            raise error("a bit-field behind members of unknown size is not supported on CPUs", place)
        kind, index = read[0].value, read[1]
        unit = 8 * SIZES[kind.base]
        fields: list[_Field] = []
        for part in split_commas(tokens[index:stop]):
            name = part[0] if part[0].kind == IDENTIFIER else None
            width = source.integer(part[1 + (name is not None) :])
            if width is None or part[name is not None].text != ":" or not 0 <= width <= unit:
                raise error("the width of a bit-field has to be a constant of at most its type's bits", place)
            crosses = width == 0 or offset // unit != (offset + width - 1) // unit
            offset = 0 if self._is_union else -(-offset // unit) * unit if crosses else offset
            fields.append(_Field(name, kind, width, offset))
            offset += width
        return fields

    def _behind(self, begin: int, stop: int, offset: int | None) -> tuple[int | None, int | None]:
        """The first bit of the members of a declaration, and the bit behind them; None where that is not known."""
        source = self._source
        start: int | None = None
        for variable in source.declarations_between(begin - 1, stop + 1, depth_limit=True):
            count = 1
            for extent in variable.extents:
                count = count * extent if extent is not None else 0
            kind = element_of(variable.type, variable.extents)
            size = source.size(kind) if kind is not None and count else None
            if kind is None or size is None or offset is None:
                return start, None
            bits = 8 * (source.alignment(kind) or 1)
            offset = -(-offset // bits) * bits
            start = offset if start is None else start
            offset += 8 * size * count
        return (start, offset) if start is not None else (None, None)

    def _divided(self, run: list[_Field], following: int | None) -> list[list[_Field]]:
        """``run`` in parts that each have words of their own, as wide as the widest of their types."""
        parts: list[list[_Field]] = []
        for field in run:
            if parts and (field.first % (8 * SIZES[field.kind.base]) or _end(parts[-1]) > field.first):
                parts[-1].append(field)
            else:
                parts.append([field])
        for part, behind in zip_longest(parts, parts[1:]):
            limit = behind[0].first if behind else following
            if part[0].first % _word_bits(part) or limit is not None and _end(part) > limit:
                place = part[0].name or self._source.tokens[self._opening]
                message = "a bit-field that shares its type's bytes with other members is not supported on CPUs"
                raise error(message, place)
        return parts


def _word_bits(part: Sequence[_Field]) -> int:
    return 8 * max(SIZES[field.kind.base] for field in part)


def _end(part: Sequence[_Field]) -> int:
    """The bit behind the words of ``part``."""
    bits = _word_bits(part)
    return -(-(part[-1].first + part[-1].width) // bits) * bits


def _declaration(place: Token, run: Sequence[_Field], is_union: bool) -> list[Token]:
    start = run[0].first
    words, count = _WORDS[_word_bits(run)], max(1, (_end(run) - start) // _word_bits(run))
    made = [] if is_union else [place.replaced("union", IDENTIFIER), place.replaced("{", PUNCTUATION)]
    for field in run:
        if field.name is not None:
            # One token: nothing that reads what comes of this has to tell its brackets from comparisons.
            kind = f"{BITS}<{field.kind.base}, {words}, {count}, {field.first - start}, {field.width}>"
            made.append(field.name.replaced(kind, IDENTIFIER))
            made += [field.name, field.name.replaced(";", PUNCTUATION)]
    if not is_union:
        made += [place.replaced("}", PUNCTUATION), place.replaced(";", PUNCTUATION)]
    for token in made:
        token.spaced = True
    return made


def _constructors(source: Source, owners: dict[str, set[str]]) -> Iterator[tuple[int, str]]:
    """Where classes with bit-fields begin that get values in braces, which their unions would take in another order,
    and constructors that take them; raises for classes that can have none."""
    for name, place in _braces(source, owners).items():
        start, close = next(each for each in class_bodies(source) if _name(source, *each) == name)
        opening = name_place(source, start) + 1
        members = source.members.get(name, {})
        is_plain = [source.text(start), source.text(opening), source.text(start - 1) == ">"] == ["struct", "{", False]
        has_arrays = any(extents or kind is None or kind.pointers or kind.columns for kind, extents in members.values())
        has_constructors = any(
            source.text(index + 1) == "(" and source.text(index - 1) in _BEFORE_CONSTRUCTORS
            for index in source.places(name, start=opening, end=close)
        )
        if not is_plain or has_arrays or has_constructors:
            message = f"values in braces for '{name}', which has bit-fields, are not supported on CPUs; assign them"
            raise error(message, source.tokens[place])
        listed = [f"{kind} {member}_value" for member, (kind, _) in members.items() if kind is not None]
        values = ", ".join(f"{each} = {{}}" if position else each for position, each in enumerate(listed))
        text = " ".join(f"this->{member} = {member}_value;" for member in members)
        yield opening + 1, f"{name}() = default; {name}({values}) {{ {text} }}"


def _braces(source: Source, owners: dict[str, set[str]]) -> dict[str, int]:
    """The classes with bit-fields of which an object may get values in braces, and where."""
    defined = {name_place(source, start) for start, _ in class_bodies(source)}
    defined |= {close + 1 for start, close in class_bodies(source) if source.text(start - 1) == "typedef"}
    holders = {name: {name} for name in owners}
    for holder, members in source.members.items():
        for name in owners:
            if any(kind is not None and kind.base == name for kind, _ in members.values()):
                holders[name].add(holder)
    found: dict[str, int] = {}
    for name, names in holders.items():
        for index in source.places(*names):
            if index in defined:
                continue
            opening = index + 1
            if source.kind(opening) == IDENTIFIER and source.text(index - 1) not in ("struct", "class", "union"):
                opening += 1
                while source.text(opening) == "[" and source.close(opening) > 0:
                    opening = source.close(opening) + 1
                opening += source.text(opening) == "="
            elif source.text(index - 1) in ("struct", "class", "union"):
                continue
            if source.text(opening) == "{" and source.text(opening + 1) != "}":
                if source.text(index - 1) == "constant" or source.text(index - 2) == "constant":
                    message = f"constants of '{name}', which has bit-fields, are not supported on CPUs"
                    raise error(message, source.tokens[opening])
                found.setdefault(name, opening)
        for function in source.functions:
            result = source.return_type(function)
            returned = source.places("return", start=function.body_open, end=function.body_close)
            if result is not None and result.base in names and not result.pointers:
                place = next((at for at in returned if source.text(at + 1) == "{" and source.text(at + 2) != "}"), None)
                if place is not None:
                    found.setdefault(name, place + 1)
    return found


def _reads(source: Source, owners: dict[str, set[str]]) -> Iterator[tuple[int, str]]:
    """The places behind which a bit-field's value is taken, and by what: arguments have its own type, operands that of
    its promotion."""
    fields = set().union(*owners.values())
    swizzles = {name for name in fields if is_swizzle(name)}
    others = {name for owner, members in source.members.items() for name in members.keys() - owners.get(owner, set())}
    unions = {_name(source, first, last): (first, last) for first, last in class_bodies(source)}
    unions = {n: body for n, body in unions.items() if source.text(body[0]) == "union" and n not in owners}
    others |= {text for first, last in unions.values() for text in source.texts[first:last]}
    shared = swizzles | others & fields
    expressions = Expressions(source)
    for index in source.places(*fields):
        if source.text(index - 1) not in (".", "->") or source.kind(index) != IDENTIFIER:
            continue
        start = _start(source, index - 1)
        if source.text(index) in shared:
            kind = expressions.type_of(start, index - 1)
            if kind is None and _is_of(unions.keys(), source, start):
                continue
            if kind is None:
                message = f"'{source.text(index)}', a bit-field, of an object of unknown type is not supported on CPUs"
                raise error(message, source.tokens[index])
            if source.text(index) not in owners.get(kind.base, ()):
                continue
        before, after = source.text(start - 1), source.text(index + 1)
        if after in _CHANGES or before in ("++", "--"):
            continue
        is_whole = after in (",", ")", ";", "}") and before in ("(", ",", "=", "return", "{")
        yield index, _VALUE if is_whole else _PROMOTED


def _name(source: Source, first: int, last: int) -> str:
    """The name of the class in this range, that of a typedef if it has no other."""
    name = source.text(name_place(source, first))
    return source.text(last + 1) if name == "{" and source.text(first - 1) == "typedef" else name


def _is_of(types: Collection[str], source: Source, index: int) -> bool:
    """Whether the name at ``index`` was last declared as that of an object of one of ``types``."""
    places = [at for at in source.places(source.text(index), end=index) if source.kind(at - 1) == IDENTIFIER]
    return bool(places) and source.text(places[-1] - 1) in types


def _start(source: Source, index: int) -> int:
    """Where the object before the ``.`` at ``index`` begins."""
    start = index - 1
    while start > 0:
        if source.text(start) in (")", "]") and source.close(start) >= 0:
            start = source.close(start)
            if source.text(start) == "(" and source.kind(start - 1) != IDENTIFIER:
                break
            start -= 1
        elif source.text(start - 1) in (".", "->", "::"):
            start -= 2
        else:
            break
    return start
