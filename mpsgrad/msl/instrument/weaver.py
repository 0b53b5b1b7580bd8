"""Puts checks around what the functions of a program do: memory accesses, barriers, simdgroup functions, divisions, loops.

Reads function bodies statement by statement. A statement that it does not understand stays as it is and is listed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mpsgrad.msl.declarations import ADDRESS_SPACES
from mpsgrad.msl.instrument.edits import Edits
from mpsgrad.msl.instrument.scopes import Meaning, Scopes
from mpsgrad.msl.instrument.tree import Node, NotUnderstood, TreeReader
from mpsgrad.msl.analysis.expressions import SWIZZLES
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, OPENING, Token, matching_angle

Context = Literal["none", "read", "write", "update", "designate", "place", "address"]
_KINDS: dict[str, str] = {
    "none": "READ_MTL", "read": "READ_MTL", "write": "WRITE_MTL", "update": "UPDATE_MTL",
    "designate": "DESIGNATE_MTL", "place": "PLACE_MTL",
}  # fmt: skip

_ATOMIC = re.compile(r"atomic_(load|store|\w+)_explicit$")
_OTHER_LANE = re.compile(r"(simd|quad)_(shuffle|broadcast|shuffle_xor|shuffle_up|shuffle_down|shuffle_rotate_(?:up|down))$")
_LANE_KINDS = {
    "shuffle": "LANE_MTL", "broadcast": "LANE_MTL", "shuffle_xor": "LANE_XOR_MTL", "shuffle_up": "LANE_UP_MTL",
    "shuffle_down": "LANE_DOWN_MTL", "shuffle_rotate_up": "LANE_ROTATE_UP_MTL",
    "shuffle_rotate_down": "LANE_ROTATE_DOWN_MTL",
}  # fmt: skip
_ALL_LANES = frozenset({"simdgroup_multiply", "simdgroup_multiply_accumulate"})
_SPECIFIERS = frozenset(
    "const constexpr volatile static inline extern struct class union enum typename mutable restrict __restrict".split()
)
_SKIPPED = frozenset("using typedef static_assert struct class union enum template friend public private".split())
_DEEPEST = 200
SITE = "site"
"""The kind of the tokens that number sites: what differs in nothing else is the same source."""
MOST_SITES = 60000
MOST_TABLES = 24


@dataclass(frozen=True, slots=True)
class Site:
    """A place of the Metal source that reports; ``text`` is the array or the call that it is about."""

    file: str
    line: int
    column: int
    text: str


@dataclass(slots=True)
class Woven:
    """What was found while checks were put in. ``members`` are the names in paths, ``threadgroup`` the variables."""

    sites: list[Site] = field(default_factory=list)
    lane_sites: int = 0
    members: set[str] = field(default_factory=set)
    threadgroup: list[str] = field(default_factory=list)
    not_understood: list[Token] = field(default_factory=list)


class Weaver:
    """Notes the edits for the functions of one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tokens = source.tokens
        self._scopes = Scopes(source)
        self._trees = TreeReader(source, self._scopes.is_variable)
        self._function: Function | None = None
        self._depth = 0
        self._blocks = 0
        self.edits = Edits(source.tokens)
        self.woven = Woven()

    def weave(self, function: Function) -> None:
        """Notes the edits for one function's body."""
        source = self._source
        if any(source.text(index) == "constexpr" for index in range(function.start, function.opening)):
            return
        self._function = function
        self._scopes.open_function(function)
        if function.kernel is not None:
            self._enter_kernel(function)
        self._statements(function.body_open + 1, function.body_close)
        self._scopes.close_function()

    # Sites and insertions.

    def _site(self, start: int, end: int) -> Token:
        sites = self.woven.sites
        token = self._tokens[start]
        text = "".join(f"{' ' * t.spaced}{t.text}" for t in self._tokens[start:end]).strip()
        sites.append(Site(token.file, token.line, token.column, text))
        return Token(SITE, str(len(sites) - 1), token.file, token.line, token.column)

    def _lane_site(self) -> str:
        self.woven.lane_sites += 1
        return str(self.woven.lane_sites - 1)

    def _check(self, name: str, context: Context, path: Sequence[str] = ()) -> str:
        self.woven.members.update(path)
        members = ", ".join(f"member_{member}_mtl" for member in path)
        return f"{name}<{_KINDS[context]}, path_mtl<{members}>>"

    def _text(self, index: int) -> str:
        return self._source.text(index)

    def _enter_kernel(self, function: Function) -> None:
        assert function.kernel is not None
        number = 0
        for parameter in function.kernel.parameters:
            space = parameter.address_space
            if space is None or space.text != "threadgroup" or not (parameter.is_pointer or parameter.is_reference):
                continue
            pointer = ["&"] if parameter.is_reference else []
            region = self._threadgroup_name(parameter.name)
            words = ["threadgroup_argument_mtl", "(", *pointer, parameter.name, ",", str(number), ",", region, ")", ";"]
            self.edits.after(function.body_open, *words)
            number += 1
        for number, table in enumerate(_tables(self._source)):
            words = ["constant_table_mtl", "(", table, ",", str(CONSTANT_NAMES + number), ")", ";"]
            self.edits.after(function.body_open, *words)

    def _threadgroup_name(self, name: str) -> str:
        self.woven.threadgroup.append(name)
        return str(THREADGROUP_NAMES + len(self.woven.threadgroup) - 1)

    # Statements.

    def _statements(self, start: int, end: int) -> None:
        index = start
        while index < end:
            index = max(self._statement(index, end), index + 1)

    def _statement(self, index: int, end: int) -> int:
        """Notes the edits for the statement at ``index`` and gives the index behind it."""
        self._depth += 1
        behind = self._statement_end(index, end)
        try:
            if self._depth > _DEEPEST or len(self.woven.sites) > MOST_SITES:
                raise NotUnderstood(index)
            return self._known_statement(index, end)
        except NotUnderstood as found:
            self.woven.not_understood.append(self._tokens[min(found.place, len(self._tokens) - 1)])
            return behind
        finally:
            self._depth -= 1

    def _statement_end(self, index: int, end: int) -> int:
        """Behind the next semicolon or block."""
        while index < end:
            text = self._text(index)
            close = self._source.close(index) if text in OPENING else -1
            if text == "{" and close > 0:
                return min(close + 1, end)
            if text == ";":
                return index + 1
            index = close + 1 if close > 0 else index + 1
        return end

    def _semicolon(self, index: int, end: int) -> int:
        """The index of the ``;`` that ends a simple statement."""
        while index < end:
            text = self._text(index)
            if text == ";":
                return index
            close = self._source.close(index) if text in OPENING else -1
            index = close + 1 if close > 0 else index + 1
        raise NotUnderstood(min(index, end))

    def _bracket(self, index: int) -> int:
        close = self._source.close(index) if self._text(index) == "(" else -1
        if close < 0:
            raise NotUnderstood(index)
        return close

    def _known_statement(self, index: int, end: int) -> int:
        token = self._tokens[index]
        text = token.text
        if token.kind == "pragma" or text == ";":
            return index + 1
        if text == "[" and self._text(index + 1) == "[" and self._source.close(index) > 0:
            return self._statement(self._source.close(index) + 1, end)
        if text == "{":
            close = self._source.close(index)
            if close < 0:
                raise NotUnderstood(index)
            self._scopes.open()
            self._blocks += 1
            self._statements(index + 1, close)
            self._blocks -= 1
            self._scopes.close()
            return close + 1
        if text == "if":
            return self._if(index, end)
        if text == "for":
            return self._for(index, end)
        if text == "while":
            close = self._bracket(index + 1)
            self._scopes.open()
            self._condition(index + 2, close, guarded=True)
            behind = self._statement(close + 1, end)
            self._scopes.close()
            return behind
        if text == "do":
            behind = self._statement(index + 1, end)
            if self._text(behind) != "while":
                raise NotUnderstood(behind)
            self._condition(behind + 2, self._bracket(behind + 1), guarded=True)
            return self._semicolon(behind, end) + 1
        if text == "switch":
            close = self._bracket(index + 1)
            self._scopes.open()
            self._condition(index + 2, close, guarded=False)
            behind = self._statement(close + 1, end)
            self._scopes.close()
            return behind
        if text in ("case", "default"):
            while index < end and self._text(index) != ":":
                index += 1
            return index + 1
        stop = self._semicolon(index, end)
        if text == "return":
            self._return(index, stop)
        elif text not in ("break", "continue") and text not in _SKIPPED:
            self._simple(index, stop)
        elif text in ("struct", "class", "union", "enum") and "{" not in (self._text(k) for k in range(index, stop)):
            self._simple(index, stop)
        return stop + 1

    def _if(self, index: int, end: int) -> int:
        opening = index + 1 + (self._text(index + 1) == "constexpr")
        close = self._bracket(opening)
        self._scopes.open()
        if opening == index + 1:
            self._condition(opening + 1, close, guarded=False)
        behind = self._statement(close + 1, end)
        if self._text(behind) == "else" and behind < end:
            behind = self._statement(behind + 1, end)
        self._scopes.close()
        return behind

    def _condition(self, start: int, end: int, *, guarded: bool) -> None:
        separator = next((k for k in range(start, end) if self._text(k) == ";"), None)
        if separator is not None:
            self._simple(start, separator)
            start = separator + 1
        if self._declaration(start, end):
            return
        if guarded:
            self._guard(start, end)
        self._visit(self._trees.expression(start, end), "read")

    def _guard(self, start: int, end: int) -> None:
        self.edits.before(start, "loop_mtl", "(", self._site(start, end), ")", "&&", "(")
        self.edits.after(end - 1, ")")

    def _for(self, index: int, end: int) -> int:
        close = self._bracket(index + 1)
        self._scopes.open()
        if ";" not in (self._text(k) for k in range(index + 2, close)):
            self._range_for(index + 2, close)
        else:
            first = self._semicolon(index + 2, close)
            second = self._semicolon(first + 1, close)
            if first > index + 2:
                self._simple(index + 2, first)
            behind = self._statement_end(close + 1, end) if self._text(close + 1) == "{" else close + 1
            if second == first + 1:
                self.edits.after(first, "loop_mtl", "(", self._site(index, close + 1), ")")
            elif not self._is_counted(first + 1, second, close, behind):
                self._guard(first + 1, second)
                self._visit(self._trees.expression(first + 1, second), "read")
            if close > second + 1:
                self._visit(self._trees.expression(second + 1, close), "none")
        behind = self._statement(close + 1, end)
        self._scopes.close()
        return behind

    def _is_counted(self, start: int, stop: int, close: int, body_end: int) -> bool:
        """Whether a loop counts a variable, that its body leaves alone, up to a constant."""
        words = [self._text(k) for k in range(start, stop)]
        step = [self._text(k) for k in range(stop + 1, close)]
        if len(words) != 3 or words[1] not in ("<", "<=", "!=") or self._text(close + 1) != "{":
            return False
        name = words[0]
        limit = self._scopes.meaning(words[2])
        is_constant = self._source.kind(start + 2) == NUMBER or (limit is not None and limit.is_constant)
        if not is_constant or step not in ([name, "++"], ["++", name]):
            return False
        for k in range(close + 2, body_end):
            if self._text(k) == name and self._text(k + 1) in ("=", "++", "--", "+=", "-=", "*=", "/=", "&=", "|="):
                return False
            if self._text(k) == name and self._text(k - 1) in ("++", "--", "&"):
                return False
        return True

    def _range_for(self, start: int, close: int) -> None:
        colon = next((k for k in range(start, close) if self._text(k) == ":"), None)
        if colon is None or self._source.kind(colon - 1) != IDENTIFIER:
            raise NotUnderstood(start)
        words = {self._text(k) for k in range(start, colon)}
        self._visit(self._trees.expression(colon + 1, close), "designate")
        self._scopes.declare(self._text(colon - 1), Meaning("&" in words and "thread" not in words))

    def _return(self, index: int, stop: int) -> None:
        function = self._function
        assert function is not None
        if stop > index + 1:
            head = {self._text(k) for k in range(function.start, function.opening)}
            context: Context = "designate" if "&" in head else "read"
            self._visit(self._trees.initialiser(index + 1, stop), context)
        elif function.kernel is not None:
            self.edits.replace(index, "{", "returned_mtl", "(", self._site(index, index + 1), ")", ";", self._tokens[index])
            self.edits.after(stop, "}")

    def _simple(self, start: int, stop: int) -> None:
        """A declaration or an expression, up to its semicolon."""
        if not self._declaration(start, stop):
            self._visit(self._trees.expression(start, stop), "none")

    # Declarations.

    def _declaration(self, start: int, stop: int) -> bool:
        """Notes the edits for a declaration of variables; False if it is none."""
        index, words = self._specifiers(start, stop)
        if index is None or not self._is_declarator(index, stop):
            return False
        is_threadgroup = "threadgroup" in words
        declared: list[tuple[int, int, str]] = []
        base_is_constant = not {"const", "constexpr"}.isdisjoint(words)
        while index < stop:
            first = index
            pointers = references = 0
            while index < stop and self._text(index) in ("*", "&", "&&", "(", "const", "restrict", "__restrict", *ADDRESS_SPACES):
                pointers += self._text(index) == "*"
                references += self._text(index) in ("&", "&&")
                index += 1
            name = self._text(index)
            if index >= stop or self._source.kind(index) != IDENTIFIER:
                raise NotUnderstood(index)
            name_at = index
            index += 1
            while self._text(index) == ")":
                index += 1
            is_array = False
            while index < stop and self._text(index) == "[":
                is_array = is_array or self._text(index + 1) != "["
                index = self._source.close(index) + 1
                if index <= 0:
                    raise NotUnderstood(name_at)
            is_memory = bool(references) and words.isdisjoint({"thread", "constant"})
            is_memory = is_memory or (is_threadgroup and not pointers and not references and not is_array)
            has_value = index < stop and self._text(index) in ("=", "(", "{")
            if is_threadgroup and not pointers and not references:
                if has_value:
                    raise NotUnderstood(index)
                declared.append((first, index, name))
            runtime = not base_is_constant
            if has_value:
                opening = self._text(index)
                context: Context = "designate" if references else "read"
                if opening == "=":
                    node = self._trees.initialiser(index + 1, stop)
                    values = [node]
                    index = node.end
                elif opening == "(":
                    values = self._trees.arguments(index, self._bracket(index))
                    index = self._source.close(index) + 1
                else:
                    node = self._trees.initialiser(index, stop)
                    values = [node]
                    index = node.end
                runtime = runtime or any(self._is_runtime(value) for value in values)
                if "constexpr" not in words:
                    for value in values:
                        self._visit(value, context)
            self._scopes.declare(name, Meaning(is_memory, not runtime))
            if index < stop:
                if self._text(index) != ",":
                    raise NotUnderstood(index)
                index += 1
        if declared:
            self._threadgroup_variables(start, stop, declared)
        return True

    def _specifiers(self, start: int, stop: int) -> tuple[int | None, set[str]]:
        """The index behind the type that a declaration begins with, and its words; None if there is no type."""
        tokens = self._tokens
        words: set[str] = set()
        has_type = False
        index = start
        while index < stop:
            text = tokens[index].text
            if text in ADDRESS_SPACES or text in _SPECIFIERS:
                words.add(text)
            elif text in ("alignas", "__attribute__") and self._text(index + 1) == "(":
                words.add("alignas")
                index = self._bracket(index + 1)
            elif text in ("unsigned", "signed"):
                has_type = True
            elif tokens[index].kind == IDENTIFIER and has_type:
                if self._text(index - 1) not in ("unsigned", "signed") or text not in ("char", "short", "int", "long"):
                    break
            elif text == "::" or tokens[index].kind == IDENTIFIER:
                if text != "::":
                    if self._scopes.is_variable(text) and self._text(index + 1) != "::":
                        return None, words
                    has_type = self._text(index + 1) != "::"
                    words.add(text)
                    if self._text(index + 1) == "<":
                        close = matching_angle(tokens, index + 1, stop)
                        if close is None or tokens[close].text != ">":
                            return None, words
                        index = close
                        has_type = self._text(index + 1) != "::"
            else:
                break
            index += 1
        return (index if has_type else None), words

    def _is_declarator(self, index: int, stop: int) -> bool:
        position = index
        in_brackets = self._text(position) == "("
        if in_brackets and self._text(position + 1) not in ("*", "&"):
            return False
        while position < stop and self._text(position) in ("*", "&", "&&", "(", "const", "restrict", "__restrict", *ADDRESS_SPACES):
            position += 1
        if position >= stop or self._source.kind(position) != IDENTIFIER:
            return False
        following = self._text(position + 1) if position + 1 < stop else ";"
        return following == ")" if in_brackets else following in ("=", ";", ",", "[", "(", "{")

    def _threadgroup_variables(self, start: int, stop: int, declared: Sequence[tuple[int, int, str]]) -> None:
        """Fences threadgroup variables off from each other, and makes them known."""
        tokens = self._tokens
        registered: list[str | Token] = []
        fenced: list[str | Token] = []
        first = declared[0][0]
        specifiers = [t for t in tokens[start:first] if t.text not in ("threadgroup", "static")]
        # The translator moves those of inner blocks, and knows only their own names.
        can_fence = self._blocks == 0 and all(t.text not in ("alignas", "__attribute__", "volatile", "[") for t in tokens[start:first])
        for begin, end, name in declared:
            declarator: list[str | Token] = []
            attributes = end
            for k in range(begin, end):
                if self._text(k) == "[" and self._text(k + 1) == "[":
                    attributes = min(attributes, k)
            for token in tokens[begin:attributes]:
                declarator.append(f"{name}_type_mtl" if token.text == name else token)
            can_fence = can_fence and attributes == end
            region = self._threadgroup_name(name)
            fenced += ["typedef", *specifiers, *declarator, ";"]
            fenced += ["threadgroup", f"fenced_mtl<{name}_type_mtl>", f"{name}_fenced_mtl", ";"]
            fenced += ["threadgroup", f"{name}_type_mtl", "&", name, "=", f"{name}_fenced_mtl", ".", "object", ";"]
            registered += ["threadgroup_variable_mtl", "(", name, ",", region, ")", ";"]
        if can_fence:
            for k in range(start, stop):
                self.edits.replace(k)
            self.edits.replace(stop, *fenced, *registered)
        else:
            self.edits.after(stop, *registered)

    def _is_runtime(self, node: Node) -> bool:
        """Whether an expression has a value that is not known when the source is compiled."""
        if node.kind == "name":
            meaning = self._scopes.meaning(node.text)
            return meaning is not None and not meaning.is_constant
        if node.kind in ("call", "subscript", "member", "arrow", "this", "opaque"):
            return node.kind != "call" or any(self._is_runtime(part) for part in node.parts[1:])
        return any(self._is_runtime(part) for part in node.parts)

    # Expressions.

    def _visit(self, node: Node, context: Context, path: tuple[str, ...] = ()) -> None:
        """Notes the edits for an expression whose value is used as ``context`` says; ``path`` are the members behind."""
        kind = node.kind
        if kind in ("literal", "this", "unevaluated", "opaque"):
            return
        if kind == "name":
            self._name(node, context, path)
        elif kind == "group":
            self._visit(node.parts[0], context, path)
        elif kind == "member":
            member = () if context in ("designate", "place", "address") else (node.text, *path)
            self._visit(node.parts[0], context, member)
        elif kind == "arrow":
            self._arrow(node, context, path)
        elif kind == "subscript":
            self._subscript(node, context, path)
        elif kind == "unary":
            self._unary(node, context, path)
        elif kind == "postfix":
            self._visit(node.parts[0], "update")
        elif kind == "assign":
            self._assign(node)
        elif kind == "binary":
            self._binary(node)
        elif kind == "ternary":
            self._visit(node.parts[0], "read")
            for part in node.parts[1:]:
                self._visit(part, context if context != "none" else "read")
        elif kind == "comma":
            self._visit(node.parts[0], "none")
            self._visit(node.parts[1], context)
        elif kind == "call":
            self._call(node, context)
        else:
            is_reference = kind == "cast" and self._text(node.parts[0].start - 2) == "&"
            for part in node.parts:
                self._visit(part, "designate" if is_reference else "read")

    def _name(self, node: Node, context: Context, path: tuple[str, ...]) -> None:
        meaning = self._scopes.meaning(node.text) if node.end == node.start + 1 else None
        if meaning is None or not meaning.is_memory or context == "address":
            return
        self.edits.before(node.start, self._check("object_mtl", context, path), "(")
        self.edits.after(node.end - 1, ",", self._site(node.start, node.end), ")")

    def _arrow(self, node: Node, context: Context, path: tuple[str, ...]) -> None:
        pointer = node.parts[0]
        if context == "address":
            self._visit(pointer, "read")
            return
        members = () if context in ("designate", "place") else (node.text, *path)
        site = self._site(node.start, node.end)
        self.edits.before(node.start, self._check("deref_mtl", context, members), "(")
        self.edits.replace(node.place, ",", site, ")", ".")
        self._visit(pointer, "read")

    def _subscript(self, node: Node, context: Context, path: tuple[str, ...]) -> None:
        base, index = node.parts
        if context == "address":
            self._visit(base, "address")
            self._visit(index, "read")
            return
        if base.kind == "member" and len(base.text) > 1 and _is_swizzle(base.text):
            self._visit(base, "read")
            self._visit(index, "read")
            return
        site = self._site(node.start, base.end)
        self.edits.before(node.start, self._check("at_mtl", context, path), "(")
        opening = (",", "(") if index.kind == "comma" else (",",)
        self.edits.replace(node.place, *opening)
        self.edits.replace(node.end - 1, *((")",) if index.kind == "comma" else ()), ",", site, ")")
        self._visit(base, "designate")
        self._visit(index, "read")

    def _unary(self, node: Node, context: Context, path: tuple[str, ...]) -> None:
        operand = node.parts[0]
        if node.text == "&":
            self._visit(operand, "address")
        elif node.text in ("++", "--"):
            self._visit(operand, "update")
        elif node.text != "*":
            self._visit(operand, "read")
        elif context == "address":
            self._visit(operand, "read")
        else:
            site = self._site(node.start, node.end)
            inner = operand.parts[0] if operand.kind == "group" else None
            if inner is not None and inner.kind == "binary" and inner.text == "+":
                self.edits.replace(node.place, self._check("sum_mtl", context, path))
                self.edits.replace(inner.place, ",")
                self.edits.replace(operand.end - 1, ",", site, ")")
                for part in inner.parts:
                    self._visit(part, "read")
                return
            self.edits.replace(node.place, self._check("deref_mtl", context, path), "(")
            self.edits.after(node.end - 1, ",", site, ")")
            self._visit(operand, "read")

    def _assign(self, node: Node) -> None:
        target, value = node.parts
        if node.text != "=":
            self._visit(target, "update")
            if node.text in ("/=", "%=") and self._is_runtime(value):
                self.edits.before(value.start, "divisor_mtl", "(", "1", ",")
                self.edits.after(value.end - 1, ",", self._site(value.start, value.end), ")")
            self._visit(value, "read")
            return
        if value.kind != "list" and self._is_stored(target):
            self.edits.before(node.start, "store_mtl", "(")
            self.edits.replace(node.place, ",")
            self.edits.after(node.end - 1, ",", self._site(target.start, target.end), ")")
            self._visit(target, "place")
        else:
            self._visit(target, "write")
        self._visit(value, "read")

    def _is_stored(self, target: Node) -> bool:
        """Whether an assignment's target is memory that a reference can be bound to: no component of a vector."""
        node = target.inner
        while node.kind == "member":
            if _is_swizzle(node.text):
                return False
            node = node.parts[0].inner
        if node.kind == "name":
            meaning = self._scopes.meaning(node.text)
            return meaning is not None and meaning.is_memory
        if node.kind == "arrow":
            return not _is_swizzle(node.text)
        if node.kind == "subscript":
            base = node.parts[0].inner
            return not (base.kind == "member" and len(base.text) > 1 and _is_swizzle(base.text))
        return node.kind == "unary" and node.text == "*"

    def _binary(self, node: Node) -> None:
        left, right = node.parts
        if node.text in ("/", "%") and self._is_runtime(right):
            self.edits.before(node.start, "quotient_mtl" if node.text == "/" else "rest_mtl", "(")
            self.edits.replace(node.place, ",")
            self.edits.after(node.end - 1, ",", self._site(node.start, node.end), ")")
        self._visit(left, "read")
        self._visit(right, "read")

    # Calls.

    def _call(self, node: Node, context: Context) -> None:
        function, arguments = node.parts[0], node.parts[1:]
        if function.kind in ("member", "arrow"):
            self._method(function, arguments)
            return
        if function.kind != "name":
            self._visit(function, "read")
            self._arguments(arguments, frozenset())
            return
        name = function.text
        if name not in self._source.program.functions and self._library_call(node, name, arguments):
            return
        if context in ("write", "update") or (context == "place"):
            # The call gives a reference to what is written.
            self.edits.before(node.start, self._check("object_mtl", context), "(")
            self.edits.after(node.end - 1, ",", self._site(node.start, node.end), ")")
        self._arguments(arguments, self._references(name))

    def _method(self, function: Node, arguments: Sequence[Node]) -> None:
        owner = function.parts[0]
        if function.kind == "arrow":
            if owner.kind != "this":
                self.edits.before(function.start, self._check("deref_mtl", "designate"), "(")
                self.edits.replace(function.place, ",", self._site(owner.start, owner.end), ")", ".")
                self._visit(owner, "read")
        else:
            self._visit(owner, "designate")
        self._arguments(arguments, self._references(function.text))

    def _references(self, name: str) -> frozenset[int]:
        """The positions where a function of this name takes a reference to device or threadgroup memory."""
        found = set()
        source = self._source
        for function in source.functions_by_name.get(name, ()):
            for position, (start, end) in enumerate(source.arguments(function.opening)):
                words = {source.text(index) for index in range(start, end)}
                if not words.isdisjoint({"&", "&&"}) and "thread" not in words:
                    found.add(position)
        return frozenset(found)

    def _arguments(self, arguments: Sequence[Node], references: Collection[int]) -> None:
        for position, argument in enumerate(arguments):
            self._visit(argument, "designate" if position in references else "read")

    def _library_call(self, node: Node, name: str, arguments: Sequence[Node]) -> bool:
        """Notes the edits for a call of a library function that is checked itself; False for any other."""
        function = node.parts[0]
        edits = self.edits
        if name in ("threadgroup_barrier", "simdgroup_barrier") and len(arguments) == 1:
            edits.replace(function.place, f"{name}_checked_mtl")
            lane = [",", self._lane_site()] if name == "simdgroup_barrier" else []
            edits.after(arguments[0].end - 1, *lane, ",", self._site(node.start, node.end))
            return True
        atomic = _ATOMIC.match(name)
        if atomic is not None and arguments:
            pointer = arguments[0]
            kind = {"load": "ATOMIC_READ_MTL", "store": "ATOMIC_WRITE_MTL"}.get(atomic[1], "ATOMIC_MTL")
            edits.before(pointer.start, f"atomic_pointer_mtl<{kind}>", "(")
            edits.after(pointer.end - 1, ",", self._site(node.start, node.end), ")")
            self._arguments(arguments, ())
            return True
        other = _OTHER_LANE.match(name)
        if other is not None and len(arguments) == 2:
            value, lane = arguments
            site, index = self._site(node.start, node.end), self._lane_site()
            width = "32" if other[1] == "simd" else "4"
            edits.before(node.start, "lane_out_mtl", "(")
            edits.after(node.end - 1, ",", index, ",", site, ")")
            edits.before(value.start, "lane_in_mtl", "(")
            edits.after(value.end - 1, ",", index, ")")
            edits.before(lane.start, f"lane_from_mtl<{_LANE_KINDS[other[2]]}, {width}>", "(")
            edits.after(lane.end - 1, ")")
            self._arguments(arguments, ())
            return True
        if name in ("simdgroup_load", "simdgroup_store"):
            edits.replace(function.place, f"{name}_checked_mtl")
            if arguments:
                edits.before(arguments[0].start, self._site(node.start, node.end), ",")
            self._arguments(arguments, ())
            return True
        if name in _ALL_LANES:
            edits.before(node.start, "checked_lanes_mtl", "(")
            edits.after(node.end - 1, ",", self._lane_site(), ",", self._site(node.start, node.end), ")")
            self._arguments(arguments, ())
            return True
        return False


