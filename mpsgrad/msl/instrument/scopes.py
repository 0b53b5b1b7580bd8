"""Which names mean variables at a place of a function's body, and which of them denote memory that others see."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from mpsgrad.msl.analysis.source import Function, Source, Variable
from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.instrument.methods import members_of, owner_of
from mpsgrad.msl.program import SHARED_SPACES
from mpsgrad.msl.tokens import IDENTIFIER

Form = Literal["", "struct", "matrix"]

_MOST_CONSTANTS = 40


@dataclass(frozen=True, slots=True)
class Meaning:
    """``is_memory``: naming the variable reads or writes device or threadgroup memory, or may. ``is_constant``: its
    value is known when the source is compiled, or may be. ``is_own``: it is an object of the thread's own;
    ``is_lent``: it is a reference, perhaps to such; ``watched`` is its number if it is known whether it has a value.
    ``form`` says that it is a class, an array of such, or a matrix, as far as its type is spelled."""

    is_memory: bool = False
    is_constant: bool = False
    is_own: bool = False
    is_lent: bool = False
    watched: int | None = None
    form: Form = ""


def form_of(source: Source, words: Collection[str], *, is_array: bool = False) -> Form:
    """What a variable is whose type is spelled by ``words``."""
    if any(word in source.struct_bodies or word == "array" for word in words):
        return "struct"
    types = [source.aliases.get(word) or built_in(word) for word in words]
    return "matrix" if not is_array and any(kind is not None and kind.columns for kind in types) else ""


def is_object_member(source: Source, name: str) -> bool:
    """Whether a class of the program has a member of this name that is an object of a class, or an array of such."""
    return source.keep((is_object_member, name), lambda: _is_object_member(source, name))


def _is_object_member(source: Source, name: str) -> bool:
    return any(form_of(source, source.words_before(each.place, ":")) == "struct" for each in _members(source, name))


def is_reference_member(source: Source, name: str) -> bool:
    """Whether a class of the program has a member of this name that is a reference."""
    return source.keep(
        (is_reference_member, name), lambda: any(each.is_reference for each in _members(source, name))
    )


def _members(source: Source, name: str) -> Iterator[Variable]:
    bodies = [body for several in source.struct_bodies.values() for body in several]
    for variable in source.variables.get(name, ()):
        if any(start < variable.place < end for start, end, _ in bodies):
            yield variable


class Scopes:
    """The scopes around a place, the innermost last."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._levels: list[dict[str, Meaning]] = [_program_scope(source)]

    def open(self) -> None:
        self._levels.append({})

    def close(self) -> None:
        self._levels.pop()

    def declare(self, name: str, meaning: Meaning) -> None:
        self._levels[-1][name] = meaning

    def meaning(self, name: str) -> Meaning | None:
        return next((level[name] for level in reversed(self._levels) if name in level), None)

    def is_variable(self, name: str) -> bool:
        return self.meaning(name) is not None

    def open_function(self, function: Function) -> None:
        """Opens the scope of a function's parameters, and around it that of its class."""
        self._levels.append(self._members(function))
        self.open()
        self.declare_parameters(function.opening)

    def declare_parameters(self, opening: int) -> None:
        """Declares the parameters in the brackets that open at ``opening``."""
        source = self._source
        for start, end in source.arguments(opening):
            words = source.tokens[start:end]
            texts = [token.text for token in words]
            if "=" in texts:
                words = words[: texts.index("=")]
            depth = 0
            names = []
            for index, token in enumerate(words):
                depth += (token.text in ("[", "<")) - (token.text in ("]", ">"))
                if token.kind == IDENTIFIER and depth == 0 and index:
                    names.append(token.text)
            if names:
                is_memory = "&" in texts and not {"device", "threadgroup"}.isdisjoint(texts)
                is_lent = not {"&", "&&"}.isdisjoint(texts) and SHARED_SPACES.isdisjoint(texts)
                form = form_of(source, texts, is_array="(" in texts) if is_lent else ""
                self.declare(names[-1], Meaning(is_memory, is_lent=is_lent, form=form))

    def close_function(self) -> None:
        del self._levels[-2:]

    def _members(self, function: Function) -> dict[str, Meaning]:
        source = self._source
        owner = owner_of(source, function)
        if not owner:
            return {}
        qualifiers = {source.text(index) for index in range(function.closing + 1, function.body_open)}
        is_memory = not qualifiers.isdisjoint({"device", "constant", "threadgroup"})
        return {
            name: Meaning(
                is_memory and is_own,
                is_lent=is_own and not is_memory,
                form="struct" if is_object_member(source, name) else "",
            )
            for name, is_own in members_of(source, owner)
        }


