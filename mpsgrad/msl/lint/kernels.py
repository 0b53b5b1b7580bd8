"""Rules 15, 16, 20 to 23 and 27: kernel functions, and what they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mpsgrad.msl.analysis.source import Source, is_buffer
from mpsgrad.msl.analysis.types import Type, read_type
from mpsgrad.msl.lint.library import LIBRARY_FUNCTIONS
from mpsgrad.msl.lint.rule import Found, needs, rule
from mpsgrad.msl.overloads import namespaces_of
from mpsgrad.msl.program import Instantiation, Kernel, Parameter
from mpsgrad.msl.tokens import IDENTIFIER, STRING, matching_angle, spell


def _type(source: Source, parameter: Parameter) -> Type | None:
    read = read_type(parameter.type, 0, len(parameter.type), source.aliases, source.members)
    return read[0] if read is not None else None


@rule(
    15,
    "union",
    words="union member 'r' has reference type 'device int &'",
    why="A union of buffer types is legal; what cannot share its bytes, a reference or a base class, is not.",
)
def unions_hold_data(source: Source) -> Iterator[Found]:
    for index in source.words("union"):
        opening = index + 1
        while source.text(opening) not in ("{", ";", "(", ")", ""):
            opening += 1
        close = source.close(opening) if source.text(opening) == "{" else -1
        if close < 0:
            continue
        colon = next((k for k in range(index + 1, opening) if source.text(k) == ":"), None)
        if colon is not None:
            yield source.tokens[colon], "unions cannot have base classes"
        for variable in source.declarations_between(opening, close, depth_limit=True):
            if variable.is_reference:
                kind = f"{variable.type.space or 'thread'} {variable.type} &" if variable.type else "reference"
                yield source.tokens[variable.place], f"union member '{variable.name}' has reference type '{kind}'"


@rule(
    16,
    "kernel-function",
    words="kernel function cannot be a member function",
    why="The host finds a kernel by its name alone and passes it nothing but buffers.",
)
def kernels_are_plain_functions(source: Source) -> Iterator[Found]:
    """Kernels that are members, return something, are called main or variadic are refused where they are read."""
    tokens = source.tokens
    spaces = namespaces_of(tokens)
    for function in source.functions:
        is_free = function.kernel is None and function.owner is None
        if function.name == "main" and is_free and not any(a < function.start < b for a, b, _ in spaces):
            yield tokens[function.opening - 1], "non-qualified function cannot be called 'main'"
        if function.kernel is None and source.text(function.closing - 1) == "...":
            if source.text(function.closing - 2) in (",", "("):
                yield tokens[function.closing - 1], "variadic functions are not supported in Metal"
    plain = [kernel for kernel in source.program.kernels if kernel.template is None]
    names = Counter((*kernel.namespace, kernel.name.text) for kernel in plain)
    seen: set[tuple[str, ...]] = set()
    for kernel in plain:
        name = (*kernel.namespace, kernel.name.text)
        if names[name] > 1 and name in seen:
            yield kernel.name, f"kernel function '{kernel.name.text}' cannot be overloaded"
        seen.add(name)
    kernels = {kernel.name.text for kernel in source.program.kernels}
    for index in source.calls():
        name_text = source.text(index)
        if name_text not in kernels or name_text in source.program.functions or not source.in_body(index):
            continue
        if name_text in LIBRARY_FUNCTIONS:  # The arguments choose.
            continue
        if _is_lambdas_parameter(source, index):
            continue
        if source.variable(name_text, index) is None and not source.is_type(index) and source.text(index - 1) != "::":
            if source.kind(index - 1) != IDENTIFIER or source.text(index - 1) in ("return", "else", "do"):
                yield tokens[index], f"kernel function '{name_text}' cannot be called from another function"


def _is_lambdas_parameter(source: Source, index: int) -> bool:
    """Whether the name at ``index`` is a parameter's of a lambda expression around it."""
    for opening in source.places("("):
        close = source.close(opening)
        if source.text(opening - 1) == "]" and opening < index and source.text(close + 1) == "{":
            ends = (stop - 1 for _, stop in source.arguments(opening))
            if index < source.close(close + 1) and source.text(index) in map(source.text, ends):
                return True
    return False


