"""Reads the outline of a program from preprocessed tokens: kernel functions, instantiations, and where the rest lies.

Only the outline of a declaration is parsed. Function bodies stay tokens: a real C++ compiler reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from mpsgrad.errors import ShaderError
from mpsgrad.msl.attribute_places import with_attributes_in_place
from mpsgrad.msl.compiler_names import name_library_functions
from mpsgrad.msl.constant_expressions import integer_value
from mpsgrad.msl.deduction import deduced_arguments
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.program import (
    ADDRESS_SPACES,
    Attribute,
    Instantiation,
    Kernel,
    Parameter,
    Program,
    TemplateParameter,
    outside_angles,
)
from mpsgrad.msl.tokens import (
    IDENTIFIER,
    NUMBER,
    OPENING,
    STRING,
    Token,
    error,
    matching,
    matching_angle,
    skip_attributes,
    split_commas,
)
from mpsgrad.msl.type_names import one_name_each, type_names

_IN_TYPES = frozenset("< > , * & ::".split())
_LITERAL = re.compile(
    r"(?P<real>0[xX][\da-fA-F']*\.?[\da-fA-F']*[pP][+-]?[\d']+|\d[\d']*\.[\d']*(?:[eE][+-]?[\d']+)?"
    r"|\.\d[\d']*(?:[eE][+-]?[\d']+)?|\d[\d']*[eE][+-]?[\d']+)|0[xX][\da-fA-F']+|0[bB][01']+|\d[\d']*"
)
_SUFFIXES = {
    True: re.compile(r"[fFhHlL]|bf|BF|_\w*"),
    False: re.compile(r"[uU]?(?:l|L|ll|LL)?|(?:l|L|ll|LL)[uU]|_\w*"),
}
_SHORT_LITERAL = len(hex(1 << 60))
_STAGES = frozenset({"vertex", "fragment", "object", "mesh", "intersection", "visible", "stitchable"})


def read_program(tokens: list[Token], fast_math: bool = True) -> Program:
    """The outline of ``tokens``. Raises ``ShaderError`` at what cannot be a Metal program."""
    tokens = _each_once(tokens)
    _refuse_literals(tokens)
    tokens = name_library_functions(_without_other_names(tokens), fast_math)
    tokens = _declare_enumerations(with_attributes_in_place(tokens))
    program = Program(one_name_each(_split_shifts(_tell_namespaces_apart(tokens))))
    program.aliases = _aliases(program.tokens)
    _read_scope(program, 0, len(program.tokens), (), 0)
    return program


def _each_once(tokens: list[Token]) -> list[Token]:
    """``tokens`` with copies of those that stand in several places: what is noted of one is noted of that place."""
    found = {id(token): token for token in tokens}
    if len(found) == len(tokens):
        return tokens
    return [token if found.pop(id(token), None) is token else token.at(token) for token in tokens]


def _refuse_literals(tokens: list[Token]) -> None:
    """Raises for numbers that are too long, or end with letters that say no type."""
    for token in tokens:
        if token.kind != NUMBER or len(token.text) <= 2 and token.text.isdecimal():
            continue
        read = _LITERAL.match(token.text)
        suffix = token.text[read.end() :] if read is not None else ""
        is_real = read is not None and read["real"] is not None
        if suffix and not _SUFFIXES[is_real].fullmatch(suffix):
            raise error(f"invalid suffix '{suffix}' on {'floating' if is_real else 'integer'} constant", token)
        if len(token.text) > _SHORT_LITERAL:
            value = 0
            with suppress(ShaderError):
                value = integer_value([token], token)
            if value >= 1 << 64:
                raise error("integer literal is too large to be represented in any integer type", token)


def _without_other_names(tokens: list[Token]) -> list[Token]:
    """``tokens`` with the library's namespaces themselves for the names that ``namespace m = metal;`` gives them."""
    if not any(tokens[index - 2].text == "namespace" for index, token in enumerate(tokens) if token.text == "="):
        return tokens
    meanings: dict[str, list[Token]] = {}
    kept: list[Token] = []
    index = 0
    while index < len(tokens):
        words = [token.text for token in tokens[index : index + 5]]
        first = index + 4 if words[3:4] == ["::"] else index + 3
        if words[0] == "namespace" and words[2:3] == ["="] and _text(tokens, first) in ("metal", *meanings):
            end = _find(tokens, index, len(tokens), ";")
            meanings[words[1]] = [each for token in tokens[first:end] for each in meanings.get(token.text, [token])]
            index = end + 1
            continue
        token = tokens[index]
        is_name = token.text in meanings and (words[1:2] == ["::"] or (kept and kept[-1].text == "namespace"))
        kept += [each.at(token) for each in meanings[token.text]] if is_name else [token]
        index += 1
    return kept if meanings else tokens