def _program_scope(source: Source) -> dict[str, Meaning]:
    """Variables at program scope and enumerators that need no qualifier: all of them constants."""
    constant = Meaning(is_constant=True)
    found: dict[str, Meaning] = {}
    for start, stop in source.program.variables:
        depth = 0
        for index in range(start, stop - 1):
            depth += {"<": 1, ">": -1, ">>": -2}.get(source.text(index), 0)
            if depth == 0 and source.kind(index) == IDENTIFIER and source.text(index + 1) in ("=", "[", "{", ";", ","):
                found[source.text(index)] = constant
                break
    for index, token in enumerate(source.tokens):
        if token.text != "enum" or source.text(index + 1) in ("class", "struct"):
            continue
        opening = index
        while opening < len(source.tokens) and source.text(opening) not in ("{", ";", ")"):
            opening += 1
        if source.text(opening) == "{":
            for place in range(opening, source.close(opening)):
                if source.kind(place) == IDENTIFIER and source.text(place - 1) in ("{", ","):
                    found[source.text(place)] = constant
    return found


def constants(source: Source) -> tuple[dict[str, int], bool]:
    """The names of the program's constants, with their namespaces, and where they stand; and whether these are all that
    there are."""
    spaces = []
    for index, token in enumerate(source.tokens):
        if token.text == "namespace":
            opening = index + 1
            while source.kind(opening) == IDENTIFIER or source.text(opening) == "::":
                opening += 1
            if source.text(opening) == "{":
                spaces.append((opening, source.close(opening), [source.text(k) for k in range(index + 1, opening)]))
    found: dict[str, int] = {}
    bodies = [body for several in source.struct_bodies.values() for body in several]
    is_complete = not any(start < index < end for index in source.places("constexpr") for start, end, _ in bodies)
    for start, stop in source.program.variables:
        words = {source.text(k) for k in range(start, stop)}
        if "constant" not in words or words & {"extern", "function_constant"}:
            continue
        if source.text(start - 1) == ">":
            is_complete = False
            continue
        path = [word for first, last, names in spaces if first < start < last for word in names if word != "::"]
        if path[:1] == ["metal"]:
            path = path[1:]
        for variables in source.variables.values():
            for variable in variables:
                if start <= variable.place < stop and source.text(variable.place - 1) != "*":
                    found["::".join(["", *path, variable.name])] = variable.place
    return dict(list(found.items())[:_MOST_CONSTANTS]), is_complete and len(found) <= _MOST_CONSTANTS


def has_constructors(source: Source) -> bool:
    """Whether a constant of the program may get its value only when it runs, and not already when it is compiled."""
    certain = {"array", "sizeof", "alignof", "static_cast", *source.struct_bodies}
    for function in source.functions:
        if any(source.text(index) == "constexpr" for index in range(function.start, function.opening)):
            certain.add(function.name)
    for start, stop in source.program.variables:
        for index in range(start, stop):
            text = source.text(index)
            if text == "." or (text in ("(", "<") and _is_call(source, index, certain)):
                return True
    return False


def _is_call(source: Source, index: int, certain: Collection[str]) -> bool:
    """Whether the bracket at ``index`` belongs to a call of a function that may not be for the compiler to call."""
    name = source.text(index - 1)
    if source.kind(index - 1) != IDENTIFIER or name in certain or source.text(index - 2) in ("::", "["):
        return False
    return source.aliases.get(name) is None and built_in(name) is None
