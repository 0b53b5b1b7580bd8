"""What a program does with vectors that the target would take otherwise: swizzles, choices, unions, operators.

All of it is found before the program is rewritten, and noted by the tokens that are to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from mpsgrad.errors import with_article
from mpsgrad.msl.analysis.calls import argument_at, name_before
from mpsgrad.msl.analysis.expressions import Expressions, expressions_of
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.backend import SWIZZLES, VECTOR_TYPE, Backend, is_swizzle
from mpsgrad.msl.choices import Choice, alternatives, arms_of_objects, choices
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.expressions import VectorTypes, is_operand
from mpsgrad.msl.float_conversions import changes, conversions
from mpsgrad.msl.kept_references import KeptReferences
from mpsgrad.msl.lasting_temporaries import lasting_temporaries
from mpsgrad.msl.library_marks import (
    ARM,
    ARM_OF_BFLOAT,
    CHOOSE,
    COPY,
    LIFT,
    OTHERWISE,
    UNALIGNED,
    UNALIGNED_READ,
    WHOLE,
    WHOLE_NUMBER,
)
from mpsgrad.msl.library_names import LibraryNames
from mpsgrad.msl.named_temporaries import keep_objects
from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.temporaries import behind_unqualified_members, calls_in_constructors, open_to_temporaries
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, Token, error, matching, split_commas
from mpsgrad.msl.unions import class_bodies, name_place, owner_of_copies
from mpsgrad.msl.vector_operators import VectorOperators

_COMPARISONS = ("==", "!=", "<=", ">=")
_ZEROS = frozenset("0 0u 0U 0.0 0. 0.f 0.0f 0.0F 0.h 0.0h 0.0H false".split())
_COMPONENTS = {letter: place for letters in SWIZZLES for place, letter in enumerate(letters)}


class VectorForms:
    """The notes on the vectors of one program for one target; finding them changes some of its tokens.

    By the identity of a token: ``before`` has what is to stand in front of it, ``converted`` the left side of a
    compound assignment that converts, ``arms`` the other arm of a choice where a scalar one converts to it,
    ``views_read`` the swizzles that mean their vectors where they are objects, and ``unnamed_spaces`` the address
    spaces that are not to be written. ``kept_references`` are those that no temporary object can be given to.
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        names: LibraryNames,
        filename: str,
        is_own: bool,
        analysed: Source | None,
        types: VectorTypes | None = None,
    ) -> None:
        """``is_own`` says that the program is the package's, whose pointers to vectors are aligned to vectors;
        ``analysed`` is it as it was analysed before. With ``types`` integers are made of what has a fraction as Metal
        makes them."""
        self.before: dict[int, str] = {}
        self.converted: dict[int, tuple[int, int]] = {}
        self.arms: dict[int, tuple[int, int]] = {}
        self.unnamed_spaces: frozenset[int] = frozenset()
        self.kept_references: KeptReferences | None = None
        self._analysed = analysed
        self._program = program
        self._tokens = program.tokens
        self._backend = backend
        self._names = names
        self._filename = filename
        self._compose_swizzles()
        if names.has(UNALIGNED) and not is_own and self._makes_pointers():
            names.used.add(UNALIGNED)
            self._index_components()
            self._read_anywhere()
        self._mark_choices()
        self._read_single_values()
        if backend.has_native_constructors or names.mentions_bfloat:
            self._write_alternatives()
        if backend.has_native_constructors:
            self._make_unions_assignable()
        else:
            self.unnamed_spaces, self.kept_references = open_to_temporaries(program)
            if not is_own:
                self._keep_temporaries()
            private = backend.address_spaces["thread"]
            unqualified = set(behind_unqualified_members(program))
            for place in unqualified:
                self.put_before(program.tokens[place], f"{private} ")
            keep_objects(program, self.kept_references, unqualified)
            for place, name, is_this in calls_in_constructors(program):
                self.put_before(program.tokens[place], f"(({private} {name}*)" + ("" if is_this else "this)->"))
                if is_this:
                    self.put_before(program.tokens[place + 1], ")")
            self._complete_braces()
            self._copy_arms()
            self._read_views()
        found = [] if types is None else list(conversions(self._source(), types))
        changed = [] if types is None else list(changes(self._source()))
        if not backend.has_native_constructors:
            self._lift_operators()
        for start, end, name in found:
            self.put_before(self._tokens[start], f"{WHOLE_NUMBER}<{name}>(0, ")
            self.put_before(self._tokens[end], ")")
        for start, operator, end, name in changed:
            self._convert_change(start, operator, end, name)

    def _keep_temporaries(self) -> None:
        """Makes objects of the references that temporary ones are kept by."""
        tokens = self._tokens
        for space, mark in lasting_temporaries(self._source()):
            self.unnamed_spaces |= {id(tokens[space])}
            tokens[mark].text = ""

    def _convert_change(self, start: int, operator: int, end: int, name: str) -> None:
        """Writes ``x += value`` as ``x = x + value`` with an integer made of the sum."""
        tokens = self._tokens
        left = " ".join(
            self._names.spelling(each.text) if each.kind == IDENTIFIER else each.text for each in tokens[start:operator]
        )
        sign, tokens[operator].text = tokens[operator].text[0], "="
        self.put_before(tokens[operator + 1], f"{WHOLE_NUMBER}<{name}>(0, {left} {sign} (")
        self.put_before(tokens[end], "))")

    def put_before(self, token: Token, text: str) -> None:
        """Has ``text`` stand in front of ``token`` and of what is noted there already."""
        self.before[id(token)] = text + self.before.get(id(token), "")

    @cached_property
    def views_read(self) -> frozenset[int]:
        if not self._backend.has_native_constructors:
            return frozenset()
        tokens = self._tokens
        return frozenset(
            id(tokens[index])
            for index in range(1, len(tokens) - 1)
            if self._is_swizzle(index, 2)
        )

    def _source(self) -> Source:
        """The program as it is now: analysed again only where tokens have changed."""
        if self._analysed is None or self._analysed.texts != [token.text for token in self._tokens]:
            self._analysed = Source(self._tokens, self._program, (2, 3), False, "", self._filename)
        return self._analysed

    @cached_property
    def _declared(self) -> frozenset[str]:
        """Names that stand where variables and members are declared."""
        return frozenset(
            name.text
            for before, name, after in zip(self._tokens, self._tokens[1:], self._tokens[2:], strict=False)
            if name.kind == IDENTIFIER
            and (before.kind == IDENTIFIER or before.text in (">", "*", "&", ","))
            and after.text in (";", ",", "=", ")", "[", "{")
        )

    def _makes_pointers(self) -> bool:
        """Whether the program casts to pointers whose targets may be vectors, or have some.

        Metal lets these be aligned to an element only.
        """
        tokens = self._tokens
        for index, token in enumerate(tokens):
            if token.text == "reinterpret_cast":
                return True
            if token.text == "(" and tokens[index + 1].text in (*ADDRESS_SPACES, "const", "volatile"):
                close = matching(tokens, index)
                if tokens[close - 1].text == "*" and close + 1 < len(tokens) and is_operand(tokens[close + 1]):
                    return True
        return False

    def _index_components(self) -> None:
        """Writes ``v[0]`` for ``v.x``, through which the compiler does not see that ``v`` were aligned."""
        tokens = self._tokens
        members = _members(tokens)
        for index in range(len(tokens) - 1):
            operator, name = tokens[index], tokens[index + 1]
            if operator.text not in (".", "->") or name.text not in _COMPONENTS or name.text in members:
                continue
            place = _COMPONENTS[name.text]
            name.text = f"[{place}]" if operator.text == "." else f"->operator[]({place})"
            operator.text = ""

    def _read_anywhere(self) -> None:
        """Reads ``*((device const uint*)p)`` by its bytes where ``p`` is not aligned to a number."""
        tokens = self._tokens
        for index in range(1, len(tokens) - 6):
            if [token.text for token in tokens[index : index + 3]] != ["*", "(", "("]:
                continue
            before, end, close = tokens[index - 1], matching(tokens, index + 1), matching(tokens, index + 2)
            is_operand = before.kind in (IDENTIFIER, NUMBER) or before.text in (")", "]")
            is_operand = is_operand and before.text != "return"
            words = [token.text for token in tokens[index + 3 : close]]
            kind = built_in(words[-2]) if len(words) > 2 and words[-1] == "*" and "const" in words[:-2] else None
            is_scalar = kind is not None and kind.is_scalar and set(words[:-2]) <= {"const", *ADDRESS_SPACES}
            if is_scalar and not is_operand and tokens[end + 1].text not in (".", "[", "->"):
                tokens[index].text, tokens[index].kind = UNALIGNED_READ, IDENTIFIER
                self._names.used.add(UNALIGNED_READ)

    def _compose_swizzles(self) -> None:
        """Makes one swizzle of two in a row, ``v.zyx.x``: where a swizzle is an object, it has none of its own."""
        tokens = self._tokens
        for index in range(len(tokens) - 4, -1, -1):
            first, second = tokens[index + 1], tokens[index + 3]
            is_member = tokens[index].text in (".", "->") and tokens[index + 2].text == "."
            if is_member and first.text not in self._declared:
                for letters in SWIZZLES:
                    for inner in SWIZZLES:
                        is_pair = 2 <= len(first.text) <= 4 and set(first.text) <= set(letters)
                        if is_pair and second.text and set(second.text) <= set(inner[: len(first.text)]):
                            first.text = "".join(first.text[inner.index(letter)] for letter in second.text)
                            tokens[index + 2].text = second.text = ""
        for index in range(4, len(tokens) - 3):
            if tokens[index].text == ")" and self._is_swizzle(index - 1, 2) and self._is_swizzle(index + 2, 1):
                start = self._opening(index)
                is_call = tokens[start - 1].kind == IDENTIFIER and tokens[start - 1].text != "return"
                if not is_call and tokens[start - 1].text not in (")", "]", ">"):
                    self.put_before(tokens[start], WHOLE)
                    self._names.used.add(WHOLE)

    def _is_swizzle(self, index: int, least: int) -> bool:
        """Whether a swizzle of ``least`` components or more, which nobody assigns to, is read at ``index``."""
        name, following = self._tokens[index].text, self._tokens[index + 1].text
        is_assigned = following in ("=", "++", "--") or (following.endswith("=") and following not in _COMPARISONS)
        return (
            self._tokens[index - 1].text in (".", "->")
            and len(name) >= least
            and is_swizzle(name)
            and name not in self._declared
            and not is_assigned
            and not self._is_stepped(index)
        )

    def _is_stepped(self, index: int) -> bool:
        """Whether ``++`` or ``--`` stands in front of the object that the swizzle at ``index`` is of."""
        tokens = self._tokens
        while tokens[index - 1].text in (".", "->"):
            index -= 2
            while tokens[index].text in (")", "]"):
                index = self._opening(index) - 1
            if tokens[index].kind != IDENTIFIER:
                return tokens[index].text in ("++", "--")
        return tokens[index - 1].text in ("++", "--")

    def _opening(self, index: int) -> int:
        """The index of the bracket that ``index`` closes."""
        depth = 0
        while True:
            text = self._tokens[index].text
            depth += (text in (")", "]")) - (text in ("(", "["))
            if depth == 0:
                return index
            index -= 1

    def _mark_choices(self) -> None:
        """Makes ``c ? a : b`` mean what it does in Metal where arms are classes of the library."""
        tokens = self._tokens
        for choice in choices(self._source(), self._backend.class_scalars - self._names.users):
            self._names.used.add(CHOOSE)
            if self._names.mentions_bfloat:
                self._names.used.add(ARM_OF_BFLOAT)
            arm_of = ARM
            if self._reads_elements(choice):
                self._names.used.add(COPY)
                arm_of = f"{ARM}({COPY}"
            for (start, end), function in ((choice.extent, CHOOSE), *((arm, arm_of) for arm in choice.arms)):
                before = self.before.get(id(tokens[start]), "")
                # What makes a view whole belongs to the bracket behind it.
                view = WHOLE if before.endswith(WHOLE) else ""
                self.before[id(tokens[start])] = f"{before.removesuffix(WHOLE)}{function}({view}"
                self.put_before(tokens[end], ")" * (1 + function.count("(")))

    def _write_alternatives(self) -> None:
        """Writes ``a ?: b`` for a compiler that does not have it, or not for objects of classes."""
        for start, question, colon, end in list(alternatives(self._source())):
            self._names.used.add(OTHERWISE)
            self.put_before(self._tokens[start], f"{OTHERWISE}(")
            self._tokens[question].text, self._tokens[colon].text = ",", "[&] { return"
            self.put_before(self._tokens[end], "; })")

    def _reads_elements(self, choice: Choice) -> bool:
        """Whether a variable gets the value of a choice between what may be elements of vectors, which no reference
        binds to where vectors are the compiler's own."""
        if self._backend.has_native_constructors:
            return False
        tokens = self._tokens
        before = choice.extent[0] - 1
        is_value = tokens[before].text == "=" and "&" not in (tokens[before - 2].text, tokens[before - 3].text)
        return is_value and any(tokens[end - 1].text == "]" for _, end in choice.arms)

    def _copy_arms(self) -> None:
        """Gives both arms of choices between objects one type."""
        for start, end in arms_of_objects(self._source()):
            self._names.used.add(COPY)
            self.put_before(self._tokens[start], f"{COPY}(")
            self.put_before(self._tokens[end], ")")

    def _read_views(self) -> None:
        """Makes swizzles vectors where a template or ``auto`` gets its type by them: those of classes are views."""
        tokens = self._tokens
        heads = [(start, opening) for start, opening, _ in self._program.function_heads]
        heads += [(start, opening) for _, start, opening, _ in self._program.member_heads]
        templates = {tokens[opening - 1].text for start, opening in heads if tokens[start].text == "template"}
        source = None
        for index in range(3, len(tokens) - 1):
            if not self._is_swizzle(index, 2):
                continue
            source = source or self._source()
            start, end = _value_around(source, index), index + 1
            before = tokens[start - 1]
            if before.text == "=":
                reads = tokens[start - 3].text == "auto" and tokens[end].text in (";", ",")
            else:
                reads = before.text in ("(", ",") and tokens[end].text in (",", ")")
                reads = reads and argument_at(source, start)[0] in templates
            kind = expressions_of(source).type_of(start, end) if reads else None
            if reads and (kind is None or kind.base in ("bool", "bfloat")):
                self._names.used.add(WHOLE)
                self.put_before(tokens[start], f"{WHOLE}(")
                self.put_before(tokens[end], ")")

    def _make_unions_assignable(self) -> None:
        """Gives assignment to unions of vectors, and to what has one without a name: they lose it where vectors are
        classes that have their own."""
        source = self._source()
        done = set()
        for index, close in class_bodies(source):
            names = {token.text for token in self._tokens[index + 1 : close] if token.kind == IDENTIFIER}
            vectors = {name for name, kind in source.aliases.items() if kind is not None and kind.width > 1}
            is_special = any(VECTOR_TYPE.match(name) or name == "vec" or name in source.members for name in names)
            is_special |= not names.isdisjoint(vectors)
            if self._tokens[index].text != "union" or not is_special:
                continue
            owner = owner_of_copies(source, index, close)
            if owner is None or owner in done:
                continue
            done.add(owner)
            start, end = owner
            place = self._tokens[name_place(source, start)]
            name = place.text
            if name == "{":
                name = f"unnamed_{start}{RENAMED_SUFFIX}"
                self.before[id(place)] = name
            else:
                name = self._names.spelling(name)
            copy = f"{{ memcpy(this, &o, sizeof({name})); "
            text = f"{name} &operator=(const {name} &o) {copy}return *this; }} "
            if UNALIGNED in self._names.used and self._tokens[start].text == "union":
                text += f"{name}() = default; {name}(const {name} &o) {copy}}} "
            self.put_before(self._tokens[end], text)

    def _is_zero(self, opening: int, close: int) -> bool:
        """Whether a zero is all that the braces have."""
        return "".join(token.text for token in self._tokens[opening + 1 : close]) in _ZEROS

    def _read_single_values(self) -> None:
        """Makes ``float3 v{0}`` zero, and raises where braces give a vector one other value: the specification does not
        say whether it is the first component's or that of all."""
        tokens = self._tokens
        source = None
        for index in range(2, len(tokens)):
            if tokens[index].text != "{" or tokens[index - 1].text in (")", ";", "{", "}", ","):
                continue
            name = index - 1 - (tokens[index - 1].text == "=")
            kind = built_in(tokens[name].text) if name == index - 1 else None
            if tokens[name - 1].text == "," and name < index - 1:
                source = source or self._source()
                variable = source.variable(tokens[name].text, name)
                kind = variable.type if variable is not None and variable.place == name else None
            elif tokens[name].kind == IDENTIFIER and kind is None:
                kind = built_in(tokens[name - 1].text)
            angle = name - (tokens[name].kind == IDENTIFIER)
            if kind is None and tokens[angle].text == ">":
                source = source or self._source()
                if name_before(source, angle) == "vec":
                    self._read_value_of_template(source, angle, index)
                continue
            if kind is None or kind.pointers or kind.width == 1 or kind.columns:
                continue
            source = source or self._source()
            parts = source.arguments(index)
            if len(parts) != 1:
                continue
            value = expressions_of(source).type_of(*parts[0])
            close = source.close(index)
            if self._is_zero(index, close):
                if not self._backend.has_native_constructors and not kind.packed:
                    self.put_before(tokens[close], ", 0" * (kind.width - 1))
            elif value is not None and value.is_scalar:
                message = f"one value in the braces of {with_article(kind)}"
                raise error(f"{message}: write {kind}(x) to have it in all components", tokens[index + 1])

    def _read_value_of_template(self, source: Source, angle: int, opening: int) -> None:
        """The same for braces behind the ``>`` of ``vec<T, n>`` and, perhaps, a name."""
        tokens = self._tokens
        parts, close = source.arguments(opening), source.close(opening)
        if self._is_zero(opening, close):
            # Of as many components as it has there.
            tokens[opening].text, tokens[close].text = "(", ")"
            if tokens[opening - 1].text == "=":
                tokens[opening - 1].text = ""
        elif len(parts) == 1:
            start, end = parts[0]
            value = expressions_of(source).type_of(start, end)
            variable = source.variable(tokens[start].text, start) if end == start + 1 else None
            element = next(at for at in range(angle, 0, -1) if tokens[at].text == "<") + 1
            is_element = variable is not None and tokens[variable.place - 1].text == tokens[element].text
            if is_element or (value is not None and value.is_scalar):
                message = "one value in the braces of a vector: write it in parentheses to have it in all components"
                raise error(message, tokens[start])

    def _complete_braces(self) -> None:
        """Gives vectors the zeros that braces leave out, and braces the type of the vector parameter they stand for."""
        tokens = self._tokens
        source = self._source()
        expressions = Expressions(source)
        for index in range(2, len(tokens)):
            if tokens[index].text != "{" or (close := source.close(index)) < index + 2:
                continue
            name = index - 1 - (tokens[index - 1].text == "=")
            kind = built_in(tokens[name - 1].text)
            if kind is not None and kind.width > 2 and not kind.packed and tokens[name].kind == IDENTIFIER:
                parts = list(source.arguments(index))
                types = [expressions.type_of(*part) for part in parts]
                if 1 < len(parts) < kind.width and all(each is None or each.is_scalar for each in types):
                    self.put_before(tokens[close], ", 0" * (kind.width - len(parts)))
            elif tokens[index - 1].text in ("(", ","):
                vector = _parameter_of_braces(source, index)
                if vector is not None:
                    self._names.used.add(vector)
                    self.put_before(tokens[index], f"({vector})")
                    tokens[index].text, tokens[close].text = "(", ")"

    def _lift_operators(self) -> None:
        """Makes operators of vectors mean what they do in Metal."""
        tokens = self._tokens
        found = VectorOperators(self._source(), self._names.has_packed_vectors)
        for index, text in found.texts.items():
            tokens[index].text = text
            self._names.used.add(LIFT)
        for index, (left, end) in found.assignments.items():
            self.converted[id(tokens[index])] = left
            self.put_before(tokens[end], ")")
        for (start, end), other in found.arms.items():
            self.arms[id(tokens[start])] = other
            self.put_before(tokens[end], ")")
        for (start, end), element in found.conversions.items():
            self.before[id(tokens[start])] = self.before.get(id(tokens[start]), "") + f"({element})("
            self.put_before(tokens[end], ")")