def _declare_enumerations(tokens: list[Token]) -> list[Token]:
    """``tokens`` with ``enum E : int;`` for ``typedef enum E : int E;``, which headers shared with Objective-C say."""
    dropped: set[int] = set()
    for index, token in enumerate(tokens[:-4]):
        if token.text != "typedef" or tokens[index + 1].text != "enum" or tokens[index + 3].text != ":":
            continue
        end = index + 4
        while end < len(tokens) and tokens[end].text not in (";", "{"):
            end += 1
        if end < len(tokens) and tokens[end].text == ";" and tokens[end - 1].text == tokens[index + 2].text:
            dropped |= {index, end - 1}
    return [token for index, token in enumerate(tokens) if index not in dropped] if dropped else tokens


def _tell_namespaces_apart(tokens: list[Token]) -> list[Token]:
    """``tokens`` with other names for namespaces called ``metal`` in namespaces of the program's own."""
    inside: list[bool] = []
    renamed: dict[int, Token] = {}
    own = {b.text for a, b in pairwise(tokens) if a.text == "namespace" and b.kind == IDENTIFIER and b.text != "metal"}
    for index, token in enumerate(tokens):
        if token.text == "{":
            start = index
            while start and (tokens[start - 1].kind == IDENTIFIER or tokens[start - 1].text == "::"):
                start -= 1
            names = [each.text for each in tokens[start:index]]
            inside.append("namespace" in names and names[-2:] != ["namespace", "metal"])
        elif token.text == "}" and inside:
            inside.pop()
        elif token.text == "metal" and index:
            before = tokens[index - 1]
            is_member = before.text == "::" and index > 1 and tokens[index - 2].text in own
            if before.text == "namespace" and any(inside):
                is_member = tokens[index - 2].text != "using"
            if is_member:
                renamed[index] = token.replaced(f"metal{RENAMED_SUFFIX}", IDENTIFIER)
    return [renamed.get(index, token) for index, token in enumerate(tokens)] if renamed else tokens


def _split_shifts(tokens: list[Token]) -> list[Token]:
    """``tokens`` with ``>>`` that closes two template brackets as two tokens."""
    if not any(token.text == ">>" for token in tokens):
        return tokens
    result: list[Token] = []
    for index, token in enumerate(tokens):
        if token.text == ">>" and _closes_templates(tokens, index):
            second = Token(token.kind, ">", token.file, token.line, token.column + 1, False, token.hidden)
            result += [token.replaced(">"), second]
        else:
            result.append(token)
    return result


_TAKE_CONDITIONS = frozenset("template enable_if enable_if_t conditional conditional_t bool_constant".split())


def _closes_templates(tokens: list[Token], index: int) -> bool:
    """Whether the ``>>`` at ``index`` follows two open template brackets: looks back to a ``name <`` pair."""
    position = index - 1
    found = 0
    closed = 0
    has_default = False
    has_condition = False
    while position > 0 and index - position < 200:
        text = tokens[position].text
        if text in (";", "{", "}", "?", "return"):
            return False
        has_condition |= text in ("&&", "||")
        if text == "=":
            has_default = True
        if text == ")" or text == "]":
            depth = 0
            opening = "(" if text == ")" else "["
            while position > 0:
                if tokens[position].text == text:
                    depth += 1
                elif tokens[position].text == opening:
                    depth -= 1
                    if depth == 0:
                        break
                position -= 1
        elif text in "([":
            return False
        elif text == ">":
            closed += 1
        elif text == "<" and tokens[position - 1].kind == IDENTIFIER:
            if closed:
                closed -= 1
            elif has_condition and tokens[position - 1].text not in _TAKE_CONDITIONS:
                return False
            else:
                found += 1
            if found == 2:
                # A template's parameter may have a default; anything else with "=" in it is no template.
                return not has_default or tokens[position - 1].text == "template"
        position -= 1
    return False


_DEEPEST_SCOPE = 200


