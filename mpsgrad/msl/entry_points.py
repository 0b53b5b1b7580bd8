"""A program's kernel functions as the functions of the target that are launched, with their signatures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.backend import Backend, position_dimensions
from mpsgrad.msl.constant_expressions import constants_of
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.function_constants import FunctionConstants
from mpsgrad.msl.kernel_parameters import KernelParameters, position_attribute
from mpsgrad.msl.library_names import SCALAR_OR_VECTOR, LibraryNames
from mpsgrad.msl.parts import in_part
from mpsgrad.msl.program import ADDRESS_SPACES, Instantiation, Kernel, Parameter, Program, outside_angles
from mpsgrad.msl.reach import Reach
from mpsgrad.msl.rewriting import Rewriter
from mpsgrad.msl.signature import WHOLE, Argument, KernelSignature, Launch
from mpsgrad.msl.threadgroup_memory import with_memory_of_launches
from mpsgrad.msl.threadgroup_variables import with_outer_threadgroup_variables
from mpsgrad.msl.tokens import IDENTIFIER, PUNCTUATION, STRING, Token, error, matching, spell
from mpsgrad.msl.unguarded_copies import rewritten_with_copies

if TYPE_CHECKING:
    from mpsgrad.msl.analysis.guards import Guard


class EntryPoints:
    """Writes the kernel functions of one program for one target.

    ``signatures`` has those that are written, by name. ``reach`` knows what they use, ``parts`` in which part of the
    translation those are that begin at a token, ``checked`` is the name of the only kernel function to be written, None
    for all, what ``guards`` let threads do is written twice, and the kernels with the names ``adding`` are wide.
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        names: LibraryNames,
        rewriter: Rewriter,
        function_constants: FunctionConstants,
        launch: Launch,
        reach: Reach,
        parts: Mapping[int, int],
        checked: str | None,
        guards: Sequence[Guard],
        adding: Sequence[Token],
    ) -> None:
        self.signatures: dict[str, KernelSignature] = {}
        self._program = program
        self._tokens = program.tokens
        self._backend = backend
        self._names = names
        self._rewriter = rewriter
        self._function_constants = function_constants
        self._launch = launch
        self._launch_parameter = backend.launch_parameter(launch)[1]
        self._reach = reach
        self._parts = parts
        self._checked = checked
        self._guards = {id(guard.word): guard for guard in guards}
        self._adding = {id(name) for name in adding}
        self._parameters = KernelParameters(program)
        self._templates: dict[tuple[tuple[str, ...], str], list[Kernel]] = {}
        for kernel in program.kernels:
            if kernel.template is not None:
                self._templates.setdefault((kernel.namespace, kernel.name.text), []).append(kernel)
        self._taken: set[str] = set()
        self._binds_pointers = _binds_pointers(self._tokens)
        # Where what begins a kernel's body is said to stand.
        self._place = Token(PUNCTUATION, ";", "", 1, 1)

    def kernel(self, kernel: Kernel) -> list[Token]:
        """The tokens for a kernel function, or for a template of some."""
        if kernel.template is not None:
            return self._template_declaration(kernel)
        path = (*kernel.namespace, kernel.name.text)
        host_name = kernel.attribute("host_name")
        name = _host_name(host_name.arguments, host_name.token) if host_name else "::".join(path)
        if self._checked not in (None, name):
            return []
        self._refuse_twice(name, kernel.name)
        part = self._parts.get(kernel.start, WHOLE)
        function = self._function(kernel, name, self._unique("_".join(path)), {}, {}, part)
        return in_part(part, function, self._tokens[kernel.start], self._tokens[kernel.body_close])

    def instantiation(self, instantiation: Instantiation) -> list[Token]:
        """The tokens for an explicit instantiation of a template: a namespace where the template's parameters are
        declared, and the kernel function in it."""
        name = instantiation.name
        kernel = self._template(instantiation)
        host_name = instantiation.attribute("host_name")
        if host_name is not None:
            looked_up = _host_name(host_name.arguments, host_name.token)
        else:
            looked_up = f"{name.text}<{', '.join(spell(argument) for argument in instantiation.arguments)}>"
        if self._checked not in (None, looked_up):
            return []
        entry_point = re.sub(r"\W", "_", looked_up)
        said = self._tokens[kernel.parameters_open : kernel.body_close]
        if any(token.text == entry_point for part in (said, *instantiation.arguments) for token in part):
            # Inside of its namespace it would hide what the kernel means.
            entry_point += RENAMED_SUFFIX
        entry_point = self._unique(entry_point)
        bindings, substitution, functions = self._bindings(kernel, instantiation)
        # The body finds what the template would: names of the namespaces that it is in and this instantiation is not.
        spaces = [name.replaced(each) for each in (*instantiation.qualifiers, f"{entry_point}{RENAMED_SUFFIX}")]
        opening = [token for space in spaces for token in (name.replaced("namespace"), space, name.replaced("{"))]
        for token in opening + bindings:
            token.spaced = True
        self._refuse_twice(looked_up, name)
        part = self._parts.get(instantiation.start, WHOLE)
        function = self._function(kernel, looked_up, entry_point, substitution, functions, part)
        closing = [name.replaced("}") for _ in spaces]
        return in_part(part, [*opening, *bindings, *function, *closing], name, name)

    def _template_declaration(self, kernel: Kernel) -> list[Token]:
        """The template without its body, so that ``decltype(name<T>)`` still means something."""
        head = _without_attributes(self._tokens[kernel.start : kernel.parameters_close + 1])
        output = self._rewriter.rewrite([token for token in head if token.text != "kernel"])
        output.append(self._tokens[kernel.parameters_close].replaced(";"))
        return output

    def _template(self, instantiation: Instantiation) -> Kernel:
        name = instantiation.name
        scope = instantiation.namespace
        kernels = self._templates.get(((*scope, *instantiation.qualifiers), name.text))
        while kernels is None and scope:
            scope = scope[:-1]
            kernels = self._templates.get(((*scope, *instantiation.qualifiers), name.text))
        if kernels is None:
            raise error(
                f"explicit instantiation of '{name.text}', which is no kernel function template defined above", name
            )
        kernel = next((each for each in kernels if _takes(each, instantiation.arguments)), kernels[0])
        assert kernel.template is not None
        if len(instantiation.arguments) > len(kernel.template):
            raise error(f"too many template arguments for '{name.text}'", name)
        return kernel

    def _bindings(
        self, kernel: Kernel, instantiation: Instantiation
    ) -> tuple[list[Token], dict[str, str], dict[str, list[Token]]]:
        """Declarations of a template's parameters, what they stand for as it is written, and the functions that are to
        stand in the place of some."""
        name = instantiation.name
        bindings: list[Token] = []
        substitution: dict[str, str] = {}
        functions: dict[str, list[Token]] = {}
        for position, parameter in enumerate(kernel.template or ()):
            value = instantiation.arguments[position] if position < len(instantiation.arguments) else parameter.default
            if value is None:
                raise error(f"template argument '{parameter.name}' of '{name.text}' is missing", name)
            substitution[parameter.name] = spell([v.replaced(substitution.get(v.text, v.text)) for v in value])
            if parameter.names_function:
                functions[parameter.name] = value
                continue
            moved = self._rewriter.rewrite([token.at(name) for token in value])
            place = name.replaced(self._names.spelling(parameter.name))
            equals, end = name.replaced("="), name.replaced(";")
            if parameter.is_type or parameter.is_function:
                bindings += [name.replaced("using"), place, equals, *moved, end]
                continue
            kind = self._rewriter.rewrite([token.at(name, spaced=True) for token in parameter.kind])
            constexpr = [] if any(token.text == "constexpr" for token in kind) else [name.replaced("constexpr")]
            bindings += [*constexpr, *kind, place, equals, name.replaced("("), *moved, name.replaced(")"), end]
        return bindings, substitution, functions

    def _refuse_twice(self, name: str, place: Token) -> None:
        if name in self.signatures:
            raise error(f"two kernel functions are called '{name}'; give each its own [[host_name]]", place)

    def _unique(self, wanted: str) -> str:
        """The name of an entry point, ``wanted`` or, where that is taken, another one."""
        name = wanted if re.match(r"[A-Za-z_]", wanted) else f"_{wanted}"
        if name in self._backend.library_names or self._names.spelling(name) != name or self._names.has(name):
            name += RENAMED_SUFFIX
        number = 1
        unique = name
        while unique in self._taken:
            number += 1
            unique = f"{name}_{number}"
        self._taken.add(unique)
        return unique

    def _function(
        self,
        kernel: Kernel,
        name: str,
        entry_point: str,
        substitution: Mapping[str, str],
        functions: Mapping[str, Sequence[Token]],
        part: int,
    ) -> list[Token]:
        """The tokens of one entry point, with ``functions`` in the place of names in its body; notes its signature."""
        tokens = self._tokens
        self._place = tokens[kernel.body_open]
        threadgroup_size = self._parameters.threadgroup_size(kernel, substitution)
        uses_simdgroups = self._reach.uses_simdgroups(kernel)
        arguments, absent = self._arguments(kernel, substitution)
        positions = _positions(kernel)
        if self._launch == "whole":
            flat = threadgroup_size is not None and all(dimensions == 1 for *_, dimensions in positions)
        else:
            flat = uses_simdgroups
        special = [self._special_parameter(*each) for each in arguments]
        prologue = self._opening(kernel) + absent + [self._position(*position, flat) for position in positions]
        for (argument, parameter), found in zip(arguments, special, strict=True):
            if found is not None:
                prologue.append(self._place.replaced(found[1], IDENTIFIER))
            elif argument.is_reference:
                prologue.append(self._reference(parameter))
        body, threadgroup_bytes = self._body(kernel, functions)
        has_long_vectors = self._reach.has_long_vectors(kernel)
        is_wide = id(kernel.name) in self._adding and not uses_simdgroups and not has_long_vectors
        self.signatures[name] = KernelSignature(
            name=name,
            entry_point=entry_point,
            arguments=tuple(argument for argument, _ in arguments),
            threadgroup_size=threadgroup_size,
            line=kernel.name.line,
            file=kernel.name.file,
            uses_simdgroups=uses_simdgroups,
            unset_constants=self._unset_constants(kernel),
            threadgroup_bytes=threadgroup_bytes,
            part=part,
            is_wide=is_wide,
            required_threadgroup=self._parameters.required_threadgroup(kernel, substitution),
        )
        is_exact = threadgroup_size is not None and flat and self._launch == "whole"
        head = self._complete_types(arguments) + self._backend.kernel_head(
            kernel, entry_point, threadgroup_size, is_exact, uses_simdgroups, has_long_vectors, is_wide
        )
        first = tokens[kernel.start]
        output = [Token(IDENTIFIER, head, first.file, first.line, first.column, True)]
        output += self._parameter_list(kernel, arguments, special)
        rewritten = rewritten_with_copies(body, self._guards, self._rewriter, self._backend.last_position)
        output += [tokens[kernel.body_open], *prologue, *rewritten, tokens[kernel.body_close]]
        if self._launch_parameter:
            pointees = [
                "char" if argument.type == "void" else self._pointee(parameter) for argument, parameter in arguments
            ]
            output.append(tokens[kernel.body_close].replaced(self._backend.sizes(entry_point, pointees)))
        return output

    def _arguments(
        self, kernel: Kernel, substitution: Mapping[str, str]
    ) -> tuple[list[tuple[Argument, Parameter]], list[Token]]:
        """The arguments of an entry point in their order, and declarations of those that do not exist."""
        present: list[tuple[Argument, Parameter]] = []
        absent: list[Token] = []
        for argument, parameter in self._parameters.arguments(kernel, substitution, self._is_present):
            if self._is_present(parameter):
                present.append((argument, parameter))
            else:
                absent.append(self._absent(argument, parameter))
        return sorted(present, key=lambda pair: (pair[0].address_space == "threadgroup", pair[0].index)), absent

    def _opening(self, kernel: Kernel) -> list[Token]:
        """What an entry point's body begins with for the launch and for what it has of simdgroups."""
        opening = self._backend.launch_prologue(self._launch)
        opening += self._backend.simdgroup_prologue(self._reach.simd_names(kernel))
        return [self._place.replaced(opening, IDENTIFIER)] if opening else []

    def _body(self, kernel: Kernel, functions: Mapping[str, Sequence[Token]]) -> tuple[list[Token], int]:
        """What is between a kernel's braces, and the bytes of threadgroup memory that it takes from the launch."""
        body = self._tokens[kernel.body_open + 1 : kernel.body_close]
        if functions:
            body = [each for token in body for each in _in_place(token, functions.get(token.text))]
        if not self._backend.has_inner_threadgroup_variables:
            body = with_outer_threadgroup_variables(body)
        if self._backend.most_threadgroup_bytes is None:
            return body, 0
        own = constants_of(body, in_functions=True)
        return with_memory_of_launches(
            body, self._backend.most_threadgroup_bytes, lambda: {**self._parameters.constants, **own}
        )

    def _parameter_list(
        self,
        kernel: Kernel,
        arguments: Sequence[tuple[Argument, Parameter]],
        special: Sequence[tuple[str, str] | None],
    ) -> list[Token]:
        """The parameters of an entry point in their parentheses; the last one describes the launch, where that has one.

        ``special`` is what ``_special_parameter`` gives for each argument.
        """
        opening, closing = self._tokens[kernel.parameters_open], self._tokens[kernel.parameters_close]
        output = [opening]
        for (argument, parameter), found in zip(arguments, special, strict=True):
            if len(output) > 1:
                output.append(parameter.type[0].replaced(","))
            if found is not None:
                output.append(parameter.type[0].replaced(found[0], IDENTIFIER))
            else:
                output += self._parameter(argument, parameter)
        if self._launch_parameter:
            output.append(closing.replaced((", " if arguments else "") + self._launch_parameter))
        output.append(closing)
        return output

    def _special_parameter(self, argument: Argument, parameter: Parameter) -> tuple[str, str] | None:
        """What stands in the entry point's head and body for an argument that the target passes in a way of its own."""
        type_name = self._pointee(parameter).removeprefix("const ").removesuffix(" const")
        return self._backend.parameter(argument, type_name, self._names.spelling(parameter.name), self._launch)

    def _pointee(self, parameter: Parameter) -> str:
        """The type that a parameter points to, as the target writes it."""
        if len(parameter.pointee) == len(parameter.type):
            raise error(f"the type of the parameter '{parameter.name}' is malformed", parameter.place)
        pointee = parameter.pointee
        named = [
            token
            for index, token in enumerate(pointee)
            if token.text not in ADDRESS_SPACES or not outside_angles(pointee, index)
        ]
        return self._rewriter.text(named)

    def _complete_types(self, arguments: Sequence[tuple[Argument, Parameter]]) -> str:
        """Statements that make the compiler instantiate what arguments point to: it must know them at the signature."""
        types = [
            self._pointee(parameter)
            for argument, parameter in arguments
            if not SCALAR_OR_VECTOR.match(argument.type) or argument.type.startswith(("bool", "bfloat"))
        ]
        return "".join(f'static_assert(sizeof({name}) > 0, ""); ' for name in dict.fromkeys(types))

    def _is_present(self, parameter: Parameter) -> bool:
        """Whether the function constant that a parameter depends on, if any, is true."""
        attribute = parameter.attribute("function_constant")
        return attribute is None or self._function_constants.holds(attribute.arguments, attribute.token)

    def _absent(self, argument: Argument, parameter: Parameter) -> Token:
        """A declaration for an argument that does not exist: code that is never reached may still name it."""
        declared = self._rewriter.text(parameter.type)
        value = f"*({declared.replace('&', '*')})0" if argument.is_reference else "0"
        text = f"{declared} {self._names.spelling(parameter.name)} = {value};"
        return self._place.replaced(text, IDENTIFIER)

    def _parameter(self, argument: Argument, parameter: Parameter) -> list[Token]:
        output = []
        rewritten = self._rewriter.rewrite(parameter.type)
        last = next(token for token in reversed(rewritten) if token.text in ("*", "&"))
        for token in rewritten:
            if token.text in ("*", "&") and token is last:
                # A reference to a pointer is none to one that is known to have no aliases.
                is_plain = self._binds_pointers and not argument.is_reference
                token = token.replaced("*" if is_plain else self._backend.pointer(argument))
            output.append(token)
        name = self._names.spelling(parameter.name)
        if argument.is_reference:
            name = f"{parameter.name}_pointer{RENAMED_SUFFIX}"
        place = parameter.place
        output.append(Token(IDENTIFIER, name, place.file, place.line, place.column, True))
        return output

    def _reference(self, parameter: Parameter) -> Token:
        """The reference that a parameter is, made of the pointer that the entry point has in its place."""
        declared = self._rewriter.text(parameter.type)
        name = self._names.spelling(parameter.name)
        return self._at_place(f"{declared} {name} = *{parameter.name}_pointer{RENAMED_SUFFIX};")

    def _position(self, parameter: Parameter, attribute: str, dimensions: int, flat: bool) -> Token:
        """The variable that a parameter is that has a position or a size."""
        components = self._backend.position(attribute, dimensions, flat, self._launch)
        declared = self._rewriter.text(parameter.type)
        if dimensions == 1:
            value = components[0]
        else:
            written = "ushort" if "ushort" in declared else "uint"
            value = self._backend.vector(f"{written}{dimensions}", components)
            self._names.used.add(f"{written}{dimensions}")
        return self._at_place(f"{declared} {self._names.spelling(parameter.name)} = {value};")

    def _at_place(self, text: str) -> Token:
        place = self._place
        return Token(IDENTIFIER, text, place.file, place.line, place.column, True)

    def _unset_constants(self, kernel: Kernel) -> tuple[str, ...]:
        """The function constants without a value that ``kernel`` uses, itself or through what it names."""
        unset = self._function_constants.unset
        return tuple(sorted(unset & self._reach.names_and_constants(kernel))) if unset else ()


