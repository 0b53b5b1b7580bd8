"""Which functions a name may mean where it is called, and what comes to a function by calls."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import BUILT_IN_TYPE, Function, Source, Variable
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, matching_angle

_CLOSING = (")", "]", "}")
_NO_OBJECTS = frozenset(
    "if for while switch constexpr return else do operator sizeof alignof alignas decltype __attribute__ _Pragma struct"
    " class union enum".split()
)


class Reaching:
    """Where something stands in one source, and names of functions in which it does, or that call such functions."""

    def __init__(self, source: Source, sought: Iterable[int]) -> None:
        self._source = source
        holding: set[int] = set()
        places = set(sought)
        todo = sorted(places)
        while todo:
            functions = [*source.functions, *source.lambdas]
            found = [each for each in functions if each.start not in holding and _holds(each, todo)]
            holding.update(each.start for each in found)
            todo = [
                index
                for index in places_of_names(source, found)
                if index not in places and any(each.start in holding for each in functions_meant(source, index))
            ]
            places.update(todo)
        self._places = sorted(places)

    def places(self, start: int, end: int) -> list[int]:
        """Where it stands, or the name of one of the functions, between ``start`` and ``end``."""
        return self._places[bisect_left(self._places, start) : bisect_left(self._places, end)]

    def calls(self, start: int, end: int) -> list[int]:
        """Those of the places at which something may be called."""
        return [index for index in self.places(start, end) if self._source.text(index + 1) in ("(", "<")]


def reaching(source: Source, words: Iterable[str]) -> Reaching:
    """What comes to one of ``words``."""
    known = frozenset(words)
    return source.keep((Reaching, known), lambda: Reaching(source, source.places(*known)))


def places_of_names(source: Source, functions: Iterable[Function]) -> list[int]:
    """Where names stand that may mean one of ``functions``; kernels have none. That of ``operator()`` is its last
    bracket, or the name of an object that is called, or the bracket that ends an object without one."""
    names = {each.name for each in functions if each.kernel is None}
    found = {index for index in source.places(*names - {")"})} if names else set()
    if ")" in names:
        found.update(index + 2 for index in source.places("operator") if source.text(index + 2) == ")")
        found.update(index for index in source.calls() if source.variable(source.text(index), index) is not None)
        found.update(index - 1 for index in source.places("(") if source.text(index - 2) in (".", "->"))
        found.update(index - 1 for index in source.places("(") if _ends_object(source, index - 1))
    return sorted(found)


def _ends_object(source: Source, index: int) -> bool:
    """Whether a bracket behind ``index`` calls an object that another bracket ends: ``Sum()(x)``, ``sums[i](x)``."""
    opening = source.close(index) if source.text(index) in _CLOSING else -1
    if opening < 0 or not source.in_body(index):
        return False
    if index in _lambdas_by_end(source):
        return True
    before = source.text(opening - 1)
    if source.kind(opening - 1) == IDENTIFIER or before == ">":
        return before not in _NO_OBJECTS
    if source.text(opening) == "(":
        first = opening + 1
        while source.text(first) in ("const", *ADDRESS_SPACES):
            first += 1
        return not source.is_type(first) or source.variable(source.text(first), first) is not None
    return source.text(opening) == "[" and before in _CLOSING


def _lambdas_by_end(source: Source) -> dict[int, Function]:
    return source.keep(_lambdas_by_end, lambda: {each.body_close: each for each in source.lambdas})


def is_lambda(source: Source, function: Function) -> bool:
    """Whether the function is a lambda expression's."""
    # Attributes may stand before others.
    return source.text(function.start) == "[" != source.text(function.start + 1)


def _owners_of_object(source: Source, index: int) -> Collection[str] | None:
    """The classes of the object that the bracket at ``index`` ends; None where that cannot be told."""
    name = name_before(source, source.close(index) - 1)
    if source.text(index) != "]" and name in source.struct_bodies:
        return [name]
    return () if BUILT_IN_TYPE.match(name) else None


def gives_nothing(source: Source, function: Function) -> bool:
    """Whether the function's result is ``void``."""
    if not is_lambda(source, function):
        return source.text(name_place(function) - 1) == "void"
    if "->" in source.texts[function.closing : function.body_open]:
        return source.text(function.body_open - 1) == "void"
    return all(source.text(index + 1) == ";" for index in returns_of(source, function))


def returns_of(source: Source, function: Function) -> list[int]:
    """Where ``return`` stands in the body of the function, and not in a lambda expression in it."""
    first, last = function.body_open, function.body_close
    return [
        index
        for index in source.places("return", start=first, end=last)
        if not any(first < each.start < index < each.body_close for each in source.lambdas)
    ]


