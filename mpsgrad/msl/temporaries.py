"""Functions whose ``thread`` objects may be temporary ones, which OpenCL keeps in no address space that has a name.

There a temporary object does not bind to ``const __private T&``, nor has it the constructors and member functions of
``__private`` objects. So constructors make objects anywhere, a function that only computes takes objects in any address
space, and one that writes to none of its arguments takes the values of constant ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.declarations import operator_before
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.kept_references import KeptReferences
from mpsgrad.msl.lent_members import borrowing_functions, calls_own, lends_members
from mpsgrad.msl.library_marks import AT, LENT
from mpsgrad.msl.named_temporaries import OBJECT
from mpsgrad.msl.overloads import namespaces_of
from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.prototypes import bodies_of_classes, class_of, prototypes_of
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, OPENING, Token, matching, matching_angle, split_commas

_SPACES = frozenset(ADDRESS_SPACES)
_Head = tuple[int | None, int, int, int]


def open_to_temporaries(program: Program) -> tuple[frozenset[int], KeptReferences]:
    """Takes the ``&`` from references that become values; the identities of the ``thread`` that are to be dropped, and
    the references that stay."""
    opener = _Opener(program)
    return opener.unnamed(), opener.kept


class _Opener:
    """Which functions of a program are opened: heads are a class or None, and where return type, brackets and body are.

    ``_computing`` are those, by their brackets, that only compute, ``_opened`` those that objects in any address space
    may be given to. ``_closed`` are classes one of whose conversions does not only compute.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._tokens = tokens = program.tokens
        self._heads: list[_Head] = [(None, *head) for head in program.function_heads] + list(program.member_heads)
        self._overloaded = _overloaded(tokens, (opening for _, _, opening, _ in self._heads))
        self._prototypes = prototypes_of(program)
        self._specialisations = _specialisations_of(program)
        self._closed_members = _closed_members(program)
        self.kept = KeptReferences(program, self._prototypes)
        # Among conversions the one that is not opened would be the better match for any type.
        self._closed = {
            owner
            for owner, _, opening, end in program.member_heads
            if _is_conversion(tokens, opening) and not _only_computes(program, _body(tokens, opening), end)
        }
        brackets = _brackets_of_thread_objects(program)
        self._computing = {
            opening
            for _, start, opening, end in self._heads
            if len(self._given(start, opening)) < 2
            and _only_computes(program, _body(tokens, opening), end)
            and not (brackets and _applies_brackets(tokens, opening, end, brackets))
        }
        bodies = list(bodies_of_classes(tokens))
        self._pointers = _pointer_members(tokens)
        function_objects = _function_objects(tokens, bodies)
        self._opened = {
            opening
            for _, _, opening, end in self._heads
            if opening in self._computing or _is_of_function_object(program, function_objects, bodies, opening, end)
        }
        # Nor could a call choose between one that is opened and one that is not.
        self._beside_closed = {
            (owner, *_member(tokens, opening))
            for owner, _, opening, _ in program.member_heads
            if opening not in self._opened
            and {token.text for token in _qualifiers(tokens, matching(tokens, opening) + 1)} == {"thread", "const"}
        }
        self._elsewhere = set(_places_elsewhere(tokens, [opening for _, _, opening, _ in self._heads]))
        self._uses: dict[str, list[int]] = {name: [] for name in self._overloaded}
        for index, token in enumerate(tokens[:-1]):
            if token.kind == IDENTIFIER and token.text in self._uses:
                self._uses[token.text].append(index)

    def unnamed(self) -> frozenset[int]:
        found = set(_spaces_of_auto(self._tokens)) | set(_spaces_of_defaulted(self._tokens))
        for head in self._heads:
            found.update(self._of_object(head))
            found.update(self._of_arguments(head))
        return frozenset(found)

    def _given(self, start: int, opening: int) -> set[str]:
        """What the result of a function is said to be."""
        return {token.text for token in self._tokens[start:opening]} & {"thread", "const"}

    def _declared(self, opening: int) -> tuple[int, ...]:
        return (opening, *self._prototypes.get(opening, ()), *self._specialisations.get(opening, ()))

    def _of_object(self, head: _Head) -> Iterator[int]:
        """The ``thread`` behind the parameters of a member of objects in any address space."""
        tokens = self._tokens
        owner, start, opening, _ = head
        may_open = opening in self._opened and _member(tokens, opening) not in self._closed_members
        may_open = may_open and (
            not self._given(start, opening)
            or _gives_what_members_point_to(tokens, self._pointers, _body(tokens, opening), head[3])
        )
        may_open = may_open and not (owner in self._closed and _is_conversion(tokens, opening))
        may_open = may_open and (owner, *_member(tokens, opening)) not in self._beside_closed
        qualifiers = {token.text for token in _qualifiers(tokens, matching(tokens, opening) + 1)} & _SPACES
        if opening in self._program.constructors or may_open:
            for at in self._declared(opening):
                behind = _qualifiers(tokens, matching(tokens, at) + 1)
                yield from (id(token) for token in behind if token.text == "thread")
        elif qualifiers == {"thread"}:
            self.kept.positions.setdefault(opening, []).append(OBJECT)

    def _of_arguments(self, head: _Head) -> Iterator[int]:
        """The ``thread`` of constant references to temporary objects; those that become values lose the ``&``."""
        tokens = self._tokens
        start, opening, end = head[1:]
        if _specialised(tokens, start, opening) is not None:
            # The template decides, which says the same of its arguments.
            return
        name = tokens[opening - 1].text
        only_computes = opening in self._computing
        keeps_all = not only_computes and self._keeps_references(head)
        declared = [split_commas(tokens[at + 1 : matching(tokens, at)]) for at in self._declared(opening)]
        for position, reference in enumerate(declared[0]):
            if not _is_constant_reference(reference):
                continue
            is_kept = keeps_all or self.kept.gives_address(start, opening, end, reference)
            is_kept = is_kept or (self.kept.is_base(reference) and opening not in self._opened)
            is_kept = is_kept or self.kept.may_be_written_meanwhile(opening, end)
            is_number = _is_read_as_number(tokens, reference, _body(tokens, opening), end) if is_kept else False
            if is_kept and (not is_number or (name, position) in self._elsewhere):
                self.kept.positions.setdefault(opening, []).append(position)
                continue
            # From a reference without an address space the compiler would deduce a type with one.
            is_deduced = _names_parameter(tokens[start:opening], reference)
            if is_deduced and name in self._overloaded:
                continue
            for each in (parameters[position] for parameters in declared):
                yield from (id(token) for token in each if token.text == "thread")
                if not (only_computes or is_kept) or is_deduced:
                    for token in each:
                        token.text = "" if token.text == "&" else token.text

    def _keeps_references(self, head: _Head) -> bool:
        """Whether a function that does not only compute may have to know what its references refer to."""
        tokens = self._tokens
        owner, start, opening, _ = head
        closing = matching(tokens, opening)
        qualifiers = _qualifiers(tokens, closing + 1)
        parameters = split_commas(tokens[opening + 1 : closing])
        references = [parameter for parameter in parameters if _is_constant_reference(parameter)]
        is_copy = any(token.text == tokens[opening - 1].text for each in references for token in each)
        is_member = owner is not None and not {token.text for token in tokens[start:opening]} & {"friend", "static"}
        # An object in another address space is none of the arguments.
        is_elsewhere = any(token.text in _SPACES - {"thread"} for token in qualifiers)
        is_const = any(token.text == "const" for token in qualifiers)
        is_writer = is_member and not is_const and not is_elsewhere and opening not in self._program.constructors
        name = tokens[opening - 1].text
        places = {position for position, parameter in enumerate(parameters) if _is_constant_reference(parameter)}
        is_alone = name not in self._overloaded or (
            not any((name, position) in self._elsewhere for position in places)
            # Large objects are not copied for nothing.
            and self._is_given_temporaries(name, places)
        )
        leaves_objects = all(_leaves_thread_objects(each) and not self.kept.may_write(each) for each in parameters)
        return is_copy or is_writer or not is_alone or not leaves_objects

    def _is_given_temporaries(self, name: str, places: set[int]) -> bool:
        """Whether a call of ``name`` has something else than the name of an object at one of these places."""
        tokens = self._tokens
        for index in self._uses[name]:
            opening = index + 1
            if tokens[opening].text == "<":
                opening = (matching_angle(tokens, opening, certain=True) or index) + 1
            if tokens[opening].text != "(":
                continue
            arguments = split_commas(tokens[opening + 1 : matching(tokens, opening)])
            if any(not _is_name(each) for position, each in enumerate(arguments) if position in places):
                return True
        return False