def _read_scope(program: Program, start: int, end: int, namespace: tuple[str, ...], depth: int) -> None:
    tokens = program.tokens
    if depth > _DEEPEST_SCOPE:
        raise error("namespaces are nested too deeply", tokens[start])
    index = start
    while index < end:
        text = tokens[index].text
        if text == ";" or tokens[index].kind == "pragma":
            index += 1
        elif text in (")", "]", "}"):
            raise error(f"unexpected '{text}'", tokens[index])
        elif text == "namespace" or (text == "inline" and _text(tokens, index + 1) == "namespace"):
            index = _read_namespace(program, index, end, namespace, depth)
        elif (
            text == "extern" and index + 2 < end and tokens[index + 1].kind == STRING and tokens[index + 2].text == "{"
        ):
            close = matching(tokens, index + 2, end)
            program.dropped += [(index, index + 3), (close, close + 1)]
            _read_scope(program, index + 3, close, namespace, depth + 1)
            index = close + 1
        elif text == "extern" and index + 1 < end and tokens[index + 1].kind == STRING:
            program.dropped.append((index, index + 2))
            index += 2
        elif text == "using" and _text(tokens, index + 1) == "namespace" and _mentions_metal(tokens, index + 2):
            stop = _find(tokens, index, end, ";")
            program.dropped.append((index, stop + 1))
            index = stop + 1
        elif text == "using" and _text(tokens, index + 1) == "metal" and _text(tokens, index + 2) == "::":
            stop = _find(tokens, index, end, ";")
            program.dropped.append((index, stop + 1))
            index = stop + 1
        else:
            index = _read_declaration(program, index, end, namespace)


def _text(tokens: Sequence[Token], index: int) -> str:
    return tokens[index].text if 0 <= index < len(tokens) else ""


def _mentions_metal(tokens: Sequence[Token], index: int) -> bool:
    return _text(tokens, index) == "metal" or (_text(tokens, index) == "::" and _text(tokens, index + 1) == "metal")


def _find(tokens: Sequence[Token], start: int, end: int, text: str) -> int:
    for index in range(start, end):
        if tokens[index].text == text:
            return index
    raise error(f"expected '{text}' after this", tokens[start])


def _read_namespace(program: Program, index: int, end: int, namespace: tuple[str, ...], depth: int) -> int:
    tokens = program.tokens
    position = index + (2 if tokens[index].text == "inline" else 1)
    names: list[str] = []
    while position < end and (tokens[position].kind == IDENTIFIER or tokens[position].text == "::"):
        if tokens[position].kind == IDENTIFIER:
            names.append(tokens[position].text)
        position += 1
    if position < end and tokens[position].text == "=":
        return _find(tokens, position, end, ";") + 1
    if position >= end or tokens[position].text != "{":
        raise error("expected '{' after the namespace's name", tokens[min(position, end - 1)])
    close = matching(tokens, position, end)
    if names and names[0] == "metal":
        # What a user adds to the library's namespace goes where the translated library is: the global one.
        names = names[1:]
        if not names:
            program.dropped += [(index, position + 1), (close, close + 1)]
    _read_scope(program, position + 1, close, (*namespace, *names), depth + 1)
    return close + 1


def _read_declaration(program: Program, start: int, end: int, namespace: tuple[str, ...]) -> int:
    """Reads one declaration and returns the index behind it."""
    tokens = program.tokens
    index = start
    template: tuple[int, int] | None = None
    if tokens[index].text == "template" and _text(tokens, index + 1) == "<":
        while index < end and tokens[index].text == "template" and _text(tokens, index + 1) == "<":
            close = matching_angle(tokens, index + 1, end, certain=True)
            if close is None:
                raise error("expected '>' to end the template parameters", tokens[index + 1])
            template = (index + 2, close)
            index = close + 1
    explicit = template is None and tokens[index].text == "template"
    head = index
    parts = parts_of_declaration(tokens, head, end)
    parameters, body, stop = parts.parameters, parts.body, parts.stop
    if not parts.is_class and not explicit and body is None and (parameters is None or parts.initialised):
        if tokens[head].text not in ("using", "typedef", "static_assert", "friend", "public", "private", "_Pragma"):
            program.variables.append((head, stop))
    kernel = _kernel_keyword(tokens, head, parameters[0] if parameters else stop)
    if kernel is not None:
        if explicit:
            program.instantiations.append(_read_instantiation(program, start, head, stop, namespace))
        elif body is not None and parameters is not None:
            program.kernels.append(_read_kernel(program, start, head, template, parameters, body, namespace))
            _read_local_classes(program, *body)
        elif parameters is not None:
            program.dropped.append((start, stop))
        else:
            raise error("expected a kernel function's definition", kernel)
        return stop
    for index in range(head, parameters[0] if parameters else stop):
        if tokens[index].text in _STAGES and _is_stage(tokens, index):
            raise error(f"'{tokens[index].text}' functions are not supported: only compute kernels are", tokens[index])
    if parameters is not None and body is not None:
        name = tokens[parameters[0] - 1].text
        program.functions.setdefault(name, []).append(body)
        is_conversion = tokens[parameters[0] - 2].text == "operator" and tokens[parameters[0] - 1].kind == IDENTIFIER
        if name == "operator" or is_conversion:
            program.implicit.append(body)
        program.function_heads.append((start, parameters[0], body[1] + 1))
        _read_local_classes(program, *body)
    elif parameters is not None and not (explicit or parts.initialised or parts.is_class):
        program.has_prototypes |= tokens[head].text not in ("using", "typedef", "static_assert")
    elif parts.is_class:
        _read_members(program, head, stop)
    return stop


