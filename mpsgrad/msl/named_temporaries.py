"""Functions for temporary objects, beside those whose references to constant ``thread`` objects stay what they are: in
OpenCL these take objects that have a name. So each of them gives the temporary ones names, and calls the other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.declarations import operator_before
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.kept_references import KeptReferences
from mpsgrad.msl.library_marks import OF_ANOTHER
from mpsgrad.msl.overloads import namespaces_of
from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.prototypes import bodies_of_classes
from mpsgrad.msl.tokens import IDENTIFIER, Token, made_at, matching, split_commas

OBJECT = -1
"""The position of the object that a function is a member of."""
_MOST = 3
"""Each of so many references may be to a temporary object."""
# Objects in no address space that has a name are temporary, or referred to by functions that only compute.
_TEMPORARY, _UNNAMED = ("&&",), ("const", "&")
_OF_REFERENCES = frozenset({"const", "thread", "&"})


def functions_of_temporaries(program: Program, references: KeptReferences) -> Iterator[tuple[int, list[Token]]]:
    """These functions, and where they are to stand."""
    tokens, kept = program.tokens, references.positions
    if not kept:
        return
    classes, namespaces = list(bodies_of_classes(tokens)), namespaces_of(tokens)
    heads = program.function_heads + [head[1:] for head in program.member_heads]
    known: set[tuple[object, ...]] = set()
    for defined in heads:
        _, opening, _ = defined
        if opening not in kept or opening in program.constructors:
            continue
        kinds = dict(enumerate(split_commas(tokens[opening + 1 : matching(tokens, opening)])))
        given = {at for at in kept[opening] if at in kinds and references.gives_address(*defined, kinds[at])}
        given |= {OBJECT} if references.gives_addresses(*defined[:2]) else set()
        # Classes of one name in several namespaces have declarations that look the same.
        declared = [_declaration(tokens, at) for at in references.prototypes.get(opening, ())]
        for start, first, end in declared or [defined]:
            around = [(brace, owner) for brace, last, owner in classes if brace < first < last]
            scope = [brace for brace, last, _ in namespaces if brace < first < last]
            kinds[OBJECT] = made_at(tokens[start], *(owner for _, owner in around[-1:]))
            # A base class is not all of a temporary object.
            positions = [at for at in kept[opening] if not references.is_base(kinds[at])]
            name = _name(tokens, first)
            is_understood = tokens[start].text != "template" and tokens[name - 1].text != "::"
            if not 0 < len(positions) <= _MOST or not is_understood or not _has_names(tokens, first):
                continue
            if (alike := (*scope, *around, *_alike(tokens, name, first))) in known:
                continue
            known.add(alike)
            returned = {token.text for token in tokens[start:name]}
            gives_constant = {"const", "&"} <= returned and not returned & {"*", "auto"}
            owner = around[-1][1] if around and not returned & {"static", "friend"} else None
            for count in range(1, len(positions) + 1):
                for chosen in combinations(positions, count):
                    gives_value = not given.isdisjoint(chosen)
                    forms = (_TEMPORARY, _UNNAMED) if not gives_value or gives_constant else ()
                    has_one_form = chosen == (OBJECT,) or _is_assignment(tokens, name)
                    for form in forms[:1] if has_one_form else forms:
                        yield end, _function(tokens, start, first, chosen, owner, gives_value, form)


def keep_objects(program: Program, references: KeptReferences, places: Collection[int]) -> None:
    """Adds the objects of members behind whose parameters, at ``places``, it is said that they are ``thread``."""
    for _, _, opening, _ in program.member_heads if places else ():
        if matching(program.tokens, opening) + 1 in places:
            references.positions.setdefault(opening, []).append(OBJECT)


def _function(
    tokens: Sequence[Token],
    start: int,
    opening: int,
    chosen: Sequence[int],
    owner: str | None,
    gives_value: bool,
    form: Sequence[str],
) -> list[Token]:
    """The function that takes temporary objects at the positions ``chosen``, and gives the value of what the other one
    refers to if that is one of these. ``owner`` is the class of which it is a member, if it has an object, and ``form``
    what stands behind the types of what it takes."""
    place, name, closing = tokens[opening], _name(tokens, opening), matching(tokens, opening)
    parameters: list[Token] = []
    named: list[Token] = []
    arguments: list[Token] = []
    head = [token for token in tokens[start:name] if token.text != "constexpr"]
    if gives_value:
        head = [token for token in head if token.text not in _OF_REFERENCES]
    # A class with such an assignment for its own objects would not be copied any more.
    is_assignment = _is_assignment(tokens, name)
    for position, parameter in enumerate(split_commas(tokens[opening + 1 : closing])):
        last = _named(parameter)
        if position in chosen:
            kind = [token for token in parameter[:-1] if token.text not in _OF_REFERENCES]
            own = made_at(place, f"named_{position}{RENAMED_SUFFIX}")
            named += [*kind, *own, *made_at(place, "="), last, *made_at(place, ";")]
            if is_assignment:
                head = [*made_at(place, OF_ANOTHER, "("), *kind, *made_at(place, ")"), *head]
                kind = made_at(place, "A")
            parameters += [*kind, *made_at(place, *(_TEMPORARY if is_assignment else form)), last, *made_at(place, ",")]
            arguments += [*own, *made_at(place, ",")]
        else:
            parameters += [*parameter, *made_at(place, ",")]
            arguments += [last, *made_at(place, ",")]
    body = closing + 1
    while tokens[body].text not in ("{", ";"):
        body += 1
    behind = list(tokens[closing + 1 : body])
    if OBJECT in chosen:
        # Without what is noted at these tokens, the address space of objects that have a name.
        behind = [token.replaced(token.text) for token in behind if token.text != "thread"]
    is_noted = OBJECT not in chosen and tokens[body].text == "{"
    behind += [tokens[body]] if is_noted else made_at(place, "{")
    called = made_at(place, *(("this", "->") if owner is not None else ()))
    if OBJECT in chosen and owner is not None:
        called = made_at(place, f"named{RENAMED_SUFFIX}", ".")
        named += made_at(place, owner, f"named{RENAMED_SUFFIX}", "=", "*", "this", ";")
    call = [*made_at(place, "return"), *called, *tokens[name:opening]]
    return [
        *head, *tokens[name:opening], *made_at(place, "("), *parameters[:-1], *made_at(place, ")"), *behind,
        *named, *call, *made_at(place, "("), *arguments[:-1], *made_at(place, ")", ";", "}"),
    ]  # fmt: skip


def _declaration(tokens: Sequence[Token], opening: int) -> tuple[int, int, int]:
    """Where a declaration without a body starts, opens its parameters, and ends."""
    start = opening
    while tokens[start - 1].text not in (";", "{", "}", ":"):
        start -= 1
    return start, opening, next(at for at in range(opening, len(tokens)) if tokens[at].text == ";") + 1


def _name(tokens: Sequence[Token], opening: int) -> int:
    """Where the name of the function begins whose parameters begin at ``opening``."""
    operator = operator_before(tokens, opening)
    return opening - 1 if operator is None else operator


def _is_assignment(tokens: Sequence[Token], name: int) -> bool:
    return tokens[name].text == "operator" and tokens[name + 1].text == "="


def _named(parameter: Sequence[Token]) -> Token:
    """What names a parameter, as far as it has a name."""
    texts = [token.text for token in parameter]
    return parameter[(texts.index("=") if "=" in texts else len(texts)) - 1]


def _has_names(tokens: Sequence[Token], opening: int) -> bool:
    """Whether each parameter has a name at its end."""
    for parameter in split_commas(tokens[opening + 1 : matching(tokens, opening)]):
        last = _named(parameter)
        index = next(at for at, token in enumerate(parameter) if token is last)
        is_type = last.kind != IDENTIFIER or built_in(last.text) is not None or last.text in ADDRESS_SPACES
        if is_type or index == 0 or parameter[index - 1].text in ("::", "const", "typename"):
            return False
    return True


def _alike(tokens: Sequence[Token], name: int, opening: int) -> tuple[str, ...]:
    """What functions have in common that OpenCL cannot tell apart: ``constant`` is ``const device`` there."""
    closing = matching(tokens, opening)
    texts = []
    for token in tokens[name : closing + 1]:
        texts.append("device" if token.text == "constant" else token.text)
    behind = closing + 1
    while tokens[behind].text in ADDRESS_SPACES or tokens[behind].text == "const":
        if tokens[behind].text not in ("const", "thread"):
            texts.append("device" if tokens[behind].text == "constant" else tokens[behind].text)
        behind += 1
    return tuple(texts)