def calls_in_constructors(program: Program) -> Iterator[tuple[int, str, bool]]:
    """Where constructors of ``thread`` objects call member functions of such, the class, and whether ``this`` stands
    there: constructors make objects anywhere, and these functions may be those of ``__private`` objects."""
    tokens = program.tokens
    for owner, _, opening, end in program.member_heads:
        if opening not in program.constructors:
            continue
        body = _body(tokens, opening)
        if any(token.text != "thread" for token in _qualifiers(tokens, matching(tokens, opening) + 1)):
            continue
        called = {
            tokens[other - 1].text
            for one, _, other, _ in program.member_heads
            if one == owner and [each.text for each in _qualifiers(tokens, matching(tokens, other) + 1)] == ["thread"]
        }
        for index in range(body, end - 2):
            if tokens[index].text == "this" and tokens[index + 1].text == "->" and tokens[index + 2].text in called:
                yield index, tokens[opening - 1].text, True
            elif tokens[index].text in called and tokens[index + 1].text == "(":
                if tokens[index - 1].text not in (".", "->", "::") and tokens[index].text != tokens[opening - 1].text:
                    yield index, tokens[opening - 1].text, False


def closed_to_temporaries(program: Program, kept: Collection[int]) -> Iterator[tuple[int, str]]:
    """The names of templates that deduce the type of a ``thread`` object and that other address spaces have too, or
    that take named objects only, as those whose brackets are ``kept``; and where the last of that name in its namespace
    ends: only another template can take temporary objects for them."""
    tokens = program.tokens
    overloaded = _overloaded(tokens, (opening for _, opening, _ in program.function_heads))
    namespaces = namespaces_of(tokens)
    ends: dict[tuple[str, tuple[int, ...]], int] = {}
    found = set()
    for start, opening, end in program.function_heads:
        name = tokens[opening - 1]
        if name.kind != IDENTIFIER or tokens[opening - 2].text == "operator":
            continue
        if name.text not in overloaded and opening not in kept:
            continue
        scope = name.text, tuple(first for first, last, _ in namespaces if first < start < last)
        ends[scope] = max(end, ends.get(scope, 0))
        parameters = split_commas(tokens[opening + 1 : matching(tokens, opening)])
        if any(_is_constant_reference(each) and _names_parameter(tokens[start:opening], each) for each in parameters):
            found.add(scope)
    return ((ends[scope], scope[0]) for scope in found)


