"""Rules 24, 34, 39, 40, 42 and 43: what compiles, and bites when it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import prod

from mpsgrad.msl.analysis.divergence import choosing_conditions
from mpsgrad.msl.analysis.expressions import Expressions, expressions_of
from mpsgrad.msl.analysis.source import Function, Source, element_of
from mpsgrad.msl.analysis.statements import LOOPS
from mpsgrad.msl.analysis.template_brackets import template_brackets
from mpsgrad.msl.analysis.types import FLOATS, INTEGERS, SIZES
from mpsgrad.msl.backend import floating_literal
from mpsgrad.msl.lint.flow import depends, enclosing_conditions, has_guard, thread_names
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.program import Kernel
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, spell

THREADGROUP_BYTES = 32768


@rule(
    24,
    "aliasing",
    severity="warning",
    why="The compiler may take two restrict pointers, and the buffers of a kernel, to be different memory.",
)
def restrict_pointers_do_not_alias(source: Source) -> Iterator[Found]:
    """Sees one pointer passed twice to a function with a restrict parameter; buffers bound twice show at the launch."""
    restricted_functions: dict[str, Function] = {}
    for name, functions in source.functions_by_name.items():
        function = functions[0]
        if len(functions) == 1 and function.kernel is None:
            if source.places("restrict", "__restrict", start=function.opening, end=function.closing):
                restricted_functions[name] = function
    for index in source.calls(restricted_functions):
        if not source.in_body(index):
            continue
        parameters = source.arguments(restricted_functions[source.text(index)].opening)
        arguments = source.arguments(index + 1)
        if len(parameters) != len(arguments):
            continue
        texts = [[source.text(position) for position in range(*argument)] for argument in arguments]
        for second in range(len(arguments)):
            for first in range(second):
                if texts[first] != texts[second]:
                    continue
                pair = [{source.text(p) for p in range(*parameters[k])} for k in (first, second)]
                restricted = any(words & {"restrict", "__restrict"} for words in pair)
                if restricted and all("*" in words for words in pair) and any("const" not in words for words in pair):
                    written = " ".join(texts[second])
                    name = source.text(index)
                    message = f"'{written}' is passed twice to '{name}', whose parameters are restrict and written"
                    yield source.tokens[arguments[second][0]], message


_FIRST = frozenset("<< >> + - * / %".split())
"""Operators before an operand of a shift that are applied first."""


@rule(
    34,
    "integer-arithmetic",
    severity="warning",
    why="Integer division by zero and % of a negative operand give any value, and shifts count modulo the width.",
)
def integer_arithmetic_is_defined(source: Source) -> Iterator[Found]:
    """A divisor that a kernel's argument refers or points to is reported where neither it nor the thread's position is
    compared before.
    Taking the position apart by an extent is let pass: where an extent is zero, no thread is launched."""
    expressions = expressions_of(source)
    tokens = source.tokens
    for index in source.places("<<", ">>", "<<=", ">>=", "/", "%", "/=", "%="):
        token = tokens[index]
        if not source.in_body(index):
            continue
        if token.text in ("<<", ">>", "<<=", ">>="):
            left = _left(source, index)
            while source.text(left - 1) in _FIRST:
                left = _left(source, left - 1)
            kind = expressions.type_of(left, index)
            is_negative = source.text(index + 1) == "-"
            count = source.integer(tokens[index + 1 + is_negative : index + 2 + is_negative])
            if kind is not None and kind.is_scalar and kind.base in INTEGERS and count is not None:
                width = max(32, 8 * SIZES[kind.base])
                count = -count if is_negative else count
                ends = source.text(index + 2 + is_negative) in (";", ")", ",", "]", "|", "&", "^")
                if not 0 <= count < width and ends:
                    yield (
                        token,
                        f"shift count {count} of '{kind}' counts modulo {width}, so it shifts by {count % width}",
                    )
        else:
            divisor = _constant_behind(source, index)
            if divisor == 0:
                kind = expressions.type_of(_left(source, index), index)
                if token.text in ("%", "%=") or kind is not None and kind.base in INTEGERS:
                    yield token, "division by zero is undefined"
            elif divisor is not None and divisor < 0 and token.text in ("%", "%="):
                yield token, "the result of % with a negative operand is undefined"
            elif token.text == "%" and source.kind(index - 1) == NUMBER and source.text(index - 2) == "-":
                if source.text(index - 3) in ("(", "=", ",", "return", "+", "?", ":"):
                    yield token, "the result of % with a negative operand is undefined"
    for kernel in source.program.kernels:
        yield from _divisions_by_arguments(source, expressions, kernel)


def _constant_behind(source: Source, index: int) -> int | None:
    """The value of the operand behind the operator at ``index`` if it is an integer constant."""
    start = index + 1
    end = start + (source.text(start) in ("-", "+"))
    end = source.close(end) + 1 if source.text(end) == "(" else end + 1
    if end <= start or source.text(end) in (".", "->", "(", "[", "::", "{"):
        return None
    for place in range(start, end):
        variable = source.variable(source.text(place), place) if source.kind(place) == IDENTIFIER else None
        if variable is not None and (variable.type is None or not variable.type.const or variable.initialiser is None):
            # A constant at program scope is const without the word.
            if variable.type is None or variable.type.space != "constant":
                return None
    return source.integer(source.tokens[start:end])


def _left(source: Source, index: int) -> int:
    """Where the name, subscript, call, cast or bracket that ends before ``index`` begins."""
    start = index - 1
    while start > 0:
        text = source.text(start)
        if text in ("]", ")") and source.close(start) >= 0:
            start = source.close(start)
            if source.kind(start - 1) == IDENTIFIER and source.text(start - 1) != "return":
                start -= 1
                continue
        if source.text(start - 1) in (".", "->", "::"):
            start -= 2
            continue
        if source.text(start - 1) == ")" and source.close(start - 1) >= 0:
            start -= 1
            continue
        if source.text(start) == "(" and source.text(start - 1) == ">":
            brackets = template_brackets(source)
            if start - 1 in brackets:
                start = brackets[start - 1] - 1
                continue
        break
    return start


def _divisions_by_arguments(source: Source, expressions: Expressions, kernel: Kernel) -> Iterator[Found]:
    names = thread_names(source, kernel)
    reported: set[str] = set()
    for index in source.places("/", "%", "/=", "%=", start=kernel.body_open, end=kernel.body_close):
        divisor = index + 1 + (source.text(index + 1) == "*")
        if not _is_of_argument(source, divisor) or source.text(divisor) in names.follows:
            continue
        end = divisor + 1
        if source.text(end) == "[" and source.integer(source.tokens[end + 1 : source.close(end)]) is not None:
            end = source.close(end) + 1
        while source.text(end) in (".", "->") and source.kind(end + 1) == IDENTIFIER:
            end += 2
        written = "".join(source.text(position) for position in range(index + 1, end))
        kind = expressions.type_of(index + 1, end)
        if kind is None or not kind.is_scalar or kind.base not in INTEGERS or written in reported:
            continue
        start = _left(source, index)
        while source.text(start - 1) in ("*", "/", "%"):
            start = _left(source, start - 1)
        divided = expressions.type_of(start, index)
        if divided is not None and divided.base not in INTEGERS:
            continue
        dividend = set()
        while start < index:
            # An element that the position chooses may have any value.
            start = source.close(start) if source.text(start) == "[" and source.close(start) > 0 else start
            dividend.add(source.text(start))
            start += 1
        if source.text(end) in ("(", "[") or dividend & names.follows or has_guard(source, kernel, names, index):
            continue
        name = source.text(end - 1) if source.kind(end - 1) == IDENTIFIER else source.text(divisor)
        if _compared(source, kernel.body_open, index, name):
            continue
        reported.add(written)
        yield (
            source.tokens[index],
            f"division by '{written}', which may be zero: no comparison before this keeps it out",
        )


def _is_of_argument(source: Source, index: int) -> bool:
    """Whether the name at ``index`` refers or points to device or constant memory."""
    variable = source.variable(source.text(index), index) if source.kind(index) == IDENTIFIER else None
    if variable is None or variable.type is None or variable.type.space not in ("device", "constant"):
        return False
    return variable.is_reference or variable.type.pointers == 1 and not variable.extents


def _compared(source: Source, start: int, end: int, name: str) -> bool:
    """Whether the value called ``name``, or what it points to, is compared or tested between ``start`` and ``end``."""
    comparisons = ("<", ">", "<=", ">=", "==", "!=", "?", "&&", "||")
    for index in source.places(name, start=start, end=end):
        position = index
        while source.text(position - 1) in (".", "->"):
            position -= 2
        position -= source.text(position - 1) == "*"
        after = index + 1
        while source.text(after) == "[" and source.close(after) > 0:
            after = source.close(after) + 1
        if source.text(after) in comparisons or source.text(position - 1) in (*comparisons, "!"):
            return True
        if source.text(position - 1) == "(" and source.text(position - 2) in ("if", "while", "max"):
            return True
    return False


@rule(
    39,
    "divergent-barrier",
    severity="warning",
    why="A threadgroup_barrier that not every thread of the threadgroup reaches hangs the GPU or orders nothing.",
)
def barriers_are_reached_by_all(source: Source) -> Iterator[Found]:
    """Sees conditions on the thread's position itself, and on copies, sums and products of it, around barriers and
    around calls of functions that have one."""
    waiting = {
        name
        for name, (function, *more) in source.functions_by_name.items()
        if not more and function.kernel is None and _barriers(source, function.body_open, function.body_close)
    }
    for kernel in source.program.kernels:
        own = _barriers(source, kernel.body_open, kernel.body_close)
        called = [
            index
            for index in source.calls(waiting)
            if kernel.body_open < index < kernel.body_close and source.variable(source.text(index), index) is None
        ]
        barriers = sorted(own + called)
        if not barriers:
            continue
        differs = thread_names(source, kernel).differs
        returns = [
            (index, condition)
            for index in source.places("return", start=kernel.body_open, end=kernel.body_close)
            for condition in enclosing_conditions(source, kernel, index)
            if depends(source, condition, differs)
        ]
        for barrier in barriers:
            conditions = enclosing_conditions(source, kernel, barrier)
            conditions += _breaking_conditions(source, kernel, barrier)
            conditions += choosing_conditions(source, barrier)
            if any(depends(source, condition, differs) for condition in conditions):
                message = "threadgroup_barrier in control flow that differs between the threads of a threadgroup"
                yield source.tokens[barrier], message
            elif any(index < barrier for index, _ in returns):
                place = next(index for index, _ in returns if index < barrier)
                line = source.tokens[place].line
                message = f"threadgroup_barrier behind the return in line {line}, which only some threads take"
                yield source.tokens[barrier], message
                break
        yield from _barriers_for_other_memory(source, kernel, own)


def _barriers(source: Source, start: int, end: int) -> list[int]:
    found = source.places("threadgroup_barrier", start=start, end=end)
    return [index for index in found if source.text(index + 1) == "("]


def _breaking_conditions(source: Source, kernel: Kernel, barrier: int) -> list[tuple[int, int]]:
    """The conditions that end the loops around a barrier: of ``do`` loops, and around what leaves any of them early."""
    found = []
    for loop in source.statements.deciding(*LOOPS, start=kernel.body_open, end=barrier):
        ((opening, close),) = loop.parts or ((0, 0),)
        if not opening < barrier < close:
            continue
        if source.text(loop.word) == "do" and any(loop.condition):
            found.append(loop.condition)
        for leaving in source.places("break", "continue", start=opening, end=close):
            inner = source.statements.around(leaving, *LOOPS, "switch", start=opening)
            # What continues skips only what is behind it.
            if not any(inner) and (source.text(leaving) == "break" or leaving < barrier):
                found += [
                    condition for condition in enclosing_conditions(source, kernel, leaving) if condition[0] > opening
                ]
    return found


def _barriers_for_other_memory(source: Source, kernel: Kernel, barriers: list[int]) -> Iterator[Found]:
    """Barriers between a write and a read of one threadgroup array whose flags leave threadgroup memory out."""
    for number, barrier in enumerate(barriers):
        flags = {source.text(k) for k in range(barrier + 2, source.close(barrier + 1))}
        if "mem_threadgroup" in flags or flags.isdisjoint({"mem_none", "mem_device", "mem_texture"}):
            continue
        start = barriers[number - 1] if number else kernel.body_open
        end = barriers[number + 1] if number + 1 < len(barriers) else kernel.body_close
        written = {name for name, writes in _elements(source, start, barrier) if writes}
        read = {name for name, writes in _elements(source, barrier, end) if not writes}
        for name in sorted(written & read)[:1]:
            message = f"this barrier does not order '{name}' in threadgroup memory: add mem_flags::mem_threadgroup"
            yield source.tokens[barrier], message


def _elements(source: Source, start: int, end: int) -> Iterator[tuple[str, bool]]:
    """The threadgroup arrays whose elements are used between two places, and whether each is only written."""
    for opening in source.places("[", start=start + 1, end=end + 1):
        index = opening - 1
        if source.kind(index) != IDENTIFIER or source.text(index - 1) in (".", "->"):
            continue
        variable = source.variable(source.text(index), index)
        if variable is None or variable.type is None or variable.type.space != "threadgroup" or variable.place == index:
            continue
        after = source.close(index + 1) + 1
        while source.text(after) == "[" and source.close(after) > 0:
            after = source.close(after) + 1
        yield source.text(index), source.text(after) == "="


@rule(
    40,
    "threadgroup-memory",
    severity="warning",
    why="Apple GPUs have 32 KB of threadgroup memory; a kernel that asks for more fails when its pipeline is made.",
)
def threadgroup_memory_fits(source: Source) -> Iterator[Found]:
    """Counts the arrays whose type and length can be told; lengths given at the launch come on top."""
    sizes: dict[int, int] = {}
    for variables in source.variables.values():
        for variable in variables:
            if variable.type is None or variable.type.space != "threadgroup":
                continue
            if variable.is_reference or variable.initialiser is not None:
                continue
            if variable.type.pointers > len(variable.extents) or None in variable.extents:
                continue
            kind = element_of(variable.type, variable.extents)
            size = source.size(kind) if kind is not None else None
            sizes[variable.place] = (size or 0) * prod(extent or 0 for extent in variable.extents)
    for kernel in source.program.kernels:
        total = sum(size for place, size in sizes.items() if kernel.body_open < place < kernel.body_close)
        if total > THREADGROUP_BYTES:
            name = kernel.name.text
            message = f"'{name}' declares {total} bytes of threadgroup memory; Apple GPUs have {THREADGROUP_BYTES}"
            yield kernel.name, message


_SAFE_MATH = re.compile(r"^\s*#\s*pragma\s+METAL\s+fp\s+math_mode\s*\(\s*safe\s*\)", re.MULTILINE)
_TESTS = ("isnan", "isinf", "isfinite", "isnormal", "isordered", "isunordered")


@rule(
    42,
    "fast-math",
    severity="warning",
    why="Fast math takes NaN and infinity not to occur, so tests for them may fold to false; test the bits instead.",
)
def fast_math_keeps_tests_for_nan(source: Source) -> Iterator[Found]:
    """Silent where the source asks for safe math with #pragma METAL fp math_mode(safe)."""
    if _SAFE_MATH.search(source.written):
        return
    for index in source.words(*_TESTS):
        if source.text(index + 1) == "(" and source.text(index) not in source.declared_functions:
            if source.text(index - 2) != "precise":
                yield source.tokens[index], f"'{source.text(index)}' may be folded away under fast math"
    expressions = expressions_of(source)
    for index in source.places("==", "!=", "<", ">", "<=", ">="):
        token = source.tokens[index]
        if not source.in_body(index):
            continue
        after = index + 1 + (source.text(index + 1) in ("-", "+"))
        for constant in (index - 1, after):
            if source.text(constant) in ("INFINITY", "NAN", "HUGE_VALF") and source.text(constant + 1) != "(":
                yield token, f"comparison with {source.text(constant)} may be folded away under fast math"
        for first in source.places("infinity", "quiet_NaN", start=index + 1, end=index + 8):
            between = source.texts[index + 1 : first]
            if "numeric_limits" in between and not {";", "&&", "||", "?"} & set(between):
                yield token, f"comparison with {source.text(first)}() may be folded away under fast math"
        if token.text not in ("==", "!="):
            continue
        start = _left(source, index)
        left = source.texts[start:index]
        end = index + 1 + len(left)
        alone = source.text(start - 1) not in (".", "->", "::", "*", "&", "-", "+", "/", "%") and "(" not in left
        alone = alone and source.text(end) not in (".", "->", "[", "(", "*", "/", "+", "-", "%")
        if alone and left == source.texts[index + 1 : end] and source.kind(start) == IDENTIFIER:
            kind = expressions.type_of(start, index)
            if kind is None and len(left) == 1 or kind is not None and not kind.pointers and kind.base in FLOATS:
                written = spell(source.tokens[start:index])
                yield token, f"'{written} {token.text} {written}' may be folded away under fast math"


