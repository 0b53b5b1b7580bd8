"""Structs that hold pointers to buffers, argument buffers to Metal: who calls the kernel fills in the addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.tokens import IDENTIFIER, Token, error, matching, skip_attributes
from mpsgrad.msl.type_names import type_names

_IN_BUFFERS = frozenset({"device", "constant"})
_NO_DATA = frozenset({"using", "typedef", "static", "template", "friend"})
_CLASSES = ("struct", "class", "union")
_BEFORE_BODIES = frozenset({")", "const", "noexcept", *ADDRESS_SPACES})


def _is_pointer(member: Sequence[Token]) -> bool:
    """Whether a member is a pointer, or an array of some; a product in an array's extent names no address space."""
    words = {token.text for token in member}
    return "*" in words and not ADDRESS_SPACES.isdisjoint(words)


class PointerMembers:
    """The members of a program's types that are pointers, or others, those in members and base classes included."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._declared = _classes(tokens)
        for each in type_names(_outside_functions(tokens)):
            if not each.defines_class:
                self._declared.setdefault(each.name.text, []).append(each.meaning)

    def are_in(self, kind: Sequence[Token]) -> bool:
        """Whether an object whose type is written with the tokens ``kind`` holds pointers."""
        return any(token.text == "*" for token in kind) or bool(self.of(kind))

    def of(
        self, kind: Iterable[Token], is_wanted: Callable[[Sequence[Token]], bool] = _is_pointer
    ) -> list[list[Token]]:
        """The declarations of all that are in an object whose type is written with the tokens ``kind``; of other kinds
        of members, for which ``is_wanted`` tells."""
        found: list[list[Token]] = []
        seen: set[str] = set()
        todo = [token.text for token in kind]
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            for member in self._declared.get(name, ()):
                if is_wanted(member):
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


def _outside_functions(tokens: Sequence[Token]) -> list[Token]:
    """``tokens`` without the bodies of functions, whose names for types no member of a class knows."""
    found: list[Token] = []
    index = 0
    while index < len(tokens):
        if tokens[index].text == "{" and index and tokens[index - 1].text in _BEFORE_BODIES:
            index = matching(tokens, index)
        found.append(tokens[index])
        index += 1
    return found