@rule(
    20,
    "buffer-type",
    words="type 'uint' is not valid for attribute 'buffer'",
    why="What the host binds is memory, so a scalar too comes as 'constant T&'.",
)
def buffers_are_pointers_or_references(source: Source) -> Iterator[Found]:
    for kernel in source.program.kernels:
        for parameter in kernel.parameters:
            written = spell(parameter.type)
            space = parameter.address_space
            if parameter.is_pointer or parameter.is_reference:
                invalid = space is not None and (
                    space.text == "thread" or space.text == "threadgroup" and parameter.attribute("buffer") is not None
                )
                if invalid:
                    yield parameter.place, f"invalid address space qualification for buffer pointee type '{written}'"
                elif parameter.attribute("threadgroup") and space is not None and space.text != "threadgroup":
                    yield parameter.place, f"type '{written}' is not valid for attribute 'threadgroup'"
            elif parameter.attribute("buffer") and (_is_data(source, parameter) or _is_enumeration(source, parameter)):
                yield parameter.place, f"type '{written}' is not valid for attribute 'buffer'"
            elif not parameter.attributes and _is_data(source, parameter):
                yield parameter.place, f"invalid type '{written}' for input declaration in a kernel function"


def _is_data(source: Source, parameter: Parameter) -> bool:
    """Whether a parameter's type is a scalar, a vector, a matrix or a struct of the program's own."""
    kind = _type(source, parameter)
    return kind is not None and kind.known


def _is_enumeration(source: Source, parameter: Parameter) -> bool:
    names = {token.text for token in parameter.type if token.kind == IDENTIFIER}
    return any(
        source.text(index + 1 + (source.text(index + 1) in ("class", "struct"))) in names
        for index in source.words("enum")
    )


def _struct_words(source: Source, parameter: Parameter) -> set[str]:
    """The words that the members of a parameter's struct are declared with, those of structs in it too."""
    found: set[str] = set()
    todo = [token.text for token in parameter.type]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in source.members and name not in seen:
            seen.add(name)
            for start, end, _ in source.struct_bodies[name]:
                for variable in source.declarations_between(start, end, depth_limit=True):
                    words = source.words_before(variable.place, ",")
                    found.update(words)
                    todo += words
    return found


@rule(
    21,
    "long-buffer",
    words="type 'ulong' cannot be used in buffer pointee type",
    why="Buffers of 64-bit integers came with Metal 2.3.",
)
def long_buffers_need_metal_2_3(source: Source) -> Iterator[Found]:
    if source.version >= (2, 3):
        return
    for kernel in source.program.kernels:
        for parameter in kernel.parameters:
            kind = _type(source, parameter)
            if not is_buffer(parameter):
                continue
            held = sorted(_struct_words(source, parameter) & {"long", "ulong", "int64_t", "uint64_t"})
            if held:
                yield parameter.place, f"type '{held[0]}' cannot be used in buffer pointee type: {needs('2.3')}"
            elif kind is not None and kind.base in ("long", "ulong"):
                yield parameter.place, f"type '{kind.base}' cannot be used in buffer pointee type: {needs('2.3')}"


@rule(
    22,
    "size-t-argument",
    severity="warning",
    why="The specification keeps size_t and ptrdiff_t out of kernel arguments, though Apple's compiler takes them.",
)
def arguments_are_not_size_t(source: Source) -> Iterator[Found]:
    for kernel in source.program.kernels:
        for parameter in kernel.parameters:
            if is_buffer(parameter):
                for token in parameter.type:
                    if token.text in ("size_t", "ptrdiff_t"):
                        yield token, f"'{token.text}' is not specified for kernel arguments; use ulong or long"
                for name in sorted(_struct_words(source, parameter) & {"size_t", "ptrdiff_t"}):
                    message = f"'{name}', which '{parameter.name}' holds, is not specified for kernel arguments"
                    yield parameter.place, f"{message}; use ulong or long"