def name_place(function: Function) -> int:
    """Where the name of a function begins in its head."""
    return function.opening - (3 if function.name == ")" else 1)


def _holds(function: Function, places: list[int]) -> bool:
    first = bisect_left(places, function.body_open)
    return first < len(places) and places[first] < function.body_close


def opening_of_call(source: Source, index: int) -> int:
    """The bracket that opens behind the name at ``index`` and its template arguments, or -1 if none does."""
    opening = index + 1
    if source.text(opening) == "<":
        close = matching_angle(source.tokens, opening, certain=True)
        opening = len(source.tokens) if close is None else close + 1
    return opening if source.text(opening) == "(" else -1


def functions_meant(source: Source, index: int) -> list[Function]:
    """The functions that the name at ``index`` may mean: none where it is a variable's, all of the name where the class
    of the object or what stands before ``::`` cannot be told."""
    return source.keep((functions_meant, index), lambda: list(_meant(source, index)))


def _meant(source: Source, index: int) -> Iterator[Function]:
    name = source.text(index)
    place = index - 1 - (source.text(index - 1) == "template") - 2 * (name == ")")
    before = source.text(place)
    functions = source.functions_by_name.get(name, [])
    owners: Collection[str] | None
    if name in _CLOSING and source.text(index - 2) != "operator":
        called = _lambdas_by_end(source).get(index)
        yield from [called] if called else _calling(source, index, _owners_of_object(source, index))
        return
    if before in (".", "->"):
        if not functions:
            yield from _called_objects(source, index, source.variables.get(name, []))
            return
        functions = [each for each in functions if each.owner is not None]
        owners = _classes_of_object(source, place)
    elif before == "::":
        owners = _classes_named(source, name_before(source, place - 1))
    else:
        variable = source.variable(name, index)
        # A member function is declared like a member with a value.
        if variable is not None and not (source.text(variable.place + 1) == "(" and not source.in_body(variable.place)):
            if source.text(index + 1) == "(" and index != variable.place and not _is_initialised(source, index):
                yield from _called_objects(source, index, [variable])
            return
        owners = _classes_around(source, index)
        own = [each for each in functions if any(_is_in(source, each.opening, owner) for owner in owners)]
        if own or not any(_has_base(source, owner) for owner in owners):
            free = [each for each in functions if not each.owner or each.owner == name]
            yield from own or free
            return
    for each in functions:
        if owners is None or any(_is_in(source, each.opening, owner) or _has_base(source, owner) for owner in owners):
            yield each


def _is_initialised(source: Source, index: int) -> bool:
    """Whether ``index`` names a member, or a base, before the body of a constructor."""
    heads = source.keep(_is_initialised, lambda: sorted((each.closing, each.body_open) for each in source.functions))
    number = bisect_left(heads, (index, 0)) - 1
    return number >= 0 and index < heads[number][1] and source.text(index - 1) in (":", ",")


def _called_objects(source: Source, place: int, variables: Iterable[Variable]) -> Iterator[Function]:
    """The functions that are called by the names of objects, where their classes can be told."""
    for variable in variables:
        first = variable.initialiser[0] if variable.initialiser else -1
        called = next((each for each in source.lambdas if each.start == first), None)
        if called is not None:
            yield called
            continue
        passed = functions_passed(source, variable)
        if passed is not None:
            yield from (each for each in passed if _takes(source, each, place))
            continue
        index = variable.place - 1
        while source.text(index) in ("&", "&&", "*", "const"):
            index -= 1
        name = name_before(source, index)
        yield from _calling(source, place, () if BUILT_IN_TYPE.match(name) else _classes_named(source, name))


def function_taking(source: Source, variable: Variable) -> tuple[Function, int] | None:
    """The function that has the variable as a parameter, and the parameter's number; None if none has."""
    function = next((each for each in source.functions if each.opening < variable.place < each.closing), None)
    if function is None:
        return None
    parameters = enumerate(source.arguments(function.opening))
    return function, next(number for number, (start, end) in parameters if start <= variable.place < end)


def functions_passed(source: Source, variable: Variable) -> list[Function] | None:
    """The functions and lambda expressions that calls give for a parameter; None where that cannot be told."""
    return source.keep((functions_passed, variable.place), lambda: _passed(source, variable, set()))


