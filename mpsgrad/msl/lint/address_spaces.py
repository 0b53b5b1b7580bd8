"""Rules 1 to 7: every pointer, reference and variable at program scope says where its object lives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise, zip_longest

from mpsgrad.msl.analysis.expressions import Expressions, expressions_of
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.types import Type, read_type
from mpsgrad.msl.backend import INDEX_ATTRIBUTES, POSITION_ATTRIBUTES
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.library_marks import VECTOR_TEMPLATES
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.lint.statements import operand_start
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, PUNCTUATION, Token, matching_angle, split_commas

_LIBRARY_TEMPLATES = VECTOR_TEMPLATES | {"array", "simdgroup_matrix", "atomic"}
_QUALIFIERS = frozenset({"const", "volatile", "static", "inline", "constexpr", "typename", *ADDRESS_SPACES})


def _declarators(source: Source, mark: str) -> Iterator[int]:
    """The indices of ``*``, ``&`` or ``&&`` that make a pointer or reference type without an address space."""
    tokens = source.tokens
    for index in source.places(mark, start=1):
        if tokens[index].kind != PUNCTUATION:
            continue
        position = index - 1
        seen_space = False
        while position >= 0 and tokens[position].text in ("const", "volatile", *ADDRESS_SPACES):
            seen_space = seen_space or tokens[position].text in ADDRESS_SPACES
            position -= 1
        if tokens[position].text == "*" and position < index - 1:
            if not seen_space and tokens[position + 1].text == "const":
                continue
        elif tokens[position].text == "*" and _points(source, position):
            # Of a pointer: the inner one lies in memory that has to be named between the two. A reference to a pointer
            # is one to a thread's.
            if mark == "*":
                yield index
            continue
        if tokens[position].text == "(" and source.text(index + 2) == ")" and source.text(index + 3) == "[":
            # Of an array: T (&name)[N].
            position -= 1
        is_template = tokens[position].text == ">"
        if is_template:
            position = _before_angles(source, position)
        if position < 0:
            continue
        if not source.is_type(position) and not (is_template and tokens[position].text in _LIBRARY_TEMPLATES):
            continue
        alias = source.aliases.get(tokens[position].text)
        if alias is not None and alias.space is not None:
            continue
        if tokens[position].text.endswith(RENAMED_SUFFIX):
            # A call that the translator passes on, to memory of any space.
            continue
        before = position - 1
        while before > 0 and tokens[before].text == "::" and tokens[before - 1].text != "metal":
            before -= 1
            if tokens[before].text == ">":
                before = _before_angles(source, before)
            before -= before >= 0 and tokens[before].kind == IDENTIFIER and tokens[before].text not in _QUALIFIERS
        while before >= 0 and (
            tokens[before].text in ("const", "volatile", "static", "inline", "constexpr", "typename", "struct", "::")
            or tokens[before].text in ("unsigned", "signed", "long", "metal", "extern")
            or tokens[before].text in ADDRESS_SPACES
        ):
            seen_space = seen_space or tokens[before].text in ADDRESS_SPACES
            before -= 1
        # In "a * b" the left side is no type; a type name behind a value would be one all the same.
        if before >= 0 and tokens[before].text in (".", "->", "::"):
            continue
        if source.variable(tokens[position].text, position) is not None:
            continue
        if not seen_space:
            yield index


def _points(source: Source, index: int) -> bool:
    """Whether the ``*`` at ``index`` stands behind a type whose address space is written, as in ``device float *``."""
    before = index - 1
    while before > 0 and source.text(before) in ("const", "volatile"):
        before -= 1
    is_type = source.is_type(before) and source.variable(source.text(before), before) is None
    return is_type and source.text(before - 1) in (*ADDRESS_SPACES, "const", "volatile", "struct")


def _before_angles(source: Source, closing: int) -> int:
    """The index before the template bracket that closes at ``closing``; -1 if that is a comparison."""
    position, depth = closing, 0
    while position >= 0 and source.text(position) not in (";", "{", "}", "(", "["):
        depth += (source.text(position) == ">") - (source.text(position) == "<")
        if source.text(position) in (")", "]"):
            position = source.close(position)
        position -= 1
        if depth == 0:
            return position
    return -1


@rule(
    1,
    "pointer-address-space",
    words="pointer type must have explicit address space qualifier",
    why="Metal has no generic address space, so the type must say which memory a pointer points to.",
)
def pointers_have_an_address_space(source: Source) -> Iterator[Found]:
    for index in _declarators(source, "*"):
        yield source.tokens[index], "pointer type must have explicit address space qualifier"


@rule(
    2,
    "reference-address-space",
    words="reference type must have explicit address space qualifier",
    why="A reference is a pointer to the compiler, so it needs an address space as well.",
)
def references_have_an_address_space(source: Source) -> Iterator[Found]:
    for index in chain(_declarators(source, "&"), _declarators(source, "&&")):
        yield source.tokens[index], "reference type must have explicit address space qualifier"


def _casts(source: Source) -> Iterator[tuple[Token, str, Type, int, int]]:
    """Casts to pointers: the place, how it is written, the type, and the range of the operand."""
    tokens = source.tokens
    for index in source.places("(", "reinterpret_cast", "static_cast"):
        token = tokens[index]
        if token.text == "(":
            close = source.close(index)
            read = read_type(tokens, index + 1, close, source.aliases, source.members) if close > index + 2 else None
            before = source.text(index - 1)
            if read is None or read[1] != close or not read[0].pointers or source.text(close - 1) != "*":
                continue
            if source.kind(index - 1) == IDENTIFIER and before not in ("return", "else", "do", "case"):
                continue
            end = close + 1
            if source.text(end) == "(" and source.close(end) > 0:
                end = source.close(end) + 1
            else:
                end += source.text(end) == "&"
                end += 1
                while source.text(end) in (".", "->", "[") and source.text(end + 1) != "[":
                    end = source.close(end) + 1 if source.text(end) == "[" and source.close(end) > 0 else end + 2
            yield token, "C-style cast", read[0], close + 1, end
        elif source.text(index + 1) == "<":
            angle = matching_angle(tokens, index + 1)
            if angle is None or source.text(angle + 1) != "(" or source.close(angle + 1) < 0:
                continue
            read = read_type(tokens, index + 2, angle, source.aliases, source.members)
            if read is not None and read[1] == angle and read[0].pointers:
                yield token, token.text, read[0], angle + 2, source.close(angle + 1)


@rule(
    3,
    "address-space-cast",
    words="C-style cast from 'int *' to 'device int *' converts between mismatching address spaces",
    why="The memories are separate, so an address in one means nothing in another.",
)
def no_cast_between_address_spaces(source: Source) -> Iterator[Found]:
    """Sees casts, initialisations, assignments, returned values, and arguments of functions that are not overloaded: of
    pointers whose own spaces are written, and of addresses of local variables; not those of template types."""
    yield from _cast_pointers(source)
    yield from _initialised_pointers(source)
    yield from _assigned_pointers(source)
    yield from _returned_pointers(source)
    yield from _passed_pointers(source)


def _cast_pointers(source: Source) -> Iterator[Found]:
    expressions = expressions_of(source)
    for token, written, target, start, end in _casts(source):
        operand = _pointer_type(source, expressions, start, end)
        if operand is None or operand.pointers != target.pointers or target.space is None:
            continue
        if operand.space is not None and operand.space != target.space:
            if written == "C-style cast":
                words = f"C-style cast from '{operand}' to '{target}' converts between mismatching address spaces"
            else:
                words = f"{written} from '{operand}' to '{target}' is not allowed"
            yield token, words


def _initialised_pointers(source: Source) -> Iterator[Found]:
    expressions = expressions_of(source)
    for variables in source.variables.values():
        for variable in variables:
            if variable.initialiser is None or variable.type is None or variable.is_reference or variable.extents:
                continue
            target = variable.type
            if target.pointers != 1 or target.space is None:
                continue
            operand = _pointer_type(source, expressions, *variable.initialiser)
            if operand is not None and operand.pointers == 1 and operand.space not in (None, target.space):
                words = f"cannot initialize a variable of type '{target}' with an expression of type '{operand}'"
                yield source.tokens[variable.place], words


def _assigned_pointers(source: Source) -> Iterator[Found]:
    expressions = expressions_of(source)
    for index in source.places("="):
        left, end = operand_start(source, index), source.expression_end(index + 1)
        assigned = expressions.type_of(left, index) if left is not None and source.in_body(index) else None
        if assigned is None or assigned.pointers != 1 or assigned.space is None:
            continue
        operand = _pointer_type(source, expressions, index + 1, end)
        if operand is not None and operand.pointers == 1 and operand.space not in (None, assigned.space):
            words = f"assigning '{operand}' to '{assigned}' changes address space of pointer"
            yield source.tokens[index], words


def _returned_pointers(source: Source) -> Iterator[Found]:
    expressions = expressions_of(source)
    for function in source.functions:
        result = source.return_type(function)
        if result is None or result.pointers != 1 or result.space is None:
            continue
        for index in source.places("return", start=function.body_open, end=function.body_close):
            operand = _pointer_type(source, expressions, index + 1, source.expression_end(index + 1))
            if operand is not None and operand.pointers == 1 and operand.space not in (None, result.space):
                words = f"returning '{operand}' from a function with result type '{result}' changes address space"
                yield source.tokens[index], f"{words} of pointer"


def _passed_pointers(source: Source) -> Iterator[Found]:
    expressions = expressions_of(source)
    found = -1
    for index, kind, place, start, end in source.passed():
        if index == found or kind.pointers != 1 or kind.space is None or source.text(place) == "[":
            continue
        operand = _pointer_type(source, expressions, start, end)
        if operand is not None and operand.pointers == 1 and operand.space not in (None, kind.space):
            found = index
            name = source.text(index)
            words = f"no matching function for call to '{name}': '{operand}' is no '{kind.space}' pointer"
            yield source.tokens[index], words


def _pointer_type(source: Source, expressions: Expressions, start: int, end: int) -> Type | None:
    """The type of an expression; the address of a variable without an address space of its own is one in ``thread``."""
    kind = expressions.type_of(start, end)
    if kind is None or kind.pointers != 1 or kind.space is not None:
        return kind
    is_address = source.text(start) == "&"
    name = start + is_address
    variable = source.variable(source.text(name), name)
    if variable is None or variable.is_reference or not source.in_body(variable.place):
        return kind
    if is_address:
        # Through a pointer or a reference it may be of another object's.
        is_own = name + 1 == end
    else:
        is_own = name + 1 == end or source.text(name + 1) in ("+", "-")
        is_own = is_own and len(variable.extents) == 1
    return kind._replace(space="thread") if is_own else kind


def _program_variables(source: Source) -> Iterator[list[Token]]:
    for start, stop in source.program.variables:
        tokens = [token for token in source.tokens[start:stop] if token.kind != "pragma"]
        if len(tokens) > 1:
            yield tokens


def _declared(tokens: list[Token]) -> list[Token]:
    """The tokens of a declaration before its initialiser, attributes left out."""
    before: list[Token] = []
    for token, following in zip_longest(tokens, tokens[1:]):
        if token.text in ("=", "{", "(") or token.text == "[" and following is not None and following.text == "[":
            break
        before.append(token)
    return before


@rule(
    4,
    "program-scope-constant",
    words="program scope variable must reside in constant address space",
    why="Before Metal 3.2 nothing that lives longer than a kernel can be written, so all there may be is constants.",
)
def program_scope_variables_are_constant(source: Source) -> Iterator[Found]:
    for tokens in _program_variables(source):
        before = _declared(tokens)
        texts = {token.text for token in before}
        names = [token for token in before if token.kind == IDENTIFIER]
        if "constant" in texts or len(names) < 2:
            continue
        if "device" in texts:
            if source.version < (3, 2):
                message = "program scope variable must reside in constant address space: 'device' needs Metal 3.2"
                yield names[-1], message
            continue
        if any(token.text in POSITION_ATTRIBUTES | INDEX_ATTRIBUTES for token in tokens):
            continue
        if "extern" in texts:
            yield names[-1], "extern variable must reside in constant address space"
            continue
        yield names[-1], "program scope variable must reside in constant address space"
    for index in source.words("extern"):
        end = source.find_end(index, len(source.tokens))
        if source.in_body(index) and not {"constant", "("} & set(source.texts[index:end]):
            yield source.tokens[index], "extern variable must reside in constant address space"
    bodies = list(chain.from_iterable(source.struct_bodies.values()))
    for start, end, _ in bodies:
        name = end + 1
        while source.text(name) == "__attribute__" and source.close(name + 1) > 0:
            name = source.close(name + 1) + 1
        is_member = any(outer < start < close for outer, close, _ in bodies)
        is_variable = source.kind(name) == IDENTIFIER and not {"typedef", "constant"} & set(source.words_before(start))
        if is_variable and not is_member and not source.in_body(start):
            yield source.tokens[name], "program scope variable must reside in constant address space"
    for start, end, _ in bodies:
        for variable in source.declarations_between(start, end, depth_limit=True):
            words = source.words_before(variable.place, ":")
            if "static" in words and "constant" not in words and source.text(variable.place + 1) != "(":
                yield source.tokens[variable.place], "static data member must reside in constant address space"


def _written(source: Source, index: int) -> bool:
    """Whether what begins with the name at ``index`` is assigned to; through a pointer is the pointee meant."""
    position = index + 1
    if source.text(index - 1) == "(" and source.text(position) == ")" and source.kind(index - 2) != IDENTIFIER:
        # Macros put the names in brackets.
        index, position = index - 1, position + 1
    while True:
        text = source.text(position)
        if text == "[" and source.close(position) > 0:
            position = source.close(position) + 1
        elif text in (".", "->") and source.kind(position + 1) == IDENTIFIER:
            position += 2
        else:
            break
    assigned = text in ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--")
    return assigned or source.text(index - 1) in ("++", "--") and source.kind(index - 2) != IDENTIFIER


def external_constants_are_defined(source: Source) -> Iterator[Found]:
    """Uses of constants that are declared ``extern``, not in a header, and have a value nowhere."""
    external: set[str] = set()
    defined: set[str] = set()
    for tokens in _program_variables(source):
        for part in split_commas(tokens):
            names = [token.text for token in _declared(part) if token.kind == IDENTIFIER]
            if names:
                is_external = tokens[0].text == "extern" and not {"=", "{"} & {token.text for token in part}
                (external if is_external else defined).add(names[-1])
    for index in source.words(*(external - defined) if not source.is_header else ()):
        variable = source.variable(source.text(index), index)
        if (
            source.in_body(index)
            and source.text(index - 1) != "::"
            and (variable is None or source.text(variable.first) == "extern" or not source.in_body(variable.place))
        ):
            message = f"undefined symbol '{source.text(index)}': it is declared and nowhere defined"
            yield source.tokens[index], message


@rule(
    5,
    "constant-initialised",
    words="variable in constant address space must be initialized",
    why="Constant memory is filled when the program is built; a kernel can only read it.",
)
def constants_are_initialised_and_never_written(source: Source) -> Iterator[Found]:
    """Writes are seen through names whose type is written; of what is no core constant, calls of functions that are not
    ``constexpr``."""
    for tokens in _program_variables(source):
        texts = [token.text for token in tokens]
        if "constant" in texts and not {"function_constant", "extern"} & set(texts):
            for part in split_commas(tokens):
                words = {token.text for token in part}
                names = [token for token in part if token.kind == IDENTIFIER]
                if names and not {"=", "{", "(", "<", ">"} & words:
                    yield names[-1], "variable in constant address space must be initialized"
            for token, following in pairwise(tokens):
                functions = source.functions_by_name.get(token.text, []) if following.text == "(" else []
                if len(functions) == 1 and functions[0].owner is None and not functions[0].is_template:
                    head = source.texts[functions[0].start : functions[0].opening]
                    if "constexpr" not in head and token is not tokens[0]:
                        yield token, "initializer of a variable in constant address space is no constant expression"
    yield from external_constants_are_defined(source)
    for index in source.places(*source.variables):
        token = source.tokens[index]
        if token.kind != IDENTIFIER or not source.in_body(index):
            continue
        if source.text(index - 1) in (".", "->", "::") or not _written(source, index):
            continue
        variable = source.variable(token.text, index)
        if variable is None or variable.place == index or variable.type is None:
            continue
        kind = variable.type
        subscripts = 0
        is_in_brackets = source.text(index - 1) == "(" and source.text(index + 1) == ")"
        position = index + 1 + is_in_brackets
        through_member = False
        while source.text(position) in ("[", ".", "->"):
            if source.text(position) == "[":
                subscripts += 1
                position = source.close(position) + 1
                if position <= 0:
                    break
            else:
                through_member = through_member or subscripts < kind.pointers and source.text(position) == "."
                subscripts += source.text(position) == "->"
                position += 2
        stars = 0
        while position == index + 1 and source.text(index - 1 - stars) == "*" and stars < kind.pointers:
            stars += 1
        if stars and source.text(index - 1 - stars) not in (";", "{", "}"):
            continue
        subscripts += stars
        if through_member or subscripts < kind.pointers or kind.pointers > 1 + len(variable.extents):
            continue
        if not kind.known and subscripts > kind.pointers:
            # What the subscripts of a class give may be pointers.
            continue
        if any(source.text(p) in (".", "->") for p in range(index + 1, position)) and not _plain_members(
            source, index, position
        ):
            continue
        if kind.space == "constant" or kind.const:
            yield token, "read-only variable is not assignable"


def _plain_members(source: Source, index: int, position: int) -> bool:
    """Whether no member on the way is a pointer or may be an array of some, whose pointees may be writable."""
    names = {source.text(p) for p in range(index + 1, position) if source.kind(p) == IDENTIFIER}
    for members in source.members.values():
        for name, (kind, extents) in members.items():
            if name in names and (kind is None or not kind.known or kind.pointers > len(extents)):
                return False
    return True


@rule(
    6,
    "static-local",
    words="variables in function scope cannot be declared static",
    why="A static local would be state shared by all threads, which no address space at this version can hold.",
)
def no_static_locals(source: Source) -> Iterator[Found]:
    """``static constexpr constant`` members and program-scope constants are meant to be static and are let pass."""
    for index in source.words("static"):
        if source.in_body(index) and "constant" not in (source.text(index + 1), source.text(index + 2)):
            yield source.tokens[index], "variables in function scope cannot be declared static"


@rule(
    7,
    "threadgroup-variable",
    words="automatic variable qualified with an address space",
    why="Threadgroup memory is laid out once per kernel, so only a kernel function's own scope can declare it.",
)
def threadgroup_variables_stand_in_kernels(source: Source) -> Iterator[Found]:
    for start, end, is_kernel in source.bodies:
        for index in source.places("threadgroup", "device", "constant", start=start, end=end):
            if source.text(index - 1) not in (";", "{", "}"):
                continue
            position = index
            while position < end and source.text(position) not in (";", "=", "*", "&", "(", ")", "{"):
                position += 1
            alias = any(
                (kind := source.aliases.get(source.text(p))) is not None and kind.pointers
                for p in range(index, position)
            )
            if source.text(position) in ("*", "&", ")", "(") or alias:
                continue
            if not is_kernel or source.text(index) != "threadgroup":
                yield source.tokens[index], "automatic variable qualified with an address space"
            elif source.text(position) == "=":
                yield source.tokens[position], "'threadgroup' variable cannot have an initializer"
    for start, end, _ in chain.from_iterable(source.struct_bodies.values()):
        for index in source.places("threadgroup", "device", "constant", start=start, end=end):
            stop = source.expression_end(index)
            words = source.texts[index:stop]
            is_first = source.text(index - 1) in (";", "{", "}") and not source.in_body(index)
            if is_first and source.text(stop) == ";" and words[0] != "constant" and not {"*", "&", "("} & set(words):
                if all(not (kind := source.aliases.get(word)) or not kind.pointers for word in words):
                    yield source.tokens[index], "field may not be qualified with an address space"
    for function in source.functions:
        for first, last in source.arguments(function.opening):
            parts = [token.text for token in source.tokens[first:last]]
            spaces = {"device", "constant", "threadgroup"} & set(parts)
            read = read_type(source.tokens, first, last, source.aliases, source.members)
            if not spaces or {"*", "&", "&&", "["} & set(parts) or read is None or read[0].pointers:
                continue
            if function.kernel is None and read[0].known:
                yield source.tokens[first], "parameter may not be qualified with an address space"
