"""Member functions that lend members of their object: as arguments for ``thread`` references and pointers, or to such
variables of their own. In OpenCL only objects that are known to be ``thread`` have members there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.program import Program
from mpsgrad.msl.tokens import IDENTIFIER, Token, matching, split_commas

_BY_LIBRARY = {"sincos": frozenset({1}), "modf": frozenset({1}), "frexp": frozenset({1})}


def borrowing_functions(program: Program) -> Mapping[str, frozenset[int]]:
    """For each function the positions of parameters that refer or point to ``thread``; overloads are one, and so are
    the calls of objects, ``)``."""
    tokens = program.tokens
    found: dict[str, frozenset[int]] = dict(_BY_LIBRARY)
    heads = [opening for _, opening, _ in program.function_heads]
    for opening in heads + [opening for _, _, opening, _ in program.member_heads]:
        parameters = split_commas(tokens[opening + 1 : matching(tokens, opening)])
        positions = {at for at, parameter in enumerate(parameters) if _is_borrowed(parameter)}
        name = tokens[opening - 1].text
        if positions:
            found[name] = found.get(name, frozenset()) | positions
    return found


def lends_members(
    program: Program, borrowing: Mapping[str, frozenset[int]], start: int, end: int, in_class: int
) -> bool:
    """Whether the body of a member function, in a range, lends members of its object; ``in_class`` is in its class."""
    tokens = program.tokens
    members = _data_members(tokens, in_class)
    for index in range(start, end):
        token = tokens[index]
        # What checks a member at run time is no function of the program.
        if token.kind == IDENTIFIER and tokens[index + 1].text == "(" and RENAMED_SUFFIX not in token.text:
            called = token.text if token.text in borrowing or token.text in program.functions else ")"
            positions = borrowing.get(called, ())
            arguments = split_commas(tokens[index + 2 : matching(tokens, index + 1)]) if positions else []
            if any(at in positions and _names(argument, members) for at, argument in enumerate(arguments)):
                return True
        elif token.text == "thread" and members:
            stop = next(at for at in range(index, end + 1) if at == end or tokens[at].text in (";", "=", ":", "(", ")"))
            behind = next(at for at in range(stop, end + 1) if at == end or tokens[at].text in (";", ")", "{"))
            is_variable = tokens[stop].text in ("=", ":") and _is_borrowed(tokens[index:stop])
            if is_variable and _names(tokens[stop + 1 : behind], members):
                return True
    return False


def calls_own(tokens: Sequence[Token], functions: AbstractSet[str], start: int, end: int) -> bool:
    """Whether a body, in a range, calls member functions of its own object that are called like ``functions``."""
    return any(
        tokens[index].text in functions
        and tokens[index + 1].text in ("(", "<")
        and (tokens[index - 1].text not in (".", "->", "::") or tokens[index - 2].text == "this")
        for index in range(start, end)
    )


def _is_borrowed(declared: Sequence[Token]) -> bool:
    words = {token.text for token in declared}
    return "thread" in words and bool(words & {"&", "*"})


def _names(expression: Sequence[Token], members: frozenset[str]) -> bool:
    """Whether an expression is a member of the object, or a part or the address of one."""
    start = 1 if expression and expression[0].text == "&" else 0
    if [token.text for token in expression[start : start + 2]] == ["this", "->"]:
        start += 2
    return len(expression) > start and expression[start].text in members


def _data_members(tokens: Sequence[Token], inside: int) -> frozenset[str]:
    """The members that are no functions of the class around ``inside``."""
    depth, index = 0, inside - 1
    while index > 0 and depth >= 0:
        depth += {"}": 1, "{": -1}.get(tokens[index].text, 0)
        index -= 1
    found = set()
    index += 2
    while index < len(tokens) and tokens[index].text != "}":
        if tokens[index].text in ("(", "[", "{"):
            index = matching(tokens, index)
        elif tokens[index].kind == IDENTIFIER and tokens[index + 1].text in (";", "[", "=", ",", "{"):
            found.add(tokens[index].text)
        index += 1
    return frozenset(found)