def _passed(source: Source, variable: Variable, asked: set[int]) -> list[Function] | None:
    asked.add(variable.place)
    parameter = function_taking(source, variable)
    if parameter is None:
        return None
    taking, number = parameter
    if taking.kernel is not None or taking.name in (")", taking.owner):
        return None
    heads = {each.opening - 1 for each in source.functions}
    found: list[Function] = []
    for index in source.places(taking.name):
        if index in heads or taking not in functions_meant(source, index):
            continue
        arguments = source.arguments(opening_of_call(source, index))
        given = arguments[number] if number < len(arguments) else (index, index)
        functions = _given(source, *given, asked)
        if functions is None:
            return None
        found += functions
    return list({each.start: each for each in found}.values()) or None


def _given(source: Source, start: int, end: int, asked: set[int]) -> list[Function] | None:
    """The functions that an argument stands for; None where that cannot be told."""
    called = _lambdas_by_end(source).get(end - 1)
    if called is not None and called.start == start:
        return [called]
    variable = source.variable(source.text(start), start)
    if end != start + 1 or variable is None:
        return None
    if variable.initialiser is not None:
        return _given(source, *variable.initialiser, asked)
    return [] if variable.place in asked else _passed(source, variable, asked)


def _calling(source: Source, index: int, owners: Collection[str] | None) -> Iterator[Function]:
    """The functions that objects of these classes are called by; all that take as many arguments as are given behind
    ``index`` if the classes cannot be told."""
    functions = source.functions_by_name.get(")", [])
    if owners is None:
        for each in [*functions, *source.lambdas]:
            if _takes(source, each, index):
                yield each
        return
    for each in functions:
        if any(_is_in(source, each.opening, owner) or _has_base(source, owner) for owner in owners):
            yield each


def _takes(source: Source, function: Function, index: int) -> bool:
    """Whether the function may take as many arguments as it is given behind ``index``, if that is a call."""
    if source.text(index + 1) != "(" or source.places("=", "...", start=function.opening, end=function.closing):
        return True
    given = source.arguments(index + 1)
    is_open = bool(source.places("...", start=index, end=max(source.close(index + 1), index)))
    parameters = [] if source.text(function.opening + 1) == "void" else source.arguments(function.opening)
    return is_open or len(given) == len(parameters)


def _classes_of_object(source: Source, dot: int) -> Collection[str] | None:
    first = source.chain_start(dot)
    if source.text(first) == "this" and first == dot - 1:
        return _classes_around(source, dot)
    kind = expressions_of(source).type_of(first, dot) if source.kind(first) == IDENTIFIER else None
    return [kind.base] if kind is not None and kind.base in source.struct_bodies else None


def argument_at(source: Source, index: int) -> tuple[str, int]:
    """The name of what is called with the argument that begins at ``index``, and the argument's number; an empty name
    if nothing is."""
    opening = index - 1
    while opening > 0 and source.text(opening) not in ("(", ";", "{", "["):
        opening = max(source.close(opening), 0) - 1 if source.text(opening) in (")", "]", "}") else opening - 1
    if source.text(opening) != "(":
        return "", 0
    places = enumerate(source.arguments(opening))
    return name_before(source, opening - 1), next((n for n, (start, end) in places if start <= index < end), 0)


def name_before(source: Source, index: int) -> str:
    """The name that ends at ``index``, without its template arguments."""
    depth = 0
    while source.text(index) in (">", ">>") or depth:
        text = source.text(index)
        if text in ("", ";", "{", "}"):
            return ""
        depth += text.count(">") - text.count("<")
        index -= 1
    return source.text(index)


def _classes_named(source: Source, name: str, depth: int = 0) -> Collection[str] | None:
    """The classes that ``name`` may stand for, by aliases, too; None where that cannot be told."""
    if name in source.struct_bodies:
        return [name]
    found: list[str] = []
    for index in source.places(name):
        if source.text(index - 1) == "using" and source.text(index + 1) == "=" and depth < 8:
            end = index + 2
            while source.kind(end) == IDENTIFIER or source.text(end) == "::":
                end += 1
            classes = _classes_named(source, source.text(end - 1), depth + 1)
            if classes is None:
                return None
            found += classes
    return found or None


def _classes_around(source: Source, index: int) -> list[str]:
    return [name for name in source.struct_bodies if _is_in(source, index, name)]


def _is_in(source: Source, index: int, name: str) -> bool:
    return any(start < index < end for start, end, _ in source.struct_bodies[name])


def _has_base(source: Source, name: str) -> bool:
    """Whether functions of the class may be those of another."""
    for start, _, _ in source.struct_bodies[name]:
        index = start - 1
        while source.text(index) not in ("", ";", "}", "{", "struct", "class"):
            if source.text(index) == ":":
                return True
            index -= 1
    return False
