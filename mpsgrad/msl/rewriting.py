"""The tokens of function bodies and other declarations as a target's C++ has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.backend import Backend
from mpsgrad.msl.bool_increments import increments_a_bool, names_of_bools
from mpsgrad.msl.declarations import declares_variable
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.expressions import VectorTypes, are_values, begins_operand, declares_indirectly
from mpsgrad.msl.function_constants import IS_DEFINED, FunctionConstants
from mpsgrad.msl.library_marks import (
    CAST,
    CONSTRUCT,
    CONSTRUCT_ALL,
    CONSTRUCT_ONE,
    CONVERT_OPERAND,
    COUNT,
    DECLARED,
    INCREMENT,
    UNPACK,
    VALUE,
    VECTOR,
    VECTOR_OF_BFLOAT,
    VECTOR_OF_BOOL,
    WRAP,
)
from mpsgrad.msl.library_names import LibraryNames
from mpsgrad.msl.member_initialisers import Member, initialised_members
from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.tokens import (
    IDENTIFIER,
    NUMBER,
    OPENING,
    PUNCTUATION,
    Token,
    matching,
    matching_angle,
    split_commas,
)
from mpsgrad.msl.vector_forms import VectorForms

_SHIFTS = ("<<", ">>", "<<=", ">>=")


class Rewriter:
    """Rewrites the tokens of one program for one target."""

    def __init__(
        self,
        program: Program,
        backend: Backend,
        names: LibraryNames,
        forms: VectorForms,
        types: VectorTypes,
        function_constants: FunctionConstants,
    ) -> None:
        self.backend = backend
        self.names = names
        self.forms = forms
        self.types = types
        self.function_constants = function_constants
        self._program = program

    def rewrite(self, tokens: Sequence[Token]) -> list[Token]:
        """``tokens``, a part of the program, in the target's language."""
        return _Pass(self, tokens).output()

    def text(self, tokens: Sequence[Token]) -> str:
        """The same on one line."""
        return " ".join(token.text for token in self.rewrite(tokens))

    @cached_property
    def constructor_qualifiers(self) -> frozenset[int]:
        """The identities of the address spaces behind the parameters of constructors, which are never ``const``."""
        tokens = self._program.tokens
        found = set()
        for opening in self._program.constructors:
            index = matching(tokens, opening) + 1
            while tokens[index].text in ADDRESS_SPACES:
                found.add(id(tokens[index]))
                index += 1
        return frozenset(found)

    @cached_property
    def initialised_members(self) -> Mapping[int, Member]:
        return initialised_members(self._program, self.types)

    @cached_property
    def names_of_bools(self) -> frozenset[str]:
        return names_of_bools(self._program.tokens)

    def converted_left(self, token: Token) -> str | None:
        """What stands on the left of the compound assignment ``token`` if its right side is to convert to that."""
        left = self.forms.converted.get(id(token))
        return None if left is None else self.text(self._program.tokens[slice(*left)])

    def converted_arm(self, token: Token) -> str | None:
        """The other arm of the choice in which a scalar arm begins at ``token``, if that is to convert to it."""
        other = self.forms.arms.get(id(token))
        if other is None:
            return None
        text = self.text(self._program.tokens[slice(*other)])
        # What begins in the arm may end behind it.
        return text + ")" * (text.count("(") - text.count(")"))


class _Declarator(NamedTuple):
    """The place of a variable's name that its value, or several, follow in brackets, and the function that makes it."""

    place: int
    making: str


