"""Functions that a target cannot tell apart, because only address spaces do.

Of those that do the same one is kept. Where pointers have no address spaces, those that do different things get names
of their own, and a function in their place asks the pointers which memory they point to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mpsgrad.errors import ShaderError
from mpsgrad.msl.backend import Backend
from mpsgrad.msl.declarations import operator_before
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.tokens import (
    IDENTIFIER,
    PUNCTUATION,
    SITE,
    Token,
    error,
    matching,
    matching_angle,
    spell,
    split_commas,
)

Piece = tuple[int, int, Callable[[], list[Token]]]

_MEMORIES = {"threadgroup": "__isShared", "thread": "__isLocal"}


@dataclass(frozen=True, slots=True)
class _Overload:
    """A function's definition: where its head, its name, its parameters, what is behind them, and all of it lie.

    ``alike`` is what it has in common with those that only address spaces and ``const`` tell from it, ``signature``
    what the target sees. ``spaces`` and ``constants`` say of each pointer among its parameters, and of its object,
    which memory it points to, and whether that is ``const`` there.
    """

    owner: int | None
    start: int
    name: int
    opening: int
    after: int
    end: int
    alike: tuple[object, ...]
    signature: tuple[object, ...]
    spaces: tuple[str, ...]
    constants: tuple[bool, ...]
    body: tuple[str, ...]
    names: tuple[str | None, ...]


class Overloads:
    """The overloads of one program for one target; ``rewrite`` makes tokens of the target of those of the program."""

    def __init__(self, program: Program, backend: Backend, rewrite: Callable[[Sequence[Token]], list[Token]]) -> None:
        self._program = program
        self._tokens = program.tokens
        self._backend = backend
        self._rewrite = rewrite
        self._has_spaces = any(backend.address_spaces[space].strip("const ") for space in ADDRESS_SPACES)
        self._namespaces = namespaces_of(self._tokens)

    def pieces(self) -> list[Piece]:
        """What is to stand in the place of parts of the program.

        Raises ``ShaderError`` for functions that do different things and that nothing tells apart.
        """
        groups: dict[tuple[object, ...], list[_Overload]] = {}
        for overload in self._overloads():
            groups.setdefault(overload.alike, []).append(overload)
        pieces: list[Piece] = []
        for group in groups.values():
            by_spaces = {overload.spaces: overload for overload in group}
            if not self._has_spaces and len(by_spaces) > 1 and len({overload.body for overload in group}) > 1:
                pieces += self._dispatched(group)
            elif len(group) > 1:
                pieces += self._without_repetitions(group)
        return pieces + ([] if self._has_spaces else list(self._repeated_specialisations()))

    def _repeated_specialisations(self) -> Iterator[Piece]:
        """Leaves out specialisations of classes that only address spaces tell from an earlier one."""
        tokens = self._tokens
        seen: dict[tuple[object, ...], tuple[str, ...]] = {}
        for index in range(len(tokens) - 2):
            if tokens[index].text not in ("struct", "class") or tokens[index + 2].text != "<":
                continue
            angle = matching_angle(tokens, index + 2)
            start = _start_of_template(tokens, index)
            opening = len(tokens) if angle is None or start is None else angle
            while opening < len(tokens) and tokens[opening].text not in ("{", ";"):
                opening += 1
            if start is None or opening == len(tokens) or tokens[opening].text == ";":
                continue
            end = matching(tokens, opening)
            head = tuple(word for token in tokens[start:opening] for word in self._spelling(token))
            body = tuple(t.text for t in tokens[opening:end] if t.text not in ADDRESS_SPACES and t.kind != SITE)
            first = seen.setdefault((self._scope(start), head), body)
            if first is body or not any(token.text in ADDRESS_SPACES for token in tokens[index:opening]):
                continue
            if first != body:
                name = tokens[index + 1]
                raise error(f"'{name.text}' does something else for another address space: not supported", name)
            yield start, end + 2, list

    def _overloads(self) -> Iterator[_Overload]:
        tokens = self._tokens
        heads: list[tuple[int | None, int, int, int]] = [(None, *head) for head in self._program.function_heads]
        for owner, start, opening, end in heads + self._program.member_heads:
            closing = matching(tokens, opening)
            after = closing + 1
            while after < end and tokens[after].text not in ("{", ":"):
                after += 1
            name = opening - 1
            if tokens[name].kind != IDENTIFIER:
                found = operator_before(tokens, opening)
                name = name if found is None else found
            words: list[str] = []
            spaces: list[str] = []
            constants: list[bool] = []
            names: list[str | None] = []
            for parameter in split_commas(tokens[opening + 1 : closing]):
                kind = list(takewhile(lambda token: token.text != "=", parameter))
                named = len(kind) > 1 and kind[-1].kind == IDENTIFIER
                named = named and (kind[-2].kind == IDENTIFIER or kind[-2].text in ("*", "&", ">"))
                names.append(kind.pop().text if named else None)
                words += [",", *self._without_spaces(kind)]
                spaces += [" ".join(token.text for token in kind if token.text in ADDRESS_SPACES)]
                constants += [any(token.text == "const" for token in kind)]
            qualifiers = tokens[closing + 1 : after]
            is_constructor = opening in self._program.constructors
            behind = self._without_spaces(qualifiers)
            words += [")", *(word for word in behind if not is_constructor or word != "const")]
            spaces.append(" ".join(token.text for token in qualifiers if token.text in ADDRESS_SPACES))
            constants.append("const" in behind)
            head = [word for token in tokens[start:opening] for word in self._spelling(token)]
            plain = tuple(word for word in head if word != "const")
            scope = owner if owner is not None else self._scope(start)
            body = tuple(
                t.text
                for t in tokens[after:end]
                if t.text not in ADDRESS_SPACES and t.text != "const" and t.kind != SITE
            )
            yield _Overload(
                owner=owner,
                start=start,
                name=name,
                opening=opening,
                after=after,
                end=end,
                alike=(scope, *plain, "(", *(word for word in words if word != "const")),
                signature=(scope, *plain, *_constant_levels(head), "(", *words),
                spaces=tuple(spaces),
                constants=tuple(constants),
                body=body,
                names=tuple(names),
            )

    def _without_repetitions(self, group: Sequence[_Overload]) -> Iterator[Piece]:
        """Leaves out those that the target takes for an earlier one, which they have to do the same as."""
        seen: dict[tuple[object, ...], _Overload] = {}
        for overload in group:
            first = seen.setdefault(overload.signature, overload)
            head = self._tokens[overload.start : overload.after]
            if first is overload or not any(token.text in ADDRESS_SPACES for token in head):
                continue
            if first.body != overload.body:
                if first.spaces == overload.spaces:
                    name = self._tokens[overload.name]
                    raise error(f"redefinition of '{name.text}'", name)
                raise self._does_something_else(overload)
            yield overload.start, overload.end, list

    def _dispatched(self, group: Sequence[_Overload]) -> Iterator[Piece]:
        """Gives each its own name, and puts functions that choose one of them before the first."""
        tokens = self._tokens
        first = group[0]
        if first.opening in self._program.constructors:
            raise self._does_something_else(group[-1])
        declared: list[Token] = []
        made: list[Token] = []
        texts = {overload.start: f"{self._name(overload)}_{k}{RENAMED_SUFFIX}" for k, overload in enumerate(group, 1)}
        chosen: set[tuple[object, ...]] = set()
        for overload in group:
            if first.owner is None:
                declared += [*self._head(overload, texts[overload.start]), tokens[first.start].replaced(";")]
            if overload.signature not in chosen:
                chosen.add(overload.signature)
                made += self._head(overload, None)
                made.append(tokens[first.start].replaced(self._choice(overload, group, texts), IDENTIFIER))
        made = [token.at(tokens[first.start], spaced=True) for token in [*declared, *made]]
        for overload in group:
            tokens[overload.name].text, tokens[overload.name].kind = texts[overload.start], IDENTIFIER
            for token in tokens[overload.name + 1 : overload.opening]:
                token.text, token.kind = "", PUNCTUATION
        yield first.start, first.start, lambda: made

    def _choice(self, overload: _Overload, group: Sequence[_Overload], texts: dict[int, str]) -> str:
        """The body of the function that stands in the place of ``overload`` and of all that look like it."""
        candidates: dict[tuple[str, ...], _Overload] = {}
        for other in group:
            is_exact = other.signature == overload.signature
            fits = all(there or not here for here, there in zip(overload.constants, other.constants, strict=True))
            if is_exact or (fits and self._returned(other) == self._returned(overload)):
                memories = tuple(_MEMORIES.get(space, "") for space in other.spaces)
                known = candidates.get(memories)
                if known is not None and is_exact == (known.signature == overload.signature) and known is not other:
                    raise self._does_something_else(other)
                if known is None or is_exact:
                    candidates[memories] = other
        arguments = ", ".join(self._arguments(overload))
        parameters = self._template_arguments(overload)
        statements = []
        ordered = sorted(candidates, key=lambda memories: -sum(map(bool, memories)))
        for place, memories in enumerate(ordered):
            tests = []
            for at, memory in enumerate(memories):
                is_object = at == len(memories) - 1
                if memory and len({other[at] for other in ordered}) > 1:
                    tests.append(f"{memory}({'this' if is_object else self._address(overload, at)})")
            condition = f"if ({' && '.join(tests)}) " if tests and place < len(ordered) - 1 else ""
            statements.append(f"{condition}return {texts[candidates[memories].start]}{parameters}({arguments});")
        return "{ " + " ".join(statements) + " }"

    def _address(self, overload: _Overload, at: int) -> str:
        """The pointer among the parameters of ``overload``, or the address of what a reference means."""
        parameter = split_commas(self._tokens[overload.opening + 1 : matching(self._tokens, overload.opening)])[at]
        is_reference = any(token.text == "&" for token in parameter)
        return ("&" if is_reference else "") + self._arguments(overload)[at]

    def _arguments(self, overload: _Overload) -> list[str]:
        """The names of the parameters; raises where one has none."""
        names = [name for name in overload.names if name is not None]
        if len(names) < len(overload.names):
            raise self._does_something_else(overload)
        return [token.text for name in names for token in self._rewrite([self._tokens[overload.start].replaced(name)])]

    def _template_arguments(self, overload: _Overload) -> str:
        """The parameters of the template as arguments of another one."""
        if self._tokens[overload.start].text != "template":
            return ""
        close = matching_angle(self._tokens, overload.start + 1, certain=True)
        parts = split_commas(self._tokens[overload.start + 2 : close]) if close is not None else []
        if not parts or any(len(part) < 2 or part[-1].kind != IDENTIFIER or part[-2].text == "..." for part in parts):
            raise self._does_something_else(overload)
        names = [self._tokens[overload.start].replaced(part[-1].text) for part in parts]
        return f"<{', '.join(token.text for token in self._rewrite(names))}>"

    def _head(self, overload: _Overload, name: str | None) -> list[Token]:
        """A copy of a head, under another name if that is given."""
        tokens = self._tokens
        head = tokens[overload.start : overload.after]
        declared = [*tokens[overload.start : overload.name], *tokens[overload.opening : overload.after]]
        if any(token.text == "=" for token in declared):
            raise self._does_something_else(overload)
        copy = [token.replaced(token.text) for token in head]
        if name is None:
            return self._rewrite([token for token in copy if token.text != "constexpr"])
        front, back = copy[: overload.name - overload.start], copy[overload.opening - overload.start :]
        return self._rewrite([*front, tokens[overload.name].replaced(name, IDENTIFIER), *back])

    def _returned(self, overload: _Overload) -> list[str]:
        words = [word for token in self._tokens[overload.start : overload.name] for word in self._spelling(token)]
        return sorted(words)

    def _name(self, overload: _Overload) -> str:
        text = self._tokens[overload.name].text
        return "operator_of" if text == "operator" else text

    def _spelling(self, token: Token) -> list[str]:
        return self._backend.address_spaces.get(token.text, token.text).split()

    def _without_spaces(self, tokens: Sequence[Token]) -> list[str]:
        """The words of ``tokens`` with address spaces as the target sees them, ``const`` behind them."""
        words = [word for token in tokens for word in self._spelling(token)]
        # "const device T*" and "device const T*" are one type; behind a second declarator the order matters.
        if words.count("*") + words.count("&") >= 2:
            return words
        return sorted(word for word in words if word != "const") + ["const"] * ("const" in words)

    def _scope(self, index: int) -> tuple[str, ...]:
        """The names of the namespaces around ``index``."""
        return tuple(name for start, end, name in self._namespaces if start < index < end)

    def _does_something_else(self, overload: _Overload) -> ShaderError:
        """The error for a function that the target takes for another one."""
        name = spell(self._tokens[overload.name : overload.opening])
        message = f"'{name}' does something else for another address space: not supported"
        return error(message, self._tokens[overload.name])


def _start_of_template(tokens: Sequence[Token], index: int) -> int | None:
    """The index of the ``template`` whose parameters end before ``index``."""
    start = index - 1
    depth = 0
    while start > 0 and tokens[index - 1].text == ">":
        depth += (tokens[start].text == ">") - (tokens[start].text == "<")
        if depth == 0:
            return start - 1 if tokens[start - 1].text == "template" else None
        start -= 1
    return None


def _constant_levels(words: Sequence[str]) -> Iterator[bool]:
    """Of each part of a type between its ``*`` and ``&``, whether it is ``const``, however often it says so."""
    is_constant = False
    for word in words:
        if word in ("*", "&"):
            yield is_constant
        is_constant = word == "const" or (is_constant and word not in ("*", "&"))
    yield is_constant


def namespaces_of(tokens: Sequence[Token]) -> list[tuple[int, int, str]]:
    """The namespaces: their brackets and their names."""
    found = []
    for index, token in enumerate(tokens):
        if token.text == "namespace" and index and tokens[index - 1].text != "using":
            opening = index
            while opening < len(tokens) and tokens[opening].text not in ("{", ";"):
                opening += 1
            if opening < len(tokens) and tokens[opening].text == "{":
                found.append((opening, matching(tokens, opening), spell(tokens[index + 1 : opening])))
    return found
