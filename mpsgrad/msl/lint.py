"""Apple's rules for Metal 2.3 compute source, and those of metalcompute, checked without a Mac.

One small function per rule, with the rule's number. A rule looks at tokens after preprocessing and at the outline of
the program; it reports what Apple's compiler would refuse, in Apple's words where they are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from mpsgrad.errors import ShaderError
from mpsgrad.msl.backend import INDEX_ATTRIBUTES, POSITION_ATTRIBUTES, position_dimensions
from mpsgrad.msl.declarations import ADDRESS_SPACES, Attribute, Parameter, Program, integer_value, read_program
from mpsgrad.msl.diagnostics import Diagnostic
from mpsgrad.msl.preprocessor import Preprocessor
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, PUNCTUATION, Token, matching, spell

LAST_BUFFER_INDEX = 30


@dataclass(frozen=True, slots=True)
class Finding(Diagnostic):
    """A diagnostic with the number of the rule that it comes from; 0 for source that cannot be read at all."""

    rule: int = 0


class Source:
    """What the rules look at."""

    def __init__(self, tokens: list[Token], program: Program) -> None:
        self.tokens = tokens
        self.program = program

    def text(self, index: int) -> str:
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def words(self, *names: str) -> Iterator[int]:
        """The indices of the identifiers called one of ``names``, members of other objects left out."""
        for index, token in enumerate(self.tokens):
            if token.kind == IDENTIFIER and token.text in names and self.text(index - 1) not in (".", "->"):
                yield index

    @cached_property
    def types(self) -> frozenset[str]:
        """Names of types: the language's, and those that the program declares."""
        names = {"void", "auto"}
        for index, token in enumerate(self.tokens[:-1]):
            following = self.tokens[index + 1]
            if following.kind != IDENTIFIER:
                continue
            if token.text in ("struct", "class", "union", "enum", "typename"):
                names.add(following.text)
            elif token.text == "using" and self.text(index + 2) == "=":
                names.add(following.text)
        return frozenset(names)

    def is_type(self, index: int) -> bool:
        text = self.text(index)
        return _BUILT_IN_TYPE.match(text) is not None or text in self.types

    @cached_property
    def bodies(self) -> list[tuple[int, int, bool]]:
        """The bodies of functions, and whether each is a kernel's."""
        found = [(start, end, False) for ranges in self.program.functions.values() for start, end in ranges]
        found += [(kernel.body_open, kernel.body_close, True) for kernel in self.program.kernels]
        return sorted(found)

    def in_body(self, index: int) -> bool:
        return any(start < index < end for start, end, _ in self.bodies)


Rule = Callable[[Source], Iterator[tuple[Token, str]]]
RULES: dict[int, Rule] = {}

_BUILT_IN_TYPE = re.compile(
    r"(?:packed_)?(?:bool|u?char|u?short|u?int|u?long|half|float|size_t|ptrdiff_t|unsigned|signed|u?int(?:8|16|32|64)_t"
    r"|atomic_u?int|float\dx\d|half\dx\d)[234]?$"
)


def _rule(number: int) -> Callable[[Rule], Rule]:
    def register(check: Rule) -> Rule:
        RULES[number] = check
        return check

    return register


def lint(source: str, *, filename: str = "<metal>") -> list[Finding]:
    """What Apple's compiler for Metal 2.3, or metalcompute, would refuse in ``source``, in order of place.

    ``filename`` names the lines that no ``#line`` directive renames.
    """
    try:
        program = read_program(Preprocessor().run(source, filename))
    except ShaderError as found:
        return [Finding(found.file, found.line or 1, found.column, "error", found.message)]
    checked = Source(program.tokens, program)
    findings = []
    for number, check in RULES.items():
        try:
            for token, message in check(checked):
                findings.append(Finding(token.file, token.line, token.column, "error", message, number))
        except ShaderError as found:
            findings.append(Finding(found.file, found.line or 1, found.column, "error", found.message, number))
    return sorted(findings, key=lambda finding: (finding.line, finding.column or 0, finding.rule))