@dataclass(slots=True)
class Parts:
    """The parts of one declaration: the brackets of its parameters and of its body, and the index behind it."""

    parameters: tuple[int, int] | None = None
    body: tuple[int, int] | None = None
    is_class: bool = False
    initialised: bool = False
    stop: int = 0


def parts_of_declaration(tokens: Sequence[Token], head: int, end: int) -> Parts:
    """The parts of the declaration that begins at ``head``, behind the parameters of templates."""
    parts = Parts()
    index = head
    while index < end:
        token = tokens[index]
        text = token.text
        is_open = parts.parameters is None and not parts.initialised
        if text == ";":
            parts.stop = index + 1
            return parts
        if text == "(":
            close = matching(tokens, index, end)
            is_name = tokens[index - 1].text == "operator" and _text(tokens, close + 1) == "("
            if is_open and not is_name and _opens_parameters(tokens, index):
                parts.parameters = (index, close)
            index = close
        elif text == "[":
            index = matching(tokens, index, end)
        elif text == "<" and is_open and tokens[index - 1].kind == IDENTIFIER:
            angle = matching_angle(tokens, index, end)
            if angle is not None and tokens[index - 1].text != "operator":
                index = angle
        elif text in ("struct", "class", "union", "enum") and parts.parameters is None:
            parts.is_class = True
        elif text == "=" and not (index > head and tokens[index - 1].text == "operator"):
            parts.initialised = True
        elif text == "{":
            close = matching(tokens, index, end)
            if parts.parameters is not None and not parts.initialised:
                parts.body = (index, close)
                parts.stop = close + 1
                return parts
            if is_open and not parts.is_class and any(each.text == "kernel" for each in tokens[head:index]):
                raise error("expected the kernel function's parameters before '{'", token)
            index = close
        elif text in ("}", ")", "]"):
            raise error(f"unexpected '{text}'", token)
        index += 1
    raise error("expected ';' after this declaration", tokens[end - 1])


def _opens_parameters(tokens: Sequence[Token], index: int) -> bool:
    """Whether the bracket at ``index`` stands behind the name of a function or an operator."""
    before = tokens[index - 1]
    if before.kind == IDENTIFIER:
        return before.text not in ("decltype", "__attribute__", "alignas", "noexcept", "constexpr")
    return before.text in ("operator", ">") or "operator" in (_text(tokens, index - 2), _text(tokens, index - 3))


def _is_stage(tokens: Sequence[Token], index: int) -> bool:
    """Whether the word at ``index`` is a stage keyword and not a name of the user's."""
    before = _text(tokens, index - 1) if index else ""
    if tokens[index].text in ("vertex", "fragment") and before != "[":
        return tokens[index + 1].kind == IDENTIFIER and before not in (".", "->", "::")
    return before == "[" and _text(tokens, index - 2) == "["


_QUALIFIERS = frozenset({*ADDRESS_SPACES, "const", "noexcept"})
_NOT_FUNCTIONS = frozenset("if constexpr for while switch __attribute__ alignas decltype noexcept".split())


