"""Expressions in function bodies as trees over the program's tokens, as far as instrumenting them needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from mpsgrad.msl.analysis.source import BUILT_IN_TYPE, Source
from mpsgrad.msl.analysis.template_brackets import template_brackets
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import ASSIGNMENTS, IDENTIFIER, NUMBER, STRING, matching_angle, skip_attributes

Kind = Literal[
    "name", "literal", "this", "group", "unary", "postfix", "binary", "assign", "ternary", "call", "subscript",
    "member", "arrow", "cast", "list", "unevaluated", "opaque", "comma",
]  # fmt: skip

_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
_NAMED_CASTS = frozenset({"static_cast", "reinterpret_cast", "const_cast", "dynamic_cast"})
_UNEVALUATED = frozenset({"sizeof", "alignof", "decltype", "alignas", "typeid", "noexcept"})
_TYPE_WORDS = frozenset({"const", "volatile", "constexpr", "unsigned", "signed", "struct", "typename", "auto", "void"})
_DEEPEST = 80


class NotUnderstood(Exception):
    """The tokens have a form that is not read here; ``place`` is the index of the token where reading stopped."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


@dataclass(slots=True)
class Node:
    """``tokens[start:end]``. ``place`` is the operator's token; ``text`` spells it, or names the member behind it.

    The parts of a call are the function and its arguments, of a ternary the three operands, of a cast its operand.
    """

    kind: Kind
    start: int
    end: int
    place: int
    text: str = ""
    parts: list[Node] = field(default_factory=list)

    @property
    def inner(self) -> Node:
        """The node without brackets around it."""
        node = self
        while node.kind == "group":
            node = node.parts[0]
        return node


