"""``extern constant float a;`` in a function, which NVIDIA's compiler takes for memory of the host.

It is left out where the variables are declared before the function, else it moves there, unless the function has
another variable of that name.
"""

from __future__ import annotations

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.edits import Edits
from mpsgrad.msl.tokens import IDENTIFIER, Token

_ENDS = frozenset({";", "{", "}"})


def without_local_externs(source: Source) -> list[Token] | None:
    """The tokens of a program whose functions declare no variables of the program; None if they do not."""
    edits = Edits(source.tokens)
    for index in source.places("extern"):
        around = [each for each in source.functions if each.body_open < index < each.body_close]
        end = next(iter(source.places(";", start=index)), -1)
        if not around or end < 0 or source.text(index - 1) not in _ENDS:
            continue
        function = min(around, key=lambda each: each.body_open)
        names = {source.text(k) for k in range(index, end) if source.kind(k) == IDENTIFIER}
        variables = [each for name in names for each in source.variables.get(name, ())]
        is_hidden = any(function.opening < each.place < index for each in variables)
        if "constant" not in names or is_hidden or source.places("=", "{", start=index, end=end):
            continue
        known = {each.name for each in variables if each.place < function.start and not source.in_body(each.place)}
        if any(index < each.place < end and each.name not in known for each in variables):
            if function.owner is not None:
                continue
            start = function.start
            while start > 0 and source.text(start - 1) not in _ENDS and source.kind(start - 1) != "pragma":
                start -= 1
            edits.before(start, *source.tokens[index : end + 1])
        edits.replace_range(index, end + 1)
    return None if edits.is_empty else edits.applied()
