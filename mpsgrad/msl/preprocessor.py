"""The C preprocessor: directives, macros and conditionals, applied before anything else looks at the source.

Kernels are often made by macros, so signatures can only be read after expansion. Expanded tokens stand where the macro
was used, which is where a reader looks for an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from mpsgrad.errors import ShaderError
from mpsgrad.msl.tensor_headers import is_tensor_header, tensor_header
from mpsgrad.msl.tokens import (
    IDENTIFIER,
    NUMBER,
    PUNCTUATION,
    STRING,
    Token,
    character_value,
    error,
    is_message,
    refuse_unknown,
    tokenize_lines,
)
from mpsgrad.msl.versions import DEFAULT, TENSORS, macros, version_of

PREDEFINED = {
    "__cplusplus": "201402L",
    "__FLT_MAX__": "3.40282347e+38f",
    "__FLT_MIN__": "1.17549435e-38f",
    "__FLT_EPSILON__": "1.19209290e-7f",
    "__FLT_DENORM_MIN__": "1.40129846e-45f",
    "__FLT_RADIX__": "2",
    "__FLT_DIG__": "6",
    "__FLT_MANT_DIG__": "24",
    "__FLT_MAX_EXP__": "128",
    "__FLT_MIN_EXP__": "(-125)",
    "__FLT_MAX_10_EXP__": "38",
    "__FLT_MIN_10_EXP__": "(-37)",
    "__CHAR_BIT__": "8",
    "__SCHAR_MAX__": "127",
    "__SHRT_MAX__": "32767",
    "__INT_MAX__": "2147483647",
    "__LONG_MAX__": "9223372036854775807L",
    "METAL_FUNC": "inline __attribute__((always_inline))",
    "__has_include": None,
    "__has_builtin": None,
    "__has_feature": None,
    "__has_attribute": None,
    "__has_extension": None,
}

_CHANGING = frozenset({"__LINE__", "__FILE__", "__COUNTER__"})
_EXPANSION_LIMIT = 500_000
_DEPTH_LIMIT = 200
_SAFE_MATH = ["METAL", "fp", "math_mode", "(", "safe", ")"]


_STANDARD_HEADERS = frozenset(
    """
    algorithm array atomic bitset cassert cfloat climits cmath complex cstddef cstdint cstdio cstdlib cstring functional
    initializer_list iostream limits map memory numeric optional random set span string tuple type_traits utility
    variant vector assert.h float.h limits.h math.h stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h
    """.split()
)


class Macro:
    """A macro's replacement list; ``parameters`` is None for one without an argument list."""

    __slots__ = ("body", "name", "parameters", "variadic")

    def __init__(self, name: str, parameters: list[str] | None, variadic: str | None, body: list[Token]) -> None:
        self.name = name
        self.parameters = parameters
        self.variadic = variadic
        self.body = body


_CONDITIONS = frozenset({"if", "ifdef", "ifndef", "elif", "else", "endif"})


@dataclass(slots=True)
class _Condition:
    """An ``#if`` whose ``#endif`` is to come: whether what is around it, this branch and one up to it are active."""

    place: Token
    is_outer_active: bool
    is_active: bool
    was_active: bool
    has_else: bool = False


