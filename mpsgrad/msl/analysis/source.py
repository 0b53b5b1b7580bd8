"""A preprocessed source for analysis: its tokens, the outline of the program, and its scopes."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple, TypeVar

from mpsgrad.errors import ShaderError
from mpsgrad.msl.analysis.statements import Range, Statements
from mpsgrad.msl.analysis.template_brackets import template_brackets
from mpsgrad.msl.analysis.types import Type, built_in, read_type, size_and_alignment
from mpsgrad.msl.backend import INDEX_ATTRIBUTES, POSITION_ATTRIBUTES
from mpsgrad.msl.constant_expressions import enumerators, integer_value
from mpsgrad.msl.declarations import end_of_initialisers
from mpsgrad.msl.program import Attribute, Kernel, Parameter, Program
from mpsgrad.msl.tokens import (
    IDENTIFIER,
    OPENING,
    PUNCTUATION,
    Token,
    matching_angle,
    skip_attributes,
    split_commas,
)
from mpsgrad.msl.type_names import type_names

BUILT_IN_TYPE = re.compile(
    r"(?:packed_)?(?:bool|u?char|u?short|u?int|u?long|half|bfloat|float|size_t|ptrdiff_t|unsigned|signed"
    r"|u?int(?:8|16|32|64)_t|atomic_u?int|float\dx\d|half\dx\d|bfloat\dx\d)[234]?$"
)
WRITING_FUNCTIONS = frozenset({"sincos", "modf", "frexp"})
"""Those of the library that give a value to an argument that is named."""
_STATEMENT_WORDS = frozenset(
    "return else do case goto new delete throw using typedef template typename break continue if for while switch"
    " struct class union enum operator sizeof public private protected namespace default static_assert".split()
)

_BEFORE_STATEMENTS = frozenset({";", "{", "}", "else", "do"})
_CONDITIONS = frozenset({"for", "if", "while", "switch"})
_ENDS = frozenset({";", ")", "}"})
_EXPRESSION_ENDS = _ENDS | {",", "]"}
# Where longer expressions end is kept for all that stands in them.
_FAR = 64
_CONSTANTS = frozenset({"const", "constexpr", "constant", "enum", "{", ","})

Made = TypeVar("Made")


class _ByIndex(dict[int, str]):
    """Words by their indices; there are empty ones on both sides."""

    def __missing__(self, index: int) -> str:
        return ""


class Variable(NamedTuple):
    """A variable, its type (None where that cannot be told), its array's extents, and where its name means it.

    ``initialiser`` is the range of tokens behind ``=`` that an ``auto`` takes its type from.
    """

    name: str
    place: int
    type: Type | None
    first: int
    last: int
    extents: tuple[int | None, ...] = ()
    is_reference: bool = False
    initialiser: tuple[int, int] | None = None


class Function(NamedTuple):
    """A function's definition; ``start`` is where its return type begins. ``owner`` is its class, if it is a member."""

    name: str
    start: int
    opening: int
    closing: int
    body_open: int
    body_close: int
    kernel: Kernel | None
    is_template: bool
    owner: str | None


