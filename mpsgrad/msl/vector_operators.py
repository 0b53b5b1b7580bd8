"""The operators of a program that need help where vectors are the compiler's own, as in OpenCL.

There a comparison of vectors gives a mask of integers instead of truth values, and a scalar of higher rank than the
elements of a vector does not convert to them. So ``a < b`` is written ``a < lift_mtl() < b``: the same operator twice
keeps precedence and associativity, and the library's overloads for the operand in the middle do what Metal does. This
is done where an operand may be a vector; what is certainly scalar stays as it is.
"""

from __future__ import annotations

from mpsgrad.msl.analysis.expressions import Expressions
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.statements import Range
from mpsgrad.msl.analysis.template_brackets import template_brackets
from mpsgrad.msl.analysis.types import FLOATS, INTEGERS, SIZES, Type, built_in
from mpsgrad.msl.library_marks import VECTOR_TEMPLATES
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, PUNCTUATION

LIFT = "lift"
CONVERT = "convert_operand"

_COMPARISONS = frozenset({"<", ">", "<=", ">=", "==", "!="})
_ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "&", "|", "^"})
_ASSIGNMENTS = frozenset({"+=", "-=", "*=", "/=", "%=", "&=", "|=", "^="})
_STEPS = frozenset({"++", "--"})
_WRITES = frozenset({"=", "<<=", ">>=", *_ASSIGNMENTS, *_STEPS})
_BOUNDARIES = frozenset({";", "{", "}", ",", "=", "<<=", ">>=", *_ASSIGNMENTS})
_STATEMENT_WORDS = frozenset({"return", "case", "else", "do", "throw", "goto", "sizeof", "operator", "template"})
_CONDITIONS = frozenset({"if", "for", "while", "switch"})
_NULL = frozenset({"0", "nullptr", "NULL"})
_SMALL = frozenset({"bool", "char", "uchar", "short", "ushort", "half", "bfloat"})
_INTEGERS_BY_RANK = ("bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")


def outranks(scalar: str, element: str) -> bool:
    """Whether OpenCL refuses an operation of a vector of ``element`` with a ``scalar``."""
    if element in FLOATS or scalar in FLOATS:
        return element != "float" and scalar == "float"
    return _INTEGERS_BY_RANK.index(scalar) > _INTEGERS_BY_RANK.index(element)