def _takes(kernel: Kernel, arguments: Sequence[Sequence[Token]]) -> bool:
    """Whether a template may be the one that is instantiated with ``arguments``."""
    parameters = kernel.template or ()
    if len(arguments) > len(parameters) or any(each.default is None for each in parameters[len(arguments) :]):
        return False
    for parameter, argument in zip(parameters, arguments, strict=False):
        is_value = argument[0].kind != IDENTIFIER or argument[0].text in ("true", "false")
        if parameter.is_type == is_value or (not parameter.is_type and built_in(argument[0].text) is not None):
            return False
    return True


def _binds_pointers(tokens: Sequence[Token]) -> bool:
    """Whether there are references to pointers: ``device float* thread&``."""
    for index, token in enumerate(tokens):
        if token.text == "&" and index > 2:
            before = index - 1
            while before > 0 and tokens[before].text in ("const", "thread"):
                before -= 1
            if tokens[before].text == "*":
                return True
    return False


def _in_place(token: Token, others: Sequence[Token] | None) -> list[Token]:
    """``others`` at the place of ``token``, or that where there are none."""
    return [token] if others is None else [other.at(token) for other in others]


def _positions(kernel: Kernel) -> list[tuple[Parameter, str, int]]:
    """The parameters of ``kernel`` that are positions, each with its attribute and its dimensions."""
    found = []
    for parameter in kernel.parameters:
        attribute = position_attribute(parameter)
        if attribute is not None:
            found.append((parameter, attribute.name, position_dimensions(parameter, attribute)))
    return found


def _without_attributes(tokens: Sequence[Token]) -> list[Token]:
    rest = []
    index = 0
    while index < len(tokens):
        if tokens[index].text == "[" and index + 1 < len(tokens) and tokens[index + 1].text == "[":
            index = matching(tokens, index) + 1
        else:
            rest.append(tokens[index])
            index += 1
    return rest


def _host_name(tokens: Sequence[Token], place: Token) -> str:
    if not tokens or any(token.kind != STRING or token.text[0] != '"' for token in tokens):
        raise error("host_name needs a string", place)
    name = "".join(token.text[1:-1] for token in tokens)
    if not name:
        raise error("host_name needs a string that is not empty", place)
    return name