def _declarators(source: Source, mark: str) -> Iterator[int]:
    """The indices of ``*`` or ``&`` that make a pointer or reference type without an address space."""
    tokens = source.tokens
    for index, token in enumerate(tokens):
        if token.text != mark or token.kind != PUNCTUATION or index == 0:
            continue
        position = index - 1
        seen_space = False
        while position >= 0 and tokens[position].text in ("const", "volatile", *ADDRESS_SPACES):
            seen_space = seen_space or tokens[position].text in ADDRESS_SPACES
            position -= 1
        if tokens[position].text == "*" and position < index - 1:
            if not seen_space and tokens[position + 1].text == "const":
                continue
        if tokens[position].text == ">":
            depth = 0
            while position >= 0 and index - position < 100:
                depth += (tokens[position].text == ">") - (tokens[position].text == "<")
                position -= 1
                if depth == 0:
                    break
        if position < 0 or not source.is_type(position) or tokens[position].text == "auto":
            continue
        before = position - 1
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
        if not seen_space:
            yield index


@_rule(1)
def pointers_have_an_address_space(source: Source) -> Iterator[tuple[Token, str]]:
    for index in _declarators(source, "*"):
        yield source.tokens[index], "pointer type must have explicit address space qualifier"


@_rule(2)
def references_have_an_address_space(source: Source) -> Iterator[tuple[Token, str]]:
    for index in _declarators(source, "&"):
        yield source.tokens[index], "reference type must have explicit address space qualifier"


def _variables(source: Source) -> Iterator[list[Token]]:
    for start, stop in source.program.variables:
        tokens = [token for token in source.tokens[start:stop] if token.kind != "pragma"]
        if len(tokens) > 1:
            yield tokens


@_rule(4)
def program_scope_variables_are_constant(source: Source) -> Iterator[tuple[Token, str]]:
    for tokens in _variables(source):
        before = []
        for token in tokens:
            if token.text in ("=", "{", "("):
                break
            before.append(token)
        if not any(token.text == "constant" for token in before):
            names = [token for token in before if token.kind == IDENTIFIER]
            if len(names) > 1:
                yield names[-1], "program scope variable must reside in constant address space"


@_rule(5)
def constants_are_initialised(source: Source) -> Iterator[tuple[Token, str]]:
    for tokens in _variables(source):
        texts = [token.text for token in tokens]
        if "constant" in texts and not {"=", "{", "(", "function_constant", "extern"} & set(texts):
            names = [token for token in tokens if token.kind == IDENTIFIER]
            yield names[-1], "variable in constant address space must be initialized"


@_rule(6)
def no_static_locals(source: Source) -> Iterator[tuple[Token, str]]:
    for index in source.words("static"):
        if source.in_body(index):
            yield source.tokens[index], "variables in function scope cannot be declared static"


@_rule(7)
def threadgroup_variables_stand_in_kernels(source: Source) -> Iterator[tuple[Token, str]]:
    for start, end, is_kernel in source.bodies:
        for index in range(start, end):
            if source.text(index) not in ("threadgroup", "device", "constant"):
                continue
            if source.text(index - 1) not in (";", "{", "}"):
                continue
            if is_kernel and source.text(index) == "threadgroup":
                continue
            position = index
            while position < end and source.text(position) not in (";", "=", "*", "&", "(", ")", "{"):
                position += 1
            if source.text(position) not in ("*", "&", ")", "("):
                yield source.tokens[index], "automatic variable qualified with an address space"