class Source:
    """One preprocessed source. ``version`` is the language version that it is checked against, ``(2, 3)`` for 2.3.

    Its tokens have to stay as they are while it is in use.
    """

    def __init__(
        self,
        tokens: list[Token],
        program: Program,
        version: tuple[int, int],
        metalcompute: bool,
        text: str,
        filename: str,
    ) -> None:
        self.tokens = tokens
        self.program = program
        self.version = version
        self.metalcompute = metalcompute
        self.written = text
        self.filename = filename
        self.texts = [token.text for token in tokens]
        # The text and the kind of the token at an index: empty beyond the ends.
        self.text: Callable[[int], str] = _ByIndex(enumerate(self.texts)).__getitem__
        self.kind: Callable[[int], str] = _ByIndex(enumerate([token.kind for token in tokens])).__getitem__
        self._kept: dict[Hashable, object] = {}
        self._far_ends: dict[int, int] = {}

    def keep(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What ``make`` gives, which is asked for once only under each key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]  # type: ignore[return-value]

    @cached_property
    def partners(self) -> list[int]:
        """For each bracket the index of its partner, -1 for one without and for every other token."""
        return _partners(self.tokens)

    @property
    def is_header(self) -> bool:
        """Whether the file is made to be included, so that others complete it."""
        return self.filename.endswith((".h", ".hpp"))

    def close(self, index: int) -> int:
        """The index of the bracket that closes the one at ``index``, or -1."""
        return self.partners[index]

    @cached_property
    def _by_text(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for index, text in enumerate(self.texts):
            found.setdefault(text, []).append(index)
        return found

    def places(self, *texts: str, start: int = 0, end: int | None = None) -> list[int]:
        """The indices of the tokens that read like one of ``texts``, in order, those before ``start`` and from ``end``
        on left out."""
        lists = [self._by_text[text] for text in dict.fromkeys(texts) if text in self._by_text]
        if start or end is not None:
            last = len(self.tokens) if end is None else end
            lists = [found[bisect_left(found, start) : bisect_left(found, last)] for found in lists]
        return lists[0] if len(lists) == 1 else sorted(chain.from_iterable(lists))

    def matches(self, pattern: re.Pattern[str]) -> list[int]:
        """The indices of the tokens whose whole text has this form, in order."""
        return self.places(*(text for text in self._by_text if pattern.fullmatch(text)))

    def words(self, *names: str) -> Iterator[int]:
        """The indices of the identifiers called one of ``names``, members of other objects left out."""
        for index in self.places(*names):
            if self.kind(index) == IDENTIFIER and self.text(index - 1) not in (".", "->"):
                yield index

    @cached_property
    def _called(self) -> dict[str, list[int]]:
        """By name, the indices of the names of free functions that are called."""
        found: dict[str, list[int]] = {}
        for opening in self.places("("):
            if self.kind(opening - 1) == IDENTIFIER and self.text(opening - 2) not in (".", "->"):
                found.setdefault(self.text(opening - 1), []).append(opening - 1)
        return found

    def calls(self, names: re.Pattern[str] | Iterable[str] | None = None) -> list[int]:
        """The indices of the names of free functions that are called, in order: of those that match or are given."""
        called = self._called
        if names is None:
            wanted: Iterable[str] = called
        elif isinstance(names, re.Pattern):
            wanted = [name for name in called if names.match(name)]
        else:
            wanted = [name for name in set(names) if name in called]
        return sorted(chain.from_iterable(called[name] for name in wanted))

    def arguments(self, opening: int) -> list[tuple[int, int]]:
        """The ranges of the arguments in the brackets that open at ``opening``."""
        return self.keep(("arguments", opening), lambda: self._ranges(opening))

    def _ranges(self, opening: int) -> list[tuple[int, int]]:
        closing = self.close(opening)
        if closing < 0:
            return []
        ranges = []
        start = opening + 1
        for part in split_commas(self.tokens[opening + 1 : closing]):
            ranges.append((start, start + len(part)))
            start += len(part) + 1
        return ranges

    @cached_property
    def types(self) -> frozenset[str]:
        """Names of types: the language's, and those that the program declares."""
        names = {"void", "auto"} | self.aliases.keys() | self.struct_bodies.keys()
        for index in self.places("struct", "class", "union", "enum", "typename"):
            is_pack = self.text(index + 1) == "..."
            name = skip_attributes(self.tokens, index + 1 + is_pack, len(self.tokens))
            if self.kind(name) == IDENTIFIER:
                names.add(self.text(name))
        return frozenset(names)

    def is_type(self, index: int) -> bool:
        return self.text(index) in self._type_names

    @cached_property
    def _type_names(self) -> frozenset[str]:
        return self.types.union(text for text in self._by_text if BUILT_IN_TYPE.match(text))

    @cached_property
    def bodies(self) -> list[tuple[int, int, bool]]:
        """The bodies of functions, and whether each is a kernel's."""
        found = [(start, end, False) for ranges in self.program.functions.values() for start, end in ranges]
        found += [(kernel.body_open, kernel.body_close, True) for kernel in self.program.kernels]
        return sorted(found)

    @cached_property
    def _inside(self) -> bytearray:
        inside = bytearray(len(self.tokens))
        for start, end, _ in self.bodies:
            inside[start + 1 : end] = b"\1" * (end - start - 1)
        return inside

    def in_body(self, index: int) -> bool:
        return 0 <= index < len(self._inside) and self._inside[index] == 1

    @cached_property
    def constants(self) -> dict[str, int]:
        """Integer constants by name; a name with two values is left out."""
        values: dict[str, int] = {}
        ambiguous: set[str] = set()
        tokens = self.tokens
        for index in self.places("=", start=1, end=len(tokens) - 2):
            if tokens[index - 1].kind != IDENTIFIER:
                continue
            before = {self.text(index - offset) for offset in range(2, 6)}
            end = index + 1
            while end < len(tokens) and tokens[end].text not in (";", ",", "}", "{") and end - index < 24:
                end += 1
            try:
                value = integer_value(tokens[index + 1 : end], tokens[index], values)
            except ShaderError:
                ambiguous.add(tokens[index - 1].text)
                continue
            name = tokens[index - 1].text
            if not before & _CONSTANTS:
                ambiguous.add(name)
            if values.setdefault(name, value) != value:
                ambiguous.add(name)
        for index in self.places("enum"):
            for name, value in enumerators(tokens, index, values):
                if values.setdefault(name, value) != value or any(map(self._follows_type, self.places(name))):
                    ambiguous.add(name)
        return {name: value for name, value in values.items() if name not in ambiguous}

    def _follows_type(self, index: int) -> bool:
        """Whether the name at ``index`` stands where one is declared that may hide others."""
        if self.text(index - 1) in ("&", "*"):
            return self.is_type(index - 2)
        return self.kind(index - 1) == IDENTIFIER and self.text(index - 1) not in _STATEMENT_WORDS

    def integer(self, tokens: Sequence[Token]) -> int | None:
        """The value of an integer constant expression, or None where the source alone does not tell."""
        try:
            return integer_value(tokens, tokens[0], self.constants) if tokens else None
        except ShaderError:
            return None

    # Types that the program declares.

    @cached_property
    def aliases(self) -> dict[str, Type | None]:
        """Names from ``using`` and ``typedef``; None where that cannot be told what they stand for."""
        found: dict[str, Type | None] = {}
        for each in type_names(self.tokens):
            name, end = each.name.text, len(each.meaning)
            if each.defines_class and name in self.struct_bodies:
                continue
            read = read_type(each.meaning, 0, end, found, {})
            is_known = read is not None and read[1] == end and (read[0].known or read[0].pointers)
            kind = read[0] if read is not None and is_known else None
            found[name] = kind if found.get(name, kind) == kind else None
        return found

    @cached_property
    def struct_bodies(self) -> dict[str, list[tuple[int, int, bool]]]:
        """Where each struct's body is, and whether the struct is a template."""
        return self._class_bodies("struct", "class")

    def _class_bodies(self, *keywords: str) -> dict[str, list[tuple[int, int, bool]]]:
        """The bodies of named classes, and of those that only a typedef names."""
        found: dict[str, list[tuple[int, int, bool]]] = {}
        for index in self.places(*keywords):
            if self.text(index - 1) in ("<", ",", "enum"):
                continue
            position = skip_attributes(self.tokens, index + 1, len(self.tokens))
            name = self.text(position)
            if name == "{" and self.text(index - 1) == "typedef":
                name = self.text(self.close(position) + 1)
            elif self.kind(position) != IDENTIFIER or self.text(position + 1) not in ("{", ":", "<", "final"):
                continue
            while position < len(self.tokens) and self.text(position) not in ("{", ";", "("):
                position += 1
            if self.text(position) == "{" and self.close(position) > 0:
                is_template = self.text(index - 1) == ">"
                found.setdefault(name, []).append((position, self.close(position), is_template))
        return found

    @cached_property
    def members(self) -> dict[str, dict[str, tuple[Type | None, tuple[int | None, ...]]]]:
        """The data members of each struct that is no template and has no base."""
        return self._members_of(self.struct_bodies)

    @cached_property
    def union_members(self) -> dict[str, dict[str, tuple[Type | None, tuple[int | None, ...]]]]:
        """The members of each union; braces give the first a value."""
        return self._members_of(self._class_bodies("union"))

    def _members_of(
        self, classes: Mapping[str, list[tuple[int, int, bool]]]
    ) -> dict[str, dict[str, tuple[Type | None, tuple[int | None, ...]]]]:
        known: dict[str, dict[str, tuple[Type | None, tuple[int | None, ...]]]] = {}
        for name, bodies in classes.items():
            start, end, is_template = bodies[0]
            if len(bodies) > 1 or is_template or self.text(start - 1) not in (name, "struct", "class", "union"):
                continue
            known[name] = {}
            for variable in self.declarations_between(start, end, depth_limit=True):
                # Functions are declared like variables with a value in round brackets, which members cannot have, and
                # ``operator[]`` like an array.
                is_function = self.text(variable.place + 1) == "(" or variable.name == "operator"
                if not is_function and not self._is_static(variable.place):
                    known[name][variable.name] = (variable.type, variable.extents)
        return known

    def _is_static(self, index: int) -> bool:
        """Whether the member that is declared at ``index`` is no part of the objects."""
        start = index
        while start > 0 and self.text(start - 1) not in (";", "}", "{"):
            start -= 1
        return "static" in self.texts[start:index]

    @cached_property
    def layouts(self) -> dict[str, list[tuple[Type | None, int]]]:
        """The members of each struct in order, with how many elements each has; None for a type that is not known."""
        found: dict[str, list[tuple[Type | None, int]]] = {}
        for name, members in self.members.items():
            found[name] = []
            is_packed = self.is_packed(self.struct_bodies[name][0][0])
            for kind, extents in members.values():
                count = 1
                for extent in extents:
                    count *= extent or 1
                    kind = None if extent is None or is_packed else kind
                found[name].append((element_of(kind, extents), count))
        return found

    def is_packed(self, opening: int) -> bool:
        """Whether the members of the struct whose body begins at ``opening`` may be aligned to less than their types,
        or the struct to more."""
        start = opening
        while start > 0 and self.text(start - 1) not in (";", "}", "{"):
            start -= 1
        if {"packed", "aligned", "alignas", "__packed__", "__aligned__"} & set(self.texts[start:opening]):
            return True
        directives = (token.text for token in reversed(self.tokens[:opening]) if token.kind == "pragma")
        last = next((text for text in directives if text.startswith("#pragma pack")), "#pragma pack()")
        return "pop" not in last and last != "#pragma pack()"

    def size(self, kind: Type) -> int | None:
        """Bytes of an object of this type."""
        found = size_and_alignment(kind, self.layouts)
        return found[0] if found else None

    def alignment(self, kind: Type) -> int | None:
        """What the address of an object of this type is a multiple of."""
        found = size_and_alignment(kind, self.layouts)
        return found[1] if found else None

    def member_place(self, struct: str, member: str) -> int | None:
        """The token that declares a struct's member."""
        start, end, _ = self.struct_bodies[struct][0]
        declared = self.declarations_between(start, end, depth_limit=True)
        return next((variable.place for variable in declared if variable.name == member), None)

    @cached_property
    def methods(self) -> dict[str, dict[str, list[tuple[int, frozenset[str]]]]]:
        """For each struct its member functions: the name's index and the words behind the parameters."""
        found: dict[str, dict[str, list[tuple[int, frozenset[str]]]]] = {}
        for name, bodies in self.struct_bodies.items():
            for start, end, _ in bodies:
                index = start + 1
                while index < end:
                    if self.text(index) == "(" and self.kind(index - 1) == IDENTIFIER:
                        position = self.close(index) + 1
                        words = set()
                        while position < end and self.kind(position) == IDENTIFIER:
                            words.add(self.text(position))
                            position += 1
                        if self.text(position) in ("{", ";"):
                            entry = (index - 1, frozenset(words))
                            found.setdefault(name, {}).setdefault(self.text(index - 1), []).append(entry)
                    if self.text(index) in OPENING and self.close(index) > index:
                        index = self.close(index)
                    index += 1
        return found

    # Functions and variables.

    @cached_property
    def functions(self) -> list[Function]:
        found = []
        for start, opening, end in self.program.function_heads:
            found.append(self._function(start, opening, end, None, None))
        for owner, start, opening, end in self.program.member_heads:
            name = next((n for n, b in self.struct_bodies.items() if any(s < opening < e for s, e, _ in b)), "")
            if any(head[1] == opening for head in self.program.function_heads):
                continue
            found.append(self._function(max(start, owner), opening, end, None, name))
        for kernel in self.program.kernels:
            function = self._function(kernel.start, kernel.parameters_open, kernel.body_close + 1, kernel, None)
            found.append(function._replace(body_open=kernel.body_open))
        return sorted(found, key=lambda function: function.start)

    def _function(self, start: int, opening: int, end: int, kernel: Kernel | None, owner: str | None) -> Function:
        is_template = self.text(start) == "template"
        while self.text(start) == "template" and self.text(start + 1) == "<":
            close = matching_angle(self.tokens, start + 1, opening)
            if close is None:
                break
            start = close + 1
        closing = self.close(opening)
        body_open = closing + 1
        while body_open < end and self.text(body_open) not in ("{", ":"):
            body_open += 1
        body_open = end_of_initialisers(self.tokens, body_open, end)
        name = self.text(opening - 1)
        return Function(name, start, opening, closing, body_open, end - 1, kernel, is_template, owner)

    @cached_property
    def functions_by_name(self) -> dict[str, list[Function]]:
        found: dict[str, list[Function]] = {}
        for function in self.functions:
            found.setdefault(function.name, []).append(function)
        return found

    @cached_property
    def lambdas(self) -> list[Function]:
        """The lambda expressions in the bodies of functions, as functions that objects are called by. One without
        parameters opens and closes at its last square bracket."""
        found = []
        for start in self.places("["):
            before = self.text(start - 1)
            is_subscript = self.kind(start - 1) == IDENTIFIER and before not in ("return", "else", "do")
            closing = self.close(start)
            if is_subscript or before in (")", "]", "[") or closing < 0 or not self.in_body(start):
                continue
            opening = closing + 1 if self.text(closing + 1) == "(" else closing
            closing = max(self.close(opening), closing)
            body = skip_attributes(self.tokens, closing + 1, len(self.tokens))
            while self.text(body) not in ("{", "}", ";", ",", ")", "=", ""):
                body = max(body + 1, skip_attributes(self.tokens, body, len(self.tokens)))
            if self.text(body) == "{" and self.close(body) > 0:
                found.append(Function(")", start, opening, closing, body, self.close(body), None, False, None))
        return found

    @cached_property
    def declared_functions(self) -> frozenset[str]:
        """Names of functions that the program defines or declares: a type stands before the name."""
        names = set(self.program.functions)
        for opening in self.places("(", start=2):
            if self.kind(opening - 1) == IDENTIFIER:
                before = self.tokens[opening - 2]
                is_word = before.kind == IDENTIFIER and before.text not in _STATEMENT_WORDS
                if is_word or before.text in (">", "&", "*") and self.is_type(opening - 3):
                    names.add(self.text(opening - 1))
        return frozenset(names)

    def passed(self) -> Iterator[tuple[int, Type, int, int, int]]:
        """What calls pass to functions of which there is one by the name: where that stands, the parameter's type,
        where the parameter's name is to stand, and where the argument begins and ends."""
        for index in self.calls(self.functions_by_name):
            functions = self.functions_by_name[self.text(index)]
            if len(functions) != 1 or functions[0].owner is not None or not self.in_body(index):
                continue
            if self.text(index - 1) == "::" or len(self.program.functions.get(self.text(index), ())) > 1:
                continue
            given = self.arguments(index + 1)
            for (first, last), (start, end) in zip(self.arguments(functions[0].opening), given, strict=False):
                read = read_type(self.tokens, first, last, self.aliases, self.members)
                if read is not None:
                    yield index, *read, start, end

    def return_type(self, function: Function) -> Type | None:
        if function.is_template or function.owner is not None:
            return None
        read = read_type(self.tokens, function.start, function.opening, self.aliases, self.members)
        return read[0] if read is not None and read[1] == function.opening - 1 and read[0].known else None

    @cached_property
    def variables(self) -> dict[str, list[Variable]]:
        """Every variable by name, in the order in which they come into being."""
        found: dict[str, list[Variable]] = {}
        end = len(self.tokens)
        for start, stop in self.program.variables:
            for variable in self._declaration(start, stop, end):
                found.setdefault(variable.name, []).append(variable._replace(first=start, last=end))
        for variable in self._template_values():
            found.setdefault(variable.name, []).append(variable)
        for function in self.lambdas:
            for variable in self._parameters(function):
                found.setdefault(variable.name, []).append(variable)
        for function in self.functions:
            for variable in self._parameters(function):
                found.setdefault(variable.name, []).append(variable)
            for variable in self.declarations_between(function.body_open, function.body_close):
                found.setdefault(variable.name, []).append(variable)
        for name, bodies in self.struct_bodies.items():
            # Inside a struct its members hide what is outside.
            for start, close, _ in bodies:
                for variable in self.declarations_between(start, close, depth_limit=True):
                    kind = variable.type if name in self.members else None
                    found.setdefault(variable.name, []).append(variable._replace(type=kind, first=start, last=close))
        for variables in found.values():
            variables.sort(key=lambda variable: variable.first)
        return found

    @cached_property
    def _scopes(self) -> dict[str, tuple[list[int], list[int]]]:
        """By name, for each variable: where it begins, and the position of the last one before that lives on there."""
        found = {}
        for name, variables in self.variables.items():
            around: list[int] = []
            living: list[int] = []
            for position, variable in enumerate(variables):
                while living and variables[living[-1]].last <= variable.first:
                    living.pop()
                around.append(living[-1] if living else -1)
                living.append(position)
            found[name] = [variable.first for variable in variables], around
        return found

    def variable(self, name: str, index: int) -> Variable | None:
        """The variable that ``name`` means at ``index``."""
        variables = self.variables.get(name)
        if variables is None:
            return None
        firsts, around = self._scopes[name]
        position = bisect_right(firsts, index) - 1
        while position >= 0 and index >= variables[position].last:
            position = around[position]
        return variables[position] if position >= 0 else None

    @cached_property
    def starts_of_classes(self) -> frozenset[int]:
        """Where the bodies of classes begin, from where on the names of their members mean them."""
        return frozenset(start for bodies in self.struct_bodies.values() for start, *_ in bodies)

    @cached_property
    def template_values(self) -> frozenset[str]:
        """The names of the parameters of templates that are values."""
        return frozenset(variable.name for variable in self._template_values())

    def _template_values(self) -> Iterator[Variable]:
        """The parameters of templates that are values of a scalar type, and packs of such."""
        for index in self.places("template"):
            if self.text(index + 1) != "<":
                continue
            close = matching_angle(self.tokens, index + 1, certain=True)
            if close is None:
                continue
            last = close
            while last < len(self.tokens) and self.text(last) not in ("{", ";"):
                last = max(self.close(last), last) + 1
            last = max(self.close(last), last) if last < len(self.tokens) else last
            start = index + 2
            for part in split_commas(self.tokens[start:close]):
                read = read_type(self.tokens, start, start + len(part), self.aliases, {})
                name = read[1] + (self.text(read[1]) == "...") if read is not None else start
                if read is not None and read[0].is_scalar and self.kind(name) == IDENTIFIER:
                    yield Variable(self.text(name), name, read[0], index, last)
                start += len(part) + 1

    def _parameters(self, function: Function) -> Iterator[Variable]:
        for start, end in self.arguments(function.opening):
            read = read_type(self.tokens, start, end, self.aliases, self.members)
            if read is None:
                continue
            kind, index = read
            is_reference = any(token.text in ("&", "&&") for token in self.tokens[start:index])
            while index < end and self.text(index) == "&&":
                index += 1
            index += self._names_in_brackets(index, end)
            if index >= end or self.kind(index) != IDENTIFIER:
                continue
            known: Type | None = kind if kind.known or kind.pointers else None
            if self.text(index + 1) == "[" and self.text(index + 2) != "[":
                known = kind._replace(pointers=kind.pointers + 1)
            yield Variable(self.text(index), index, known, function.opening, function.body_close, (), is_reference)

    def declarations_between(self, start: int, end: int, depth_limit: bool = False) -> Iterator[Variable]:
        """The variables declared between two braces; with ``depth_limit`` none in inner ones."""
        scopes = [(start, end)]
        index = start + 1
        texts, kind = self.texts, self.kind
        while index < end:
            text = texts[index]
            if text == "{":
                if depth_limit:
                    index = max(self.close(index), index) + 1
                    continue
                scopes.append((index, self.close(index)))
            elif text == "}":
                if len(scopes) > 1:
                    scopes.pop()
            before = texts[index - 1]
            if before in _BEFORE_STATEMENTS:
                begins = True
            elif before == "(":
                begins = self.text(index - 2) in _CONDITIONS
            elif before == ")":
                begins = self._ends_condition(index - 1)
            elif before == ":":
                begins = not self._is_in_choice(index - 1)
            else:
                begins = kind(index - 1) == "pragma" or before == "]" and self.text(index - 2) == "]"
            if begins and kind(index) == IDENTIFIER and text not in _STATEMENT_WORDS:
                last = scopes[-1][1]
                if before == "(":
                    last = min(self.statements.at(index - 2).end, last)
                stop = self.find_end(index, min(last, end))
                yield from self._declaration(index, stop, last)
            index += 1

    def _ends_condition(self, index: int) -> bool:
        """Whether the bracket at ``index`` ends what stands behind ``if`` or another word that a statement follows."""
        return self.text(self.close(index) - 1) in ("if", "for", "while", "switch", "constexpr")

    def _is_in_choice(self, index: int) -> bool:
        """Whether the colon at ``index`` belongs to a ``?``, not to a label."""
        colons = 1
        while index > 0 and colons:
            index -= 1
            text = self.text(index)
            if text in (";", "{", "}") or (text in ("(", "[") and self.close(index) > 0):
                return False
            if text in (")", "]") and self.close(index) >= 0:
                index = self.close(index)
            colons += (text == ":") - (text == "?")
        return not colons

    def words_before(self, place: int, *ends: str) -> Sequence[str]:
        """The words between ``place`` and the ``;`` or the brace before it, or one of ``ends``, brackets that close
        there included."""
        start = place
        while start > 0 and self.texts[start - 1] not in (";", "{", "}", *ends):
            start -= 1
            if self.texts[start] == ")" and self.close(start) >= 0:
                start = self.close(start)
        return self.texts[start:place]

    @cached_property
    def statements(self) -> Statements:
        """The statements in the bodies of functions."""
        return Statements(self)

    def find_end(self, index: int, limit: int) -> int:
        """The index of the ``;`` that ends the statement at ``index``, or of the bracket that ends what it is in."""
        texts, partners = self.texts, self.partners
        while index < limit and texts[index] not in _ENDS:
            close = partners[index] if texts[index] in OPENING else -1
            index = close + 1 if close > 0 else index + 1
        return index

    def parts(self, start: int, end: int, separator: str) -> list[Range]:
        """What stands between the separators there, those in brackets left out."""
        found = []
        index = start
        while index < end:
            if self.text(index) == separator:
                found.append((start, index))
                start = index + 1
            index = max(self.close(index), index) + 1
        return [*found, (start, end)]

    def expression_end(self, index: int, limit: int | None = None) -> int:
        """Where the statement, the bracket or the declarator that holds ``index`` ends."""
        limit = len(self.tokens) if limit is None else limit
        passed: list[int] = []
        while index < limit and self.text(index) not in _EXPRESSION_ENDS:
            if len(passed) > _FAR and self._far_ends.get(index, limit) < limit:
                index = self._far_ends[index]
                break
            passed.append(index)
            behind = template_brackets(self).get(index, index) if self.text(index) == "<" else self.close(index)
            index = max(behind, index) + 1
        if len(passed) > _FAR and index < limit:
            self._far_ends.update(dict.fromkeys(passed, index))
        return index

    def chain_start(self, end: int) -> int:
        """Where the variable, subscript or member chain begins that ends before ``end``."""
        position = end - 1
        while position > 0:
            text = self.text(position)
            if text == "]" and self.close(position) > 0:
                position = self.close(position) - 1
            elif self.kind(position) == IDENTIFIER and self.text(position - 1) in (".", "->"):
                position -= 2
            else:
                break
        return position

    def _declaration(self, start: int, stop: int, last: int) -> Iterator[Variable]:
        """The variables that the statement from ``start`` to ``stop`` declares; nothing if it is no declaration."""
        tokens = self.tokens
        read = read_type(tokens, start, stop, self.aliases, self.struct_bodies)
        if read is None:
            return
        kind, index = read
        is_reference = any(token.text == "&" for token in tokens[start:index])
        is_auto = kind.base == "auto" and not kind.pointers
        is_declared = self.text(stop) == ";" and (kind.known or self.is_type(index - 1))
        in_brackets = is_declared and self._names_in_brackets(index, stop)
        index += in_brackets
        while index < stop and tokens[index].kind == IDENTIFIER:
            name = index
            index += in_brackets
            following = self.text(index + 1)
            if following not in ("=", ";", ",", "[", "(", "{", ":") and index + 1 < stop:
                return
            if following == "(" and start == name - 1 and built_in(self.text(start)) is None and not kind.known:
                return
            index += 1
            extents: list[int | None] = []
            while self.text(index) == "[" and self.text(index + 1) != "[" and self.close(index) > 0:
                extents.append(self.integer(tokens[index + 1 : self.close(index)]))
                index = self.close(index) + 1
            initialiser = None
            if self.text(index) in ("(", "{"):
                index = max(self.close(index), index) + 1
            elif self.text(index) in ("=", ":"):
                begin = index + 1
                index = self._comma_or_end(begin, stop)
                if self.text(begin - 1) == "=":
                    initialiser = (begin, index)
            known: Type | None = kind if kind.known or kind.pointers else None
            if known is not None and kind.base in self.struct_bodies and kind.base not in self._plain_structs:
                known = known if kind.pointers else None
            if known is not None and extents:
                known = known._replace(pointers=known.pointers + len(extents), known=known.known)
            if is_auto:
                known = None
            yield Variable(
                self.text(name),
                name,
                known,
                name,
                last,
                tuple(extents),
                is_reference,
                initialiser,
            )
            if self.text(index) != ",":
                return
            index += 1
            in_brackets = False
            # Each further declarator has its own stars.
            stars = 0
            while self.text(index) in ("*", "&", "const"):
                stars += self.text(index) == "*"
                index += 1
            kind = kind._replace(pointers=stars)

    def _names_in_brackets(self, index: int, end: int) -> bool:
        """Whether a declarator is in brackets of its own: ``float (x) = 1``."""
        behind = ("=", ";", ",", "[", "(", "{", ")")
        is_name = self.text(index) == "(" and self.kind(index + 1) == IDENTIFIER and self.text(index + 2) == ")"
        return is_name and (index + 3 >= end or self.text(index + 3) in behind)

    @cached_property
    def _plain_structs(self) -> frozenset[str]:
        return frozenset(name for name, bodies in self.struct_bodies.items() if not bodies[0][2] and len(bodies) == 1)

    def _comma_or_end(self, index: int, stop: int) -> int:
        parts = split_commas(self.tokens[index:stop])
        return index + len(parts[0]) if parts else stop

    # Kernels' parameters.

    def attribute_value(self, attribute: Attribute | None) -> int | None:
        return self.integer(attribute.arguments) if attribute is not None else None


def position_attribute(parameter: Parameter) -> Attribute | None:
    """The attribute that makes a kernel's parameter a position, an index or a size of the grid."""
    return parameter.attribute(*POSITION_ATTRIBUTES, *INDEX_ATTRIBUTES)


def is_buffer(parameter: Parameter) -> bool:
    """Whether a kernel's parameter is device or constant memory."""
    space = parameter.address_space
    return (parameter.is_pointer or parameter.is_reference) and space is not None and space.text != "threadgroup"


def element_of(kind: Type | None, extents: Sequence[int | None]) -> Type | None:
    """The type of an array's element."""
    return kind._replace(pointers=kind.pointers - len(extents)) if kind is not None else None


def _partners(tokens: Sequence[Token]) -> list[int]:
    partners = [-1] * len(tokens)
    stack: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind != PUNCTUATION:
            continue
        if token.text in OPENING:
            stack.append(index)
        elif token.text in (")", "]", "}"):
            if stack and OPENING[tokens[stack[-1]].text] == token.text:
                partners[stack[-1]] = index
                partners[index] = stack.pop()
    return partners