class VectorOperators:
    """Finds the operators of ``source`` that are to be written otherwise.

    ``texts`` has the new text of operators by index; ``assignments`` the compound assignments whose right side is to be
    converted, as the range of the left side and the end of the right one; ``conversions`` the range of an expression
    that is to become an element of a vector, and the element's type; ``arms`` the range of a scalar arm of a choice
    whose other one may be a vector, and that one's.
    """

    def __init__(self, source: Source, uses_packed: bool) -> None:
        """``uses_packed`` says whether the program has packed vectors."""
        self._source = source
        self._tokens = source.tokens
        self.texts: dict[int, str] = {}
        self.assignments: dict[int, tuple[Range, int]] = {}
        self.conversions: dict[Range, str] = {}
        self.arms: dict[Range, Range] = {}
        self._elements = self._vector_elements()
        self._uses_packed = uses_packed
        if self._elements:
            self._brackets = template_brackets(source)
            self._find()

    def _vector_elements(self) -> frozenset[str]:
        """The element types of the vectors that the program may use."""
        found = set()
        for name in {token.text for token in self._tokens if token.kind == IDENTIFIER}:
            kind = built_in(name)
            if kind is not None and kind.width > 1:
                found.add(kind.base)
            elif name in VECTOR_TEMPLATES:
                found |= SIZES.keys()
        return frozenset(found)

    def _find(self) -> None:
        expressions = Expressions(self._source)
        kinds: dict[int, tuple[Type | None, Type | None]] = {}

        def note(index: int, left: Type | None, right: Type | None) -> None:
            kinds[index] = (left, right)

        expressions.on_binary = note
        expressions.on_choice = self._note_choice
        for index, token in enumerate(self._tokens):
            text = token.text
            if text == "?":
                expressions.type_of(*self._extent(index))
            if token.kind != PUNCTUATION or not (text in _COMPARISONS or text in _ARITHMETIC or text in _ASSIGNMENTS):
                continue
            if not self._is_binary(index):
                continue
            if text in _ASSIGNMENTS:
                self._assignment(index, expressions)
                continue
            if index not in kinds:
                expressions.type_of(*self._extent(index))
            left, right = kinds.get(index, (None, None))
            if text in _COMPARISONS:
                lifted = self._may_compare_vectors(index, left, right)
            else:
                lifted = self._may_mix_ranks(left, right)
            if lifted:
                self.texts[index] = f"{text} lift_mtl() {text}"

    def _is_binary(self, index: int) -> bool:
        """Whether the operator at ``index`` has two operands, and is no part of a type; that of a fold has one."""
        source = self._source
        before = source.tokens[index - 1] if index else None
        if before is None or index in self._brackets or source.text(index + 1) == "...":
            return False
        if before.kind == NUMBER:
            return True
        if before.kind == IDENTIFIER:
            if before.text in _STATEMENT_WORDS:
                return False
            text = source.text(index)
            return text not in ("*", "&") or not self._is_declarator(index)
        if before.text == ")":
            opening = source.close(index - 1)
            ends_operand = source.text(opening - 1) not in _CONDITIONS and source.text(opening - 1) != "decltype"
            return opening >= 0 and ends_operand and not self._is_cast(opening)
        return before.text == "]" and source.text(index - 2) != "]"

    def _is_declarator(self, index: int) -> bool:
        """Whether the ``*`` or ``&`` behind a name belongs to a type."""
        source = self._source
        name = source.text(index - 1)
        spaces = ("device", "constant", "thread", "threadgroup")
        if name in ("const", "volatile", *spaces):
            return True
        if source.variable(name, index - 1) is not None:
            return False
        return source.is_type(index - 1) or source.text(index - 2) in ("typename", "struct", "const", "::", *spaces)

    def _is_cast(self, opening: int) -> bool:
        """Whether the bracket that opens at ``opening`` holds a type, so that a cast's operand follows."""
        source = self._source
        closing = source.close(opening)
        if source.kind(opening - 1) == IDENTIFIER and source.text(opening - 1) not in _STATEMENT_WORDS - {"sizeof"}:
            return False
        inside = self._tokens[opening + 1 : closing]
        if not inside or any(token.kind == NUMBER for token in inside):
            return False
        names = [index for index in range(opening + 1, closing) if source.kind(index) == IDENTIFIER]
        words = ("const", "device", "constant", "thread", "threadgroup", "volatile", "metal", "typename", "unsigned")
        others = {token.text for token in inside if token.kind == PUNCTUATION}
        return bool(names) and others <= {"*", "&", "::", "<", ">", ","} and all(
            source.is_type(index) or source.text(index) in words or source.text(index) in ("vec", "array")
            for index in names
        )  # fmt: skip

    def _extent(self, index: int) -> Range:
        """The largest expression around the operator at ``index`` that no bracket, comma or assignment divides."""
        source = self._source
        start = index
        colon = None
        while start > 0:
            token = self._tokens[start - 1]
            text = token.text
            if text in (")", "]") and source.close(start - 1) >= 0:
                start = source.close(start - 1)
                continue
            if text == ">" and start - 1 in self._brackets:
                start = self._brackets[start - 1]
                continue
            if text in _BOUNDARIES or text in ("(", "[") or token.kind == "pragma":
                break
            if token.kind == IDENTIFIER and text in _STATEMENT_WORDS:
                break
            if text == ":":
                colon = colon if colon is not None else start
            elif text == "?":
                colon = None
            start -= 1
        start = colon if colon is not None else start
        end = index + 1
        open_choices = sum(1 for position in range(start, index + 1) if source.text(position) == "?")
        while end < len(self._tokens):
            token = self._tokens[end]
            text = token.text
            if text in ("(", "[") and source.close(end) > end:
                end = source.close(end) + 1
                continue
            if text == "<" and end in self._brackets:
                end = self._brackets[end] + 1
                continue
            if text in _BOUNDARIES or text in (")", "]") or token.kind == "pragma":
                break
            open_choices += text == "?"
            if text == ":":
                if open_choices <= 0:
                    break
                open_choices -= 1
            end += 1
        return start, end

    def _may_compare_vectors(self, index: int, left: Type | None, right: Type | None) -> bool:
        if left is not None and right is not None:
            return _is_native(left) or _is_native(right)
        known = left or right
        if known is not None and (known.pointers or known.base not in SIZES):
            return False
        return not (known is None and {self._operand(index, -1), self._operand(index, 1)} & _NULL)

    def _operand(self, index: int, step: int) -> str:
        """The token beside the operator if it is the whole operand."""
        source = self._source
        beyond = source.text(index + 2 * step)
        ends = (";", ")", "(", "&&", "||", "?", ":", ",", "{", "}", "=")
        return source.text(index + step) if beyond in ends else ""

    def _may_mix_ranks(self, left: Type | None, right: Type | None) -> bool:
        if left is None and right is None:
            return bool(self._elements & _SMALL)
        for one, other in ((left, right), (right, left)):
            if one is None:
                assert other is not None
                if other.is_scalar and any(outranks(other.base, element) for element in self._elements - {"bool"}):
                    return True
                if _is_native(other) and other.base != "float":
                    return True
            elif other is not None and _is_native(one) and other.is_scalar and outranks(other.base, one.base):
                return True
        return False

    def _left_side(self, index: int) -> int:
        """Where the left side of the assignment at ``index`` begins: a name or a bracket, and what is applied to it."""
        source = self._source
        start = index - 1
        while start > 0:
            if source.text(start) in (")", "]") and source.close(start) >= 0:
                is_subscript = source.text(start) == "]"
                start = source.close(start)
                if start - 1 in self._brackets:
                    start = self._brackets[start - 1] - 1
                    continue
                if source.text(start - 1) == ")" and source.text(source.close(start - 1) - 1) in _CONDITIONS:
                    break
                if is_subscript or source.kind(start - 1) == IDENTIFIER or source.text(start - 1) in (")", "]"):
                    start -= 1
                    continue
            elif source.text(start - 1) in (".", "->", "::"):
                start -= 2
                continue
            break
        while source.text(start - 1) == "*" and not self._is_binary(start - 1):
            start -= 1
        return start

    def _assignment(self, index: int, expressions: Expressions) -> None:
        start = self._left_side(index)
        left = expressions.type_of(start, index)
        end = self._extent_of_value(index + 1)
        right = expressions.type_of(index + 1, end)
        may_be_packed = self._uses_packed and (right is None or right.is_vector)
        is_vector = left is None or (left.is_vector and not left.packed)
        is_ended = end < len(self._tokens)
        if is_vector and is_ended and (may_be_packed or self._may_mix_ranks(left, right)):
            self.assignments[index] = ((start, index), end)

    def _extent_of_value(self, start: int) -> int:
        """The end of the right side of an assignment."""
        source = self._source
        index = start
        while index < len(self._tokens) and source.text(index) not in (";", ")", "]", "}", ","):
            if source.text(index) == "<" and index in self._brackets:
                index = self._brackets[index]
            index = source.close(index) + 1 if source.close(index) > index else index + 1
        return index

    def _is_place(self, question: int, end: int) -> bool:
        """Whether the choice at ``question`` that ends at ``end`` is written, or stands for a reference or an address.

        Its arms are of one type then, and stay what they are.
        """
        source = self._source
        start = self._extent(question)[0]
        if source.text(start - 1) == "=" and source.text(start - 3) == "&":
            return True
        while source.text(end) == ")":
            before = source.close(end) - 1
            if source.text(end + 1) in _WRITES or source.text(before) in _STEPS:
                return True
            if source.text(before) == "&" and not self._is_binary(before):
                return True
            if source.text(before) != "(":
                return False
            end += 1
        return False

    def _note_choice(self, yes: Type | None, first: Range, no: Type | None, second: Range) -> None:
        if self._is_place(first[0] - 1, second[1]):
            return
        for other, scalar, place, others in ((yes, no, second, first), (no, yes, first, second)):
            if scalar is None or not scalar.is_scalar:
                continue
            if other is None:
                is_null = place[1] - place[0] == 1 and self._source.text(place[0]) in _NULL
                if not is_null and any(outranks(scalar.base, element) for element in self._elements - {"bool"}):
                    self.arms[place] = others
            elif _is_native(other) and outranks(scalar.base, other.base):
                self.conversions[place] = other.base


def _is_native(kind: Type) -> bool:
    """Whether values of a type are the compiler's own vectors."""
    return kind.is_vector and not kind.packed and kind.base in INTEGERS | FLOATS and kind.base not in ("bool", "bfloat")
