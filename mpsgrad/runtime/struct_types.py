"""NumPy's types with the layouts of the structs in a Metal source."""

from __future__ import annotations

from collections.abc import Container
from copy import copy
from itertools import pairwise

import numpy as np

from mpsgrad.devices import CompileOptions
from mpsgrad.msl.analysis.source import Source, element_of
from mpsgrad.msl.analysis.types import SIZES, Type, read_type
from mpsgrad.msl.declarations import read_program
from mpsgrad.msl.preprocessor import Preprocessor
from mpsgrad.msl.tokens import (
    IDENTIFIER,
    Token,
    matching,
    matching_angle,
    skip_attributes,
    split_commas,
    tokenize_lines,
)
from mpsgrad.msl.type_names import type_names
from mpsgrad.msl.versions import version_of
from mpsgrad.runtime.element_types import POINTEE, element_type
from mpsgrad.runtime.struct_templates import with_instances

DEEPEST = 16
"""How many structs may lie in each other."""


def _without_identifiers(tokens: list[Token]) -> list[Token]:
    """``tokens`` without ``[[id(n)]]``, which may stand between a member's name and its extent."""
    rest: list[Token] = []
    index = 0
    while index < len(tokens):
        if [token.text for token in tokens[index : index + 4]] == ["[", "[", "id", "("]:
            index = matching(tokens, index) + 1
            continue
        rest.append(tokens[index])
        index += 1
    return rest


def _without_alignments(tokens: list[Token]) -> tuple[list[Token], dict[tuple[str, str], list[Token]]]:
    """``tokens`` without ``alignas(...)``, and what stood in the brackets of that of each struct, by its name, and of
    each of its members, by that, too."""
    rest: list[Token] = []
    found: dict[tuple[str, str], list[Token]] = {}
    structs: list[str] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.text == "alignas" and tokens[index + 1].text == "(":
            close = matching(tokens, index + 1)
            end = close + 1
            is_struct = rest[-1].text in ("struct", "class")
            while not is_struct and tokens[end + 1].text not in (";", "[", "=", ",", "{"):
                end += 1
            place = (tokens[end].text, "") if is_struct else (structs[-1] if structs else "", tokens[end].text)
            found[place] = tokens[index + 2 : close]
            index = close + 1
            continue
        if token.text == "{":
            head = next((at for at in range(len(rest) - 1, -1, -1) if rest[at].text in (";", "{", "}", "struct")), 0)
            is_struct = rest[head].text == "struct" and head + 1 < len(rest)
            structs.append(rest[head + 1].text if is_struct else "")
        elif token.text == "}" and structs:
            structs.pop()
        rest.append(token)
        index += 1
    return (rest, found) if found else (tokens, found)


def _with_plain_arrays(tokens: list[Token]) -> list[Token]:
    """``tokens`` with ``T name[N]`` for each member ``array<T, N> name``, which has the same layout."""
    if any(pair == ("struct", "array") for pair in pairwise(token.text for token in tokens)):
        return tokens
    rest = list(tokens)
    index = 0
    while index < len(rest) - 1:
        plain = _plain_array(rest, index) if rest[index].text == "array" and rest[index + 1].text == "<" else None
        if plain is None:
            index += 1
            continue
        index -= 2 if [token.text for token in rest[index - 2 : index]] == ["metal", "::"] else 0
        end, declared = plain
        rest[index:end] = declared
    return rest