def _closed_members(program: Program) -> set[tuple[str, int]]:
    """The members of templates that are specialised outside of these and one of which does not only compute: all have
    to say the same of their objects."""
    tokens = program.tokens
    specialised = {
        _member(tokens, opening)
        for start, opening, _ in program.function_heads
        if [token.text for token in tokens[start : start + 3]] == ["template", "<", ">"]
        and [token.text for token in tokens[opening - 3 : opening - 1]] == [">", "::"]
    }
    heads = [(opening, end) for _, opening, end in program.function_heads] if specialised else []
    heads += [(opening, end) for _, _, opening, end in program.member_heads] if specialised else []
    alike = [(_member(tokens, opening), opening, end) for opening, end in heads]
    return {
        member
        for member, opening, end in alike
        if member in specialised and not _only_computes(program, _body(tokens, opening), end)
    }


def _member(tokens: Sequence[Token], opening: int) -> tuple[str, int]:
    """The name of the function whose parameters begin at ``opening``, and how many these are."""
    return tokens[opening - 1].text, len(split_commas(tokens[opening + 1 : matching(tokens, opening)]))


def _specialisations_of(program: Program) -> dict[int, list[int]]:
    """For the brackets that open the parameters of templates of functions, those of what specialises them."""
    tokens = program.tokens
    found: dict[int, list[int]] = {}
    names = {opening: _specialised(tokens, start, opening) for start, opening, _ in program.function_heads}
    for opening, name in names.items():
        if name is None:
            continue
        for start, other, _ in program.function_heads:
            is_template = names[other] is None and tokens[start].text == "template" and tokens[other - 1].text == name
            if is_template and _spaces_of(tokens, other) == _spaces_of(tokens, opening):
                found.setdefault(other, []).append(opening)
    return found