@_rule(8)
def no_double(source: Source) -> Iterator[tuple[Token, str]]:
    for index, token in enumerate(source.tokens):
        if token.kind == IDENTIFIER and re.fullmatch(r"double[234]?|double\dx\d", token.text):
            name = "long double" if source.text(index - 1) == "long" else token.text
            yield token, f"'{name}' is not supported in Metal"
        elif token.text == "long" and source.text(index + 1) == "long":
            yield token, "'long long' is not supported in Metal"
        elif token.kind == NUMBER and re.fullmatch(r"[0-9.]*\.?[0-9.]+(?:[eE][+-]?\d+)?[lL]", token.text):
            if "." in token.text or "e" in token.text.lower():
                yield token, "'long double' is not supported in Metal"


@_rule(9)
def no_bfloat(source: Source) -> Iterator[tuple[Token, str]]:
    for index, token in enumerate(source.tokens):
        if token.kind == IDENTIFIER and re.fullmatch(r"(?:packed_)?bfloat[234]?", token.text):
            if source.text(index - 1) not in (".", "->"):
                yield token, f"unknown type name '{token.text}': it needs Metal 3.1"


@_rule(10)
def no_lambdas(source: Source) -> Iterator[tuple[Token, str]]:
    for index, token in enumerate(source.tokens):
        if token.text != "[" or source.text(index + 1) == "[" or source.text(index - 1) == "[":
            continue
        before = source.tokens[index - 1] if index else None
        if before is not None and (
            before.text in (")", "]", ">") or before.kind == IDENTIFIER and before.text != "return"
        ):
            continue
        if source.text(matching(source.tokens, index) + 1) in ("(", "{"):
            yield token, "lambda expressions are not supported in Metal"


_FORBIDDEN = ("dynamic_cast", "typeid", "new", "delete", "noexcept", "virtual", "try", "catch", "throw", "thread_local")


@_rule(13)
def no_forbidden_constructs(source: Source) -> Iterator[tuple[Token, str]]:
    for index in source.words(*_FORBIDDEN):
        if source.text(index) == "delete" and source.text(index - 1) == "=":
            continue
        if source.text(index) == "virtual":
            yield source.tokens[index], "virtual member functions are not supported in Metal"
        else:
            yield source.tokens[index], f"'{source.text(index)}' is not supported in Metal"
    for index in source.words("asm", "__asm__", "__asm"):
        yield source.tokens[index], "illegal asm statement"
    for index in source.words("register"):
        yield source.tokens[index], "Metal does not support the 'register' storage class specifier"
    for index in source.words("goto"):
        yield source.tokens[index], "'goto' is not supported in Metal"
    for index, token in enumerate(source.tokens):
        if token.kind == IDENTIFIER and source.text(index + 1) == ":" and source.text(index - 1) in (";", "{", "}"):
            if token.text not in ("default", "public", "private", "protected") and source.in_body(index):
                yield token, "labeled statements are not supported in Metal"


@_rule(14)
def no_derived_classes(source: Source) -> Iterator[tuple[Token, str]]:
    for index in source.words("struct", "class"):
        if source.text(index + 2) == ":" and source.tokens[index + 1].kind == IDENTIFIER:
            yield source.tokens[index + 1], "derived classes are not supported in Metal"


@_rule(17)
def no_standard_library(source: Source) -> Iterator[tuple[Token, str]]:
    for index in source.words("std"):
        if source.text(index + 1) == "::":
            yield source.tokens[index], "use of undeclared identifier 'std'"


def _buffer_index(source: Source, attribute: Attribute) -> int | None:
    try:
        return integer_value(attribute.arguments, attribute.token)
    except ShaderError:
        return None


@_rule(18)
def resource_indices_are_in_range_and_unique(source: Source) -> Iterator[tuple[Token, str]]:
    for kernel in source.program.kernels:
        taken: set[tuple[str, int]] = set()
        for parameter in kernel.parameters:
            attribute = parameter.attribute("buffer", "threadgroup")
            index = _buffer_index(source, attribute) if attribute else None
            if attribute is None or index is None:
                continue
            if not 0 <= index <= LAST_BUFFER_INDEX:
                bounds = f"must be between 0 and {LAST_BUFFER_INDEX}"
                yield attribute.token, f"'{attribute.name}' attribute parameter is out of bounds: {bounds}"
            elif (attribute.name, index) in taken:
                yield attribute.token, f"cannot reserve '{attribute.name}' resource location at index {index}"
            taken.add((attribute.name, index))