class TreeReader:
    """Reads expressions of one source. ``is_variable(name)`` says whether a name means a variable where it stands."""

    def __init__(self, source: Source, is_variable: Callable[[str], bool]) -> None:
        self._source = source
        self._tokens = source.tokens
        self._is_variable = is_variable
        self._index = 0
        self._end = 0
        self._depth = 0

    def expression(self, start: int, end: int) -> Node:
        """The tree of ``tokens[start:end]``; raises ``NotUnderstood``."""
        self._index, self._end, self._depth = start, end, 0
        node = self._comma()
        if self._index != end:
            raise NotUnderstood(self._index)
        return node

    def initialiser(self, start: int, end: int) -> Node:
        """The tree of the initialiser at ``start``, which may be a list in braces; a comma may follow it."""
        self._index, self._end, self._depth = start, end, 0
        return self._assignment()

    def arguments(self, opening: int, closing: int) -> list[Node]:
        """The trees between two brackets."""
        self._index, self._end, self._depth = opening + 1, closing, 0
        found = self._several(closing)
        if self._index != closing:
            raise NotUnderstood(self._index)
        return found

    def _text(self, offset: int = 0) -> str:
        index = self._index + offset
        return self._tokens[index].text if index < self._end else ""

    def _close(self, index: int) -> int:
        close = self._source.close(index)
        if not index < close <= self._end:
            raise NotUnderstood(index)
        return close

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NotUnderstood(self._index)

    def _several(self, closing: int) -> list[Node]:
        """Expressions with commas between them, up to the bracket at ``closing``."""
        outer, self._end = self._end, closing
        found: list[Node] = []
        while self._index < closing:
            if self._text() == "." and self._text(2) == "=":
                self._index += 3
            found.append(self._assignment())
            self._index += self._text() == "..."
            if self._index < closing:
                if self._text() != ",":
                    raise NotUnderstood(self._index)
                self._index += 1
        self._end = outer
        return found

    def _comma(self) -> Node:
        node = self._assignment()
        while self._text() == ",":
            place = self._index
            self._index += 1
            right = self._assignment()
            node = Node("comma", node.start, right.end, place, ",", [node, right])
        return node

    def _assignment(self) -> Node:
        self._deeper()
        if self._text() == "{":
            node = self._list()
        else:
            node = self._ternary()
            if self._text() in ASSIGNMENTS:
                place = self._index
                self._index += 1
                right = self._assignment()
                node = Node("assign", node.start, right.end, place, self._tokens[place].text, [node, right])
        self._depth -= 1
        return node

    def _list(self) -> Node:
        opening = self._index
        closing = self._close(opening)
        self._index += 1
        parts = self._several(closing)
        self._index = closing + 1
        return Node("list", opening, closing + 1, opening, "{", parts)

    def _ternary(self) -> Node:
        condition = self._binary(1)
        if self._text() != "?":
            return condition
        place = self._index
        self._index += 1
        yes = self._comma()
        if self._text() != ":":
            raise NotUnderstood(self._index)
        self._index += 1
        no = self._assignment()
        return Node("ternary", condition.start, no.end, place, "?", [condition, yes, no])

    def _binary(self, least: int) -> Node:
        left = self._unary()
        while (precedence := _PRECEDENCE.get(self._text(), 0)) >= least:
            place = self._index
            self._index += 1
            right = self._binary(precedence + 1)
            left = Node("binary", left.start, right.end, place, self._tokens[place].text, [left, right])
        return left

    def _unary(self) -> Node:
        self._deeper()
        start, text = self._index, self._text()
        if text in ("-", "+", "!", "~", "*", "&", "++", "--"):
            self._index += 1
            operand = self._unary()
            node = Node("unary", start, operand.end, start, text, [operand])
        elif text in _UNEVALUATED:
            self._index += 1
            self._index += self._text() == "..."
            if self._text() == "(":
                self._index = self._close(self._index) + 1
            else:
                self._unary()
            node = Node("unevaluated", start, self._index, start, text)
            if text == "decltype" and self._text() == "::":
                self._index += 1
                member = self._name(self._index)
                node = Node("name", start, member.end, member.place, member.text)
            node = self._postfix(node)
        elif text == "(" and (closing := self._cast_end()) is not None:
            self._index = closing + 1
            operand = self._list() if self._text() == "{" else self._unary()
            node = Node("cast", start, operand.end, start, "(", [operand])
            if operand.kind == "list":
                node = self._postfix(node)
        else:
            node = self._postfix(self._primary())
        self._depth -= 1
        return node

    def _cast_end(self) -> int | None:
        """The bracket that ends the type of a cast which begins here, or None."""
        closing = self._close(self._index)
        following = self._tokens[closing + 1] if closing + 1 < self._end else None
        if following is None or closing == self._index + 1:
            return None
        certain = self._type_end(self._index + 1, closing)
        if certain is None:
            return None
        starts_operand = following.kind in (IDENTIFIER, NUMBER, STRING) or following.text in ("(", "!", "~", "{")
        if certain:
            return closing if starts_operand or following.text in ("-", "+", "*", "&", "++", "--") else None
        return closing if following.kind in (IDENTIFIER, NUMBER, STRING) else None

    def _type_end(self, start: int, end: int) -> bool | None:
        """Whether ``tokens[start:end]`` is a type (True), may be one (False), or is none."""
        certain = False
        index = start
        names = 0
        while index < end:
            token = self._tokens[index]
            text = token.text
            if text in ADDRESS_SPACES or text in _TYPE_WORDS:
                certain = True
            elif token.kind == IDENTIFIER:
                if self._text_at(index - 1) != "::":
                    names += 1
                if self._is_variable(text) or names > 1 and not certain:
                    return None
                certain = certain or BUILT_IN_TYPE.match(text) is not None or self._source.is_type(index)
                if self._text_at(index + 1) == "<":
                    close = matching_angle(self._tokens, index + 1, end)
                    if close is None or self._tokens[close].text != ">":
                        return None
                    certain = True
                    index = close
            elif text in ("*", "&") and index > start:
                pass
            elif certain and (array := self._array_end(index)) is not None:
                index = array
            elif text != "::":
                return None
            index += 1
        if not certain and any(self._tokens[k].text in ("*", "&") for k in range(start, end)):
            return None if self._tokens[end - 1].text not in ("*", "&") else True
        return certain

    def _array_end(self, index: int) -> int | None:
        """The last bracket of ``(*)[4]`` or ``(&)[4]``, what points to an array, if it stands at ``index``."""
        is_referred = self._text_at(index) == "(" and self._text_at(index + 1) in ("*", "&")
        if not is_referred or self._text_at(index + 2) != ")" or self._text_at(index + 3) != "[":
            return None
        return self._close(index + 3)

    def _text_at(self, index: int) -> str:
        return self._tokens[index].text if 0 <= index < len(self._tokens) else ""

    def _primary(self) -> Node:
        start = self._index
        if start >= self._end:
            raise NotUnderstood(start)
        token = self._tokens[start]
        text = token.text
        if token.kind in (NUMBER, STRING) or text in ("true", "false", "nullptr"):
            self._index += 1
            while self._index < self._end and token.kind == STRING == self._tokens[self._index].kind:
                self._index += 1
            return Node("literal", start, self._index, start, text)
        if text == "(":
            closing = self._close(start)
            if self._text(1) == "{":
                self._index = closing + 1
                return Node("opaque", start, self._index, start, "{")
            if any(self._tokens[k].text == "..." for k in range(start + 1, closing)):
                self._index = closing + 1
                return Node("opaque", start, self._index, start, "...")
            self._index += 1
            outer, self._end = self._end, closing
            inner = self._comma()
            self._end = outer
            if self._index != closing:
                raise NotUnderstood(self._index)
            self._index += 1
            return Node("group", start, self._index, start, "(", [inner])
        if text == "this":
            self._index += 1
            return Node("this", start, self._index, start, text)
        if text == "[":
            return self._lambda(start)
        if text in _NAMED_CASTS and self._text(1) == "<":
            close = matching_angle(self._tokens, start + 1, self._end, certain=True)
            if close is None or self._text_at(close) != ">" or self._text_at(close + 1) != "(":
                raise NotUnderstood(start)
            closing = self._close(close + 1)
            self._index = close + 2
            parts = self._several(closing)
            self._index = closing + 1
            if len(parts) != 1:
                raise NotUnderstood(start)
            return Node("cast", start, self._index, start, "(", parts)
        if token.kind != IDENTIFIER and text != "::":
            raise NotUnderstood(start)
        return self._name(start)

    def _lambda(self, start: int) -> Node:
        index = self._close(start) + 1
        if self._text_at(index) == "(":
            index = self._close(index) + 1
        while index < self._end and self._tokens[index].text not in ("{", ";", ")"):
            behind = skip_attributes(self._tokens, index, self._end)
            index = behind if behind > index else index + 1
        if self._text_at(index) != "{":
            raise NotUnderstood(start)
        self._index = self._close(index) + 1
        return Node("opaque", start, self._index, start, "[")

    def _name(self, start: int) -> Node:
        """A name with its qualifiers and template arguments; for a type of several words all of them."""
        if self._text() == "::":
            self._index += 1
        while True:
            token = self._tokens[self._index] if self._index < self._end else None
            if token is None or token.kind != IDENTIFIER:
                raise NotUnderstood(self._index)
            place = self._index
            self._index += 1
            if token.text in ("unsigned", "signed", "typename", "template", "const", "struct"):
                if self._index < self._end and self._tokens[self._index].kind == IDENTIFIER:
                    continue
            if token.text == "operator":
                self._index += 1 + (self._text() in ("(", "["))
                if self._text() != "(":
                    raise NotUnderstood(place)
                return Node("name", start, self._index, place, token.text)
            known = template_brackets(self._source).get(self._index)
            if self._text() == "<" and (known is not None or not self._is_variable(token.text)):
                close = known or matching_angle(self._tokens, self._index, self._end)
                after = self._text_at(close + 1) if close is not None and close + 1 < self._end else ""
                is_template = close is not None and self._tokens[close].text == ">"
                is_value = after in ("(", "{", "::", ")", ",", ";", ".", "]", ">", "") or self._holds_types(close)
                if known is not None or is_template and is_value:
                    assert close is not None
                    self._index = close + 1
            if self._text() == "::":
                self._index += 1
                continue
            return Node("name", start, self._index, place, token.text)

    def _holds_types(self, close: int | None) -> bool:
        """Whether the angle brackets at the current place hold template arguments of which the first is a type."""
        inside = range(self._index + 1, close or 0)
        kinds = {self._tokens[k].kind for k in inside if self._text_at(k) not in (",", "::", "*")}
        return kinds <= {IDENTIFIER, NUMBER} and bool(inside) and self._source.is_type(inside[0])

    def _postfix(self, node: Node) -> Node:
        while self._index < self._end:
            place, text = self._index, self._text()
            if text == "[":
                closing = self._close(place)
                if self._text(1) == "[":
                    raise NotUnderstood(place)
                self._index += 1
                outer, self._end = self._end, closing
                index = self._comma()
                self._end = outer
                if self._index != closing:
                    raise NotUnderstood(self._index)
                self._index += 1
                node = Node("subscript", node.start, self._index, place, "[", [node, index])
            elif text == "(":
                closing = self._close(place)
                self._index += 1
                arguments = self._several(closing)
                self._index = closing + 1
                node = Node("call", node.start, self._index, place, "(", [node, *arguments])
            elif text == "{" and node.kind == "name" and not self._is_variable(node.text):
                braces = self._list()
                node = Node("call", node.start, self._index, place, "{", [node, *braces.parts])
            elif text in (".", "->"):
                self._index += 1
                if self._text() == "template":
                    self._index += 1
                name = self._index
                if name >= self._end or self._tokens[name].kind != IDENTIFIER:
                    raise NotUnderstood(name)
                self._index += 1
                if self._text() == "<":
                    self._index = template_brackets(self._source).get(self._index, self._index - 1) + 1
                kind: Kind = "member" if text == "." else "arrow"
                node = Node(kind, node.start, self._index, place, self._tokens[name].text, [node])
            elif text in ("++", "--"):
                self._index += 1
                node = Node("postfix", node.start, self._index, place, text, [node])
            else:
                break
        return node