def _read_local_classes(program: Program, opening: int, close: int) -> None:
    """Notes the member functions of the classes that a function's body defines."""
    tokens = program.tokens
    index = opening
    while index < close:
        index += 1
        if tokens[index].text not in ("struct", "class", "union") or tokens[index].kind != IDENTIFIER:
            continue
        brace = skip_attributes(tokens, index + 1, close)
        brace += tokens[brace].kind == IDENTIFIER
        if tokens[brace].text == "{":
            end = matching(tokens, brace) + 1
            _read_members(program, index, end)
            index = end - 1


def _read_members(program: Program, start: int, end: int) -> None:
    """Notes the bodies of member functions, so that what a kernel calls through them is known."""
    tokens = program.tokens
    classes = {
        tokens[skip_attributes(tokens, index + 1, end - 1)].text
        for index in range(start, end - 1)
        if tokens[index].text in ("struct", "class", "union")
    }
    end_of_body = start
    end_of_head = start
    for index in range(start, end):
        if index < end_of_head:
            continue
        if tokens[index].text != "(":
            continue
        named = operator_before(tokens, index)
        is_operator = named is not None
        is_conversion = named is not None and tokens[named + 1].kind == IDENTIFIER
        if not (tokens[index - 1].kind == IDENTIFIER or is_operator) or tokens[index - 1].text in _NOT_FUNCTIONS:
            continue
        close = matching(tokens, index, end)
        position = close + 1
        while position < end and tokens[position].text in _QUALIFIERS:
            position += 1
        is_constructor = tokens[index - 1].text in classes and tokens[index - 2].text != "~"
        if is_constructor and _text(tokens, position) == ":":
            position = end_of_head = end_of_initialisers(tokens, position, end)
        if _text(tokens, position) == "->":
            position = next(at for at in range(position, end + 1) if at == end or tokens[at].text in ("{", ";"))
        first = index - 1
        while first > start and tokens[first - 1].text not in (";", "{", "}", ":"):
            first -= 1
        if position < end and tokens[position].text == "{":
            body = (position, matching(tokens, position, end))
            end_of_body = max(end_of_body, body[1])
            program.functions.setdefault(tokens[index - 1].text, []).append(body)
            program.member_heads.append((start, first, index, body[1] + 1))
            if is_constructor:
                program.constructors.add(index)
                program.implicit.append((close, position))
            elif is_conversion:
                program.implicit.append(body)
        elif _text(tokens, position) == ";" and index > end_of_body:
            is_value = any(token.text in ("=", "static_assert") for token in tokens[first:index])
            program.has_prototypes |= is_operator or not is_value


def operator_before(tokens: Sequence[Token], opening: int) -> int | None:
    """The index of the word ``operator`` of the one whose parameters begin at ``opening``, or None: ``operator+`` or a
    conversion, ``operator const vec<T, 2>``."""
    for index in (opening - 2, opening - 3):
        if index >= 0 and tokens[index].text == "operator":
            return index
    index = opening - 1
    while index > 0 and (tokens[index].kind in (IDENTIFIER, NUMBER) or tokens[index].text in _IN_TYPES):
        if tokens[index].text == "operator":
            return index if tokens[index + 1].kind == IDENTIFIER else None
        index -= 1
    return None


def end_of_initialisers(tokens: Sequence[Token], colon: int, end: int) -> int:
    """The index behind the members that a constructor initialises."""
    index = colon
    while index < end and tokens[index].text in (":", ","):
        index += 1
        while index < end and tokens[index].text not in ("(", "{", ";"):
            index += 1
        if index < end and tokens[index].text != ";":
            index = matching(tokens, index, end) + 1
    return index


def _kernel_keyword(tokens: Sequence[Token], start: int, end: int) -> Token | None:
    depth = 0
    for index in range(start, min(end, len(tokens))):
        text = tokens[index].text
        if text == "(":
            depth += 1
        elif text == ")":
            depth -= 1
        elif text == "kernel" and depth == 0:
            return tokens[index]
    return None