def _spaces_of(tokens: Sequence[Token], opening: int) -> list[set[str]]:
    """The address spaces and signs of each parameter of a function."""
    parameters = split_commas(tokens[opening + 1 : matching(tokens, opening)])
    return [{token.text for token in each} & (_SPACES | {"&", "*", "const"}) for each in parameters]


def _specialised(tokens: Sequence[Token], start: int, opening: int) -> str | None:
    """The name of the template of functions that ``template <> T name<U>(`` specialises, or None."""
    if [token.text for token in tokens[start : start + 3]] != ["template", "<", ">"]:
        return None
    name = opening - 1
    if tokens[name].text == ">":
        opened = (at for at in range(start + 3, name) if tokens[at].text == "<")
        name = next((at - 1 for at in opened if matching_angle(tokens, at, certain=True) == name), name)
    is_function = tokens[name].kind == IDENTIFIER and tokens[name - 1].text != "::"
    return tokens[name].text if is_function else None


def _places_elsewhere(tokens: Sequence[Token], openings: Iterable[int]) -> Iterator[tuple[str, int]]:
    """The names of functions and the places of parameters there that are in other address spaces than ``thread``."""
    for opening in openings:
        for position, parameter in enumerate(split_commas(tokens[opening + 1 : matching(tokens, opening)])):
            if {token.text for token in parameter} & (_SPACES - {"thread"}):
                yield tokens[opening - 1].text, position


def _overloaded(tokens: Sequence[Token], openings: Iterable[int]) -> set[str]:
    """The names of functions that take objects in other address spaces than ``thread``."""
    return {
        tokens[opening - 1].text
        for opening in openings
        if {token.text for token in tokens[opening : matching(tokens, opening)]} & (_SPACES - {"thread"})
    }


def _spaces_of_auto(tokens: Sequence[Token]) -> Iterator[int]:
    """The identities of the ``thread`` in ``thread const auto& name``: the compiler finds out where the object is."""
    for index, token in enumerate(tokens):
        if token.text == "auto" and tokens[index + 1].text == "&":
            while index and tokens[index - 1].text in ("const", "thread"):
                index -= 1
                if tokens[index].text == "thread":
                    yield id(tokens[index])


def _spaces_of_defaulted(tokens: Sequence[Token]) -> Iterator[int]:
    """The identities of the ``thread`` in ``T(const thread T& other) thread = default``: they are not the same to
    OpenCL as what the compiler would declare, which it takes objects in any address space for."""
    for index, token in enumerate(tokens):
        if token.text != "default" or tokens[index - 1].text != "=":
            continue
        start = index - 1
        while start and tokens[start - 1].text not in (";", "{", "}", ":"):
            start -= 1
        head = tokens[start:index]
        if not any(each.text == "operator" for each in head):
            yield from (id(each) for each in head if each.text == "thread")


def behind_unqualified_members(program: Program) -> Iterator[int]:
    """The indices behind the parameters of member functions that give pointers or references to ``thread``, and so to
    parts of objects there, make such of ``this``, lend members, or call functions of the same object that do, without
    saying that their objects are."""
    tokens = program.tokens
    heads = list(_heads_of_members(program))
    borrowing = borrowing_functions(program) if heads else {}
    pointers = _pointer_members(tokens) if heads else []
    bound: set[str] = set()
    others: list[tuple[str, Sequence[int], int]] = []
    for start, openings, end in heads:
        words = {token.text for first, opening in zip(start, openings, strict=True) for token in tokens[first:opening]}
        behind = [matching(tokens, opening) + 1 for opening in openings]
        spaces = {token.text for token in _qualifiers(tokens, behind[0])} & _SPACES
        gives = "thread" in words and words & {"*", "&"}
        name = tokens[openings[0] - 1].text
        if spaces or words & {"static", "friend"} or openings[0] in program.constructors:
            bound |= {name} if spaces == {"thread"} and openings[0] not in program.constructors else set()
        elif (
            (gives and not _gives_what_members_point_to(tokens, pointers, behind[0], end))
            or _points_to_itself(tokens, behind[0], end)
            or lends_members(program, borrowing, behind[0], end, openings[-1])
        ):
            bound.add(name)
            yield from behind
        else:
            others.append((name, behind, end))
    while callers := [each for each in others if calls_own(tokens, bound, each[1][0], each[2])]:
        others = [each for each in others if each not in callers]
        bound |= {name for name, _, _ in callers}
        yield from (place for _, behind, _ in callers for place in behind)