def _without_names_of_arrays(tokens: list[Token]) -> list[Token]:
    """``tokens`` with ``T name[N]`` for each member ``A name`` behind ``typedef T A[N];`` or ``using A = T[N];``."""
    arrays: dict[str, tuple[list[Token], list[Token]]] = {}
    for each in type_names(tokens):
        if each.defines_class:
            continue
        extents = next((at for at, token in enumerate(each.meaning) if token.text == "["), len(each.meaning))
        element, behind = each.meaning[:extents], each.meaning[extents:]
        base, inner = arrays.get(element[0].text, (element, [])) if len(element) == 1 else (element, [])
        if behind or inner:
            arrays[each.name.text] = base, [*behind, *inner]
    rest: list[Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        end = index + 2
        while end < len(tokens) and tokens[end].text == "[":
            end = matching(tokens, end) + 1
        is_declaration = end < len(tokens) and tokens[end].text == ";"
        if token.text in arrays and is_declaration and tokens[index - 1].text in ("{", "}", ";"):
            element, behind = arrays[token.text]
            rest += [*element, *tokens[index + 1 : end], *behind]
            index = end
            continue
        rest.append(token)
        index += 1
    return rest


def _plain_array(tokens: list[Token], index: int) -> tuple[int, list[Token]] | None:
    """Where the declaration of the one ``array`` at ``index`` ends, and what is to stand there; None for others."""
    close = matching_angle(tokens, index + 1)
    if close is None or tokens[close].text != ">" or tokens[close + 1].kind != IDENTIFIER:
        return None
    arguments = split_commas(tokens[index + 2 : close])
    end = close + 2
    while tokens[end].text == "[":
        end = matching(tokens, end) + 1
    if len(arguments) != 2 or tokens[end].text != ";":
        return None
    place = tokens[close]
    extent = [place.replaced("["), *arguments[1], place.replaced("]")]
    return end, [*arguments[0], *tokens[close + 1 : end], *extent]


def _enumerations(tokens: list[Token]) -> dict[str, Type]:
    """The names of enumerations, and the types of integers that have their values."""
    found: dict[str, Type] = {}
    for index, token in enumerate(tokens):
        if token.text != "enum" or token.kind != IDENTIFIER:
            continue
        is_scoped = tokens[index + 1].text in ("class", "struct")
        place = skip_attributes(tokens, index + 1 + is_scoped, len(tokens))
        names = [tokens[place].text] if tokens[place].kind == IDENTIFIER else []
        place += len(names)
        read = read_type(tokens, place + 1, len(tokens), {}, {}) if tokens[place].text == ":" else None
        opening = read[1] if read is not None else place
        if tokens[opening].text != "{":
            continue
        close = matching(tokens, opening)
        if tokens[index - 1].text == "typedef" and tokens[close + 1].kind == IDENTIFIER:
            names.append(tokens[close + 1].text)
        is_signed = is_scoped or any(each.text == "-" for each in tokens[opening:close])
        kind = read[0] if read is not None else Type("int" if is_signed else "uint")
        found.update(dict.fromkeys(names, kind))
    return found


def _names_of_structs(tokens: list[Token], structs: Container[str]) -> dict[str, Type]:
    """The other names that ``using name = struct;`` and ``typedef struct name;`` give ``structs``."""
    found: dict[str, Type] = {}
    for each in type_names(tokens):
        words = [token.text for token in each.meaning if token.text != "struct"]
        if len(words) == 1 and words[0] in structs:
            found[each.name.text] = Type(words[0])
    return found


class StructTypes:
    """The structs and enumerations of one source, as it is compiled with ``options``."""

    def __init__(self, source: str, name: str, options: CompileOptions) -> None:
        tokens = Preprocessor(options.resolve, options.definitions()).run(source, name)
        self._tokens = _without_identifiers(tokens)
        self._version = version_of(options.definitions()["__METAL_VERSION__"])
        self._read(source, name)

    def _read(self, source: str, name: str) -> None:
        tokens, alignments = _without_alignments(self._tokens)
        program = read_program(_without_names_of_arrays(_with_plain_arrays(tokens)))
        self._source = Source(program.tokens, program, self._version, False, source, name)
        self._source.aliases.update(_enumerations(program.tokens))
        self._source.aliases.update(_names_of_structs(program.tokens, self._source.struct_bodies))
        self._alignments = {place: self._alignment(written) for place, written in alignments.items()}

    def _alignment(self, written: list[Token]) -> int | None:
        """The number in ``alignas(16)``, or the alignment of the type in ``alignas(float4)``."""
        read = read_type(written, 0, len(written), self._source.aliases, self._source.members)
        is_type = read is not None and read[0].known and read[1] == len(written)
        return self._source.alignment(read[0]) if read is not None and is_type else self._source.integer(written)

    def dtype(self, name: str, size: int | None) -> np.dtype | None:
        """That of the struct, vector or scalar that is written ``name``.

        None where it cannot be told, or has not the ``size`` that the compiler says, if that is known.
        """
        found = self._source.keep(("dtype", name), lambda: self._of_name(name))
        return found if size is None or found is None or found.itemsize == size else None

    def _of_name(self, name: str) -> np.dtype | None:
        element = element_type(name)
        if element is not None:
            lanes = element.size // element.dtype.itemsize
            return element.dtype if lanes == 1 else np.dtype((element.dtype, lanes))
        tokens = [token for line in tokenize_lines(f"{name} elements;", "") for token in line]
        made = with_instances(self._tokens, tokens)
        if made is not None:
            other = copy(self)
            other._tokens, kind = made
            other._read(self._source.written, self._source.filename)
            return other._of_name(" ".join(token.text for token in kind[:-2]))
        if tokens[0].text == "array":
            # Becomes ``T elements[N];``.
            tokens = _with_plain_arrays(tokens)
        tokens = [token for token in tokens[:-1] if token.text != "elements"]
        read = read_type(tokens, 0, len(tokens), self._source.aliases, self._source.struct_bodies)
        extents = self._extents(tokens[read[1] :]) if read is not None else None
        return self._of_type(read[0], extents, 0) if read is not None and extents is not None else None

    def _extents(self, tokens: list[Token]) -> tuple[int, ...] | None:
        """The numbers in ``[2][N]``, or None if anything else stands there."""
        extents: list[int] = []
        index = 0
        while index < len(tokens):
            close = matching(tokens, index) if tokens[index].text == "[" else index
            extent = self._source.integer(tokens[index + 1 : close])
            if extent is None:
                return None
            extents.append(extent)
            index = close + 1
        return tuple(extents)

    def _of_type(self, kind: Type, extents: tuple[int, ...], depth: int) -> np.dtype | None:
        """That of an array of ``extents``, or of one object; a member that is one vector of three has no gap."""
        if kind.pointers == 1:
            return np.dtype((np.dtype(np.uint64, metadata={POINTEE: kind}), extents))
        if kind.pointers or depth > DEEPEST:
            return None
        if kind.base not in SIZES:
            struct = self._of_struct(kind.base, depth)
            return None if struct is None else np.dtype((struct[0], extents))
        scalar = element_type(kind.base)
        if scalar is None:
            return None
        has_gaps = kind.width == 3 and not kind.packed and bool(extents or kind.columns or not depth)
        columns = (kind.columns,) if kind.columns else ()
        lanes = (4 if has_gaps else kind.width,) if kind.width > 1 else ()
        return np.dtype((scalar.dtype, (*extents, *columns, *lanes)))

    def _of_struct(self, name: str, depth: int) -> tuple[np.dtype, int] | None:
        """The type and the alignment of a struct."""
        source = self._source
        members = source.members.get(name)
        if not members or source.is_packed(source.struct_bodies[name][0][0]):
            return None
        names, formats, offsets = [], [], []
        end, largest = 0, self._alignments.get((name, ""), 1)
        for member, (declared, extents) in members.items():
            kind = element_of(declared, extents)
            place = source.member_place(name, member)
            asked = self._alignments.get((name, member), 1)
            if kind is None or place is None or source.text(place + 1) == ":" or None in extents:
                return None
            known = tuple(extent or 0 for extent in extents)
            dtype, found = self._of_type(kind, known, depth + 1), self._size_and_alignment(kind, depth)
            if dtype is None or found is None or asked is None or largest is None:
                return None
            alignment = max(found[1], asked)
            start = -(-end // alignment) * alignment
            end = start + found[0] * int(np.prod(known, dtype=np.int64))
            largest = max(largest, alignment)
            names.append(member)
            formats.append(dtype)
            offsets.append(start)
        if largest is None:
            return None
        size = max(-(-end // largest) * largest, 1)
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size}), largest

    def _size_and_alignment(self, kind: Type, depth: int) -> tuple[int, int] | None:
        """Those of one object of the type."""
        if kind.base in SIZES or kind.pointers:
            size, alignment = self._source.size(kind), self._source.alignment(kind)
            return None if size is None or alignment is None else (size, alignment)
        struct = self._of_struct(kind.base, depth + 1) if depth <= DEEPEST else None
        return None if struct is None else (struct[0].itemsize, struct[1])