def _take_attributes(tokens: Sequence[Token]) -> tuple[list[Token], list[Attribute]]:
    """``tokens`` without their ``[[ ]]`` and ``__attribute__(( ))`` groups, and the attributes from inside them."""
    rest: list[Token] = []
    attributes: list[Attribute] = []
    index = 0
    while index < len(tokens):
        bracket = "(" if tokens[index].text == "__attribute__" else "["
        opening = index + (bracket == "(")
        if _text(tokens, opening) == bracket and _text(tokens, opening + 1) == bracket:
            close = matching(tokens, opening)
            if matching(tokens, opening + 1) != close - 1:
                raise error(f"expected '{2 * OPENING[bracket]}' to end the attribute", tokens[close])
            for part in split_commas(tokens[opening + 2 : close - 1]):
                if not part:
                    raise error("expected an attribute's name", tokens[index])
                name = part[0]
                if len(part) > 2 and part[1].text == "::":
                    part = part[2:]
                    name = part[0]
                if name.kind != IDENTIFIER:
                    raise error("expected an attribute's name", name)
                arguments: list[Token] = []
                if len(part) > 1:
                    if part[1].text != "(" or matching(part, 1) != len(part) - 1:
                        raise error(f"expected '(' after the attribute '{name.text}'", part[1])
                    arguments = list(part[2:-1])
                attributes.append(Attribute(name.text, arguments, name))
            index = close + 1
        else:
            rest.append(tokens[index])
            index += 1
    return rest, attributes


def _is_void(tokens: Sequence[Token], name: str) -> bool:
    """Whether ``name`` is declared to be another one of ``void``."""
    meanings = (each.meaning for each in type_names(tokens) if each.name.text == name)
    return any([token.text for token in meaning] == ["void"] for meaning in meanings)


def _read_kernel(
    program: Program,
    start: int,
    head: int,
    template: tuple[int, int] | None,
    parameters: tuple[int, int],
    body: tuple[int, int],
    namespace: tuple[str, ...],
) -> Kernel:
    tokens = program.tokens
    opening, closing = parameters
    name = tokens[opening - 1]
    if name.kind != IDENTIFIER:
        raise error("expected a kernel function's name", name)
    before, attributes = _take_attributes(tokens[head:opening])
    after, more = _take_attributes(tokens[closing + 1 : body[0]])
    words = [token.text for token in before[:-1] if token.text not in ("kernel", "static", "inline", "extern")]
    if words and "}" in words[:-1] and words[0] in ("struct", "class", "union", "enum"):
        end = next(index for index in range(opening, head, -1) if tokens[index].text == "}")
        raise error(f"expected ';' after {words[0]}", tokens[end])
    if words != ["void"] and not (len(words) == 1 and _is_void(tokens[:start], words[0])):
        found = " ".join(words) or "nothing"
        raise error(f"invalid return type '{found}' for kernel function; a kernel returns void", name)
    if name.text == "main":
        raise error("a kernel function cannot be called 'main'", name)
    if after:
        raise error("unexpected text between the kernel's parameters and its body", after[0])
    read = [
        _read_parameter(part, tokens[opening], program.aliases)
        for part in _parameters(tokens[opening + 1 : closing])
    ]
    return Kernel(
        start=start,
        name=name,
        namespace=namespace,
        template=_read_template(tokens[template[0] : template[1]]) if template else None,
        attributes=attributes + more,
        parameters=read,
        parameters_open=opening,
        parameters_close=closing,
        body_open=body[0],
        body_close=body[1],
    )


def _parameters(tokens: Sequence[Token]) -> list[list[Token]]:
    parts = split_commas(tokens)
    if len(parts) == 1 and [token.text for token in parts[0]] == ["void"]:
        return []
    return parts


_POSITION = re.compile(r"(?:uint|ushort)[23]?$")


def _aliases(tokens: Sequence[Token]) -> dict[str, list[Token]]:
    """The names that ``typedef`` and ``using`` give to pointers to an address space and to the types of positions, and
    what they stand for."""
    found: dict[str, list[Token]] = {}
    for each in type_names(tokens):
        meaning = each.meaning
        is_pointer = meaning[-1].text == "*" and any(token.text in ADDRESS_SPACES for token in meaning)
        if is_pointer or len(meaning) == 1 and _POSITION.match(meaning[0].text):
            found[each.name.text] = meaning
    return found