class _Pass:
    """One way through some tokens. The methods that rewrite return the index behind what they have rewritten."""

    def __init__(self, rewriter: Rewriter, tokens: Sequence[Token]) -> None:
        self._rewriter = rewriter
        self._backend = rewriter.backend
        self._names = rewriter.names
        self._forms = rewriter.forms
        self._types = rewriter.types
        self._builds_vectors = not rewriter.backend.has_native_constructors
        self._tokens = tokens
        self._output: list[Token] = []
        # By the index of a token: what follows it, what stands in front of it, and around a variable's values.
        self._appended: dict[int, str] = {}
        self._prefixed: dict[int, str] = {}
        self._bracketed: dict[int, tuple[str, str]] = {}

    def output(self) -> list[Token]:
        tokens = self._tokens
        before = self._forms.before
        index = 0
        while index < len(tokens):
            token = tokens[index]
            arm = self._rewriter.converted_arm(token)
            if arm is not None:
                self._names.used.add(CONVERT_OPERAND)
                self._output.append(token.replaced(f"{CONVERT_OPERAND}<decltype(value_mtl({arm}))>(", PUNCTUATION))
            if id(token) in before:
                self._output.append(token.replaced(before[id(token)], PUNCTUATION))
            if index in self._prefixed:
                self._output.append(token.replaced(self._prefixed[index], PUNCTUATION))
            if token.kind == PUNCTUATION:
                index = self._punctuation(token, index)
            elif token.kind == IDENTIFIER:
                index = self._identifier(token, index)
            elif token.kind == NUMBER:
                index = self._number(token, index)
            else:
                index = self._as(token, token.text, index)
        return self._output

    def _as(self, token: Token, text: str, index: int) -> int:
        """Writes ``text`` for the token at ``index``."""
        self._output.append(token.replaced(text) if text != token.text else token)
        return index + 1

    def _text(self, index: int) -> str:
        return self._tokens[index].text if 0 <= index < len(self._tokens) else ""

    def _number(self, token: Token, index: int) -> int:
        text = self._backend.number(token.text)
        if text.startswith("bfloat("):
            self._names.used.add("bfloat")
        return self._as(token, text, index)

    # Brackets and operators.

    def _punctuation(self, token: Token, index: int) -> int:
        left = self._rewriter.converted_left(token)
        if left is not None:
            self._names.used.add(CONVERT_OPERAND)
            return self._as(token, f"{token.text} {CONVERT_OPERAND}<decltype(value_mtl({left}))>(", index)
        if token.text == "(" and self._builds_vectors:
            behind = self._cast(token, index)
            if behind is not None:
                return behind
        if token.text == "++" and not self._backend.has_increments_of_bools:
            where = increments_a_bool(self._tokens, index, self._rewriter.names_of_bools)
            if where:
                self._names.used.add(INCREMENT)
                return self._as(token, f"->*{INCREMENT}()" if where == "behind" else f"{INCREMENT}()->*", index)
        if token.text in _SHIFTS and not self._backend.has_wrapping_shifts:
            return self._as(token, self._wrapping_shift(index), index)
        if token.text == "[" and self._text(index + 1) == "[":
            close = matching(self._tokens, index)
            if self._text(close - 1) == "]":
                return close + 1
        return self._as(token, token.text + self._appended.get(index, ""), index)

    def _cast(self, token: Token, index: int) -> int | None:
        """Writes the cast to a vector that begins at ``index``, if one does."""
        tokens = self._tokens
        close = self._types.end_of_type(tokens, index + 1)
        if close is None or close + 1 >= len(tokens) or tokens[close].text != ")":
            return None
        is_behind_cast = bool(self._output) and self._output[-1].text == ">("
        if not is_behind_cast and not begins_operand(tokens, index, close + 1):
            return None
        # Signs and further casts bind tighter than the operator that stands for a cast.
        is_signed = self._text(index - 1) in ("-", "+", "~", "!")
        is_nested = self._types.is_cast(tokens, close + 1)
        end = self._types.end_of_operand(tokens, close + 1) if is_signed or is_nested else len(tokens)
        encloses = end < len(tokens)
        maker = CONSTRUCT_ONE if encloses else CAST
        self._names.used.add(maker)
        self._output.append(token.replaced(f"{maker}<"))
        self._output += self._rewriter.rewrite(tokens[index + 1 : close])
        self._output.append(tokens[close].replaced(">(" if encloses else ">()->*"))
        if encloses:
            self._close_before(end)
        return close + 1

    def _wrapping_shift(self, index: int) -> str:
        """The shift at ``index`` with its count modulo the width of what is shifted."""
        tokens = self._tokens
        text = tokens[index].text
        if tokens[index - 1].text == "operator" or index + 2 >= len(tokens):
            return text
        count, following = tokens[index + 1].text, tokens[index + 2].text
        if count.isdecimal() and int(count) < 32 and following in (")", "]", ";", ",", "|", "&", "^", "<<", ">>"):
            # Scalars have at least as many bits once they are promoted, and vectors wrap by themselves.
            return text
        self._names.used.add(WRAP)
        if not text.endswith("="):
            return f"{text} {WRAP}() {text}"
        end = index + 1
        while end < len(tokens) and tokens[end].text not in (";", ")", "]", "}", ","):
            if tokens[end].text == "<" and tokens[end - 1].kind == IDENTIFIER:
                end = matching_angle(tokens, end) or end
            end = matching(tokens, end) + 1 if tokens[end].text in OPENING else end + 1
        self._close_before(end)
        return f"{text} {COUNT}("

    # Names.

    def _opens_library(self, index: int) -> bool:
        """Whether names of the library's follow, as behind ``using`` and ``using namespace``."""
        while self._text(index) in ("namespace", "::"):
            index += 1
        return self._text(index) == "metal"

    def _identifier(self, token: Token, index: int) -> int:
        text, following = token.text, self._text(index + 1)
        if index in self._bracketed:
            return self._initialised_variable(token, index)
        if self._builds_vectors and id(token) in self._rewriter.initialised_members:
            self._note_initialised_member(token, index)
        if following == "::" and text in ("metal", "precise", "fast", "simd"):
            return self._names.qualified(self._tokens, index, self._output)
        if following == "::" and text == "memory_order":
            return index + 2
        if text == "using" and self._opens_library(index + 1):
            return next(i for i in range(index, len(self._tokens)) if self._text(i) == ";")
        if text == IS_DEFINED and self._text(index + 3) == ")":
            is_set = self._rewriter.function_constants.is_set(self._tokens[index + 2])
            self._output.append(token.replaced("true" if is_set else "false"))
            return index + 4
        if text in ADDRESS_SPACES:
            return self._address_space(token, index)
        if text in ("noinline", "__noinline__") and self._text(index - 1) == "(" and self._builds_vectors:
            # Intel's compiler mixes up the threads' vectors of three that such a function has pointers to.
            return self._as(token, "unused", index)
        if self._types.is_vector(text):
            self._names.used.add(text)
            if self._builds_vectors:
                return self._vector(token, index)
            return self._as(token, self._backend.vector_type(text), index)
        if text == "decltype" and self._builds_vectors and following == "(" and self._text(index + 2) != "auto":
            self._names.used.add(DECLARED)
            self._append(matching(self._tokens, index + 1), ">")
            return self._as(token, f"{DECLARED}<decltype", index)
        if self._builds_vectors:
            behind = self._qualified_construction(index)
            if behind is None:
                behind = self._vector_by_another_name(token, index, following)
            if behind is not None:
                return behind
        if self._names.has(text) and text not in self._names.users:
            self._names.used.add(text)
        spelling = self._names.spelling(text)
        if id(token) in self._forms.views_read:
            spelling += f".{VALUE}()"
        return self._as(token, spelling, index)

    def _address_space(self, token: Token, index: int) -> int:
        if id(token) in self._forms.unnamed_spaces:
            return index + 1
        spelling = self._backend.address_spaces[token.text]
        if token.text == "threadgroup" and declares_variable(self._tokens, index):
            spelling = self._backend.threadgroup_variable
        is_constant_twice = token.text == "constant" and self._is_const(index)
        if id(token) in self._rewriter.constructor_qualifiers or is_constant_twice:
            spelling = spelling.removeprefix("const").strip()
        if spelling:
            self._output.append(token.replaced(spelling))
        return index + 1

    def _is_const(self, index: int) -> bool:
        """Whether the words around the address space at ``index`` say ``const``."""
        if self._output and self._output[-1].text == "const":
            return True
        index += 1
        while self._text(index) in ("constexpr", "static", "inline"):
            index += 1
        return self._text(index) == "const"

    def _vector(self, token: Token, index: int) -> int:
        """Writes a vector type's name, and the construction that it begins."""
        text = token.text
        if self._text(index + 1) != "(" or self._text(index - 1) == "operator":
            for declarator in self._declarators(index + 1):
                if declarator.making == CONSTRUCT:
                    self._bracketed[declarator.place] = (f"({self._backend.vector_cast(text)}(", "))")
                elif declarator.making == CONSTRUCT_ALL:
                    self._names.used.add(CONSTRUCT_ALL)
                    self._bracketed[declarator.place] = (f"{CONSTRUCT_ALL}<{self._names.spelling(text)}>(", ")")
                else:
                    self._names.used.add(f"make:{text}")
                    self._bracketed[declarator.place] = (f"make_{text}{RENAMED_SUFFIX}(", ")")
            return self._as(token, text, index)
        closing = matching(self._tokens, index + 1)
        arguments = split_commas(self._tokens[index + 2 : closing])
        if self._text(closing - 1) == "...":
            self._names.used.add(CONSTRUCT_ALL)
            return self._as(token, f"{CONSTRUCT_ALL}<{self._names.spelling(text)}>", index)
        if len(arguments) > 1 or (arguments and self._text(closing - 1) == ","):
            self._unpack(arguments, index + 1)
            self._append(closing, ")")
            return self._as(token, "(" + self._backend.vector_cast(text), index)
        if arguments and not declares_indirectly(arguments[0], self._tokens, closing):
            self._names.used.add("make:" + text)
            return self._as(token, f"make_{text}{RENAMED_SUFFIX}", index)
        return self._as(token, text, index)

    def _qualified_construction(self, index: int) -> int | None:
        """Writes ``of<T>::type(x)``, where ``type`` may be a vector, if that begins at ``index``."""
        tokens = self._tokens
        last = index
        while True:
            angle = matching_angle(tokens, last + 1) if self._text(last + 1) == "<" else None
            behind = last if angle is None else angle
            if self._text(behind + 1) != "::":
                break
            last = behind + 2
        before = index - 1
        while self._text(before) == "::" and self._text(before - 1) == "metal":
            before -= 2
        is_alias = last > index and self._text(last) in self._types.aliases
        if not is_alias or self._text(before) == "::":
            return None
        if self._text(behind + 1) != "(":
            self._note_declarators_of_alias(index, last, behind)
            return None
        closing = matching(tokens, behind + 1)
        arguments = split_commas(tokens[behind + 2 : closing])
        making = _maker(arguments)
        if making is None or declares_indirectly(arguments[0], tokens, closing):
            return None
        self._names.used.add(making)
        dependent = [self._output.pop()] if self._text(before) == "typename" else []
        self._output.append(tokens[index].replaced(f"{making}<"))
        self._output += [*dependent, *self._rewriter.rewrite(tokens[index : behind + 1]), tokens[last].replaced(" >")]
        return behind + 1

    def _vector_by_another_name(self, token: Token, index: int, following: str) -> int | None:
        """Writes what may construct a vector or name one otherwise than by its own name, if ``token`` does."""
        text = token.text
        tokens = self._tokens
        is_alias = text in self._types.aliases
        if is_alias and following == "(" and self._text(index - 1) not in ("~", ".", "->"):
            closing = matching(tokens, index + 1)
            arguments = split_commas(tokens[index + 2 : closing])
            making = _maker(arguments)
            if making is not None and not declares_indirectly(arguments[0], tokens, closing):
                self._names.used.add(making)
                return self._as(token, f"{making}<{self._names.spelling(text)}>", index)
        is_template = text == "vec" or is_alias
        close_angle = None
        if following == "<" and (is_template or text == "static_cast"):
            close_angle = matching_angle(tokens, index + 1)
        if text == "static_cast" and close_angle is not None:
            if self._types.end_of_type(tokens, index + 2) == close_angle:
                self._names.used.add(CONSTRUCT_ONE)
                return self._as(token, CONSTRUCT_ONE, index)
        if is_template and self._text(index - 1) != "::":
            self._note_declarators_of_alias(index, index, index if close_angle is None else close_angle)
        if text == "vec" and [self._text(index + place) for place in (1, 2, 3)] == ["<", "bool", ","]:
            self._names.used.add(VECTOR_OF_BOOL)
            self._output += [token.replaced(VECTOR_OF_BOOL), tokens[index + 1]]
            return index + 4
        spelling = self._names.spelling(text)
        element = self._text(index + 2)
        if text == "vec" and (built_in(element) is None or element in self._backend.class_scalars):
            self._names.used.add(VECTOR_OF_BOOL)
            if self._names.mentions_bfloat:
                self._names.used.add(VECTOR_OF_BFLOAT)
            spelling = VECTOR
        if is_template and close_angle is not None and self._text(close_angle + 1) == "(":
            closing = matching(tokens, close_angle + 1)
            making = _maker(split_commas(tokens[close_angle + 2 : closing]))
            if making is not None:
                self._names.used.add(making)
                self._append(close_angle, " >")
                return self._as(token, f"{making}<{spelling}", index)
        return self._as(token, spelling, index) if text == "vec" else None

    def _initialised_variable(self, token: Token, index: int) -> int:
        """Writes the variable at ``index`` whose values stand in brackets behind it."""
        opening, closer = self._bracketed[index]
        bracket = self._tokens[index + 1]
        closing = matching(self._tokens, index + 1)
        self._output.append(token.replaced(self._names.spelling(token.text)))
        self._unpack(split_commas(self._tokens[index + 2 : closing]), index + 1)
        self._output.append(bracket.replaced(f" = {opening}" + self._appended.pop(index + 1, "")))
        self._append(closing, closer[1:])
        return index + 2

    def _note_initialised_member(self, token: Token, index: int) -> None:
        """Notes what is to stand around the values that a constructor gives a member."""
        member = self._rewriter.initialised_members[id(token)]
        closing = matching(self._tokens, index + 1)
        making = _maker(split_commas(self._tokens[index + 2 : closing]))
        if making is None or (making == CONSTRUCT_ONE and not member.is_vector):
            return
        self._names.used.add(making)
        self._append(index + 1, f"{making}<{self._rewriter.text(member.type)} >(")
        self._append(closing, ")")

    def _append(self, index: int, text: str) -> None:
        self._appended[index] = self._appended.get(index, "") + text

    def _close_before(self, index: int) -> None:
        self._prefixed[index] = ")" + self._prefixed.get(index, "")

    def _unpack(self, arguments: Sequence[Sequence[Token]], opening: int) -> None:
        """Wraps a vector constructor's arguments where they may be packed vectors: the compiler takes only its own."""
        if not self._names.has_packed_vectors:
            return
        position = opening
        for argument in arguments:
            self._appended[position] = f" {UNPACK}("
            position += len(argument) + 1
            self._close_before(position)

    def _note_declarators_of_alias(self, start: int, name: int, end: int) -> None:
        """Notes the variables behind the type of the tokens from ``start`` to ``end``, in which ``name`` is that of
        what may be a vector."""
        is_vector = self._text(name) == "vec" or self._text(name) in self._types.vector_aliases
        declarators = [each for each in self._declarators(end + 1) if is_vector or each.making != CONSTRUCT_ONE]
        if not declarators:
            return
        dependent = "typename " if self._text(start - 1) == "typename" else ""
        written = f"<{dependent}{self._rewriter.text(self._tokens[start : end + 1])} >("
        for declarator in declarators:
            self._names.used.add(declarator.making)
            self._bracketed[declarator.place] = (declarator.making + written, ")")

    def _declarators(self, index: int) -> list[_Declarator]:
        """The variables ``v(a, b, ...)`` of a declaration whose type ends before ``index``, and that are no pointers to
        one value."""
        tokens = self._tokens
        found = []
        while index < len(tokens):
            if tokens[index].text in ("*", "&", "const"):
                index += 1
                continue
            if tokens[index].kind != IDENTIFIER or index + 1 >= len(tokens):
                break
            if tokens[index + 1].text == "(":
                end = matching(tokens, index + 1)
                if self._text(end + 1) not in (",", ";", ")"):
                    # A function, which others may follow.
                    break
                values = split_commas(tokens[index + 2 : end])
                making = _making(values)
                if making != CONSTRUCT_ONE or tokens[index - 1].text not in ("*", "&"):
                    if values and are_values(values):
                        found.append(_Declarator(index, making))
            elif tokens[index + 1].text not in (",", "=", "[", "{"):
                break
            while index < len(tokens) and tokens[index].text not in (",", ";", ")", "}", ":"):
                index = matching(tokens, index) + 1 if tokens[index].text in OPENING else index + 1
            if index >= len(tokens) or tokens[index].text != ",":
                break
            index += 1
        return found


def _maker(arguments: Sequence[Sequence[Token]]) -> str | None:
    """The function that makes what may be a vector of ``arguments``; None if they are a function's parameters."""
    if not arguments or not are_values(arguments) or any(argument[0].text == "{" for argument in arguments):
        return None
    return _making(arguments)


def _making(arguments: Sequence[Sequence[Token]]) -> str:
    """The function that makes what may be a vector of so many ``arguments``."""
    if arguments and arguments[-1][-1].text == "...":
        return CONSTRUCT_ALL
    return CONSTRUCT if len(arguments) > 1 else CONSTRUCT_ONE
