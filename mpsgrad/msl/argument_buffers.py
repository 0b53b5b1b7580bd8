"""Structs that hold pointers to buffers, argument buffers to Metal: who calls the kernel fills in the addresses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.tokens import IDENTIFIER, Token, error, matching, skip_attributes

_IN_BUFFERS = frozenset({"device", "constant"})
_NO_DATA = frozenset({"using", "typedef", "static", "template", "friend"})
_CLASSES = ("struct", "class", "union")


class PointerMembers:
    """The members of a program's types that are pointers, those in members and base classes included."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._declared = _classes(tokens)
        for name, words in _aliases(tokens).items():
            self._declared.setdefault(name, []).append(words)

    def are_in(self, kind: Sequence[Token]) -> bool:
        """Whether an object whose type is written with the tokens ``kind`` holds pointers."""
        return any(token.text == "*" for token in kind) or bool(self.of(kind))

    def of(self, kind: Iterable[Token]) -> list[list[Token]]:
        """The declarations of all that are in an object whose type is written with the tokens ``kind``."""
        found: list[list[Token]] = []
        seen: set[str] = set()
        todo = [token.text for token in kind]
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            for member in self._declared.get(name, ()):
                if _is_pointer(member):
                    found.append(member)
                else:
                    todo += [token.text for token in member]
        return found


def refuse_unfillable_buffers(program: Program) -> None:
    """Raises ``ShaderError`` at pointers in buffers that who calls a kernel cannot fill."""
    pointers = None
    for kernel in program.kernels:
        for parameter in kernel.parameters:
            space = parameter.address_space
            if space is None or space.text not in _IN_BUFFERS:
                continue
            if parameter.holds_pointers:
                message = "pointers to pointers are not supported as arguments: a struct can hold the pointers"
                raise error(message, parameter.place)
            pointers = pointers or PointerMembers(program.tokens)
            pointee = [token for token in parameter.pointee if token is not space]
            for member in [*([pointee] if _is_pointer(pointee) else []), *pointers.of(pointee)]:
                _refuse_unfillable(pointers, member)


def _refuse_unfillable(pointers: PointerMembers, member: Sequence[Token]) -> None:
    place = member[-1]
    if sum(token.text == "*" for token in member) > 1 or pointers.of(member):
        raise error("argument buffers in argument buffers are not supported: this points to what holds pointers", place)
    if not any(token.text in _IN_BUFFERS for token in member):
        raise error("a buffer can hold pointers to device and constant memory only", place)


def _is_pointer(member: Sequence[Token]) -> bool:
    """Whether a member is a pointer, or an array of some; a product in an array's extent names no address space."""
    words = {token.text for token in member}
    return "*" in words and not ADDRESS_SPACES.isdisjoint(words)


def _classes(tokens: Sequence[Token]) -> dict[str, list[list[Token]]]:
    """The declarations of the data members of each class, and its bases, by its name and by that which a ``typedef``
    gives it."""
    found: dict[str, list[list[Token]]] = {}
    for index, token in enumerate(tokens):
        if token.text not in _CLASSES or token.kind != IDENTIFIER:
            continue
        name = skip_attributes(tokens, index + 1, len(tokens) - 1)
        opening = name + (tokens[name].kind == IDENTIFIER)
        while opening < len(tokens) and tokens[opening].text not in ("{", ";", "(", ")", "=", "}"):
            opening += 1
        if opening >= len(tokens) or tokens[opening].text != "{":
            continue
        bases = list(tokens[name + 1 : opening])
        if bases and bases[0].text != ":":
            continue
        position, end = opening + 1, matching(tokens, opening)
        members: list[list[Token]] = [bases] if bases else []
        while position < end:
            stop = position
            while stop < end and tokens[stop].text not in (";", "{", "("):
                stop = skip_attributes(tokens, stop, end) if tokens[stop].text == "[" else stop
                stop += stop < end and tokens[stop].text not in (";", "{", "(")
            is_data = position < stop < end and tokens[position].text not in _NO_DATA
            if is_data and tokens[stop].text == ";":
                members.append(_without_attributes(tokens[position:stop]))
            position = (matching(tokens, stop) if stop < end and tokens[stop].text in "{(" else stop) + 1
        found[tokens[name].text] = found[tokens[end + 1].text if end + 1 < len(tokens) else ""] = members
    return found


def _without_attributes(member: Sequence[Token]) -> list[Token]:
    rest: list[Token] = []
    index = 0
    while index < len(member):
        behind = skip_attributes(member, index, len(member))
        if behind == index:
            rest.append(member[index])
            behind += 1
        index = behind
    return rest


def _opens_namespace(tokens: Sequence[Token], brace: int) -> bool:
    start = brace
    while start and (tokens[start - 1].kind == IDENTIFIER or tokens[start - 1].text == "::"):
        start -= 1
    return any(token.text in ("namespace", "extern") for token in tokens[start:brace])


def _aliases(tokens: Sequence[Token]) -> dict[str, list[Token]]:
    """What ``using name = type;`` and ``typedef type name;`` say outside of functions and classes, by the name."""
    found: dict[str, list[Token]] = {}
    behind = 0
    for index, token in enumerate(tokens):
        if index < behind:
            continue
        if token.text == "{" and not _opens_namespace(tokens, index):
            behind = matching(tokens, index)
        if token.text not in ("using", "typedef"):
            continue
        end = index + 1
        while end < len(tokens) and tokens[end].text not in (";", "{", "}"):
            end += 1
        said = list(tokens[index + 1 : end])
        if token.text == "using" and len(said) > 2 and said[1].text == "=":
            found[said[0].text] = said[2:]
        elif token.text == "typedef" and len(said) > 1 and tokens[end].text == ";":
            names = [each for each in said if each.kind == IDENTIFIER]
            found[names[-1].text] = [each for each in said if each is not names[-1]]
    return found