def _read_parameter(tokens: list[Token], place: Token, aliases: Mapping[str, list[Token]]) -> Parameter:
    if not tokens:
        raise error("expected a parameter", place)
    rest, attributes = _take_attributes(tokens)
    if not rest:
        raise error("expected a parameter before its attribute", tokens[0])
    rest = _array_as_pointer(rest)
    if len(rest) > 1 and rest[-2].text in aliases:
        rest[-2:-1] = [token.at(rest[-2]) for token in aliases[rest[-2].text]]
    computed = [(at, matching(rest, at + 1)) for at, token in enumerate(rest[:-1]) if token.text == "decltype"]
    for index, token in enumerate(rest):
        if token.text == "=":
            raise error("a kernel's parameter cannot have a default value", rest[index])
        if token.text in ("(", "[") and not any(start < index <= end for start, end in computed):
            raise error("such a parameter of a kernel is not supported; use a pointer", token)
        if token.text == "...":
            raise error("a kernel function cannot be variadic", token)
    markers = [
        index
        for index, token in enumerate(rest)
        if token.text in ("*", "&", "&&") and outside_angles(rest, index)
        and not any(start < index < end for start, end in computed)
    ]
    if markers and rest[markers[-1]].text == "&&":
        raise error("a kernel's parameter cannot be an rvalue reference", rest[markers[-1]])
    last = rest[-1]
    named = last.kind == IDENTIFIER and last.text not in _NEVER_NAMES and len(rest) > 1 and rest[-2].text != "::"
    if markers and markers[-1] == len(rest) - 1:
        named = False
    type_tokens = rest[:-1] if named else rest
    if named and not any(t.kind == IDENTIFIER and t.text not in ("const", *ADDRESS_SPACES) for t in type_tokens):
        type_tokens, named = rest, False
    name = last.text if named else f"unnamed_{last.line}_{last.column}"
    return Parameter(
        type=list(type_tokens),
        name=name,
        place=last if named else rest[0],
        attributes=attributes,
        is_reference=bool(markers) and rest[markers[-1]].text == "&",
        is_pointer=bool(markers) and rest[markers[-1]].text == "*",
    )


ARRAY_TYPE = "array_of_mtl"
"""The library's name for the type of an array, ``array_of<T, n>``: a reference to one can be written as any other."""


def _array_as_pointer(tokens: list[Token]) -> list[Token]:
    """``T name[n]`` as ``T* name``, which is what it means for a parameter, and ``T (&name)[n]`` as ``array<T, n>&
    name``; other tokens as they are."""
    opening = next((index for index, token in enumerate(tokens) if token.text == "["), None)
    if opening is None or opening < 2:
        return tokens
    if tokens[opening - 1].text == ")":
        return _pointer_to_array(tokens, opening)
    if tokens[opening - 1].kind != IDENTIFIER:
        return tokens
    if matching(tokens, opening) != len(tokens) - 1 or any(token.text in ("*", "&", "(") for token in tokens):
        return tokens
    return [*tokens[: opening - 1], tokens[opening].replaced("*"), tokens[opening - 1]]


def _pointer_to_array(tokens: list[Token], opening: int) -> list[Token]:
    """``space T (&name)[n]`` as ``space array<T, n>& name``; other tokens as they are."""
    declared = tokens[opening - 4 : opening]
    if opening < 6 or [declared[0].text, declared[3].text] != ["(", ")"] or declared[1].text not in ("&", "*"):
        return tokens
    qualifiers = [token for token in tokens[: opening - 4] if token.text in _NEVER_NAMES]
    kind = [token for token in tokens[: opening - 4] if token.text not in _NEVER_NAMES]
    extents = []
    while opening < len(tokens) and tokens[opening].text == "[" and matching(tokens, opening) > opening + 1:
        closing = matching(tokens, opening)
        extents.append(tokens[opening + 1 : closing])
        opening = closing + 1
    if opening != len(tokens) or any(token.text in ("*", "&", "(") for token in kind):
        return tokens
    place = declared[0]
    for extent in reversed(extents):
        before, after = place.replaced(ARRAY_TYPE, IDENTIFIER), place.replaced(">")
        kind = [before, place.replaced("<"), *kind, place.replaced(","), *extent, after]
    return [*qualifiers, *kind, declared[1], declared[2]]


_NEVER_NAMES = frozenset({"const", "volatile", "restrict", "__restrict", *ADDRESS_SPACES})