class Preprocessor:
    """Expands one source into a flat list of tokens.

    ``resolve(name, quoted)`` gives the text of an included file and its name, or None if there is none. Headers of the
    Metal standard library are known and give nothing: the translator supplies their contents.
    """

    def __init__(
        self,
        resolve: Callable[[str, bool], tuple[str, str] | None] | None = None,
        definitions: Mapping[str, str] | None = None,
    ) -> None:
        self._resolve = resolve
        self._macros: dict[str, Macro] = {}
        self._depth = 0
        self._folder = ""
        self._count = 0
        self._counter = 0
        self.pragmas: list[Token] = []
        self.pragma_once: set[str] = set()
        self.asks_for_safe_math = False
        version = (definitions or {}).get("__METAL_VERSION__", DEFAULT)
        self._version = version_of(version)
        for name, text in {**PREDEFINED, **macros(version), **(definitions or {})}.items():
            if text is not None:
                body = [token for line in tokenize_lines(text, "<predefined>") for token in line]
                refuse_unknown(body)
                if "(" in name:
                    head = [token for line in tokenize_lines(name, "<predefined>") for token in line]
                    self._define(head[0], [*head, *body])
                else:
                    self._macros[name] = Macro(name, None, None, body)

    def run(self, source: str, file: str) -> list[Token]:
        """The tokens of ``source`` after preprocessing."""
        if self._depth >= _DEPTH_LIMIT:
            raise ShaderError("files include each other without end", file=file, line=1, column=1)
        self._depth += 1
        try:
            return self._run(source, file)
        finally:
            self._depth -= 1

    def _run(self, source: str, file: str) -> list[Token]:
        output: list[Token] = []
        pending: list[Token] = []
        conditions: list[_Condition] = []
        shown_file, shift = file, 0
        for line in tokenize_lines(source, file):
            if shift or shown_file is not file:
                for token in line:
                    token.line += shift
                    token.file = shown_file
            is_active = not conditions or conditions[-1].is_active
            if is_active and not is_message(line):
                refuse_unknown(line)
            if line[0].text != "#":
                if is_active:
                    pending += line
                continue
            if len(line) == 1:
                continue
            name, rest = line[1].text, line[2:]
            if name in _CONDITIONS:
                self._branch(conditions, line[1], rest)
            elif not is_active:
                continue
            elif name == "line" or line[1].kind == NUMBER:
                number, named = self._line(line[1], rest if name == "line" else line[1:])
                written = line[-1].line - shift
                shift = number - (written + 1)
                shown_file = named if named is not None else shown_file
            else:
                # Macros in the text before a directive must see the definitions as they were.
                if pending:
                    output += self._expand(pending)
                    pending = []
                self._directive(source, file, line, output)
        if conditions:
            raise error("unterminated conditional directive", conditions[-1].place)
        if pending:
            output += self._expand(pending)
        return output

    def _branch(self, conditions: list[_Condition], directive: Token, rest: list[Token]) -> None:
        """Opens, continues or closes the innermost of ``conditions``."""
        name = directive.text
        if name in ("if", "ifdef", "ifndef"):
            is_outer_active = not conditions or conditions[-1].is_active
            is_active = is_outer_active and self._condition(name, directive, rest)
            conditions.append(_Condition(directive, is_outer_active, is_active, is_active))
            return
        if not conditions:
            raise error(f"#{name} without #if", directive)
        condition = conditions[-1]
        if name == "endif":
            conditions.pop()
            return
        if condition.has_else:
            raise error(f"#{name} after #else", directive)
        condition.has_else = name == "else"
        is_open = condition.is_outer_active and not condition.was_active
        condition.is_active = is_open and (name == "else" or self._condition("if", directive, rest))
        condition.was_active = condition.was_active or condition.is_active

    def _line(self, directive: Token, numbers: list[Token]) -> tuple[int, str | None]:
        """The number that a directive gives to the next line, and the name of its file or None."""
        numbers = self._expand(numbers)
        if not numbers or not numbers[0].text.isdigit() or int(numbers[0].text) > 0x7FFFFFFF:
            raise error("#line needs a line number", directive)
        if len(numbers) > 1 and (numbers[1].kind != STRING or numbers[1].text[0] != '"'):
            raise error("#line needs a file name in quotes", numbers[1])
        return int(numbers[0].text), numbers[1].text[1:-1] if len(numbers) > 1 else None

    def _directive(self, source: str, file: str, line: list[Token], output: list[Token]) -> None:
        """Does what any other directive says."""
        name, rest = line[1].text, line[2:]
        if name == "define":
            self._define(line[1], rest)
        elif name == "undef":
            if len(rest) != 1 or rest[0].kind != IDENTIFIER:
                raise error("#undef needs a name", line[1])
            self._macros.pop(rest[0].text, None)
        elif name in ("include", "import"):
            output += self._include(source, line[1], rest, file)
        elif name == "pragma":
            self._pragma(line, rest, file, output)
        elif name == "error":
            raise error("#error" + "".join(" " * token.spaced + token.text for token in rest), line[1])
        elif name != "warning":
            raise error(f"invalid preprocessing directive '#{name}'", line[1])

    def _pragma(self, line: list[Token], rest: list[Token], file: str, output: list[Token]) -> None:
        if rest and rest[0].text == "once":
            self.pragma_once.add(file)
        elif rest and (
            rest[0].text == "unroll" or (rest[0].text == "clang" and len(rest) > 1 and rest[1].text == "loop")
        ):
            words = self._expand(rest[1:]) if rest[0].text == "unroll" else rest[1:]
            text = "#pragma " + " ".join(token.text for token in [rest[0], *words])
            output.append(Token("pragma", text, line[0].file, line[0].line, 1))
        elif [token.text for token in rest] == _SAFE_MATH:
            self.asks_for_safe_math = True
        elif rest and rest[0].text == "pack":
            text = "#pragma " + "".join(token.text for token in rest)
            output.append(Token("pragma", text, line[0].file, line[0].line, 1))

    def _include(self, source: str, directive: Token, rest: list[Token], file: str) -> list[Token]:
        if rest and rest[0].kind == IDENTIFIER:
            rest = self._expand(rest)
        if len(rest) == 1 and rest[0].kind == STRING:
            name, quoted = rest[0].text[1:-1], True
        elif len(rest) >= 3 and rest[0].text == "<" and rest[-1].text == ">":
            name, quoted = "".join(token.text for token in rest[1:-1]), False
        else:
            raise error('#include expects "FILE" or <FILE>', directive)
        if not quoted and is_tensor_header(name):
            return self._include_tensors(name)
        if re.fullmatch(r"metal_\w+|metal/\w+|simd/\w+\.h|TargetConditionals\.h", name):
            if name.startswith("simd/"):
                self._define_simd_types(directive)
            return []
        # Files in quotes are beside the file that includes them, or where that is looked for.
        beside = [os.path.normpath(os.path.join(self._folder, name))] if quoted else []
        found = None
        for candidate in dict.fromkeys((*beside, name)):
            found = self._resolve(candidate, quoted) if self._resolve else None
            if found is not None:
                break
        if found is None:
            place = rest[0]
            if name in _STANDARD_HEADERS:
                raise error(
                    f"'{name}' is a C++ standard library header; Metal has only <metal_stdlib> and its parts", place
                )
            raise error(f"'{name}' file not found", place)
        text, path = found
        if path in self.pragma_once:
            return []
        folder, self._folder = self._folder, os.path.dirname(candidate)
        try:
            return self.run(text, path)
        finally:
            self._folder = folder

    def _has_header(self, name: str) -> bool:
        if is_tensor_header(name):
            return self._version >= TENSORS
        return re.fullmatch(r"metal_\w+|simd/\w+\.h", name) is not None

    def _include_tensors(self, name: str) -> list[Token]:
        """What a header of Metal 4 says, in which earlier versions find nothing."""
        if self._version < TENSORS:
            return []
        text, path = tensor_header(name)
        return [] if path in self.pragma_once else self.run(text, path)

    def _define_simd_types(self, place: Token) -> None:
        """The names that <simd/simd.h> has for vectors and matrices: ``vector_float4``, ``simd_float4x4``."""
        scalars = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float")
        vectors = [f"{scalar}{width}" for scalar in scalars for width in (2, 3, 4)]
        matrices = [f"{s}{columns}x{rows}" for s in ("half", "float") for columns in (2, 3, 4) for rows in (2, 3, 4)]
        for kind, names in (("vector", vectors), ("matrix", matrices), ("simd", vectors + matrices)):
            for name in names:
                body = [place.replaced(name, IDENTIFIER)]
                self._macros.setdefault(f"{kind}_{name}", Macro(f"{kind}_{name}", None, None, body))

    def _define(self, directive: Token, rest: list[Token]) -> None:
        if not rest or rest[0].kind != IDENTIFIER:
            raise error("macro name must be an identifier", directive)
        name = rest[0].text
        if name == "defined":
            raise error("'defined' cannot be used as a macro name", rest[0])
        if len(rest) > 1 and rest[1].text == "(" and not rest[1].spaced:
            parameters: list[str] = []
            variadic = None
            index = 2
            while index < len(rest) and rest[index].text != ")":
                token = rest[index]
                if token.text == "...":
                    variadic = "__VA_ARGS__"
                elif token.kind == IDENTIFIER:
                    if index + 1 < len(rest) and rest[index + 1].text == "...":
                        variadic = token.text
                        index += 1
                    else:
                        parameters.append(token.text)
                else:
                    raise error("invalid macro parameter list", token)
                index += 1
                if index < len(rest) and rest[index].text == ",":
                    index += 1
                elif index < len(rest) and rest[index].text != ")":
                    raise error("invalid macro parameter list", rest[index])
            if index >= len(rest):
                raise error("missing ')' in macro parameter list", rest[1])
            self._macros[name] = Macro(name, parameters, variadic, rest[index + 1 :])
        else:
            self._macros[name] = Macro(name, None, None, rest[1:])

    # Macro expansion, with a hide set per token as in Prosser's algorithm.

    def _expand(self, tokens: list[Token], in_condition: bool = False) -> list[Token]:
        macros = self._macros
        texts = {token.text for token in tokens}
        if not in_condition and _CHANGING.isdisjoint(texts) and macros.keys().isdisjoint(texts):
            return tokens
        output: list[Token] = []
        stack = tokens[::-1]
        while stack:
            token = stack.pop()
            text = token.text
            if token.kind != IDENTIFIER:
                output.append(token)
                continue
            macro = macros.get(text)
            if macro is None:
                if in_condition and text == "defined":
                    token = self._defined(token, stack)
                elif text == "__LINE__":
                    token = token.replaced(str(token.line), NUMBER)
                elif text == "__FILE__":
                    token = token.replaced('"' + token.file + '"', STRING)
                elif text == "__COUNTER__":
                    token = token.replaced(str(self._counter), NUMBER)
                    self._counter += 1
                output.append(token)
                continue
            if text in token.hidden:
                output.append(token)
                continue
            if macro.parameters is None:
                replaced = self._substitute(macro, {}, {}, token)
                hidden = token.hidden | {text}
            else:
                if not stack or stack[-1].text != "(":
                    output.append(token)
                    continue
                arguments, closing = self._arguments(macro, token, stack)
                expanded: dict[str, list[Token]] = {}
                replaced = self._substitute(macro, arguments, expanded, token)
                hidden = (token.hidden & closing.hidden) | {text}
            self._count += len(replaced) + 1
            if self._count > _EXPANSION_LIMIT:
                raise error(f"macro '{text}' expands to too much text", token)
            for new in reversed(replaced):
                new.hidden = new.hidden | hidden if new.hidden else hidden
                stack.append(new)
        return output

    def _arguments(self, macro: Macro, token: Token, stack: list[Token]) -> tuple[dict[str, list[Token]], Token]:
        stack.pop()
        arguments: list[list[Token]] = [[]]
        depth = 0
        assert macro.parameters is not None
        fixed = len(macro.parameters)
        while True:
            if not stack:
                raise error(f"unterminated argument list of macro '{macro.name}'", token)
            current = stack.pop()
            if current.kind == PUNCTUATION:
                if current.text in "([{" and current.text != "":
                    depth += current.text == "("
                elif current.text == ")":
                    if depth == 0:
                        break
                    depth -= 1
                elif current.text == "," and depth == 0 and not (macro.variadic and len(arguments) > fixed):
                    arguments.append([])
                    continue
            arguments[-1].append(current)
        if not fixed and not macro.variadic and len(arguments) == 1 and not arguments[0]:
            arguments = []
        if len(arguments) < fixed or (len(arguments) > fixed and not macro.variadic):
            few = "few" if len(arguments) < fixed else "many"
            raise error(f"too {few} arguments for macro '{macro.name}'", token)
        named = dict(zip(macro.parameters, arguments[:fixed], strict=True))
        if macro.variadic:
            named[macro.variadic] = arguments[fixed] if len(arguments) > fixed else []
        return named, current

    def _substitute(
        self, macro: Macro, arguments: dict[str, list[Token]], expanded: dict[str, list[Token]], place: Token
    ) -> list[Token]:
        result: list[Token] = []
        body = macro.body
        index = 0
        first = True
        # Whether nothing has come yet of operands of ## that stand in a row.
        is_empty: bool | None = None
        while index < len(body):
            token = body[index]
            spaced = place.spaced if first else token.spaced
            first = False
            following = body[index + 1].text if index + 1 < len(body) else ""
            if token.text == "#" and macro.parameters is not None:
                if following not in arguments:
                    raise error("'#' is not followed by a macro parameter", token)
                text = _stringify(arguments[following])
                result.append(Token(STRING, text, place.file, place.line, place.column, spaced))
                index += 2
                continue
            if token.text == "##" and result is not None and index and index + 1 < len(body):
                right_token = body[index + 1]
                right = (
                    [t.at(place) for t in arguments[right_token.text]]
                    if right_token.text in arguments
                    else [right_token.at(place)]
                )
                left = body[index - 1].text
                left_empty = left in arguments and not arguments[left] if is_empty is None else is_empty
                is_empty = left_empty and not right
                index += 2
                if not right:
                    # GNU: ", ## __VA_ARGS__" with nothing there drops the comma.
                    if result and result[-1].text == "," and right_token.text == macro.variadic:
                        result.pop()
                    continue
                if left_empty or not result:
                    result += right
                elif result[-1].text == "," and right_token.text == macro.variadic:
                    result += right
                else:
                    result[-1] = _paste(result[-1], right[0], place)
                    result += right[1:]
                continue
            is_empty = None
            if token.text in arguments and token.kind == IDENTIFIER:
                if following == "##":
                    new = [t.at(place) for t in arguments[token.text]]
                else:
                    if token.text not in expanded:
                        expanded[token.text] = self._expand(list(arguments[token.text]))
                    new = [t.at(place) for t in expanded[token.text]]
                if new:
                    new[0].spaced = spaced
                result += new
            else:
                result.append(token.at(place, spaced=spaced))
            index += 1
        return result

    # Conditions.

    def _condition(self, kind: str, directive: Token, rest: list[Token]) -> bool:
        if kind != "if":
            if not rest or rest[0].kind != IDENTIFIER:
                raise error(f"#{kind} needs a macro name", directive)
            known = rest[0].text in self._macros or rest[0].text in ("__has_include",)
            return known == (kind == "ifdef")
        resolved: list[Token] = []
        index = 0
        while index < len(rest):
            token = rest[index]
            if token.text in (
                "__has_include",
                "__has_builtin",
                "__has_feature",
                "__has_attribute",
                "__has_extension",
            ):
                closing = next((i for i in range(index, len(rest)) if rest[i].text == ")"), None)
                if closing is None:
                    raise error(f"missing ')' after '{token.text}'", token)
                name = "".join(t.text for t in rest[index + 2 : closing]).strip('<>"')
                yes = token.text == "__has_include" and self._has_header(name)
                resolved.append(token.replaced("1" if yes else "0", NUMBER))
                index = closing
            else:
                resolved.append(token)
            index += 1
        if not resolved:
            raise error("#if with no expression", directive)
        return _Expression(self._expand(resolved, in_condition=True), directive).value() != 0

    def _defined(self, token: Token, stack: list[Token]) -> Token:
        """The value of ``defined``, whose operand is taken from the stack."""
        bracketed = bool(stack) and stack[-1].text == "("
        if bracketed:
            stack.pop()
        if not stack or stack[-1].kind != IDENTIFIER:
            raise error("'defined' needs a macro name", token)
        known = stack.pop().text in self._macros
        if bracketed and (not stack or stack.pop().text != ")"):
            raise error("missing ')' after 'defined'", token)
        return token.replaced("1" if known else "0", NUMBER)


