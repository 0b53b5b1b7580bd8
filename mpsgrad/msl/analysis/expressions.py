"""The types of expressions, as far as they can be told from the source without a C++ front end.

Whatever is not certain (templates, overloads, unknown names) has no type here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from mpsgrad.msl.analysis.source import Source, Variable
from mpsgrad.msl.analysis.statements import Range
from mpsgrad.msl.analysis.types import FLOATS, INTEGERS, SIZES, Type, built_in, read_type
from mpsgrad.msl.backend import SWIZZLES, floating_literal
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, Token, matching_angle

_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
_COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">=", "&&", "||"})
_RANK = {"int": 0, "uint": 1, "long": 2, "ulong": 3, "half": 4, "bfloat": 4, "float": 5}
_DEEPEST = 60

_SAME_AS_ARGUMENTS = re.compile(
    r"(?:abs|fabs|a?(?:sin|cos|tan)h?|exp(?:2|10)?|log(?:2|10)?|r?sqrt|floor|ceil|round|rint|trunc|fract|saturate|sign"
    r"|normalize|pow|powr|fmod|fma|fmin|fmax|min|max|clamp|mix|step|smoothstep|cross|reflect|atan2|copysign)$"
)
_OF_FIRST = re.compile(
    r"(?:simd_(?:sum|product|min|max|shuffle\w*|broadcast\w*|prefix_\w+)|quad_(?:sum|product|min|max|shuffle\w*"
    r"|broadcast\w*)|select|popcount|clz|ctz|reverse_bits)$"
)
_SCALAR_OF_FIRST = frozenset({"dot", "length", "distance", "length_squared", "distance_squared", "determinant"})
_SCALAR_BOOL = frozenset({"any", "all", "simd_all", "simd_any", "simd_is_first"})


class _NotUnderstood(Exception):
    """The expression has a form that is not read here."""


def promoted(kind: Type) -> Type:
    """What integer promotion makes of a scalar."""
    if kind.is_scalar and kind.base in INTEGERS and SIZES[kind.base] < 4:
        return Type("int")
    return kind


def arithmetic(operator: str, left: Type, right: Type) -> Type | None:
    """The type of a binary operation, or None where it is not certain."""
    if left.pointers or right.pointers:
        if operator == "+" and left.is_scalar and left.base in INTEGERS:
            return right
        return left if operator in ("+", "-") and right.is_scalar and right.base in INTEGERS else None
    if left.columns or right.columns:
        return None
    if left.base not in SIZES or right.base not in SIZES:
        return None
    if left.is_scalar and right.is_scalar:
        if operator in _COMPARISONS:
            return Type("bool")
        left, right = promoted(left), promoted(right)
        if operator in ("<<", ">>"):
            return left.value
        return Type(left.base if _RANK[left.base] >= _RANK[right.base] else right.base)
    vector = left if left.is_vector else right
    if left.is_vector and right.is_vector and (left.base, left.width) != (right.base, right.width):
        return None
    return Type("bool", vector.width) if operator in _COMPARISONS else vector.value


class Expressions:
    """Tells the types of expressions of one source.

    ``on_binary(index, left, right)`` is told of every binary operator that is read, ``on_choice(yes, yes_range, no,
    no_range)`` of every ``?:``; a type is None where it is not certain.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tokens = source.tokens
        self._depth = 0
        self._end = 0
        self._index = 0
        self._auto: dict[int, Type | None] = {}
        self._told: dict[Range, Type | None] = {}
        self._too_deep = 0
        self.on_binary: Callable[[int, Type | None, Type | None], None] | None = None
        self.on_choice: Callable[[Type | None, Range, Type | None, Range], None] | None = None

    def type_of(self, start: int, end: int) -> Type | None:
        """The type of the expression in ``tokens[start:end]``, or None where it is not certain."""
        if (start, end) in self._told:
            return self._told[start, end]
        saved = self._index, self._end
        too_deep = self._too_deep
        self._index, self._end = start, end
        kind = None
        try:
            kind = self._ternary()
            if self._index != end:
                kind = None
        except _NotUnderstood:
            kind = None
        finally:
            self._index, self._end = saved
        # What is too deep inside of another expression may be told alone.
        if self._too_deep == too_deep:
            self._told[start, end] = kind
        return kind

    def variable_type(self, variable: Variable) -> Type | None:
        """A variable's type; that of an ``auto`` is the type of its initialiser."""
        if (
            variable.type is None
            and variable.initialiser is not None
            and self._source.text(variable.place - 1) == "auto"
        ):
            if self._depth > _DEEPEST:
                self._too_deep += 1
                return None
            if variable.place not in self._auto:
                self._depth += 1
                try:
                    kind = self.type_of(*variable.initialiser)
                finally:
                    self._depth -= 1
                self._auto[variable.place] = kind.value if kind is not None else None
            return self._auto[variable.place]
        return variable.type

    def _text(self, offset: int = 0) -> str:
        index = self._index + offset
        return self._tokens[index].text if index < self._end else ""

    def _next(self) -> Token:
        if self._index >= self._end:
            raise _NotUnderstood
        self._index += 1
        return self._tokens[self._index - 1]

    def _ternary(self) -> Type | None:
        known = self._told.get((self._index, self._end))
        if known is not None and self.on_binary is None and self.on_choice is None:
            self._index = self._end
            return known
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                self._too_deep += 1
                raise _NotUnderstood
            condition = self._binary(1)
            if self._text() != "?":
                return condition
            self._next()
            first = self._index
            yes = self._ternary()
            if self._next().text != ":":
                raise _NotUnderstood
            second = self._index
            no = self._ternary()
            is_read = self._index == self._end or self._text() == ":"
            if is_read and self.on_choice is not None:
                self.on_choice(yes, (first, second - 1), no, (second, self._index))
            if yes is None or no is None:
                return None
            if yes.is_scalar and no.is_scalar:
                return arithmetic("+", yes, no)
            return yes if yes.value == no.value else None
        finally:
            self._depth -= 1

    def _binary(self, least: int) -> Type | None:
        left = self._unary()
        while (precedence := _PRECEDENCE.get(self._text(), 0)) >= least:
            place = self._index
            operator = self._next().text
            right = self._binary(precedence + 1)
            if self.on_binary is not None:
                self.on_binary(place, left, right)
            if left is None or right is None:
                left = Type("bool") if operator in ("&&", "||") else None
                continue
            left = arithmetic(operator, left, right)
        return left

    def _unary(self) -> Type | None:
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                self._too_deep += 1
                raise _NotUnderstood
            text = self._text()
            if text in ("-", "+", "~", "!"):
                self._next()
                operand = self._unary()
                if operand is None:
                    return None
                if text == "!":
                    return Type("bool", operand.width) if not operand.pointers else Type("bool")
                return promoted(operand).value if not operand.pointers and not operand.columns else None
            if text in ("++", "--"):
                self._next()
                return self._unary()
            if text == "*":
                self._next()
                operand = self._unary()
                return self._element(operand) if operand and operand.pointers else None
            if text == "&":
                self._next()
                operand = self._unary()
                return operand._replace(pointers=operand.pointers + 1) if operand else None
            if text == "(":
                cast = self._cast()
                if cast is not None:
                    self._unary()
                    return cast
            if text == "sizeof":
                raise _NotUnderstood
            return self._postfix(self._primary())
        finally:
            self._depth -= 1

    def _cast(self) -> Type | None:
        """The type in brackets at the current place if it is a cast; then the place is behind it."""
        close = self._source.close(self._index)
        if close < 0 or close + 1 >= self._end:
            return None
        read = read_type(self._tokens, self._index + 1, close, self._source.aliases, self._source.members)
        if read is None or read[1] != close:
            return None
        kind = read[0]
        following = self._tokens[close + 1]
        is_operand = following.kind in (IDENTIFIER, NUMBER) or following.text in ("(", "-", "+", "~", "!", "&", "*")
        if not is_operand or (not kind.known and not kind.pointers):
            return None
        if kind.known and not kind.pointers and following.text in ("-", "+", "&", "*") and built_in(kind.base) is None:
            return None
        self._index = close + 1
        return kind

    def _arguments(self) -> list[Type | None]:
        """The types of the arguments in the brackets at the current place, which is then behind them."""
        close = self._source.close(self._index)
        if close < 0 or close >= self._end:
            raise _NotUnderstood
        kinds = [self.type_of(start, end) for start, end in self._source.arguments(self._index)]
        self._index = close + 1
        return kinds

    def _primary(self) -> Type | None:
        source = self._source
        token = self._next()
        if token.kind == NUMBER:
            return literal_type(token.text)
        if token.text == "(":
            close = source.close(self._index - 1)
            if close < 0 or close >= self._end:
                raise _NotUnderstood
            kind = self.type_of(self._index, close)
            self._index = close + 1
            return kind
        if token.text == "::" and self._index < self._end:
            token = self._next()
        if token.kind != IDENTIFIER:
            raise _NotUnderstood
        if token.text in ("true", "false"):
            return Type("bool")
        qualified = False
        while self._text() == "::" and token.text in ("metal", "precise", "fast"):
            self._next()
            token = self._next()
            qualified = True
        if self._text() == "::":
            self._member_of_class()
            return None
        place = self._index - 1
        if token.text in ("static_cast", "as_type", "reinterpret_cast", "const_cast") and self._text() == "<":
            return self._named_cast()
        variable = source.variable(token.text, place)
        if variable is None:
            read = read_type(self._tokens, place, self._end, source.aliases, source.members)
            if read is not None and read[0].known and not read[0].pointers:
                opening = self._text(read[1] - self._index)
                if opening == "{" or (opening == "(" and read[0].base in SIZES):
                    self._index = read[1]
                    self._arguments()
                    return read[0].value
        self._skip_template()
        if self._text() == "::":
            self._member_of_class()
            return None
        if self._text() == "(":
            kinds = self._arguments()
            if token.text.endswith(("_mtl", "_mtl>", "_mtl<>>")):
                return self._checked(token.text, kinds)
            return self._call(token.text, kinds, qualified)
        if self._text() == "{":
            raise _NotUnderstood
        if variable is None:
            return Type("float") if re.match(r"(?:INFINITY|NAN|M_\w+_F|FLT_MAX|FLT_MIN)$", token.text) else None
        return self.variable_type(variable)

    def _member_of_class(self) -> None:
        """Reads ``::member``, ``::of::member`` or a call of it; what it is is not told."""
        while self._text() == "::":
            self._next()
            self._next()
            self._skip_template()
        if self._text() == "(":
            self._arguments()

    def _skip_template(self) -> None:
        if self._text() != "<" or self._index == 0:
            return
        name = self._tokens[self._index - 1].text
        close = matching_angle(self._tokens, self._index, self._end)
        if close is None or self._source.variable(name, self._index) is not None:
            return
        following = self._tokens[close + 1].text if close + 1 < self._end else ""
        if following in ("(", "::", "{") and self._tokens[close].text == ">":
            self._index = close + 1

    def _named_cast(self) -> Type | None:
        close = matching_angle(self._tokens, self._index, self._end)
        if close is None or self._tokens[close].text != ">":
            raise _NotUnderstood
        read = read_type(self._tokens, self._index + 1, close, self._source.aliases, self._source.members)
        self._index = close + 1
        if self._text() != "(":
            raise _NotUnderstood
        self._arguments()
        if read is None or read[1] != close or not (read[0].known or read[0].pointers):
            return None
        return read[0]

    def _call(self, name: str, kinds: list[Type | None], qualified: bool) -> Type | None:
        functions = self._source.functions_by_name.get(name, [])
        if name in self._source.declared_functions and not qualified:
            if len(functions) == 1 and functions[0].kernel is None:
                kind = self._source.return_type(functions[0])
                return kind if kind is not None and (kind.pointers or kind.base in SIZES) else None
            return None
        if not kinds:
            return None
        first = kinds[0]
        if name in _SCALAR_BOOL:
            return Type("bool")
        if first is None or first.pointers or first.base not in SIZES:
            return None
        if first.columns:
            return Type(first.base, first.columns, first.width) if name == "transpose" else None
        if name in _SCALAR_OF_FIRST:
            return Type(first.base) if first.base in FLOATS else None
        if name in ("isnan", "isinf", "isfinite", "isnormal", "signbit"):
            return Type("bool", first.width)
        if _OF_FIRST.match(name):
            return first.value
        if _SAME_AS_ARGUMENTS.match(name):
            if any(kind is None or kind.pointers or kind.columns for kind in kinds):
                return None
            vectors = {kind.value for kind in kinds if kind is not None and kind.is_vector}
            if len(vectors) == 1:
                return vectors.pop()
            scalars = {kind.value for kind in kinds if kind is not None}
            return scalars.pop() if len(scalars) == 1 and not vectors else None
        return None

    def _checked(self, name: str, kinds: list[Type | None]) -> Type | None:
        """The type of what stands in a check of an instrumented program."""
        check = name.partition("<")[0]
        first = kinds[0] if kinds else None
        if check in ("at_mtl", "deref_mtl"):
            return self._element(first)
        if check == "sum_mtl":
            return self._element(next((kind for kind in kinds[:2] if kind is not None and kind.pointers), None))
        if check in ("quotient_mtl", "rest_mtl"):
            left, right = kinds[:2]
            return arithmetic("/", left, right) if left is not None and right is not None else None
        if check in ("object_mtl", "store_mtl", "lane_in_mtl", "lane_out_mtl", "lane_from_mtl", "atomic_pointer_mtl"):
            return first
        return Type("bool") if check == "loop_mtl" else None

    def _postfix(self, kind: Type | None) -> Type | None:
        while self._index < self._end:
            text = self._text()
            if text in (".", "->"):
                self._next()
                if self._text() == "template":
                    self._next()
                member = self._next()
                if self._text() == "(":
                    self._arguments()
                    kind = None
                elif kind is not None:
                    kind = self.member(kind, member.text, text == "->")
            elif text == "[":
                close = self._source.close(self._index)
                if close < 0 or close >= self._end:
                    raise _NotUnderstood
                self._index = close + 1
                kind = self._element(kind)
            elif text in ("++", "--"):
                self._next()
            elif text == "(":
                self._arguments()
                kind = None
            else:
                break
        return kind

    @staticmethod
    def _element(kind: Type | None) -> Type | None:
        if kind is None:
            return None
        if kind.pointers:
            return kind._replace(pointers=kind.pointers - 1) if kind.pointers > 1 or kind.known else None
        if kind.columns:
            return kind._replace(columns=0)
        return kind._replace(width=1, packed=False) if kind.is_vector else None

    def member(self, kind: Type, name: str, through_pointer: bool) -> Type | None:
        """The type of a member or of a swizzle."""
        if kind.pointers != int(through_pointer) or not kind.known:
            return None
        if through_pointer:
            kind = kind._replace(pointers=0)
        if kind.is_vector:
            letters = next((letters for letters in SWIZZLES if set(name) <= set(letters[: kind.width])), None)
            if letters is None or len(name) > 4:
                return None
            return kind._replace(width=len(name), packed=False)
        entry = self._source.members.get(kind.base, {}).get(name)
        if entry is None or entry[0] is None:
            return None
        space = entry[0].space if entry[0].pointers and not entry[1] else kind.space
        return entry[0]._replace(space=space, const=entry[0].const or kind.const)


def expressions_of(source: Source) -> Expressions:
    """What tells the types of expressions of ``source``, each once for all who ask."""
    return source.keep(Expressions, lambda: Expressions(source))


@lru_cache(4096)
def literal_type(text: str) -> Type | None:
    """The type of a numeric literal."""
    floating = floating_literal(text)
    if floating is not None:
        return Type({"h": "half", "bf": "bfloat"}.get(floating[1], "float"))
    suffix = re.search(r"[uUlL]*$", text)
    letters = suffix[0].lower() if suffix and not text.lower().startswith("0x0l") else ""
    try:
        value = int(text[: len(text) - len(letters)].replace("'", ""), 0)
    except ValueError:
        return None
    base = {"": "int", "u": "uint", "l": "long", "ul": "ulong", "lu": "ulong"}.get(letters)
    if base == "int" and value > 0x7FFFFFFF:
        base = "uint" if value <= 0xFFFFFFFF and text[:1] == "0" else "long"
    if base == "uint" and value > 0xFFFFFFFF:
        base = "ulong"
    return Type(base) if base else None