def _read_template(tokens: Sequence[Token]) -> list[TemplateParameter]:
    parameters = []
    for part in split_commas(tokens):
        if not part:
            raise error("expected a template parameter", tokens[0])
        default = None
        equals = next((i for i, token in enumerate(part) if token.text == "="), None)
        if equals is not None:
            default = part[equals + 1 :]
            part = part[:equals]
        if any(token.text == "..." for token in part):
            raise error("a kernel function with a parameter pack is not supported", part[0])
        if any(token.text == "template" for token in part):
            raise error("a kernel function with a template template parameter is not supported", part[0])
        pointer = next((i for i, token in enumerate(part) if i and token.text == "*" and part[i - 1].text == "("), None)
        if pointer is not None and _text(part, pointer + 2) == ")" and _text(part, pointer + 3) == "(":
            name = part[pointer + 1].text
            parameters.append(TemplateParameter(part, name, default, is_type=False, is_function=True))
            continue
        if not part or part[-1].kind != IDENTIFIER:
            raise error("expected a template parameter's name", part[-1] if part else tokens[0])
        is_type = part[0].text in ("typename", "class") and len(part) <= 2
        named = len(part) > 1
        name = part[-1].text if named else f"unnamed_{part[-1].line}_{part[-1].column}"
        parameters.append(TemplateParameter(part[:-1] if named else part, name, default, is_type))
    return parameters


def _read_instantiation(
    program: Program, start: int, head: int, stop: int, namespace: tuple[str, ...]
) -> Instantiation:
    tokens = program.tokens
    rest, attributes = _take_attributes(tokens[head + 1 : stop - 1])
    # The name is the last identifier before its template arguments that is followed by the parameters or the end.
    index = 0
    while index < len(rest):
        token = rest[index]
        if token.text == "decltype" and _text(rest, index + 1) == "(":
            index = matching(rest, index + 1) + 1
            continue
        if token.text == "<" and index and rest[index - 1].kind == IDENTIFIER:
            close = matching_angle(rest, index)
            if close is None:
                raise error("expected '>' to end the template arguments", token)
            if close + 1 == len(rest) or rest[close + 1].text == "(":
                arguments = split_commas(rest[index + 1 : close])
                qualifiers: list[str] = []
                first = index - 1
                while first >= 2 and rest[first - 1].text == "::" and rest[first - 2].text != "void":
                    first -= 2
                    qualifiers.insert(0, rest[first].text)
                return Instantiation(
                    start, stop, rest[index - 1], namespace, tuple(qualifiers), arguments, attributes
                )
            index = close
        index += 1
    return _deduced_instantiation(program, start, stop, namespace, rest, attributes)


def _deduced_instantiation(
    program: Program, start: int, stop: int, namespace: tuple[str, ...], rest: list[Token], attributes: list[Attribute]
) -> Instantiation:
    """An instantiation whose parameters tell the template arguments."""
    tokens = program.tokens
    opening = next((index for index, token in enumerate(rest) if token.text == "("), 0)
    if opening and rest[opening - 1].kind == IDENTIFIER and matching(rest, opening) == len(rest) - 1:
        name = rest[opening - 1]
        written = [_read_parameter(part, name, program.aliases) for part in _parameters(rest[opening + 1 : -1])]
        for kernel in program.kernels:
            arguments = deduced_arguments(kernel, written) if kernel.name.text == name.text else None
            if arguments is not None:
                inner = kernel.namespace[len(namespace) :]
                return Instantiation(start, stop, name, namespace, inner, arguments, attributes)
    raise error("an explicit instantiation of a kernel needs its template arguments", tokens[start])


def declares_variable(tokens: Sequence[Token], index: int) -> bool:
    """Whether the address space at ``index`` belongs to a variable itself, not to what a pointer points to."""
    position = index + 1
    while position < len(tokens) and tokens[position].text not in (";", "=", "[", ",", "*", "&", "(", ")", "{"):
        if tokens[position].text in ("__attribute__", "alignas") and _text(tokens, position + 1) == "(":
            position = matching(tokens, position + 1) + 1
            continue
        if tokens[position].text == "<" and tokens[position - 1].kind == IDENTIFIER:
            close = matching_angle(tokens, position)
            if close is None:
                return False
            position = close
        position += 1
    ends_declarator = position < len(tokens) and tokens[position].text in (";", "=", "[", ",")
    return ends_declarator and not _is_parameter(tokens, index)


def _is_parameter(tokens: Sequence[Token], index: int) -> bool:
    """Whether what begins at ``index`` stands in brackets: an array that is a parameter is a pointer."""
    depth = 0
    while index > 0 and depth >= 0 and tokens[index - 1].text not in (";", "{", "}"):
        index -= 1
        depth += (tokens[index].text in (")", "]")) - (tokens[index].text in ("(", "["))
    return depth < 0
