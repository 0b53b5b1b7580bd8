"""Rules 24, 34, 39, 40, 42 and 43: what compiles, and bites when it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mpsgrad.msl.analysis.expressions import Expressions
from mpsgrad.msl.analysis.source import Source, element_of
from mpsgrad.msl.analysis.types import INTEGERS, SIZES
from mpsgrad.msl.declarations import Kernel
from mpsgrad.msl.lint.flow import enclosing_conditions, has_guard, thread_names
from mpsgrad.msl.lint.rule import Found, rule, undecided
from mpsgrad.msl.tokens import IDENTIFIER

THREADGROUP_BYTES = 32768


@rule(
    24,
    "aliasing",
    severity="warning",
    why="The compiler may take two restrict pointers, and the buffers of a kernel, to be different memory.",
)
def restrict_pointers_do_not_alias(source: Source) -> Iterator[Found]:
    """Sees one pointer passed twice to a function with a restrict parameter; buffers bound twice show at the launch."""
    for index in source.calls():
        functions = source.functions_by_name.get(source.text(index), [])
        if len(functions) != 1 or functions[0].kernel is not None or not source.in_body(index):
            continue
        parameters = source.arguments(functions[0].opening)
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


@rule(
    34,
    "integer-arithmetic",
    severity="warning",
    why="Integer division by zero and % of a negative operand give any value, and shifts count modulo the width.",
)
def integer_arithmetic_is_defined(source: Source) -> Iterator[Found]:
    """A divisor that is a kernel's argument is reported where neither it nor the thread's position is compared before.
    Taking the position apart by an extent is let pass: where an extent is zero, no thread is launched."""
    expressions = Expressions(source)
    tokens = source.tokens
    for index, token in enumerate(tokens):
        if token.text in ("<<", ">>", "<<=", ">>=") and source.in_body(index):
            kind = expressions.type_of(_left(source, index), index)
            count = source.integer(tokens[index + 1 : index + 2])
            if kind is not None and kind.is_scalar and kind.base in INTEGERS and count is not None:
                width = max(32, 8 * SIZES[kind.base])
                ends = source.text(index + 2) in (";", ")", ",", "]", "|", "&", "^")
                if count >= width and ends:
                    yield (
                        token,
                        f"shift count {count} of '{kind}' counts modulo {width}, so it shifts by {count % width}",
                    )
        elif token.text in ("/", "%", "/=", "%=") and source.in_body(index):
            divisor = source.text(index + 1)
            if divisor == "0" or token.text in ("%", "%=") and divisor == "-":
                if divisor == "0":
                    kind = expressions.type_of(_left(source, index), index)
                    if token.text == "/" and (kind is None or kind.base not in INTEGERS):
                        continue
                    yield token, "division by zero is undefined"
                elif re.fullmatch(r"\d+", source.text(index + 2)):
                    yield token, "the result of % with a negative operand is undefined"
    for kernel in source.program.kernels:
        yield from _divisions_by_arguments(source, expressions, kernel)


def _left(source: Source, index: int) -> int:
    """Where the name, subscript, call or bracket that ends before ``index`` begins."""
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
        break
    return start


def _divisions_by_arguments(source: Source, expressions: Expressions, kernel: Kernel) -> Iterator[Found]:
    arguments = {parameter.name for parameter in kernel.parameters if parameter.is_reference}
    names = thread_names(source, kernel)
    reported: set[str] = set()
    for index in range(kernel.body_open, kernel.body_close):
        if source.text(index) not in ("/", "%", "/=", "%=") or source.text(index + 1) not in arguments:
            continue
        end = index + 2
        while source.text(end) == "." and source.kind(end + 1) == IDENTIFIER:
            end += 2
        written = "".join(source.text(position) for position in range(index + 1, end))
        kind = expressions.type_of(index + 1, end)
        if kind is None or not kind.is_scalar or kind.base not in INTEGERS or written in reported:
            continue
        start = _left(source, index)
        while source.text(start - 1) in ("*", "/", "%"):
            start = _left(source, start - 1)
        dividend = {source.text(position) for position in range(start, index)}
        if source.text(end) in ("(", "[") or dividend & names.follows or has_guard(source, kernel, names, index):
            continue
        if _compared(source, kernel.body_open, index, source.text(end - 1)):
            continue
        reported.add(written)
        yield (
            source.tokens[index],
            f"division by '{written}', which may be zero: no comparison before this keeps it out",
        )


def _compared(source: Source, start: int, end: int, name: str) -> bool:
    """Whether the value called ``name`` is compared or tested between ``start`` and ``end``."""
    comparisons = ("<", ">", "<=", ">=", "==", "!=", "?", "&&", "||")
    for index in range(start, end):
        if source.text(index) != name:
            continue
        position = index
        while source.text(position - 1) in (".", "->"):
            position -= 2
        if source.text(index + 1) in comparisons or source.text(position - 1) in (*comparisons, "!"):
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
    """Sees conditions on the thread's position itself, and on copies, sums and products of it."""
    for kernel in source.program.kernels:
        barriers = [
            index
            for index in range(kernel.body_open, kernel.body_close)
            if source.text(index) == "threadgroup_barrier" and source.text(index + 1) == "("
        ]
        if not barriers:
            continue
        differs = thread_names(source, kernel).differs
        returns = [
            (index, condition)
            for index in range(kernel.body_open, kernel.body_close)
            if source.text(index) == "return"
            for condition in enclosing_conditions(source, kernel, index)
            if _depends(source, condition, differs)
        ]
        for barrier in barriers:
            if any(_depends(source, c, differs) for c in enclosing_conditions(source, kernel, barrier)):
                message = "threadgroup_barrier in control flow that differs between the threads of a threadgroup"
                yield source.tokens[barrier], message
            elif any(index < barrier for index, _ in returns):
                place = next(index for index, _ in returns if index < barrier)
                line = source.tokens[place].line
                message = f"threadgroup_barrier behind the return in line {line}, which only some threads take"
                yield source.tokens[barrier], message
                break