_PointerMembers = Sequence[tuple[int, int, Collection[str]]]
"""Where the bodies of classes are, and the names of their members that are pointers or references."""


def _pointer_members(tokens: Sequence[Token]) -> _PointerMembers:
    found = []
    for opening, closing, _ in bodies_of_classes(tokens):
        names = set()
        index = opening + 1
        while index < closing:
            is_name = tokens[index].kind == IDENTIFIER and tokens[index - 1].text in ("*", "&")
            if is_name and tokens[index + 1].text in (";", ",", "=", "{"):
                names.add(tokens[index].text)
            index = matching(tokens, index) + 1 if tokens[index].text in OPENING else index + 1
        found.append((opening, closing, names))
    return found


def _gives_what_members_point_to(tokens: Sequence[Token], pointers: _PointerMembers, start: int, end: int) -> bool:
    """Whether the body in a range, in that of a class, gives back nothing of the object itself, but what its pointers
    lead to."""
    around = [names for opening, closing, names in pointers if opening < start < closing]
    returns = [index + 1 for index in range(start, end) if tokens[index].text == "return"]
    return bool(around and returns) and all(_returned_name(tokens, at, end) in around[-1] for at in returns)


def _returned_name(tokens: Sequence[Token], start: int, end: int) -> str:
    """The first name in what is returned, behind what checks it and ``*``; empty if that is chosen."""
    stop = next(index for index in range(start, end) if tokens[index].text == ";")
    if any(token.text == "?" for token in tokens[start:stop]):
        return ""
    words = (token.text for token in tokens[start:stop] if token.kind == IDENTIFIER)
    return next((word for word in words if RENAMED_SUFFIX not in word.lower()), "")


def _heads_of_members(program: Program) -> Iterator[tuple[Sequence[int], Sequence[int], int]]:
    """Where each member function begins, the brackets that open its parameters, and where its body ends: first those of
    the definition, and then, where that is not in its class, those of the declaration there."""
    tokens = program.tokens
    for _, start, opening, end in program.member_heads:
        yield (start,), (opening,), end
    heads = [(head, operator_before(tokens, head[1])) for head in program.function_heads]
    named = [(head, head[1] - 1 if operator is None else operator) for head, operator in heads]
    outside = [(head, name) for head, name in named if tokens[name - 1].text == "::"]
    prototypes = prototypes_of(program) if outside else {}
    namespaces = {name for _, _, name in namespaces_of(tokens)} if outside else set()
    for (start, opening, end), name in outside:
        declared = prototypes.get(opening, ())
        if tokens[name - 2].text not in namespaces and len(declared) == 1:
            first = declared[0]
            while tokens[first - 1].text not in (";", "{", "}", ":"):
                first -= 1
            yield (start, first), (opening, declared[0]), end


def _points_to_itself(tokens: Sequence[Token], start: int, end: int) -> bool:
    """Whether the body in a range makes ``this`` or ``*this`` a pointer or reference to ``thread``."""
    for index in range(start, end):
        if tokens[index].text != "this":
            continue
        before = index - 1 - (tokens[index - 1].text == "*")
        first = before
        if tokens[before].text == "=":
            while tokens[first].text not in (";", "{", "}", "("):
                first -= 1
        elif tokens[before].text == "(" and tokens[before - 1].text == ">":
            while first > start and not tokens[first].text.endswith("_cast"):
                first -= 1
        words = {token.text for token in tokens[first:before]}
        if "thread" in words and words & {"*", "&"}:
            return True
    return False


def _qualifiers(tokens: Sequence[Token], index: int) -> list[Token]:
    """The address space and ``const`` behind a member function's parameters."""
    end = index
    while end < len(tokens) and (tokens[end].text in _SPACES or tokens[end].text == "const"):
        end += 1
    return list(tokens[index:end])