@_rule(19)
def buffers_are_contiguous(source: Source) -> Iterator[tuple[Token, str]]:
    """metalcompute binds its arguments to 0, 1, 2, ...; a missing attribute takes the first free index."""
    for kernel in source.program.kernels:
        buffers = [parameter for parameter in kernel.parameters if _is_buffer(parameter)]
        attributes = [parameter.attribute("buffer") for parameter in buffers]
        explicit = {_buffer_index(source, attribute) for attribute in attributes if attribute is not None}
        if None in explicit:
            continue
        used = set(explicit)
        for attribute in attributes:
            if attribute is None:
                used.add(next(index for index in range(len(used) + 1) if index not in used))
        if used != set(range(len(buffers))) and len(explicit) == sum(a is not None for a in attributes):
            found = ", ".join(str(index) for index in sorted(index for index in used if index is not None))
            message = f"buffers of '{kernel.name.text}' are at {found}; metalcompute binds them from 0 without gaps"
            yield kernel.name, message


def _is_buffer(parameter: Parameter) -> bool:
    space = parameter.address_space
    return (parameter.is_pointer or parameter.is_reference) and space is not None and space.text != "threadgroup"


def _position_attribute(parameter: Parameter) -> Attribute | None:
    return parameter.attribute(*POSITION_ATTRIBUTES, *INDEX_ATTRIBUTES)


@_rule(20)
def buffers_are_pointers_or_references(source: Source) -> Iterator[tuple[Token, str]]:
    for kernel in source.program.kernels:
        for parameter in kernel.parameters:
            if parameter.is_pointer or parameter.is_reference or _position_attribute(parameter):
                continue
            written = spell(parameter.type)
            if parameter.attribute("buffer"):
                yield parameter.place, f"type '{written}' is not valid for attribute 'buffer'"
            elif not parameter.attributes:
                yield parameter.place, f"invalid type '{written}' for input declaration in a kernel function"


_SAME_TYPE = (
    ("thread_position_in_grid", "threads_per_grid"),
    ("thread_position_in_threadgroup", "threads_per_threadgroup", "dispatch_threads_per_threadgroup"),
)


@_rule(25)
def positions_agree(source: Source) -> Iterator[tuple[Token, str]]:
    for kernel in source.program.kernels:
        typed: list[tuple[str, int, str, Parameter]] = []
        for parameter in kernel.parameters:
            attribute = _position_attribute(parameter)
            if attribute is None:
                continue
            try:
                dimensions = position_dimensions(parameter, attribute)
            except ShaderError as found:
                yield parameter.place, found.message
                continue
            base = "ushort" if "short" in spell(parameter.type) or "16" in spell(parameter.type) else "uint"
            typed.append((attribute.name, dimensions, base, parameter))
        positions = [entry for entry in typed if entry[0] in POSITION_ATTRIBUTES]
        for first, second in pairwise(positions):
            if first[1] != second[1]:
                message = f"'{first[0]}' and '{second[0]}' must have the same number of components"
                yield second[3].place, message
        for group in _SAME_TYPE:
            members = [entry for entry in typed if entry[0] in group]
            for first, second in pairwise(members):
                if first[2] != second[2]:
                    yield second[3].place, f"'{first[0]}' and '{second[0]}' must have the same type"
        lanes = [entry for entry in typed if re.search("simdgroup|quadgroup", entry[0])]
        for first, second in pairwise(lanes):
            if first[2] != second[2]:
                yield second[3].place, f"'{first[0]}' and '{second[0]}' must have the same type"


_LATER_ATOMICS = {
    "atomic_float": "3.0",
    "atomic_bool": "2.4",
    "atomic_ulong": "2.4",
    "atomic_long": "2.4",
    "atomic_thread_fence": "3.2",
}