def _depends(source: Source, condition: tuple[int, int], differs: frozenset[int]) -> bool:
    """Whether a variable of ``differs`` itself decides the condition. In "position / 32 == 0", as an index or as an
    argument it may give all threads the same answer."""
    start, end = condition
    index = start
    while index < end:
        text = source.text(index)
        is_name = source.kind(index - 1) == IDENTIFIER and not source.is_type(index - 1)
        is_call = text == "(" and index > start and (is_name or source.text(index - 1) == ">")
        if (is_call or text == "[") and source.close(index) > 0:
            index = source.close(index)
        elif source.kind(index) == IDENTIFIER and source.text(index - 1) not in (".", "->", "/", "-"):
            variable = source.variable(text, index)
            after = index + 1
            while source.text(after) == "." and source.kind(after + 1) == IDENTIFIER:
                after += 2
            if variable is not None and variable.place in differs and source.text(after) not in ("/", "-", ">>"):
                return True
        index += 1
    return False


@rule(
    40,
    "threadgroup-memory",
    severity="warning",
    why="Apple GPUs have 32 KB of threadgroup memory; a kernel that asks for more fails when its pipeline is made.",
)
def threadgroup_memory_fits(source: Source) -> Iterator[Found]:
    """Counts the arrays whose type and length can be told; lengths given at the launch come on top."""
    for kernel in source.program.kernels:
        total = 0
        for variables in source.variables.values():
            for variable in variables:
                if not kernel.body_open < variable.place < kernel.body_close or variable.type is None:
                    continue
                if variable.type.space != "threadgroup" or variable.is_reference or variable.initialiser is not None:
                    continue
                if variable.type.pointers > len(variable.extents) or None in variable.extents:
                    continue
                kind = element_of(variable.type, variable.extents)
                size = source.size(kind) if kind is not None else None
                count = 1
                for extent in variable.extents:
                    count *= extent or 0
                total += (size or 0) * count
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
    expressions = Expressions(source)
    for index, token in enumerate(source.tokens):
        if token.text not in ("==", "!=", "<", ">", "<=", ">=") or not source.in_body(index):
            continue
        after = index + 1 + (source.text(index + 1) in ("-", "+"))
        for constant in (index - 1, after):
            if source.text(constant) in ("INFINITY", "NAN", "HUGE_VALF") and source.text(constant + 1) != "(":
                yield token, f"comparison with {source.text(constant)} may be folded away under fast math"
        left, right = source.tokens[index - 1], source.tokens[index + 1]
        if token.text in ("==", "!=") and left.kind == right.kind == IDENTIFIER and left.text == right.text:
            alone = source.text(index - 2) not in (".", "->", "::") and source.text(index + 2) not in (
                ".",
                "->",
                "[",
                "(",
            )
            kind = expressions.type_of(index - 1, index)
            if alone and (kind is None or not kind.pointers and kind.base not in INTEGERS):
                yield token, f"'{left.text} {token.text} {left.text}' may be folded away under fast math"


undecided(
    43,
    "accuracy",
    why="Each function of the library has its own error bound, and some arguments have no specified result.",
    limits="A bound on results is not a property of the source: tests compare the numbers within it.",
)