def _may_take_addresses(program: Program, name: str) -> bool:
    """Whether a function called ``name`` is a member other than a constructor, or has parameters that are no values."""
    tokens = program.tokens
    heads = [opening for _, opening, _ in program.function_heads if tokens[opening - 1].text == name]
    members = [opening for _, _, opening, _ in program.member_heads if tokens[opening - 1].text == name]
    if not program.constructors.issuperset(members):
        return True
    heads += members
    return not heads or any(
        token.text in ("*", "&", "&&", "[") for at in heads for token in tokens[at : matching(tokens, at)]
    )


def _body(tokens: Sequence[Token], opening: int) -> int:
    """The index behind the parameters that begin at ``opening`` and their qualifiers."""
    behind = matching(tokens, opening) + 1
    return behind + len(_qualifiers(tokens, behind))


def _function_objects(tokens: Sequence[Token], bodies: Sequence[tuple[int, int, str]]) -> dict[str, set[str]]:
    """The classes without members that an address could be taken of, and the names of their functions."""
    found: dict[str, set[str]] = {}
    others = set()
    for opening, close, name in bodies:
        functions: set[str] = set()
        first = opening
        while tokens[first].text not in ("struct", "class", "union"):
            first -= 1
        # What it is derived from may have members.
        is_empty = all(token.text != ":" for token in tokens[first:opening])
        start = index = opening + 1
        while index < close:
            if tokens[index].text in ("(", "{", ";"):
                words = {token.text for token in tokens[start:index]}
                if tokens[index].text == "(" and not words & {"=", "using", "typedef"}:
                    functions.add(tokens[index - 1].text)
                    while index < close and tokens[index].text not in ("{", ";"):
                        index = matching(tokens, index) + 1 if tokens[index].text == "(" else index + 1
                else:
                    is_empty = is_empty and (not words or bool(words & {"static", "using", "typedef"}))
                    while index < close and tokens[index].text != ";":
                        index = matching(tokens, index) + 1 if tokens[index].text in OPENING else index + 1
                index = matching(tokens, index) + 1 if tokens[index].text == "{" else index + 1
                start = index
            else:
                index = matching(tokens, index) + 1 if tokens[index].text == "[" else index + 1
        found.setdefault(name, set()).update(functions)
        others |= set() if is_empty else {name}
    return {name: functions for name, functions in found.items() if name not in others}


def _is_of_function_object(
    program: Program, classes: Mapping[str, set[str]], bodies: Sequence[tuple[int, int, str]], opening: int, end: int
) -> bool:
    """Whether the operator whose parameters begin at ``opening`` is a member of one of ``classes`` and uses nothing of
    its object."""
    tokens = program.tokens
    if operator_before(tokens, opening) is None:
        return False
    around = [name for first, last, name in bodies if first < opening < last]
    owner = around[-1] if around else class_of(tokens, opening, classes)
    if owner is None or owner not in classes:
        return False
    return not any(
        tokens[index].text == "this"
        or (tokens[index].text in classes[owner] and tokens[index - 1].text not in (".", "->", "::"))
        for index in range(_body(tokens, opening), end)
        if tokens[index].kind == IDENTIFIER
    )


def _is_read_as_number(tokens: Sequence[Token], reference: Sequence[Token], start: int, end: int) -> bool:
    """Whether ``reference`` is to a scalar or vector that the body in a range only takes the value of."""
    words = [token.text for token in reference if token.text not in ("const", "thread", "&")]
    if len(words) != 2 or built_in(words[0]) is None:
        return False
    for index in range(start, end):
        if tokens[index].text != words[1] or tokens[index - 1].text in (".", "->", "::"):
            continue
        before, behind = tokens[index - 1].text, tokens[index + 1].text
        if before in ("&", "{", "return", "?", ":") or behind in ("}", "?", ":", ".", "["):
            return False
        if before in ("(", ",") and behind in (")", ","):
            first = index - 1
            depth = 0
            while depth or tokens[first].text != "(":
                depth += (tokens[first].text in ")]}") - (tokens[first].text in OPENING)
                first -= 1
            if built_in(tokens[first - 1].text) is None:
                return False
        elif before == "=" and behind in (";", ","):
            first = index
            while tokens[first].text not in (";", "{", "}"):
                first -= 1
            if any(token.text == "&" for token in tokens[first:index]):
                return False
    return True


