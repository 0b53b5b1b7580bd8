"""Which names mean variables at a place of a function's body, and which of them denote memory that others see."""

from __future__ import annotations

from dataclasses import dataclass

from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.tokens import IDENTIFIER

_MOST_TABLES = 24


@dataclass(frozen=True, slots=True)
class Meaning:
    """``is_memory``: naming the variable reads or writes device or threadgroup memory, or may. ``is_constant``: its
    value is known when the source is compiled, or may be."""

    is_memory: bool = False
    is_constant: bool = False


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
        source = self._source
        for start, end in source.arguments(function.opening):
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
                self.declare(names[-1], Meaning(is_memory))

    def close_function(self) -> None:
        del self._levels[-2:]

    def _members(self, function: Function) -> dict[str, Meaning]:
        source = self._source
        if function.owner is None:
            return {}
        qualifiers = {source.text(index) for index in range(function.closing + 1, function.body_open)}
        is_memory = not qualifiers.isdisjoint({"device", "threadgroup"})
        members: dict[str, Meaning] = {}
        for start, end, _ in source.struct_bodies.get(function.owner, ()):
            if start < function.opening < end:
                for variable in source.declarations_between(start, end, depth_limit=True):
                    members[variable.name] = Meaning(is_memory)
        return members


def _program_scope(source: Source) -> dict[str, Meaning]:
    """Variables at program scope and enumerators: all of them constants."""
    constant = Meaning(is_constant=True)
    found: dict[str, Meaning] = {}
    for start, stop in source.program.variables:
        for index in range(start, stop - 1):
            if source.kind(index) == IDENTIFIER and source.text(index + 1) in ("=", "[", "{", ";", ","):
                found[source.text(index)] = constant
                break
    for index, token in enumerate(source.tokens):
        if token.text != "enum":
            continue
        opening = index
        while opening < len(source.tokens) and source.text(opening) not in ("{", ";", ")"):
            opening += 1
        if source.text(opening) == "{":
            for place in range(opening, source.close(opening)):
                if source.kind(place) == IDENTIFIER and source.text(place - 1) in ("{", ","):
                    found[source.text(place)] = constant
    return found


def constant_tables(source: Source) -> list[str]:
    """The names of the arrays of constants at program scope, with their namespaces."""
    spaces = []
    for index, token in enumerate(source.tokens):
        if token.text == "namespace":
            opening = index + 1
            while source.kind(opening) == IDENTIFIER or source.text(opening) == "::":
                opening += 1
            if source.text(opening) == "{":
                spaces.append((opening, source.close(opening), [source.text(k) for k in range(index + 1, opening)]))
    found = []
    for start, stop in source.program.variables:
        words = [source.text(k) for k in range(start, stop)]
        if "[" not in words or "constant" not in words[: words.index("[")] or source.text(start - 1) == ">":
            continue
        opening = words.index("[")
        if words[opening + 1] == "[" or source.kind(start + opening - 1) != IDENTIFIER:
            continue
        names = [word for first, last, path in spaces if first < start < last for word in path if word != "::"]
        if names[:1] == ["metal"]:
            names = names[1:]
        found.append("::".join([*names, words[opening - 1]]))
    return found[:_MOST_TABLES]
