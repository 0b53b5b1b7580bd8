"""The types of Metal as far as analysis needs them: names, sizes and what converts to what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from mpsgrad.msl.library_marks import VECTOR_TEMPLATES
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, Token, matching_angle, skip_attributes, split_commas

SIZES = {
    "bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "long": 8, "ulong": 8,
    "half": 2, "bfloat": 2, "float": 4,
}  # fmt: skip
INTEGERS = frozenset({"bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong"})
FLOATS = frozenset({"half", "bfloat", "float"})

_ALIASES = {
    "size_t": "ulong", "ptrdiff_t": "long", "int8_t": "char", "uint8_t": "uchar", "int16_t": "short",
    "uint16_t": "ushort", "int32_t": "int", "uint32_t": "uint", "int64_t": "long", "uint64_t": "ulong",
}  # fmt: skip
_QUALIFIERS = frozenset(
    {"const", "volatile", "constexpr", "static", "inline", "extern", "typename", "struct", "restrict", "__restrict"}
)
_BEHIND_TYPES = frozenset({"*", "&", "const", "volatile", "restrict", "__restrict", *ADDRESS_SPACES})
_VECTOR = re.compile(r"(packed_)?(bool|u?char|u?short|u?int|u?long|half|bfloat|float)([234])?$")
_MATRIX = re.compile(r"(half|float)([234])x([234])$")


class Type(NamedTuple):
    """A type: ``base`` is a scalar or the name of a struct; a matrix has ``columns`` of ``width`` rows.

    ``space`` and ``const`` are those of the pointee of a pointer, else those of the object. ``known`` is False where
    ``base`` is a name that nothing is known of.
    """

    base: str
    width: int = 1
    columns: int = 0
    pointers: int = 0
    space: str | None = None
    const: bool = False
    packed: bool = False
    known: bool = True

    @property
    def is_scalar(self) -> bool:
        return self.known and not self.pointers and not self.columns and self.width == 1 and self.base in SIZES

    @property
    def is_vector(self) -> bool:
        return self.known and not self.pointers and not self.columns and self.width > 1

    @property
    def value(self) -> Type:
        """The type of a copy of the object."""
        if self.pointers or (self.space is None and not self.const and not self.packed):
            return self
        return Type(self.base, self.width, self.columns, known=self.known)

    def __str__(self) -> str:
        name = ("packed_" if self.packed else "") + self.base + (str(self.width) if self.width > 1 else "")
        if self.columns:
            name = f"{self.base}{self.columns}x{self.width}"
        if self.pointers:
            const = "const " if self.const and self.space != "constant" else ""
            return f"{const}{self.space + ' ' if self.space else ''}{name} {'*' * self.pointers}"
        return name


@lru_cache(4096)
def built_in(name: str) -> Type | None:
    """The scalar, vector or matrix type called ``name``."""
    name = _ALIASES.get(name, name)
    vector = _VECTOR.match(name)
    if vector:
        return Type(vector[2], int(vector[3] or 1), packed=vector[1] is not None)
    matrix = _MATRIX.match(name)
    return Type(matrix[1], int(matrix[3]), columns=int(matrix[2])) if matrix else None


def read_type(
    tokens: Sequence[Token], index: int, end: int, aliases: Mapping[str, Type | None], structs: Mapping[str, object]
) -> tuple[Type, int] | None:
    """The type that begins at ``index`` and the index behind it, its pointers and references included.

    None where none does, and for vectors that an attribute makes, which have any number of components.
    """
    space: str | None = None
    const = False
    base: Type | None = None
    signed: list[str] = []
    while index < end:
        token = tokens[index]
        text = token.text
        if text in ADDRESS_SPACES:
            space = text
        elif text in _QUALIFIERS:
            const = const or text in ("const", "constexpr")
        elif text in ("unsigned", "signed"):
            signed.append(text)
        elif text in ("__attribute__", "alignas") or (
            text == "[" and index + 1 < end and tokens[index + 1].text == "["
        ):
            following = skip_attributes(tokens, index, end)
            if following == index or any(each.text == "ext_vector_type" for each in tokens[index:following]):
                return None
            index = following
            continue
        elif text == "metal" and index + 1 < end and tokens[index + 1].text == "::":
            index += 1
        elif text == "::" and base is None:
            pass
        elif token.kind == IDENTIFIER and base is None and not (signed and built_in(text) is None):
            found = _named(tokens, index, end, aliases, structs)
            if found is None:
                return None
            base, index = found
            if base.pointers:
                space = base.space
        else:
            break
        index += 1
    if base is None and signed:
        base = Type("int")
    if base is None:
        return None
    if "unsigned" in signed and base.base in ("char", "short", "int", "long"):
        base = base._replace(base="u" + base.base)
    if index == end or tokens[index].text not in _BEHIND_TYPES:
        if space is None and not const:
            return base if base.space is None else base._replace(space=None), index
        return base._replace(space=space, const=const or base.const), index
    return _with_pointers(base._replace(space=space, const=const or base.const), tokens, index, end)


def _named(
    tokens: Sequence[Token], index: int, end: int, aliases: Mapping[str, Type | None], structs: Mapping[str, object]
) -> tuple[Type, int] | None:
    """The type whose name begins at ``index``, its template arguments included, and the index of its last token."""
    text = tokens[index].text
    if text in VECTOR_TEMPLATES and index + 1 < end and tokens[index + 1].text == "<":
        close = matching_angle(tokens, index + 1, end)
        return (_vector_template(split_commas(tokens[index + 2 : close])), close) if close is not None else None
    base = built_in(text)
    if base is not None:
        return base, index
    if text in aliases:
        return aliases[text] or Type(text, known=False), index
    while index + 2 < end and tokens[index + 1].text == "::" and tokens[index + 2].kind == IDENTIFIER:
        index += 2
    base = Type(tokens[index].text, known=tokens[index].text in structs)
    if index + 1 < end and tokens[index + 1].text == "<":
        close = matching_angle(tokens, index + 1, end)
        if close is None or tokens[close].text != ">":
            return None
        return Type(base.base, known=False), close
    return base, index


def _with_pointers(base: Type, tokens: Sequence[Token], index: int, end: int) -> tuple[Type, int]:
    """``base`` with the pointers, references and qualifiers that begin at ``index``, and the index behind them."""
    space, const, pointers = base.space, base.const, 0
    while index < end and tokens[index].text in _BEHIND_TYPES:
        text = tokens[index].text
        pointers += text == "*"
        if text == "const" and not pointers:
            const = True
        if text in ADDRESS_SPACES:
            space = text if not pointers else None
        index += 1
    if pointers > 1 or (pointers and base.pointers):
        space = None
    return base._replace(pointers=base.pointers + pointers, space=space, const=const), index


def _vector_template(arguments: Sequence[Sequence[Token]]) -> Type:
    if len(arguments) == 2 and len(arguments[0]) == 1 and len(arguments[1]) == 1 and arguments[1][0].text in "1234":
        element = built_in(arguments[0][0].text)
        if element is not None and element.is_scalar:
            return element._replace(width=int(arguments[1][0].text))
    return Type("vec", known=False)


def size_and_alignment(
    kind: Type, members: Mapping[str, Sequence[tuple[Type | None, int]]], depth: int = 0
) -> tuple[int, int] | None:
    """Bytes that an object takes and its alignment; None where a part is not known.

    ``members`` gives for each struct its members' types and how many elements each has.
    """
    if kind.pointers:
        return 8, 8
    if kind.base in SIZES:
        size = SIZES[kind.base]
        if kind.packed:
            return size * kind.width, size
        size *= 4 if kind.width == 3 else kind.width
        return (size * kind.columns, size) if kind.columns else (size, size)
    if kind.base not in members or depth > 16:
        return None
    offset, alignment = 0, 1
    for member, count in members[kind.base]:
        found = size_and_alignment(member, members, depth + 1) if member is not None else None
        if found is None:
            return None
        offset = -(-offset // found[1]) * found[1] + found[0] * count
        alignment = max(alignment, found[1])
    return max(1, -(-offset // alignment) * alignment), alignment