def _parameter_of_braces(source: Source, index: int) -> str | None:
    """The vector that a function of the program takes where a call has the braces at ``index``, if it is certain."""
    called, position = argument_at(source, index)
    found = set()
    has_several = len(split_commas(source.tokens[index + 1 : source.close(index)])) > 1
    for function in source.functions_by_name.get(called, ()):
        parameters = source.arguments(function.opening)
        if position < len(parameters):
            words = [source.text(at) for at in range(*parameters[position])]
            words = [word for word in words if word not in ("const", "metal", "::")]
            kind = built_in(words[0]) if len(words) in (1, 2) else None
            if has_several and len(words) in (1, 2) and _is_scalar(source, function, words[0]):
                continue
            found.add(words[0] if kind is not None and kind.width > 1 else "")
    return found.pop() if len(found) == 1 and "" not in found else None


def _value_around(source: Source, index: int) -> int:
    """Where the argument or initialiser begins that ends with the word at ``index``."""
    while index > 0 and source.text(index - 1) not in ("(", "[", "{", ",", ";", "=", "return"):
        closes = source.text(index - 1) in (")", "]", "}")
        index = source.close(index - 1) if closes and source.close(index - 1) >= 0 else index - 1
    return index


def _is_scalar(source: Source, function: Function, name: str) -> bool:
    """Whether a parameter of this type takes no braces with several values: a scalar, or what a call has to say."""
    kind = built_in(name)
    if kind is not None:
        return kind.is_scalar
    return function.is_template and name not in source.struct_bodies and name not in source.aliases


def _members(tokens: Sequence[Token]) -> set[str]:
    """The names that classes of the program declare between their braces, and those of their functions' variables."""
    found = set()
    for index, token in enumerate(tokens):
        if token.text not in ("struct", "class", "union"):
            continue
        opening = next((i for i in range(index, len(tokens)) if tokens[i].text in ("{", ";", "(")), None)
        if opening is None or tokens[opening].text != "{":
            continue
        for at in range(opening, matching(tokens, opening)):
            if tokens[at + 1].text in (";", ",", "=", "[", ":") and tokens[at - 1].text not in (".", "->"):
                found.add(tokens[at].text)
    return found
