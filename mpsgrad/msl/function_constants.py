"""Function constants: ``constant T name [[function_constant(n)]];`` with a value that is known at translation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpsgrad.errors import FormatError, ShaderError, with_article
from mpsgrad.msl.constant_expressions import constants_of, integer_value
from mpsgrad.msl.preprocessor import integer_expression
from mpsgrad.msl.program import Program
from mpsgrad.msl.signature import FunctionConstant
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, PUNCTUATION, Token, error, matching, spell

LAST_INDEX = 65535
IS_DEFINED = "is_function_constant_defined"

_SCALARS: dict[str, type] = {
    "bool": np.bool_, "char": np.int8, "uchar": np.uint8, "short": np.int16, "ushort": np.uint16, "int": np.int32,
    "uint": np.uint32, "long": np.int64, "ulong": np.uint64, "half": np.float16, "float": np.float32,
    "int8_t": np.int8, "uint8_t": np.uint8, "int16_t": np.int16, "uint16_t": np.uint16, "int32_t": np.int32,
    "uint32_t": np.uint32, "int64_t": np.int64, "uint64_t": np.uint64, "unsigned": np.uint32,
    "unsigned int": np.uint32,
}  # fmt: skip
_QUALIFIERS = frozenset("constant const constexpr static inline metal ::".split())
_TYPE = re.compile(rf"({'|'.join(sorted(_SCALARS, key=len, reverse=True))})([234])?$")


@dataclass(frozen=True, slots=True)
class _Declaration:
    """A function constant and the place of its attribute; token indices are into the program's list."""

    constant: FunctionConstant
    start: int
    stop: int


class FunctionConstants:
    """The function constants of a program and what they are set to."""

    def __init__(self, program: Program, values: Mapping[str | int, Any]) -> None:
        self._tokens = program.tokens
        self._variables = program.variables
        self._declarations = list(_declarations(program))
        self.declared = tuple(declaration.constant for declaration in self._declarations)
        self._values = _by_name(self.declared, values)
        tested = {
            self._tokens[index + 2].text
            for index, token in enumerate(self._tokens[:-2])
            if token.text == IS_DEFINED and self._tokens[index + 1].text == "("
        }
        self.unset = frozenset(c.name for c in self.declared if c.name not in self._values and c.name not in tested)

    def is_set(self, name: Token) -> bool:
        """What ``is_function_constant_defined`` gives for ``name``."""
        if all(constant.name != name.text for constant in self.declared):
            raise error(f"'{name.text}' is no function constant", name)
        return name.text in self._values

    def pieces(self) -> Iterator[tuple[int, int, list[Token]]]:
        """The ranges of the attributes and the initialisers that replace them."""
        for declaration in self._declarations:
            constant, place = declaration.constant, self._tokens[declaration.start]
            value = self._values.get(constant.name, np.zeros(_shape(constant.type), _scalar(constant.type)))
            yield declaration.start, declaration.stop, list(_initialiser(constant.type, value, place))

    def holds(self, condition: Sequence[Token], place: Token, depth: int = 0) -> bool:
        """Whether a boolean expression of function constants, and of constants made of them, is true."""
        if depth > len(self._variables):
            raise error(f"'{spell(condition)}' depends on itself", place)
        words: list[Token] = []
        index = 0
        while index < len(condition):
            token = condition[index]
            if token.text == IS_DEFINED and index + 3 < len(condition):
                words.append(token.replaced(str(int(self.is_set(condition[index + 2]))), NUMBER))
                index += 4
                continue
            if token.kind == IDENTIFIER and token.text not in ("true", "false"):
                token = token.replaced(str(int(self._value_of(token, depth))), NUMBER)
            words.append(token)
            index += 1
        try:
            return bool(integer_expression(words, place))
        except ShaderError as found:
            raise error(f"'{spell(condition)}' is no expression of function constants", place) from found

    def _value_of(self, name: Token, depth: int) -> int:
        constant = next((constant for constant in self.declared if constant.name == name.text), None)
        if constant is not None:
            return int(self._values.get(constant.name, 0))
        for start, stop in self._variables:
            tokens = self._tokens[start:stop]
            for index, token in enumerate(tokens[1:-1], 1):
                if token.text == "=" and tokens[index - 1].text == name.text:
                    return int(self.holds(tokens[index + 1 : -1], name, depth + 1))
        raise error(f"'{name.text}' is no function constant", name)


