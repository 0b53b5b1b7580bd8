"""Functions as template arguments, by which kernels share their bodies: types, through which the function is called.

Neither target needs function pointers then: ``template <void (*f)(thread float&)>`` becomes ``template <typename f>``,
a call ``f(x)`` becomes ``f::call_mtl(x)``, and the argument ``g`` of such a template a struct whose ``call_mtl`` calls
``g`` with whatever it is given; the type of the parameter may have a name, ``using fn = void (*)(thread float&)``.
Parameters whose type has a name, ``typedef void (fn_t)(thread float&)``, stay what
they are, which both targets take but for kernels: there the function's name stands in the place of the parameter's.
OpenCL takes only functions made of templates, so an argument that is none becomes one that calls it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.prototypes import prototypes_of
from mpsgrad.msl.tokens import IDENTIFIER, PUNCTUATION, Token, error, matching, matching_angle, split_commas
from mpsgrad.msl.type_names import type_names

_IN_TYPES = frozenset({"decltype", "sizeof", "alignas", "__attribute__"})
_QUALIFIERS = frozenset({"const", "volatile", "struct", *ADDRESS_SPACES})


@dataclass(slots=True)
class FunctionArguments:
    """The structs and templates to be inserted, each with the index it belongs before, the functions called through
    them, and those that have such a template."""

    structs: list[tuple[int, list[Token]]] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    templates: set[str] = field(default_factory=set)


def replace_functions_as_template_arguments(program: Program) -> FunctionArguments:
    """Rewrites the tokens of ``program`` in place.

    Raises ``ShaderError`` for an argument that names no function defined above.
    """
    tokens = program.tokens
    positions: dict[str, dict[int, str]] = {}
    pointers = _types_of_pointers(tokens)
    uses = Counter(token.text for token in tokens) if pointers else Counter[str]()
    scopes: list[_Scope] = []
    for index, token in enumerate(tokens):
        if token.text == "template" and index + 1 < len(tokens) and tokens[index + 1].text == "<":
            close = matching_angle(tokens, index + 1, certain=True)
            if close is not None:
                scopes.append(_scope(tokens, index, close))
                _rewrite_parameters(tokens, index, close, pointers.keys(), positions)
    # Those that are used for nothing else.
    after = Counter(token.text for token in tokens) if pointers else Counter[str]()
    _forget(tokens, [declared for name, declared in pointers.items() if uses[name] > after[name] == 1])
    for kernel in program.kernels:
        for position, name in positions.get(kernel.name.text, {}).items():
            parameter = (kernel.template or ())[position]
            parameter.name, parameter.is_function = name, True
    types = _types_of_functions(program)
    made = FunctionArguments(functions=_passed_by_name(program, types))
    _make_templates(program, types, made)
    if not positions:
        return made
    structs: dict[tuple[str, str], str] = {}
    parameters = {name for names in positions.values() for name in names.values()}
    for index, token in enumerate(tokens[:-1]):
        if token.kind != IDENTIFIER or token.text not in positions or tokens[index + 1].text != "<":
            continue
        close = matching_angle(tokens, index + 1)
        if close is None:
            continue
        start = index + 2
        for position, part in enumerate(split_commas(tokens[start:close])):
            end = start + len(part)
            if position in positions[token.text] and part and part[0].text not in parameters:
                head, passed = _dependence(scopes, part, index)
                written = head, " ".join(each.text for each in part)
                if written not in structs:
                    structs[written] = f"function_{len(structs) + 1}{RENAMED_SUFFIX}"
                    function = _function(program, part, start)
                    made.functions.add(function.name.text)
                    made.structs.append((function.end, _struct(part, structs[written], function.name, head)))
                _replace(tokens, start, end, structs[written] + passed)
            start = end + 1
    return made


def _passed_by_name(program: Program, types: set[str]) -> set[str]:
    """Marks parameters of kernels whose type is one of ``types``, of functions; gives the functions that may be passed.
    """
    passed: set[str] = set()
    for kernel in program.kernels if types else ():
        for parameter in kernel.template or ():
            parameter.names_function = parameter.kind[-1].text in types
            if parameter.names_function:
                for one in program.instantiations:
                    if one.name.text == kernel.name.text:
                        words = {token.text for argument in one.arguments for token in argument}
                        passed |= words & program.functions.keys()
    return passed


def _make_templates(program: Program, types: set[str], made: FunctionArguments) -> None:
    """Puts templates that call them in the place of functions that are none, where a parameter is of ``types``."""
    tokens = program.tokens
    positions: dict[str, set[int]] = {}
    for index, token in enumerate(tokens if types else ()):
        close = matching_angle(tokens, index + 1, certain=True) if token.text == "template" else None
        if close is not None:
            parts = [[each.text for each in part] for part in split_commas(tokens[index + 2 : close])]
            found = {position for position, part in enumerate(parts) if types & set(part[:-1])}
            for name in _declared(tokens, close)[0] if found else ():
                positions.setdefault(name, set()).update(found)
    if not positions:
        return
    prototypes = prototypes_of(program) if program.has_prototypes else {}
    heads: dict[str, list[tuple[int, int, int]]] = {}
    for start, opening, end in program.function_heads:
        heads.setdefault(tokens[opening - 1].text, []).append((start, opening, end))
    for index, token in enumerate(tokens[:-1]):
        close = matching_angle(tokens, index + 1) if token.text in positions and tokens[index + 1].text == "<" else None
        if close is None:
            continue
        for position, part in enumerate(split_commas(tokens[index + 2 : close])):
            is_name = position in positions[token.text] and all(t.kind == IDENTIFIER or t.text == "::" for t in part)
            name = part[-1].text if is_name and part else ""
            if name not in heads or any(tokens[start].text == "template" for start, _, _ in heads[name]):
                continue
            made.functions.add(name)
            if name not in made.templates:
                made.templates.add(name)
                for start, opening, end in heads[name]:
                    declared = [_behind(tokens, at) for at in prototypes.get(opening, ())]
                    made.structs.append((min([end, *declared]), _template(tokens, start, opening)))
            part[-1].text = f"{name}_passed{RENAMED_SUFFIX}<0>"


def _template(tokens: Sequence[Token], start: int, opening: int) -> list[Token]:
    """The template that calls the function that begins at ``start``."""
    name = tokens[opening - 1]
    parameters: list[Token] = []
    passed: list[str] = []
    for position, parameter in enumerate(split_commas(tokens[opening + 1 : matching(tokens, opening)])):
        kind = list(takewhile(lambda token: token.text != "=", parameter))
        words = [token.text for token in kind]
        is_type = len(kind) < 2 or built_in(words[-1]) is not None or set(words[:-1]) <= _QUALIFIERS
        if not is_type and kind[-1].kind == IDENTIFIER and words[-2] != "::":
            kind.pop()
        passed.append(f"argument_{position + 1}{RENAMED_SUFFIX}")
        parameters += [*kind, name.replaced(passed[-1]), name.replaced(",", PUNCTUATION)]
    head = [token.replaced(token.text) for token in (*tokens[start : opening - 1], *parameters[:-1])]
    split = opening - 1 - start
    return [
        name.replaced("template <int>"),
        *head[:split],
        name.replaced(f"{name.text}_passed{RENAMED_SUFFIX}"),
        name.replaced("(", PUNCTUATION),
        *head[split:],
        name.replaced(") { return", PUNCTUATION),
        name.replaced(name.text),
        name.replaced(f"({', '.join(passed)}); }}", PUNCTUATION),
    ]


def _behind(tokens: Sequence[Token], opening: int) -> int:
    """The index behind the declaration without a body whose parameters begin at ``opening``."""
    return next(at for at in range(matching(tokens, opening), len(tokens)) if tokens[at].text == ";") + 1


def _declared(tokens: Sequence[Token], close: int) -> tuple[list[str], int]:
    """The names that the template whose ``<`` ... ``>`` ends at ``close`` may declare, and where its head ends."""
    found = []
    end = close + 1
    while end < len(tokens) and tokens[end].text not in ("{", ";"):
        if tokens[end].text == "(":
            opening = end
            end = matching(tokens, end)
            if tokens[opening - 1].kind == IDENTIFIER:
                found.append(tokens[opening - 1].text)
        elif tokens[end].text in ("struct", "class"):
            found.append(tokens[end + 1].text)
        end += 1
    return found, end


def _types_of_functions(program: Program) -> set[str]:
    """The names of types of functions: ``typedef int f(int)``, ``typedef int (f)(int)``, ``typedef decltype(g<1>) f``
    and what ``using f = `` says of them."""
    found: set[str] = set()
    for each in type_names(program.tokens):
        texts = [token.text for token in each.meaning]
        is_of_name = texts[:2] == ["decltype", "("] and texts[2] in program.functions
        if is_of_name or _is_of_function(each.meaning):
            found.add(each.name.text)
    return found


def _is_of_function(meaning: Sequence[Token]) -> bool:
    """Whether ``int(int)`` stands here, or what ``typedef int (f)(int)`` leaves of it: ``int()(int)``."""
    opening = next((at for at, token in enumerate(meaning) if token.text == "("), 0)
    if not opening or meaning[-1].text != ")" or meaning[opening - 1].text in _IN_TYPES:
        return False
    close = matching(meaning, opening)
    return close == len(meaning) - 1 or close == opening + 1 and meaning[close + 1].text == "("


def _types_of_pointers(tokens: Sequence[Token]) -> dict[str, range]:
    """The names of types of pointers to functions, and where they are declared: ``using f = void (*)(int)``, also
    templates of them, and ``typedef void (*f)(int)``."""
    found: dict[str, range] = {}
    for each in type_names(tokens):
        texts = [token.text for token in each.meaning]
        if any(texts[at : at + 4] == ["(", "*", ")", "("] for at in range(1, len(texts))):
            found[each.name.text] = each.place
    return found


def _forget(tokens: Sequence[Token], ranges: Sequence[range]) -> None:
    for index in (index for each in ranges for index in each):
        tokens[index].text, tokens[index].kind = "", PUNCTUATION


@dataclass(frozen=True, slots=True)
class _Scope:
    """The range of a template, and the declarations of its parameters that have names."""

    start: int
    end: int
    parameters: dict[str, str]


def _scope(tokens: Sequence[Token], index: int, close: int) -> _Scope:
    end = _declared(tokens, close)[1]
    end = matching(tokens, end) if end < len(tokens) and tokens[end].text == "{" else end
    parameters: dict[str, str] = {}
    for part in split_commas(tokens[index + 2 : close]):
        declared = list(takewhile(lambda token: token.text != "=", part))
        if len(declared) > 1 and declared[-1].kind == IDENTIFIER:
            parameters[declared[-1].text] = " ".join(token.text for token in declared)
    return _Scope(index, end, parameters)


def _dependence(scopes: Sequence[_Scope], argument: Sequence[Token], place: int) -> tuple[str, str]:
    """The head of a template over the parameters around ``place`` that ``argument`` names, and its arguments."""
    inside = [scope.parameters for scope in scopes if scope.start < place < scope.end]
    around = {name: text for parameters in inside for name, text in parameters.items()}
    names = [name for name in dict.fromkeys(token.text for token in argument) if name in around]
    if not names:
        return "", ""
    return f"template <{', '.join(around[name] for name in names)}> ", f"<{', '.join(names)}>"


def _rewrite_parameters(
    tokens: list[Token], start: int, close: int, pointers: Collection[str], positions: dict[str, dict[int, str]]
) -> None:
    """Makes types of the parameters that are functions, in the template whose ``<`` ... ``>`` ends at ``close``."""
    found: dict[int, str] = {}
    renamed: dict[str, str] = {}
    index = start + 2
    for position, part in enumerate(split_commas(tokens[index:close])):
        texts = [token.text for token in part]
        star = next((i for i in range(len(part) - 3) if texts[i] == "(" and texts[i + 1] == "*"), None)
        if star is not None and texts[star + 3 : star + 5] == [")", "("]:
            found[position] = texts[star + 2]
        elif len(part) > 1 and not set(texts[:-1]).isdisjoint(pointers):
            found[position] = texts[-1]
        if position in found:
            # Functions of the library, which are renamed, may have the parameter's name.
            renamed[found[position]] = found[position] = f"{found[position]}_argument{RENAMED_SUFFIX}"
            _replace(tokens, index, index + len(part), f"typename {found[position]}")
        index += len(part) + 1
    if not found:
        return
    names, end = _declared(tokens, close)
    for name in names:
        positions.setdefault(name, {}).update(found)
    if end < len(tokens) and tokens[end].text == "{":
        end = matching(tokens, end)
    for index in range(close, end):
        if tokens[index].text in renamed and tokens[index - 1].text not in (".", "->", "::"):
            tokens[index].text = renamed[tokens[index].text]
            tokens[index].text += f"::call{RENAMED_SUFFIX}" if tokens[index + 1].text == "(" else ""


def _replace(tokens: list[Token], start: int, end: int, text: str) -> None:
    tokens[start].text, tokens[start].kind = text, IDENTIFIER
    for token in tokens[start + 1 : end]:
        token.text, token.kind = "", PUNCTUATION


@dataclass(frozen=True, slots=True)
class _Function:
    """The name of a function in a template argument, and the index behind the function's definition."""

    name: Token
    end: int


def _function(program: Program, argument: Sequence[Token], use: int) -> _Function:
    """The function that ``argument`` names, by the last definition before ``use``."""
    name = argument[0]
    for each, following in zip(argument, [*argument[1:], None], strict=True):
        if each.kind == IDENTIFIER and (following is None or following.text == "<"):
            name = each
            break
    ends = [end for _, opening, end in program.function_heads if program.tokens[opening - 1].text == name.text]
    ends = [end for end in ends if end <= use]
    if not ends:
        raise error(f"'{name.text}' is no function defined above: a template takes only such as an argument", name)
    return _Function(name, max(ends))


def _struct(argument: Sequence[Token], name: str, place: Token, template: str) -> list[Token]:
    """The definition of the struct to call the function through, which may be a template."""
    called = [token.at(place) for token in argument if token.text != "&"]
    kinds = f"a{RENAMED_SUFFIX}"
    call = f"template <typename... {kinds}> static inline auto call{RENAMED_SUFFIX}({kinds} &&...a) {{ return"
    head = f"{template}struct {name} {{ {call}"
    return [place.replaced(head), *called, place.replaced("(a...); } };", PUNCTUATION)]