_DOMAINS: dict[str, Callable[[float], bool]] = {
    "log": lambda x: x <= 0, "log2": lambda x: x <= 0, "log10": lambda x: x <= 0, "rsqrt": lambda x: x <= 0,
    "sqrt": lambda x: x < 0, "powr": lambda x: x < 0, "pow": lambda x: x <= 0, "asin": lambda x: abs(x) > 1,
    "acos": lambda x: abs(x) > 1, "atanh": lambda x: abs(x) >= 1, "acosh": lambda x: x < 1,
}  # fmt: skip
_BOUNDED = re.compile(rf"(?:{'|'.join(_DOMAINS)}|atan2|fmod)$")


@rule(
    43,
    "accuracy",
    severity="warning",
    why="Each function of the library has its own error bound, and for some arguments or under fast math none.",
)
def results_have_a_bound(source: Source) -> Iterator[Found]:
    """Sees arguments that are written as numbers; fmod has a bound as precise::fmod and in safe math."""
    safe = _SAFE_MATH.search(source.written) is not None
    for index in source.calls(_BOUNDED):
        name = source.text(index)
        if name in source.declared_functions:
            continue
        is_precise = source.text(index - 1) == "::" and source.text(index - 2) == "precise"
        numbers = [_number(source, *argument) for argument in source.arguments(index + 1)]
        token = source.tokens[index]
        if name == "fmod":
            if not is_precise and not safe:
                yield token, "fast math gives 'fmod' no error bound; precise::fmod has one"
        elif name == "atan2":
            if 0.0 in numbers[:2] and not is_precise and not safe:
                yield token, "'atan2' of 0 is undefined under fast math"
        elif numbers and numbers[0] is not None and _DOMAINS[name](numbers[0]):
            if name != "pow":
                yield token, f"{numbers[0]:g} is outside the domain of '{name}'"
            elif not is_precise and not safe:
                yield token, f"'pow' of {numbers[0]:g} is undefined under fast math: pow(x, y) is exp2(y * log2(x))"


def _number(source: Source, start: int, end: int) -> float | None:
    """The value of an argument that is one number, with a sign or without."""
    sign = -1.0 if source.text(start) == "-" else 1.0
    start += source.text(start) in ("-", "+")
    if end != start + 1 or source.kind(start) != NUMBER:
        return None
    parts = floating_literal(source.text(start))
    try:
        return sign * float((parts[0] if parts else source.text(start).rstrip("uUlL")).replace("'", ""))
    except ValueError:
        return None