def _stringify(tokens: list[Token]) -> str:
    text = ""
    for index, token in enumerate(tokens):
        if index and token.spaced:
            text += " "
        text += token.text.replace("\\", "\\\\").replace('"', '\\"') if token.kind == STRING else token.text
    return f'"{text}"'


def _paste(left: Token, right: Token, place: Token) -> Token:
    text = left.text + right.text
    try:
        made = [token for line in tokenize_lines(text, place.file) for token in line]
    except ShaderError:
        made = []
    if len(made) != 1:
        raise error(f"pasting forms '{text}', which is not a token", place)
    return Token(made[0].kind, text, place.file, place.line, place.column, left.spaced, left.hidden & right.hidden)


_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip


def integer_expression(tokens: list[Token], place: Token) -> int:
    """The value of an integer expression as ``#if`` takes it; raises ``ShaderError``."""
    return _Expression(tokens, place).value()


class _Expression:
    """The integer expression of an ``#if``."""

    def __init__(self, tokens: list[Token], directive: Token) -> None:
        self._tokens = tokens
        self._directive = directive
        self._index = 0
        self._depth = 0
        # Operands around the current place that do not count, where 1 / 0 may stand.
        self._unused = 0

    def value(self) -> int:
        result = self._ternary()
        if self._index < len(self._tokens):
            raise error("unexpected token in #if expression", self._tokens[self._index])
        return result

    def _next(self) -> Token:
        if self._index >= len(self._tokens):
            raise error("#if expression ends too early", self._directive)
        token = self._tokens[self._index]
        self._index += 1
        return token

    def _peek(self) -> str:
        return self._tokens[self._index].text if self._index < len(self._tokens) else ""

    def _ternary(self) -> int:
        self._depth += 1
        if self._depth > _DEPTH_LIMIT:
            raise error("#if expression is nested too deeply", self._directive)
        condition = self._binary(1)
        if self._peek() == "?":
            self._next()
            yes = self._operand(self._ternary, counts=bool(condition))
            if self._next().text != ":":
                raise error("expected ':' in #if expression", self._directive)
            no = self._operand(self._ternary, counts=not condition)
            condition = yes if condition else no
        self._depth -= 1
        return condition

    def _binary(self, least: int) -> int:
        left = self._unary()
        while _PRECEDENCE.get(self._peek(), 0) >= least:
            token = self._next()
            counts = bool(left) if token.text == "&&" else not left or token.text != "||"
            right = self._operand(partial(self._binary, _PRECEDENCE[token.text] + 1), counts=counts)
            is_undefined = token.text in ("/", "%") and right == 0
            left = 0 if is_undefined and self._unused else _evaluate(token, left, right)
        return left

    def _operand(self, read: Callable[[], int], *, counts: bool) -> int:
        self._unused += not counts
        value = read()
        self._unused -= not counts
        return value

    def _unary(self) -> int:
        token = self._next()
        if token.text in ("!", "-", "+", "~"):
            self._depth += 1
            if self._depth > _DEPTH_LIMIT:
                raise error("#if expression is nested too deeply", self._directive)
            value = self._unary()
            self._depth -= 1
            return {"!": int(not value), "-": -value, "+": value, "~": ~value}[token.text]
        if token.text == "(":
            value = self._ternary()
            if self._next().text != ")":
                raise error("missing ')' in #if expression", token)
            return value
        if token.kind == NUMBER:
            digits = token.text.replace("'", "").rstrip("uUlL")
            try:
                return int(digits, 8) if re.fullmatch(r"0[0-7]+", digits) else int(digits, 0)
            except ValueError:
                raise error("#if needs an integer", token) from None
        if token.kind == IDENTIFIER:
            if self._peek() == "(":
                raise error(f"function-like macro '{token.text}' is not defined", token)
            return int(token.text == "true")
        character = character_value(token)
        if character is not None:
            return character
        raise error("unexpected token in #if expression", token)


def _evaluate(token: Token, left: int, right: int) -> int:
    operator = token.text
    if operator in ("/", "%"):
        if right == 0:
            raise error("division by zero in #if expression", token)
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    if operator in ("<<", ">>"):
        right &= 63
        return (left << right) & 0xFFFFFFFFFFFFFFFF if operator == "<<" else left >> right
    return {
        "||": int(bool(left) or bool(right)), "&&": int(bool(left) and bool(right)), "|": left | right,
        "^": left ^ right, "&": left & right, "==": int(left == right), "!=": int(left != right),
        "<": int(left < right), ">": int(left > right), "<=": int(left <= right), ">=": int(left >= right),
        "+": left + right, "-": left - right, "*": left * right,
    }[operator]  # fmt: skip