def _declarations(program: Program) -> Iterator[_Declaration]:
    tokens = program.tokens
    names: set[str] = set()
    indices: set[int] = set()
    for start, stop in program.variables:
        for index in range(start, stop):
            if tokens[index].text != "function_constant" or tokens[index - 1].text != "[":
                continue
            opening = index - 2
            closing = matching(tokens, opening) + 1
            arguments = tokens[index + 2 : matching(tokens, index + 1)]
            is_named = any(token.kind == IDENTIFIER for token in arguments)
            number = integer_value(arguments, tokens[index], constants_of(tokens) if is_named else None)
            name = tokens[opening - 1]
            before = [token.text for token in tokens[start:opening]]
            words = [token for token in tokens[start:stop] if token.text not in _QUALIFIERS]
            end = next((i for i, t in enumerate(words) if t.kind == IDENTIFIER and _ends(words, i)), 0)
            type_name = spell(words[:end])
            if not _TYPE.match(type_name) or name.kind != IDENTIFIER or "constant" not in before:
                raise error(f"type '{type_name}' is not valid for attribute 'function_constant'", tokens[index])
            if not 0 <= number <= LAST_INDEX:
                raise error(
                    f"'function_constant' attribute parameter is out of bounds: must be between 0 and {LAST_INDEX}",
                    tokens[index],
                )
            if number in indices or name.text in names:
                raise error(f"function constant {number} ('{name.text}') is declared twice", tokens[index])
            indices.add(number)
            names.add(name.text)
            yield _Declaration(FunctionConstant(name.text, number, type_name), opening, closing)


def _ends(words: Sequence[Token], index: int) -> bool:
    """Whether the declarator starts at ``index``: an attribute stands behind it."""
    return index + 1 < len(words) and words[index + 1].text == "["


def _scalar(type_name: str) -> type:
    match = _TYPE.match(type_name)
    assert match is not None
    return _SCALARS[match[1]]


def _shape(type_name: str) -> tuple[int, ...]:
    match = _TYPE.match(type_name)
    assert match is not None
    return (int(match[2]),) if match[2] else ()


def _by_name(declared: Sequence[FunctionConstant], values: Mapping[str | int, Any]) -> dict[str, np.ndarray]:
    """``values`` by name, in the declared types; raises ``FormatError`` for names and values that do not fit."""
    converted: dict[str, np.ndarray] = {}
    for key, value in values.items():
        found = next((c for c in declared if key == c.name or (type(key) is int and key == c.index)), None)
        if found is None:
            known = ", ".join(f"{c.name} ({c.index})" for c in declared) or "none"
            raise FormatError(f"there is no function constant {key!r}; the source has {known}")
        if found.name in converted:
            raise FormatError(f"function constant {found.name} is given by its name and by its index")
        converted[found.name] = _converted(found, value)
    return converted


def _converted(constant: FunctionConstant, value: Any) -> np.ndarray:
    scalar = _scalar(constant.type)
    given = np.asarray(value)
    shape = _shape(constant.type)
    fits = given.shape == shape and given.dtype.kind in "biuf"
    if fits and scalar is np.bool_:
        fits = given.dtype.kind == "b" or bool(np.isin(given, (0, 1)).all())
    elif fits and np.issubdtype(scalar, np.integer):
        limits = np.iinfo(scalar)
        fits = given.dtype.kind in "iu" and all(limits.min <= int(each) <= limits.max for each in given.ravel())
    if not fits:
        raise FormatError(f"function constant {constant.name} is {value!r}; it has to be {with_article(constant.type)}")
    return given.astype(scalar)


def _initialiser(type_name: str, value: np.ndarray, place: Token) -> Iterator[Token]:
    yield place.replaced("=", PUNCTUATION)
    if value.shape:
        yield place.replaced(type_name, IDENTIFIER)
        yield place.replaced("(", PUNCTUATION)
        for index, each in enumerate(value):
            if index:
                yield place.replaced(",", PUNCTUATION)
            yield from _literal(each, place)
        yield place.replaced(")", PUNCTUATION)
    else:
        yield from _literal(value[()], place)


def _literal(value: Any, place: Token) -> Iterator[Token]:
    """``value`` in brackets as Metal writes it."""
    if value.dtype.kind == "b":
        yield place.replaced("true" if value else "false", IDENTIFIER)
        return
    yield place.replaced("(", PUNCTUATION)
    negative = bool(np.signbit(value)) if value.dtype.kind == "f" else int(value) < 0
    if negative:
        yield place.replaced("-", PUNCTUATION)
    if value.dtype.kind == "f":
        if np.isnan(value):
            yield place.replaced("__builtin_bit_cast(float, 0x7fc00000)", IDENTIFIER)
        elif np.isinf(value):
            yield place.replaced("__builtin_bit_cast(float, 0x7f800000)", IDENTIFIER)
        else:
            yield place.replaced(f"{abs(float(value))!r}f" if float(value) % 1 else f"{abs(float(value)):.1f}f", NUMBER)
    elif value.dtype == np.int64 and int(value) == np.iinfo(np.int64).min:
        yield place.replaced("0x7fffffffffffffffL", NUMBER)
        yield place.replaced("-", PUNCTUATION)
        yield place.replaced("1", NUMBER)
    else:
        suffix = {("u", 4): "u", ("u", 8): "uL", ("i", 8): "L"}.get((value.dtype.kind, value.dtype.itemsize), "")
        yield place.replaced(f"{abs(int(value))}{suffix}", NUMBER)
    yield place.replaced(")", PUNCTUATION)