THREADGROUP_NAMES = 64
CONSTANT_NAMES = 1 << 16
"""What the numbers of threadgroup variables and of tables of constants start from; those of buffers are positions."""


def _tables(source: Source) -> list[str]:
    """The names of the arrays of constants at program scope, with their namespaces."""
    spaces = []
    for index, token in enumerate(source.tokens):
        if token.text == "namespace":
            opening = index + 1
            while source.kind(opening) == IDENTIFIER or source.text(opening) == "::":
                opening += 1
            if source.text(opening) == "{":
                spaces.append((opening, source.close(opening), [source.text(k) for k in range(index + 1, opening)]))
    found = []
    for start, stop in source.program.variables:
        words = [source.text(k) for k in range(start, stop)]
        if "[" not in words or "constant" not in words[: words.index("[")] or source.text(start - 1) == ">":
            continue
        opening = words.index("[")
        if words[opening + 1] == "[" or source.kind(start + opening - 1) != IDENTIFIER:
            continue
        names = [word for first, last, path in spaces if first < start < last for word in path if word != "::"]
        if names[:1] == ["metal"]:
            names = names[1:]
        found.append("::".join([*names, words[opening - 1]]))
    return found[:MOST_TABLES]


def _is_swizzle(name: str) -> bool:
    return 1 <= len(name) <= 4 and any(set(name) <= set(letters) for letters in SWIZZLES)


def member_template(name: str, spelling: str) -> str:
    """The template that tells where a member called ``name`` lies, or which components of a vector it means.

    ``spelling`` is the member's name in the translation.
    """
    text = (
        f"template <typename T> struct member_{name}_mtl {{ typedef decltype(((T *)0)->{spelling}) type;"
        f" static constexpr uint offset = __builtin_offsetof(T, {spelling}), mask = 0, unit = 0; }};\n"
    )
    for letters in SWIZZLES:
        if 1 <= len(name) <= 4 and set(name) <= set(letters):
            mask = sum({1 << letters.index(letter) for letter in name})
            return text + (
                f"template <typename E, int N> struct member_{name}_mtl<vec_mtl<E, N>> {{ typedef E type;"
                f" static constexpr uint offset = 0, mask = {mask}, unit = sizeof(E); }};\n"
            )
    return text
