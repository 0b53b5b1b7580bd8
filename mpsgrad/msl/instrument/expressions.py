"""Puts checks around what expressions do: memory accesses, barriers, simdgroup functions and divisions."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Literal

from mpsgrad.msl.analysis.calls import name_place
from mpsgrad.msl.analysis.source import WRITING_FUNCTIONS, Function, Source
from mpsgrad.msl.backend import is_swizzle
from mpsgrad.msl.edits import Edits
from mpsgrad.msl.instrument.methods import gets_checks, has_followed_methods
from mpsgrad.msl.instrument.own_variables import holder_of
from mpsgrad.msl.instrument.scopes import Form, Meaning, Scopes, is_object_member, is_reference_member
from mpsgrad.msl.instrument.sites import OWN_NAMES, Site, Woven
from mpsgrad.msl.instrument.tree import Node, TreeReader
from mpsgrad.msl.library_marks import AT, RETURNED, WHEN, WHERE
from mpsgrad.msl.tokens import SITE, Token

Context = Literal["none", "read", "operand", "write", "update", "designate", "lend", "base", "place", "address"]
"""What an expression is for: ``operand`` reads each column of a matrix, ``designate`` binds a reference to it, which
may give it a value unseen, ``lend`` one whose accesses are checked, ``base`` is the array of an element that is checked
itself, ``place`` is written by what stands around it, and ``address`` is not accessed at all."""

_KINDS: dict[str, str] = {
    "none": "READ_MTL", "read": "READ_MTL", "operand": "READ_MTL", "write": "WRITE_MTL", "update": "UPDATE_MTL",
    "designate": "DESIGNATE_MTL", "lend": "LEND_MTL", "base": "LEND_MTL", "place": "PLACE_MTL",
}  # fmt: skip
_ATOMIC = re.compile(r"atomic_(load|store|\w+)_explicit$")
_ATOMIC_KINDS = {"load": "ATOMIC_READ_MTL", "store": "ATOMIC_WRITE_MTL"} | dict.fromkeys(
    ("exchange", "compare_exchange_weak", "compare_exchange_strong"), "ATOMIC_SWAP_MTL"
)
_OTHER_LANE = re.compile(r"(simd|quad)_(shuffle(?:_xor|_up|_down|_rotate_up|_rotate_down)?|broadcast)$")
_LANE_KINDS = {
    "shuffle": "LANE_MTL", "broadcast": "LANE_MTL", "shuffle_xor": "LANE_XOR_MTL", "shuffle_up": "LANE_UP_MTL",
    "shuffle_down": "LANE_DOWN_MTL", "shuffle_rotate_up": "LANE_ROTATE_UP_MTL",
    "shuffle_rotate_down": "LANE_ROTATE_DOWN_MTL",
}  # fmt: skip
_ALL_LANES = frozenset({"simdgroup_multiply", "simdgroup_multiply_accumulate"})


class ExpressionWeaver:
    """Notes the edits for expressions of one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tokens = source.tokens
        self._scopes = Scopes(source)
        self._trees = TreeReader(source, self._scopes.is_variable)
        self.edits = Edits(source.tokens)
        self.woven = Woven()

    def _text(self, index: int) -> str:
        return self._source.text(index)

    def _lambda(self, start: int, end: int) -> None:
        """Notes the edits for a lambda expression."""
        raise NotImplementedError

    def _statements(self, start: int, end: int) -> None:
        """Notes the edits for statements."""
        raise NotImplementedError

    # Sites and insertions.

    def _site(self, start: int, end: int, part: str = "") -> Token:
        sites = self.woven.sites
        token = self._tokens[start]
        text = "".join(f"{' ' * t.spaced}{t.text}" for t in self._tokens[start:end]).strip()
        sites.append(Site(token.file, token.line, token.column, text, part))
        return Token(SITE, str(len(sites) - 1), token.file, token.line, token.column)

    def _lane_site(self) -> str:
        self.woven.lane_sites += 1
        return str(self.woven.lane_sites - 1)

    def _check(self, name: str, context: Context, path: Sequence[str] = ()) -> str:
        self.woven.members.update(path)
        members = ", ".join(f"member_{member}_mtl" for member in path)
        return f"{name}<{_KINDS[context]}, path_mtl<{members}>>"

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
        """Notes the edits for an expression that is used as ``context`` says; ``path`` are the members behind it."""
        kind = node.kind
        if kind in ("literal", "this", "unevaluated"):
            return
        if kind == "cast" and self._text(node.parts[0].start - 2) == "void" and self._text(node.start) == "(":
            context = "none"
        if kind == "opaque":
            if node.text == "[":
                self._lambda(node.start, node.end)
            elif node.text == "{":
                self._statements(node.start + 1, node.end - 1)
        elif kind == "name":
            self._name(node, context, path)
        elif kind == "group":
            self._visit(node.parts[0], context, path)
        elif kind == "member":
            if is_reference_member(self._source, node.text):
                # What it refers to is no part of the object.
                self._visit(node.parts[0], "designate")
                return
            member = () if context in ("designate", "lend", "place", "address") else (node.text, *path)
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
            self._assign(node, context)
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
            self._call(node, context, path)
        else:
            behind = node.parts[0].start - 2 if kind == "cast" else node.start
            is_reference = kind == "cast" and self._text(behind - (self._text(behind) == ">")) == "&"
            for part in node.parts:
                self._visit(part, "designate" if is_reference else "none" if context == "none" else "read")

    def _name(self, node: Node, context: Context, path: tuple[str, ...]) -> None:
        meaning = self._scopes.meaning(node.text) if node.end == node.start + 1 else None
        if meaning is not None and (meaning.watched is not None or meaning.is_lent):
            self._watch(node, meaning, node.text, context, path)
        if meaning is not None and meaning.watched is not None:
            return
        if meaning is None or not meaning.is_memory or context == "address":
            return
        self.edits.before(node.start, self._check("object_mtl", context, path), "(")
        self.edits.after(node.end - 1, ",", self._site(node.start, node.end), ")")

    def _watch(self, node: Node, meaning: Meaning, name: str, context: Context, path: tuple[str, ...]) -> None:
        """Notes the edits for an access to a watched variable, or to what a reference may have been lent of one."""
        if context in ("none", "base", "address", "lend"):
            return
        site = self._site(node.start, node.end, ".".join((name, *path)) if node.kind == "name" else "")
        if context == "operand":
            self.edits.before(node.start, "columns_mtl", "(")
            self.edits.after(node.end - 1, ",", site, ")")
        number = meaning.watched
        if number is not None and path and node.kind == "name":
            number = self._own_name(".".join((name, *path)))
        if number is None:
            self.edits.before(node.start, self._check("lent_mtl", context, path), "(")
            self.edits.after(node.end - 1, ",", site, ")")
        else:
            self.edits.before(node.start, self._check("known_mtl", context, path), "(", holder_of(name), ",")
            self.edits.after(node.end - 1, ",", str(number), ",", site, ")")

    def _own_name(self, name: str) -> int:
        """The number of a thread's own variable, or of a part of one, that findings call ``name``."""
        self.woven.own.append(name)
        return OWN_NAMES + len(self.woven.own) - 1

    def _root(self, node: Node) -> tuple[str, Meaning]:
        """The variable that ``node`` is or is a part of, without a pointer between them; its name is empty if there is
        none."""
        node = node.inner
        while node.kind in ("subscript", "member"):
            node = node.parts[0].inner
        meaning = self._scopes.meaning(node.text) if node.kind == "name" and node.end == node.start + 1 else None
        return (node.text, meaning) if meaning is not None else ("", Meaning())

    def _arrow(self, node: Node, context: Context, path: tuple[str, ...]) -> None:
        pointer = node.parts[0]
        if context == "address":
            self._visit(pointer, "read")
            return
        context = "designate" if is_reference_member(self._source, node.text) else context
        members = () if context in ("designate", "lend", "place") else (node.text, *path)
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
        if base.kind == "member" and len(base.text) > 1 and is_swizzle(base.text):
            self._visit(base, "read")
            self._visit(index, "read")
            return
        name, root = self._root(base)
        is_watched = root.watched is not None or root.is_lent
        if root.watched is not None or (root.is_lent and context != "place"):
            self._watch(node, root, name, context, path)
        site = self._site(node.start, base.end)
        self.edits.before(node.start, self._check(AT, context, path), "(")
        opening = (",", "(") if index.kind == "comma" else (",",)
        self.edits.replace(node.place, *opening)
        self.edits.replace(node.end - 1, *((")",) if index.kind == "comma" else ()), ",", site, ")")
        self._visit(base, "base" if is_watched else "designate")
        self._visit(index, "read")

    def _unary(self, node: Node, context: Context, path: tuple[str, ...]) -> None:
        operand = node.parts[0]
        if operand.inner.kind == "this" and context in ("designate", "lend"):
            # That the object is there was checked before; the check would not know its address space.
            return
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

    def _assign(self, node: Node, context: Context) -> None:
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
            if not self._has_own_assignment and self._is_followed_object(target):
                # What is assigned may have members without a value.
                self.edits.before(node.start, "own_filled_mtl", "(")
                self.edits.after(node.end - 1, ")")
            self._visit(target, "write")
        self._visit(value, "read")

    @cached_property
    def _has_own_assignment(self) -> bool:
        """Whether a class of the program says itself what an assignment does, which then may give anything."""
        return any(self._text(k + 1) == "=" for k in self._source.places("operator"))

    def _is_followed_object(self, target: Node) -> bool:
        """Whether an object of a class is assigned to that is watched or a part of one, or may be by a reference."""
        meaning = self._root(target)[1]
        if meaning.watched is None and not meaning.is_lent:
            return False
        node = target.inner
        while node.kind == "subscript":
            node = node.parts[0].inner
        if node.kind == "name":
            return meaning.form != ""
        return node.kind == "member" and not is_swizzle(node.text) and is_object_member(self._source, node.text)

    def _is_followed(self, node: Node, form: Form) -> bool:
        """Whether ``node`` names a variable of this form that is watched, or a reference that may be to one."""
        meaning = self._root(node)[1] if node.inner.kind == "name" else Meaning()
        return meaning.form == form and (meaning.watched is not None or meaning.is_lent)

    def _is_stored(self, target: Node) -> bool:
        """Whether an assignment's target is memory that a reference can be bound to: no component of a vector."""
        node = target.inner
        while node.kind == "member":
            if is_swizzle(node.text):
                return False
            node = node.parts[0].inner
        if node.kind == "name":
            meaning = self._scopes.meaning(node.text)
            return meaning is not None and meaning.is_memory
        if node.kind == "arrow":
            return not is_swizzle(node.text)
        if node.kind == "subscript":
            if self._root(node)[1].is_own:
                return False
            base = node.parts[0].inner
            return not (base.kind == "member" and len(base.text) > 1 and is_swizzle(base.text))
        return node.kind == "unary" and node.text == "*"

    def _binary(self, node: Node) -> None:
        left, right = node.parts
        if node.text in ("/", "%") and self._is_runtime(right):
            self.edits.before(node.start, "quotient_mtl" if node.text == "/" else "rest_mtl", "(")
            self.edits.replace(node.place, ",")
            self.edits.after(node.end - 1, ",", self._site(node.start, node.end), ")")
        for part in node.parts:
            self._visit(part, "operand" if self._is_followed(part, "matrix") else "read")

    # Calls.

    def _call(self, node: Node, context: Context, path: tuple[str, ...]) -> None:
        function, arguments = node.parts[0], node.parts[1:]
        if context in ("read", "write", "update", "place", "designate") and self._may_refer(function):
            # The call gives a reference to what is accessed.
            self.edits.before(node.start, self._check("given_mtl", context, path), "(")
            self.edits.after(node.end - 1, ",", self._site(node.start, node.end), ")")
        if function.kind in ("member", "arrow"):
            self._method(function, arguments)
            return
        if function.kind != "name":
            self._visit(function, "read")
            self._arguments(arguments, frozenset(), may_write=True)
            return
        name = function.text
        if name in (WHEN, WHERE):
            self._visit(arguments[1], context, path)
            return
        if self._root(function)[1].watched is not None and not has_followed_methods(self._source, ")"):
            self._visit(function, "designate")
        if name not in self._source.program.functions and self._library_call(node, name, arguments):
            return
        may_write = name in WRITING_FUNCTIONS or name in self._source.struct_bodies or self._scopes.is_variable(name)
        may_write = may_write or self._is_variadic(name) or name in self._functions_of_templates
        self._arguments(arguments, self._references(name), may_write=may_write)

    @cached_property
    def _functions_of_templates(self) -> frozenset[str]:
        """The names of functions that templates take: ``template <void (*name)(thread float&)>``."""
        found = set()
        for index in self._source.places("*"):
            around = [self._text(place) for place in (index - 1, index + 2, index + 3)]
            if around == ["(", ")", "("]:
                found.add(self._text(index + 1))
        return frozenset(found)

    def _is_part_of_what_is_given(self, node: Node) -> bool:
        """Whether ``node`` is what a call of the program's gives a reference to, or a part of that."""
        node = node.inner
        while node.kind in ("subscript", "member"):
            node = node.parts[0].inner
        return node.kind == "call" and self._may_refer(node.parts[0])

    def _may_refer(self, function: Node) -> bool:
        """Whether a function of the program that may be the one that is called gives a reference."""
        if function.kind in ("member", "arrow") or function.text in self._source.functions_by_name:
            return function.text in self._giving_references
        is_object = function.kind != "name" or self._scopes.is_variable(function.text)
        return is_object and ")" in self._giving_references

    @cached_property
    def _giving_references(self) -> frozenset[str]:
        """The names of such functions; those that objects are called by have a bracket's."""
        return frozenset(each.name for each in self._source.functions if self._gives_reference(each))

    def _gives_reference(self, function: Function) -> bool:
        text, place = self._text, name_place(function)
        while text(place - 1) in ("::", "operator"):
            place -= 1 + (text(place - 1) == "::")
        return text(place - 1) == "&"

    def _method(self, function: Node, arguments: Sequence[Node]) -> None:
        owner = function.parts[0]
        is_followed = has_followed_methods(self._source, function.text)
        context: Context = "lend" if is_followed else "designate"
        if function.kind == "arrow":
            if owner.kind != "this":
                self.edits.before(function.start, self._check("deref_mtl", context), "(")
                self.edits.replace(function.place, ",", self._site(owner.start, owner.end), ")", ".")
                self._visit(owner, "read")
        else:
            self._visit(owner, context)
        references = self._references(function.text)
        may_write = self._is_variadic(function.text) or not (references or is_followed)
        self._arguments(arguments, references, may_write=may_write)

    def _references(self, name: str) -> frozenset[int]:
        """The positions where a function of this name takes a reference, but to what it reads without a check."""
        found = set()
        source = self._source
        for function in source.functions_by_name.get(name, ()):
            has_checks = gets_checks(source, function)
            for position, (start, end) in enumerate(source.arguments(function.opening)):
                words = {source.text(index) for index in range(start, end)}
                if not words.isdisjoint({"&", "&&"}) and (has_checks or not words >= {"thread", "const"}):
                    found.add(position)
        return frozenset(found)

    def _is_variadic(self, name: str) -> bool:
        """Whether a function of this name takes any number of arguments, which it may expand unseen."""
        source = self._source
        return any(
            source.places("...", start=function.opening, end=function.closing)
            for function in source.functions_by_name.get(name, ())
        )

    def _arguments(
        self, arguments: Sequence[Node], references: Collection[int], *, may_write: bool = False
    ) -> None:
        """Notes the edits for what a call passes; with ``may_write`` it may give any watched variable a value."""
        for position, argument in enumerate(arguments):
            _, root = self._root(argument)
            if may_write and (root.is_own or root.is_lent or self._is_part_of_what_is_given(argument)):
                self._visit(argument, "designate")
            else:
                self._visit(argument, "lend" if position in references else "read")

    def _library_call(self, node: Node, name: str, arguments: Sequence[Node]) -> bool:
        """Notes the edits for a call of a library function that is checked itself; False for any other."""
        function = node.parts[0]
        edits = self.edits
        if name in ("threadgroup_barrier", "simdgroup_barrier") and arguments:
            edits.replace(function.place, f"{name}_checked_mtl")
            among = self._lane_site() if name == "simdgroup_barrier" else "true"
            more = (",", among) if len(arguments) == 1 else ()
            edits.after(arguments[-1].end - 1, *more, ",", self._site(node.start, node.end))
            return True
        if name == RETURNED:
            edits.after(node.place, self._site(node.start, node.end))
            return True
        atomic = _ATOMIC.match(name)
        if atomic is not None and arguments:
            pointer = arguments[0]
            kind = _ATOMIC_KINDS.get(atomic[1], "ATOMIC_MTL")
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
            edits.before(node.start, "checked_lanes_mtl", "(")
            edits.after(node.end - 1, ",", self._lane_site(), ",", self._site(node.start, node.end), ")")
            edits.replace(function.place, f"{name}_checked_mtl")
            if arguments:
                edits.before(arguments[0].start, self._site(node.start, node.end), ",")
            self._matrices(arguments)
            return True
        if name in _ALL_LANES:
            edits.before(node.start, "checked_lanes_mtl", "(")
            edits.after(node.end - 1, ",", self._lane_site(), ",", self._site(node.start, node.end), ")")
            self._matrices(arguments)
            return True
        return False

    def _matrices(self, arguments: Sequence[Node]) -> None:
        """Notes the edits for what a function of simdgroup matrices takes, which may give the first one its value."""
        for position, argument in enumerate(arguments):
            self._visit(argument, "read" if position else "designate")