@rule(
    23,
    "texture-pointee",
    words="type 'texture2d<float>' cannot be used in buffer pointee type",
    why="A texture is a handle and no data; a buffer of them must be an argument buffer, a struct with [[id(n)]].",
)
def buffers_hold_no_textures(source: Source) -> Iterator[Found]:
    for kernel in source.program.kernels:
        for parameter in kernel.parameters:
            names = [token for token in parameter.type if token.kind == IDENTIFIER]
            first = next((t for t in names if t.text not in ("const", "device", "constant", "metal", "volatile")), None)
            if is_buffer(parameter) and first is not None and first.text == "sampler":
                yield first, "type 'sampler' cannot be used in buffer pointee type"
            elif is_buffer(parameter) and first is not None and first.text.startswith(("texture", "depth")):
                if "<" in (token.text for token in parameter.type):
                    pointee = spell(
                        [t for t in parameter.type if t.text not in ("*", "&", "device", "constant", "const")]
                    )
                    yield first, f"type '{pointee}' cannot be used in buffer pointee type"


@rule(
    27,
    "template-kernel",
    severity="warning",
    why="Only an explicit instantiation puts a template kernel into the library, where [[host_name]] names it.",
)
def template_kernels_are_instantiated(source: Source) -> Iterator[Found]:
    """Two functions with one host name are an error; a template that nothing instantiates compiles to nothing, which
    is how it should be in a header."""
    instantiated = {one.name.text for one in source.program.instantiations}
    templates = {kernel.name.text for kernel in source.program.kernels if kernel.template is not None}
    for kernel in source.program.kernels:
        is_own = kernel.name.file == source.filename and not source.is_header
        if kernel.template is not None and kernel.name.text not in instantiated and is_own:
            yield kernel.name, f"template kernel '{kernel.name.text}' is never instantiated, so no host can find it"
    hosts: set[str] = set()
    entries = [(kernel.name, kernel.attribute("host_name"), kernel) for kernel in source.program.kernels]
    for name, attribute, kernel in entries:
        if kernel.template is not None:
            continue
        text = "".join(token.text[1:-1] for token in attribute.arguments if token.kind == STRING) if attribute else ""
        if attribute is not None and text in hosts:
            yield attribute.token, f"host_name '{text}' is taken by another function", "error"
        hosts.add(text or "::".join((*kernel.namespace, name.text)))
    for one in source.program.instantiations:
        if one.name.text not in templates:
            message = f"explicit instantiation of '{one.name.text}' does not refer to a kernel function template"
            yield one.name, message, "error"
            continue
        if not any(_is_instantiated(source, kernel, one) for kernel in source.program.kernels):
            message = f"explicit instantiation of '{one.name.text}' does not refer to a kernel function template"
            yield one.name, f"{message}: its parameters are others", "error"
        host = one.attribute("host_name")
        if host is None:
            yield one.name, f"this instantiation of '{one.name.text}' has no [[host_name]], so no host can find it"
            continue
        text = "".join(token.text[1:-1] for token in host.arguments if token.kind == STRING)
        if text in hosts:
            yield host.token, f"host_name '{text}' is taken by another function", "error"
        hosts.add(text)


def _is_instantiated(source: Source, kernel: Kernel, one: Instantiation) -> bool:
    """Whether the parameters that ``one`` writes may be those of ``kernel``; they need not be written."""
    if kernel.template is None or kernel.name.text != one.name.text:
        return False
    tokens = source.tokens
    name = next(index for index in range(one.start, one.end) if tokens[index] is one.name)
    opening = (matching_angle(tokens, name + 1, one.end) or name) + 1
    if source.text(opening) != "(":
        return True
    written = source.arguments(opening)
    if len(written) != len(kernel.parameters):
        return any(token.text == "..." for parameter in kernel.parameters for token in parameter.type)
    values = {each.name: given for each, given in zip(kernel.template, one.arguments, strict=False)}
    for parameter, (start, end) in zip(kernel.parameters, written, strict=True):
        meant = [each for token in parameter.type for each in values.get(token.text, [token])]
        expected = read_type(meant, 0, len(meant), source.aliases, source.struct_bodies)
        given = read_type(tokens, start, end, source.aliases, source.struct_bodies)
        if expected is None or given is None or not (expected[0].known and given[0].known):
            continue
        kinds = {expected[0].value, given[0].value}
        if expected[0].pointers != given[0].pointers:
            # An array is a pointer, too.
            kinds = {kind._replace(pointers=0).value for kind in kinds}
        if len(kinds) > 1:
            return False
    return True
