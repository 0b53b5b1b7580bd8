"""Puts checks into functions, statement by statement.

A statement that is not understood stays as it is and is listed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.analysis.statements import DECIDING, LABELS, Statement, opening_of_parts
from mpsgrad.msl.instrument.declarators import DeclaratorReader
from mpsgrad.msl.instrument.expressions import Context, ExpressionWeaver
from mpsgrad.msl.instrument.methods import gets_checks, holds_references, is_constructor
from mpsgrad.msl.instrument.own_variables import Declared, OwnVariables
from mpsgrad.msl.instrument.scopes import Meaning, constants, form_of
from mpsgrad.msl.instrument.sites import CONSTANT_NAMES, THREADGROUP_NAMES
from mpsgrad.msl.instrument.tree import Node, NotUnderstood
from mpsgrad.msl.library_marks import ANY_THREAD
from mpsgrad.msl.program import ADDRESS_SPACES, SHARED_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, Token

_SKIPPED = frozenset("using typedef static_assert struct class union enum template friend public private goto".split())
_BEFORE_AUTO = frozenset({"const", *ADDRESS_SPACES})
_DEEPEST = 200
_MOST_SITES = 60000


class Weaver(ExpressionWeaver):
    """Notes the edits for the functions of one source."""

    def __init__(self, source: Source, strings: Collection[str], granule: int) -> None:
        super().__init__(source)
        self._strings = strings
        self._function: Function | None = None
        self._depth = 0
        self._blocks = 0
        self._scope_end = 0
        self._can_declare_more = False
        self._switches: set[int] = set()
        self._own = OwnVariables(source, granule)
        self._declarators = DeclaratorReader(source, self._scopes.is_variable)
        self.constants, self._knows_all_constants = constants(source)

    def weave(self, function: Function) -> None:
        """Notes the edits for one function's body."""
        source = self._source
        if not gets_checks(source, function):
            return
        for index in source.places("constexpr", start=function.start, end=function.opening):
            # What it gets has no value before it runs, and checks cannot be called before.
            self.edits.replace(index)
        self._function = function
        self._scopes.open_function(function)
        self._own.enter(function)
        self._scope_end, self._can_declare_more = function.body_close, True
        if function.kernel is not None:
            self._enter_kernel(function)
        if is_constructor(source, function):
            self.edits.after(function.body_open, "own_filled_mtl", "(", "*", "this", ")", ";")
        else:
            self._copied_parameters(function)
        self._statements(function.body_open + 1, function.body_close)
        self._scopes.close_function()

    def _copied_parameters(self, function: Function) -> None:
        """Notes the edits for structs that a function takes: copies of them in an inner block, which are watched."""
        words: list[str | Token] = []
        for start, end in self._source.arguments(function.opening):
            name_at = self._own.copied_parameter(start, end, function.body_close)
            if name_at is not None:
                name = self._text(name_at)
                number = self._own_name(name)
                words += self._own.copy(start, name_at, number)
                form = form_of(self._source, self._source.texts[start:name_at])
                self._scopes.declare(name, Meaning(is_own=True, watched=number, form=form))
        if words:
            self.edits.after(function.body_open, "{", *words)
            self.edits.before(function.body_close, "}")

    def _enter_kernel(self, function: Function) -> None:
        assert function.kernel is not None
        for parameter in function.kernel.parameters:
            space = parameter.address_space
            if space is None or space.text != "threadgroup" or not (parameter.is_pointer or parameter.is_reference):
                continue
            pointer = ["&"] if parameter.is_reference else []
            region = self._threadgroup_name(parameter.name)
            number = str(len(self.woven.threadgroup_arguments))
            self.woven.threadgroup_arguments.append(parameter.name)
            words = ["threadgroup_argument_mtl", "(", *pointer, parameter.name, ",", number, ",", region, ")", ";"]
            self.edits.after(function.body_open, *words)
        # The compiler may put other constants behind those that are known.
        fence = str(int(self._knows_all_constants))
        for position, name in enumerate((*self.constants, *(f"::{name}" for name in self._strings))):
            if self.constants.get(name, 0) > function.start:
                continue
            words = [word for part in name.split("::")[1:] for word in ("::", part)]
            number = str(CONSTANT_NAMES + position)
            self.edits.after(function.body_open, "constant_mtl", "(", *words, ",", number, ",", fence, ")", ";")

    def _threadgroup_name(self, name: str) -> str:
        self.woven.threadgroup.append(name)
        return str(THREADGROUP_NAMES + len(self.woven.threadgroup) - 1)

    # Statements.

    def _statements(self, start: int, end: int) -> None:
        for each in self._source.statements.between(start, end):
            self._statement(each)

    def _statement(self, statement: Statement) -> None:
        """Notes the edits for one statement."""
        self._depth += 1
        try:
            if self._depth > _DEEPEST or len(self.woven.sites) > _MOST_SITES:
                raise NotUnderstood(statement.word)
            self._known_statement(statement)
        except NotUnderstood as found:
            self.woven.not_understood.append(self._tokens[min(found.place, len(self._tokens) - 1)])
        finally:
            self._depth -= 1

    def _bracket(self, index: int) -> int:
        close = self._source.close(index) if self._text(index) == "(" else -1
        if close < 0:
            raise NotUnderstood(index)
        return close

    def _known_statement(self, statement: Statement) -> None:
        index, stop = statement.word, statement.end - 1
        text = self._text(index)
        if text in DECIDING:
            self._flow(statement)
        elif text == "{":
            self._scopes.open()
            self._blocks += 1
            around = self._scope_end, self._can_declare_more
            self._scope_end, self._can_declare_more = stop, index not in self._switches
            self._statements(index + 1, stop)
            self._scope_end, self._can_declare_more = around
            self._blocks -= 1
            self._scopes.close()
        elif text in LABELS:
            self._parts(statement)
        elif self._text(stop) != ";":
            raise NotUnderstood(stop)
        elif text == "return":
            self._return(index, stop)
        elif text in ("struct", "class", "union", "enum") and "{" not in (self._text(k) for k in range(index, stop)):
            self._simple(index, stop, is_statement=True)
        elif text not in (";", "break", "continue") and text not in _SKIPPED and self._text(index + 1) != ":":
            self._simple(index, stop, is_statement=True)

    def _parts(self, statement: Statement) -> None:
        for start, _ in statement.parts:
            self._statement(self._source.statements.at(start))

    def _flow(self, statement: Statement) -> None:
        word, condition = self._text(statement.word), statement.condition
        if not statement.parts or not any(condition):
            raise NotUnderstood(statement.word)
        if word == "do":
            self._parts(statement)
            self._condition(*condition, guarded=True)
            return
        self._scopes.open()
        if word == "switch":
            self._switches |= {self._source.statements.at(part[0]).word for part in statement.parts}
        if word == "for":
            self._turns(statement)
        elif not statement.is_constexpr:
            self._condition(*condition, guarded=word == "while")
        self._parts(statement)
        self._scopes.close()

    def _condition(self, start: int, end: int, *, guarded: bool) -> None:
        separator = self._source.find_end(start, end)
        if separator < end:
            self._simple(start, separator)
            start = separator + 1
        if self._declaration(start, end):
            return
        if guarded:
            self._guard(start, end)
        self._visit(self._trees.expression(start, end), "read")

    def _guard(self, start: int, end: int) -> None:
        site = self._site(start, end)
        if self._text(start) == ANY_THREAD:
            # All threads have to ask.
            start, end = start + 2, end - 1
        self.edits.before(start, "loop_mtl", "(", site, ")", "&&", "(")
        self.edits.after(end - 1, ")")

    def _turns(self, loop: Statement) -> None:
        """Notes the edits between the brackets of a ``for``."""
        clauses = self._source.statements.clauses(loop.condition)
        if len(clauses) == 1:
            self._range_for(*loop.condition)
            return
        if len(clauses) != 3:
            raise NotUnderstood(loop.word)
        begin, condition, step = clauses
        if begin[1] > begin[0]:
            self._simple(*begin)
        close = loop.condition[1]
        if condition[0] == condition[1]:
            self.edits.after(begin[1], "loop_mtl", "(", self._site(loop.word, close + 1), ")")
        elif not self._is_counted(*condition, loop):
            self._guard(*condition)
            self._visit(self._trees.expression(*condition), "read")
        if step[1] > step[0]:
            self._visit(self._trees.expression(*step), "none")

    def _is_counted(self, start: int, stop: int, loop: Statement) -> bool:
        """Whether a loop counts a variable, that its body leaves alone, up to a constant."""
        words = [self._text(k) for k in range(start, stop)]
        step = [self._text(k) for k in range(stop + 1, loop.condition[1])]
        body = loop.parts[0]
        if len(words) != 3 or words[1] not in ("<", "<=", "!=") or self._text(body[0]) != "{":
            return False
        name = words[0]
        limit = self._scopes.meaning(words[2])
        is_constant = self._source.kind(start + 2) == NUMBER or (limit is not None and limit.is_constant)
        if not is_constant or step not in ([name, "++"], ["++", name]):
            return False
        for k in range(*body):
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
        if stop > index + 1:
            context: Context = "read"
            value = self._trees.initialiser(index + 1, stop)
            if function is not None and self._source.places("&", start=function.start, end=function.opening):
                context = "lend" if self._gives_reference(function) else "designate"
            self._visit(value, context)
        elif function is not None and function.kernel is not None:
            site = self._site(index, index + 1)
            self.edits.replace(index, "{", "returned_mtl", "(", site, ")", ";", self._tokens[index])
            self.edits.after(stop, "}")

    def _simple(self, start: int, stop: int, *, is_statement: bool = False) -> None:
        """A declaration or an expression, up to its semicolon."""
        if not self._declaration(start, stop, can_add=is_statement and self._can_declare_more):
            self._visit(self._trees.expression(start, stop), "none")

    def _lambda(self, start: int, end: int) -> None:
        """The body of a lambda expression, which may read and write what is around it."""
        outer, self._function = self._function, None
        self._scopes.open()
        opening = self._source.close(start) + 1
        if self._text(opening) == "(":
            self._scopes.declare_parameters(opening)
        self._statements(self._source.close(end - 1) + 1, end - 1)
        self._scopes.close()
        self._function = outer

    # Declarations.

    def _declaration(self, start: int, stop: int, *, can_add: bool = False) -> bool:
        """Notes the edits for a declaration of variables; False if it is none. Others may follow if ``can_add``."""
        if self._structured_binding(start, stop):
            return True
        first, words = self._declarators.specifiers(start, stop)
        if first is None or not self._declarators.begins(first, stop):
            return False
        is_threadgroup = "threadgroup" in words
        threadgroup: list[tuple[int, int, str]] = []
        declared: list[Declared] = []
        base_is_constant = not {"const", "constexpr"}.isdisjoint(words)
        index = first
        while index < stop:
            found = self._declarators.read(index, stop)
            is_memory = found.is_reference and words.isdisjoint({"thread", "constant"})
            is_memory = is_memory or (is_threadgroup and found.is_object and not found.is_array)
            has_value = found.end < stop and self._text(found.end) in ("=", "(", "{")
            if is_threadgroup and found.is_object:
                if has_value:
                    raise NotUnderstood(found.end)
                threadgroup.append((index, found.end, found.name))
            own = self._own.of(found, index, words, stop, self._scope_end) if can_add else None
            number = None if own is None else self._own_name(found.name)
            index = found.end
            runtime = not base_is_constant
            values: Sequence[Node] = ()
            if has_value:
                values, index = self._initial_values(index, stop)
                runtime = runtime or any(self._is_runtime(value) for value in values)
            declared.append(Declared(found, values, index, own, number))
            watched = number if own is not None and own.watched else None
            is_own = found.is_object and not is_threadgroup
            is_lent = found.is_reference and words.isdisjoint(SHARED_SPACES)
            form = form_of(self._source, words, is_array=found.is_array)
            self._scopes.declare(found.name, Meaning(is_memory, not runtime, is_own, is_lent, watched, form))
            if index < stop:
                if self._text(index) != ",":
                    raise NotUnderstood(index)
                index += 1
        self._own.declare(self.edits, start, first, stop, declared)
        if "constexpr" not in words:
            may_refer = any(holds_references(self._source, word) for word in words)
            for each in declared:
                for value in each.values:
                    if may_refer and value.kind == "list":
                        self._arguments(value.parts, (), may_write=True)
                    else:
                        self._visit(value, "lend" if each.declarator.is_reference else "read")
        if threadgroup:
            self._threadgroup_variables(start, stop, threadgroup)
        return True

    def _initial_values(self, index: int, stop: int) -> tuple[Sequence[Node], int]:
        """The values that what is declared begins with, behind its name, and the index behind them."""
        if self._text(index) == "(":
            return self._trees.arguments(index, self._bracket(index)), self._source.close(index) + 1
        node = self._trees.initialiser(index + (self._text(index) == "="), stop)
        return [node], node.end

    def _structured_binding(self, start: int, stop: int) -> bool:
        """Notes the edits for ``auto [a, b] = value;``; False if it is none."""
        auto = start
        while self._text(auto) in _BEFORE_AUTO:
            auto += 1
        opening = opening_of_parts(self._source, auto) if self._text(auto) == "auto" else -1
        if opening < 0:
            return False
        close = self._source.close(opening)
        if self._text(close + 1) not in ("=", "{", "("):
            raise NotUnderstood(opening)
        context: Context = "read" if opening == auto + 1 else "designate"
        for value in self._initial_values(close + 1, stop)[0]:
            for part in value.parts if value.kind == "list" else [value]:
                self._visit(part, context)
        for index in range(opening + 1, close, 2):
            self._scopes.declare(self._text(index), Meaning())
        return True

    def _threadgroup_variables(self, start: int, stop: int, declared: Sequence[tuple[int, int, str]]) -> None:
        """Fences threadgroup variables off from each other, and makes them known."""
        tokens = self._tokens
        registered: list[str | Token] = []
        fenced: list[str | Token] = []
        first = declared[0][0]
        specifiers = [t for t in tokens[start:first] if t.text not in ("threadgroup", "static")]
        # The translator moves those of inner blocks, and knows only their own names.
        unlike = {"alignas", "__attribute__", "volatile", "["}
        can_fence = self._blocks == 0 and unlike.isdisjoint(token.text for token in tokens[start:first])
        for begin, end, name in declared:
            declarator: list[str | Token] = []
            attributes = end
            for k in range(begin, end):
                if self._text(k) == "[" and self._text(k + 1) == "[":
                    attributes = min(attributes, k)
            for token in tokens[begin:attributes]:
                declarator.append(f"type_of_{name}_mtl" if token.text == name else token)
            can_fence = can_fence and attributes == end
            region = self._threadgroup_name(name)
            fenced += ["typedef", *specifiers, *declarator, ";"]
            fenced += ["threadgroup", f"fenced_mtl<type_of_{name}_mtl>", f"{name}_fenced_mtl", ";"]
            fenced += ["threadgroup", f"type_of_{name}_mtl", "&", name, "=", f"{name}_fenced_mtl", ".", "object", ";"]
            registered += ["threadgroup_variable_mtl", "(", name, ",", region, ")", ";"]
        if can_fence:
            for k in range(start, stop):
                self.edits.replace(k)
            self.edits.replace(stop, *fenced, *registered)
        else:
            self.edits.after(stop, *registered)