@_rule(35)
def atomics_are_int_and_relaxed(source: Source) -> Iterator[tuple[Token, str]]:
    for index in source.words(*_LATER_ATOMICS):
        name = source.text(index)
        yield source.tokens[index], f"unknown type name '{name}': it needs Metal {_LATER_ATOMICS[name]}"
    for index in source.words("atomic"):
        if source.text(index + 1) == "<":
            yield source.tokens[index], "no template named 'atomic': it needs Metal 2.4"
    for index in source.words(
        "memory_order_acquire", "memory_order_release", "memory_order_acq_rel", "memory_order_seq_cst"
    ):
        yield source.tokens[index], "an atomic operation's memory order must be memory_order_relaxed"


_LATER_SIMD = re.compile(r"(?:simd|quad)_shuffle_and_fill_(?:up|down)$")


@_rule(37)
def simd_functions_exist(source: Source) -> Iterator[tuple[Token, str]]:
    for index, token in enumerate(source.tokens):
        if _LATER_SIMD.match(token.text) and source.text(index + 1) == "(":
            yield token, f"use of undeclared identifier '{token.text}': it needs Metal 2.4"


@_rule(41)
def threadgroup_sizes_can_be_launched(source: Source) -> Iterator[tuple[Token, str]]:
    for kernel in source.program.kernels:
        attribute = kernel.attribute("max_total_threads_per_threadgroup")
        size = _buffer_index(source, attribute) if attribute else None
        if attribute is None or size is None:
            continue
        if size > 1024:
            yield attribute.token, f"({size}) must be <= 1024. (device threadgroup size limit)"
        elif size < 32 or size % 32:
            message = f"{size} threads per threadgroup: metalcompute launches multiples of 32 from 32 to 1024"
            yield attribute.token, message


_NOT_IN_METAL = re.compile(
    r"(?:erfc?|lgamma|tgamma|log1p|expm1|cbrt|hypot|remainder|nan|l?lrint|l?lround|printf|memcpy|memset|scalbn|logb|nearbyint"
    r"|(?:sin|cos|tan|asin|acos|atan|atan2|exp|exp2|log|log2|log10|sqrt|pow|fabs|floor|ceil|round|trunc|fmod|fma|fmin|fmax"
    r"|tanh|sinh|cosh)f)$"
)


@_rule(45)
def called_functions_are_in_the_library(source: Source) -> Iterator[tuple[Token, str]]:
    for index, token in enumerate(source.tokens):
        if token.kind != IDENTIFIER or source.text(index + 1) != "(" or not _NOT_IN_METAL.match(token.text):
            continue
        if token.text in source.program.functions or source.text(index - 1) in (".", "->"):
            continue
        yield token, f"use of undeclared identifier '{token.text}'"


_NOT_BY_METALCOMPUTE = {
    "texture": "textures",
    "sampler": "samplers",
    "stage_in": "[[stage_in]]",
    "threadgroup": "threadgroup memory as an argument",
    "function_constant": "function constants",
}


@_rule(50)
def metalcompute_can_pass_every_argument(source: Source) -> Iterator[tuple[Token, str]]:
    for kernel in source.program.kernels:
        for parameter in kernel.parameters:
            for attribute in parameter.attributes:
                if attribute.name in _NOT_BY_METALCOMPUTE:
                    yield attribute.token, f"metalcompute cannot pass {_NOT_BY_METALCOMPUTE[attribute.name]}"
            space = parameter.address_space
            if space is not None and space.text == "threadgroup" and parameter.attribute("threadgroup") is None:
                yield parameter.place, f"metalcompute cannot pass {_NOT_BY_METALCOMPUTE['threadgroup']}"
    for index in source.words("function_constant"):
        if source.text(index - 1) == "[":
            yield source.tokens[index], f"metalcompute cannot pass {_NOT_BY_METALCOMPUTE['function_constant']}"
