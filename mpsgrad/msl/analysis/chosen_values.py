"""Which values that a program chooses, or conditions that it joins, a compiler may choose between by a branch.

``a ? b : c``, ``a && b`` and ``a || b`` say that something is worked out for some threads only. Where that is a few
operations on numbers that are there, it is worked out for all of them. Memory cannot be read so, nor can functions be
called or numbers be divided, and many operations would take too long.
"""

from __future__ import annotations

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.types import FLOATS, built_in
from mpsgrad.msl.tokens import ASSIGNMENTS, IDENTIFIER

_JOINING = ("&&", "||")
CHOICES = ("?", *_JOINING)

_OPERATIONS = frozenset("+ - * & | ^ ~ ! << >> < > <= >= == !=".split())
_CHANGES = frozenset(("++", "--", *ASSIGNMENTS))
_BEFORE_OPERANDS = frozenset(
    ("return", "case", "(", "[", "{", ",", ";", "=", "?", ":", "/", "%", *_JOINING, *_OPERATIONS)
)
# More, for all that one operator chooses between or adds to a condition, are left out for the other threads.
_MOST_OPERATIONS = 3
# Longer conditions of both kinds are not made one number.
_MOST_MIXED = 2


def may_branch(source: Source, index: int) -> bool:
    """Whether threads may go two ways at the operator at ``index``, which is one of ``CHOICES``."""
    start, end = statement_around(source, index)
    texts = source.texts
    if any(_reads_memory(source, place) for place in range(start, end)):
        return True
    joined = source.places(*_JOINING, start=start, end=end)
    if len(joined) > _MOST_MIXED and len({texts[place] for place in joined}) > 1:
        return True
    end = source.find_end(index, end)
    if texts[index] in _JOINING:
        end = next((place for place in joined if place > index and texts[place] == texts[index]), end)
    behind = range(index + 1, end)
    return sum(texts[place] in _OPERATIONS for place in behind) > _MOST_OPERATIONS or any(
        _takes_long(source, place) for place in behind
    )


def statement_around(source: Source, index: int) -> tuple[int, int]:
    """Where the statement begins and ends that ``index`` is in."""
    start = index
    while start > 0 and source.text(start - 1) not in (";", "{", "}"):
        start -= 1
    return start, source.statements.at(index).end


def _reads_memory(source: Source, place: int) -> bool:
    text = source.text(place)
    return text in ("[", "->") or text == "*" and source.text(place - 1) in _BEFORE_OPERANDS


def _takes_long(source: Source, place: int) -> bool:
    """Whether what stands there changes something, divides, calls a function or may be another name for memory."""
    text = source.text(place)
    if text in _CHANGES or text in ("/", "%"):
        return True
    if source.kind(place) != IDENTIFIER:
        return False
    is_called = source.text(place + 1) == "("
    if source.text(place - 1) == ".":
        return is_called
    variable = source.variable(text, place)
    if variable is not None:
        return variable.is_reference or variable.first in source.starts_of_classes or is_called
    if not is_called and source.text(place + 1) != "<":
        return False
    kind = built_in(text)
    if kind is None:
        return True
    if kind.base in FLOATS:
        return False
    # Numbers out of range are taken care of where a floating-point number becomes an integer.
    given = expressions_of(source).type_of(place + 2, source.close(place + 1))
    return given is None or given.base in FLOATS