def _is_conversion(tokens: Sequence[Token], opening: int) -> bool:
    """Whether the function whose parameters begin at ``opening`` converts an object: ``operator float()``."""
    return tokens[opening - 1].kind == IDENTIFIER and "operator" in (tokens[opening - 2].text, tokens[opening - 3].text)


def _leaves_thread_objects(parameter: Sequence[Token]) -> bool:
    """Whether nothing in ``thread`` can be written to through a parameter."""
    texts = {token.text for token in parameter}
    is_elsewhere = bool(texts & (_SPACES - {"thread"})) and "thread" not in texts
    is_constant = _is_constant_reference(parameter) or _is_constant_pointer(parameter)
    return not {"*", "&", "&&", "["} & texts or is_elsewhere or is_constant


def _is_name(argument: Sequence[Token]) -> bool:
    """Whether ``argument`` is the name of an object, or a parameter."""
    return [token.kind for token in argument] == [IDENTIFIER] or any(token.text == "thread" for token in argument)


def _is_constant_reference(parameter: Sequence[Token]) -> bool:
    """Whether a parameter is ``const thread T& name``, where T is neither an array nor a pointer."""
    texts = [token.text for token in parameter]
    return (
        {"const", "thread", "&"} <= set(texts)
        and not {"*", "&&", "[", "(", "volatile"} & set(texts)
        and texts.count("&") == 1
        and len(texts) - texts.index("&") <= 2
    )


def _is_constant_pointer(parameter: Sequence[Token]) -> bool:
    """Whether a parameter is ``const thread T* name``."""
    texts = [token.text for token in parameter]
    is_one = texts.count("*") == 1 and not {"&", "&&", "[", "("} & set(texts)
    return is_one and "const" in texts[: texts.index("*")]


def _names_parameter(head: Sequence[Token], reference: Sequence[Token]) -> bool:
    """Whether the type that ``reference`` refers to is a type parameter of the template that ``head`` begins."""
    named = {b.text for a, b in pairwise(head) if a.text in ("typename", "class")}
    words = [token.text for token in reference if token.text not in ("const", "thread", "&")]
    return 0 < len(words) <= 2 and words[0] in named


def _brackets_of_thread_objects(program: Program) -> set[str]:
    """The brackets, of calls and subscripts, whose operators only objects have that are known to be ``thread``."""
    tokens = program.tokens
    found = set()
    for _, start, opening, _ in program.member_heads:
        words = {token.text for token in (*tokens[start:opening], *_qualifiers(tokens, matching(tokens, opening) + 1))}
        if "thread" in words and tokens[opening - 3].text == "operator":
            found.add(tokens[opening - 2].text)
    return found & {"[", "("}


def _applies_brackets(tokens: Sequence[Token], opening: int, end: int, brackets: set[str]) -> bool:
    """Whether a function applies ``brackets`` to parameters that are constant references, or to members."""
    parameters = split_commas(tokens[opening + 1 : matching(tokens, opening)])
    names = {parameter[-1].text for parameter in parameters if _is_constant_reference(parameter)}
    for index in range(_body(tokens, opening), end):
        if tokens[index].text in brackets:
            is_member = tokens[index - 1].text == ")" or tokens[index - 2].text in (".", "->")
            if tokens[index - 1].text in names or is_member and tokens[index].text == "[":
                return True
        elif tokens[index].text.startswith(AT):
            # What stands for a subscript where accesses are checked, perhaps of what a reference was bound to.
            behind = range(index + 1, end)
            first = next(at for at in behind if tokens[at].text != "(" and not tokens[at].text.startswith(LENT))
            if tokens[first].text in names or tokens[first].text == "*":
                return True
    return False


def _only_computes(program: Program, start: int, end: int) -> bool:
    """Whether the body in a range takes no address of what is there, and calls nothing that might."""
    tokens = program.tokens
    for index in range(start, end):
        text = tokens[index].text
        is_value = text == "this" and tokens[index - 1].text == "*" and tokens[index - 2].text == "("
        if text in ("this", "auto", "->", "thread") and not is_value:
            return False
        if text == "&" and tokens[index - 1].kind not in (IDENTIFIER, NUMBER) and tokens[index - 1].text not in ")]":
            return False
        is_call = tokens[index].kind == IDENTIFIER and tokens[index + 1].text in ("(", "<")
        if is_call and text in program.functions and built_in(text) is None and _may_take_addresses(program, text):
            return False
    return True
