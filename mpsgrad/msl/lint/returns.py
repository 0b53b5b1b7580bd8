"""Rule 52: functions that end without the value that they are to return."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.tokens import IDENTIFIER

_DEEPEST = 100


@rule(
    52,
    "missing-return",
    words="non-void function does not return a value in all control paths",
    severity="warning",
    why="A function that ends without a return gives any value, and the compiler may drop what leads there.",
)
def functions_return_their_values(source: Source) -> Iterator[Found]:
    """Takes every switch and every if constexpr to return, and every loop whose condition is not written as true to
    end."""
    for function in source.functions:
        if returns_a_value(source, function) and not _leaves(source, function.body_open, function.body_close):
            message = "non-void function does not return a value in all control paths"
            yield source.tokens[function.body_close], message


def returns_a_value(source: Source, function: Function) -> bool:
    """Whether the head of ``function``, which is no kernel, says that it gives a value."""
    name = function.opening - 1
    head = source.texts[function.start : name]
    if function.kernel is not None or source.kind(name) != IDENTIFIER or source.text(function.body_open) != "{":
        return False
    if not head or name in (opening - 1 for opening in source.program.constructors):
        return False
    behind = source.texts[function.closing : function.body_open]
    if "auto" in head and "->" in behind:
        return not {"void", "decltype"} & set(behind)
    return not {"void", "auto", "operator", "~", "decltype"} & set(head) and not {"->", ":", "try"} & set(behind)


def _leaves(source: Source, opening: int, close: int, depth: int = 0) -> bool:
    """Whether what stands between two braces never gets to its end."""
    index, leaves = opening + 1, False
    while index < close:
        index, leaves = _statement(source, index, close, depth + 1)
    return leaves


def _statement(source: Source, index: int, limit: int, depth: int) -> tuple[int, bool]:
    """The index behind the statement at ``index``, and whether what is behind it is never got to."""
    if depth > _DEEPEST:
        return limit, True
    while source.kind(index) == "pragma":
        index += 1
    text = source.text(index)
    if text == "{" and source.close(index) > index:
        return source.close(index) + 1, _leaves(source, index, source.close(index), depth)
    opening = index + 1 + (source.text(index + 1) == "constexpr")
    has_condition = source.text(opening) == "(" and source.close(opening) > 0
    if text == "if" and has_condition:
        behind, leaves = _statement(source, source.close(opening) + 1, limit, depth + 1)
        if source.text(behind) != "else":
            return behind, opening > index + 1 and leaves
        behind, otherwise = _statement(source, behind + 1, limit, depth + 1)
        return behind, leaves and otherwise
    if text == "do" or text in ("for", "while") and has_condition:
        return _loop(source, index, limit, depth)
    if text == "switch" and has_condition:
        return _statement(source, source.close(opening) + 1, limit, depth + 1)[0], True
    end = index
    while end < limit and source.text(end) != ";":
        end = source.close(end) + 1 if source.close(end) > end else end + 1
    return end + 1, text in ("return", "__builtin_unreachable")


def _loop(source: Source, index: int, limit: int, depth: int) -> tuple[int, bool]:
    is_do = source.text(index) == "do"
    body = index + 1 if is_do else source.close(index + 1) + 1
    behind, leaves = _statement(source, body, limit, depth + 1)
    condition = [] if is_do else source.texts[index + 2 : body - 1]
    if is_do and source.text(behind) == "while" and source.text(behind + 1) == "(" and source.close(behind + 1) > 0:
        condition = source.texts[behind + 2 : source.close(behind + 1)]
        behind = source.close(behind + 1) + 2
    if source.text(index) == "for":
        parts = "\n".join(condition).split(";")
        condition = parts[1].split() if len(parts) == 3 else ["range"]
    is_endless = condition in ([], ["true"], ["1"]) and "break" not in source.texts[body:behind]
    return behind, is_endless or is_do and leaves
