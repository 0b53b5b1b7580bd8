"""From a template to a compiled function: shader families, parameter structs, rendering, and what is compiled of it.

A family is one file ``shaders/NAME.metal.j2`` with kernels that belong together, rendered once for each dtype. Its
parameter structs are declared once, here in Python; the Metal struct and the bytes that fill it both come from that
declaration. Rendered source carries ``#line`` directives, so that every compiler names the template's line. A function
is compiled at its first use, alone or with a few beside it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache as once
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad import kernels
from mpsgrad.devices import Buffer, Device, Function, Library
from mpsgrad.devices.contract import unknown_kernel
from mpsgrad.errors import ShaderError
from mpsgrad.outline import Outline
from mpsgrad.tunables import Tunables, set_tunables, tunables

if TYPE_CHECKING:
    import jinja2

DTYPES = ("float", "half")
DEVICE_FAMILIES = ("cpu", "apple", "nvidia")

_METAL_TYPES = {"int": ("i", np.int32), "uint": ("I", np.uint32), "float": ("f", np.float32)}


class ParameterStruct:
    """A Metal struct of 4-byte scalars and nested structs, declared by keyword: ``width="int"``, ``source=IMAGE``."""

    def __init__(self, name: str, **fields: str | ParameterStruct) -> None:
        self.name = name
        self.fields = fields
        self._packer = struct.Struct("=" + "".join(code for code, _ in self._scalars()))

    def _scalars(self) -> Iterator[tuple[str, type]]:
        for kind in self.fields.values():
            if isinstance(kind, ParameterStruct):
                yield from kind._scalars()
            else:
                yield _METAL_TYPES[kind]

    @cached_property
    def dtype(self) -> np.dtype:
        """The NumPy dtype with the same layout as the Metal struct."""
        return np.dtype(
            [
                (name, kind.dtype if isinstance(kind, ParameterStruct) else _METAL_TYPES[kind][1])
                for name, kind in self.fields.items()
            ]
        )

    @property
    def metal(self) -> str:
        """The declaration in Metal, nested structs not included."""
        kinds = {n: k.name if isinstance(k, ParameterStruct) else k for n, k in self.fields.items()}
        body = "\n".join(f"    {kind} {name};" for name, kind in kinds.items())
        return f"struct {self.name} {{\n{body}\n}};"

    def pack(self, **values: Any) -> bytes:
        """The struct's bytes. A nested struct's value is the tuple of its scalars in order."""
        if values.keys() != self.fields.keys():
            raise TypeError(f"{self.name} has the fields {', '.join(self.fields)} but was given {', '.join(values)}")
        flat: list[Any] = []
        for name, kind in self.fields.items():
            if isinstance(kind, ParameterStruct):
                flat += values[name]
            else:
                flat.append(values[name])
        return self._packer.pack(*flat)

    def values_in(self, buffer: Buffer) -> Any:
        """What ``pack`` made the bytes of, by name: a NumPy record over the beginning of a buffer of unified memory."""
        assert buffer.memory is not None
        return np.frombuffer(buffer.memory, self.dtype, 1)[0]


IMAGE_LAYOUT = ParameterStruct(
    "ImageLayout",
    offset="int",
    pixel_stride="int",
    row_stride="int",
    image_stride="int",
    width="int",
    height="int",
    channels="int",
    images="int",
)


@dataclass(frozen=True)
class Rendering:
    """Metal source and, for each of its lines, the template file and line that it was rendered from."""

    source: str
    origins: tuple[tuple[str, int], ...]

    @cached_property
    def _lines(self) -> list[str]:
        return self.source.splitlines()

    @cached_property
    def _outline(self) -> Outline:
        return Outline(self._lines)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernel functions in their order, but for those made of templates."""
        return self._outline.kernels

    def reduced_to(self, kernels: Collection[str]) -> Rendering:
        """What these kernel functions need, of ``kernels``."""
        kept = self._outline.lines_for(kernels)
        return Rendering("\n".join(self._lines[i] for i in kept) + "\n", tuple(self.origins[i] for i in kept))

    def with_line_directives(self) -> str:
        """The source with a ``#line`` directive wherever the origin is not the line after the one before it.

        Those that stay in a file do not name it.
        """
        lines = []
        expected: tuple[str | None, int] = None, 0
        for text, (file, line) in zip(self._lines, self.origins, strict=True):
            if file != expected[0]:
                lines.append(f'#line {line} "{file}"')
            elif line != expected[1]:
                lines.append(f"#line {line}")
            lines.append(text)
            expected = file, line + 1
        return "\n".join(lines) + "\n"


def _mark_lines(stream: Any) -> Iterable[Any]:
    """Puts a marker with template and line number at the start of each line of template text."""
    from jinja2.lexer import Token

    file = _shown(Path(stream.filename))
    at_line_start = True
    block_end = 0
    for token in stream:
        # The line end behind a block tag belongs to the tag, so what follows on a later line starts that line.
        at_line_start = at_line_start or 0 < block_end < token.lineno
        block_end = token.lineno if token.type == "block_end" else 0
        if token.type == "data":
            parts = token.value.split("\n")
            marked = []
            for index, part in enumerate(parts):
                start = index > 0 or at_line_start
                last = index == len(parts) - 1
                marked.append(_marker(file, token.lineno + index) + part if start and (part or not last) else part)
            at_line_start = parts[-1] == ""
            yield Token(token.lineno, "data", "\n".join(marked))
        else:
            if token.type == "variable_begin" and at_line_start:
                yield Token(token.lineno, "data", _marker(file, token.lineno))
                at_line_start = False
            yield token


def _marker(file: str, line: int) -> str:
    return f"\x01{file}\x02{line}\x03"


def _shown(file: Path) -> str:
    """What messages call a template: the folder's name and its own; the packaged ones are in ``shaders/``."""
    packaged = file.parent in (shader_directory(), shader_directory() / "lib")
    return f"{'shaders' if packaged else file.parent.name}/{file.name}"


def _strip_markers(text: str, template: str) -> Rendering:
    lines, origins = [], []
    # A line without a marker is a further line of an expression's value, which has one place.
    file, number = template, 1
    for marked in text.splitlines():
        pieces = marked.split("\x01")
        line = pieces[0]
        for piece in pieces[1:]:
            place, _, rest = piece.partition("\x03")
            if not line.strip():
                file, _, digits = place.partition("\x02")
                number = int(digits)
            line += rest
        lines.append(line.rstrip())
        origins.append((file, number))
    kept: list[int] = []
    for index, line in enumerate(lines):
        if line or (kept and lines[kept[-1]]):
            kept.append(index)
    return Rendering("\n".join(lines[i] for i in kept) + "\n", tuple(origins[i] for i in kept))


def shader_directory() -> Path:
    """The folder with the templates: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "shaders"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "shaders"


@once
def _environment(*folders: Path) -> jinja2.Environment:
    """Jinja for templates in ``folders``."""
    import jinja2
    import jinja2.ext

    class MarkLines(jinja2.ext.Extension):
        def filter_stream(self, stream: Any) -> Iterable[Any]:
            return _mark_lines(stream)

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        extensions=[MarkLines, "jinja2.ext.do"],
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


@dataclass(eq=False)
class ShaderFamily:
    """The kernels of one template.

    ``structs`` are the parameter structs that the template prints with ``{{ structs }}``, outer after nested;
    ``constants`` are further names for the template; ``tunables`` maps a device family to names that override
    ``constants`` there, and ``measured`` gives further ones from the numbers that were measured for it. ``template`` is
    the name of the file if several families share one; one that is not compiled ``ahead_of_time`` is compiled at its
    first use only. ``directory`` is the folder of a template that is not part of this package: it may include those
    that are, and is compiled at its first use. Only ``device_families`` use it.
    """

    name: str
    structs: tuple[ParameterStruct, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    tunables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measured: Callable[[Tunables], Mapping[str, Any]] = lambda numbers: {}
    dtypes: tuple[str, ...] = DTYPES
    template: str | None = None
    ahead_of_time: bool = True
    directory: Path | None = None
    device_families: tuple[str, ...] = DEVICE_FAMILIES

    def __post_init__(self) -> None:
        if self.directory is None:
            _families[self.name] = self
        self._renderings: dict[tuple[str, str, str, tuple[tuple[str, Any], ...]], Rendering] = {}
        self._libraries: dict[tuple[Device, str], Library] = {}
        self._functions: dict[tuple[Device, str, str, str], Function] = {}
        # Of functions that were forgotten, too: encodes that are remembered still use them.
        self._dtypes: dict[tuple[Device, str, Function], str] = {}
        self._lock = RLock()

    @property
    def file(self) -> str:
        return f"{self.template or self.name}.metal.j2"

    @property
    def _folders(self) -> tuple[Path, ...]:
        packaged = shader_directory(), shader_directory() / "lib"
        return packaged if self.directory is None else (self.directory, *packaged)

    @property
    def path(self) -> str:
        """What messages call the template."""
        return _shown(self._folders[0] / self.file)

    def render(self, dtype: str = "float", device_family: str = "cpu", tuning: str | None = None) -> Rendering:
        """Metal source for images of ``dtype`` and a device family, with the tunables of ``tuning`` or the family."""
        import jinja2

        values = {
            **self.constants,
            **self.tunables.get(device_family, {}),
            **self.measured(tunables(tuning or device_family)),
            "dtype": dtype,
            "structs": "\n\n".join(s.metal for s in self.structs),
        }
        try:
            text = _environment(*self._folders).get_template(self.file).render(values)
        except jinja2.TemplateSyntaxError as error:
            raise self._template_error(error.message or str(error), error.filename, error.lineno) from error
        except jinja2.TemplateNotFound as error:
            raise self._template_error(f"there is no template {error.name!r}", *_place(error)) from error
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._template_error(str(error), *_place(error)) from error
        return _strip_markers(text, self.path)

    def _template_error(self, message: str, file: str | None, line: int | None) -> ShaderError:
        if file is None or line is None:
            return ShaderError(message, file=self.path)
        text = "".join(Path(file).read_text().splitlines()[line - 1 : line])
        return ShaderError(
            message, file=_shown(Path(file)), line=line, column=_column(message, text), source_line=text
        )

    def source(self, device: Device, dtype: str) -> str:
        """All kernel functions for ``device``, with the ``#line`` directives of what it compiles."""
        return self._rendering(device, dtype).with_line_directives()

    def kernels(self, device: Device, dtype: str) -> tuple[str, ...]:
        """The names of the kernel functions that ``device`` can be asked for, but for those made of templates."""
        return self._rendering(device, dtype).kernels

    def function_source(self, device: Device, name: str, dtype: str) -> str:
        """What ``device`` compiles for the kernel function ``name``, everything if that is made of a template.

        Raises ``KeyError`` if there is none such.
        """
        rendering, count = self._rendering(device, dtype), device.kernels_of_program
        kernels = rendering.kernels
        if name in kernels:
            first = kernels.index(name) // count * count
            rendering = rendering.reduced_to(kernels[first : first + count])
        elif name not in rendering.source:
            raise unknown_kernel(name, kernels)
        return rendering.with_line_directives()

    def function(self, device: Device, name: str, dtype: str) -> Function:
        """The compiled kernel function ``name`` for images of ``dtype``, compiled at the first call."""
        function = self._functions.get((device, device.family, name, dtype))
        if function is None:
            with self._lock:
                source = self.function_source(device, name, dtype)
                if (device, source) not in self._libraries:
                    self._libraries[device, source] = device.compile(source, name=self.path)
                function = self._libraries[device, source].function(name)
                self._functions[device, device.family, name, dtype] = function
                self._dtypes[device, device.family, function] = dtype
        return function

    def _rendering(self, device: Device, dtype: str) -> Rendering:
        with self._lock:
            key = (dtype, device.family, device.tuning, tuple(self.measured(tunables(device.tuning)).items()))
            if key not in self._renderings:
                self._renderings[key] = self.render(dtype, device.family, device.tuning)
            return self._renderings[key]

    def dtype_of(self, function: Function, device: Device) -> str | None:
        """Which dtype's kernel ``function`` is, or None if it is none of this family's."""
        return self._dtypes.get((device, device.family, function))

    def forget_functions(self) -> None:
        """Has functions looked up anew at their next use, because the tunables of a device family changed."""
        with self._lock:
            self._functions.clear()


_families: dict[str, ShaderFamily] = {}


def family_of(candidates: Sequence[ShaderFamily], function_name: str) -> ShaderFamily:
    """The one of ``candidates`` whose name ``function_name`` begins with."""
    return next(family for family in candidates if function_name.startswith(family.name))


def families() -> dict[str, ShaderFamily]:
    """The families of this package by their names, all of them: modules that were not imported yet are."""
    kernels.import_all()
    return _families


def use_tunables(tuning: str, numbers: Tunables) -> None:
    """Has kernels that are made from now on work with other numbers."""
    set_tunables(tuning, numbers)
    for family in _families.values():
        family.forget_functions()


def _place(error: BaseException) -> tuple[str | None, int | None]:
    """The template file and line at which rendering stopped, from the traceback that Jinja rewrites."""
    place: tuple[str | None, int | None] = None, None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(".j2"):
            place = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return place


def _column(message: str, line: str) -> int | None:
    """Where in ``line`` the first thing is that ``message`` quotes, from 1; Jinja itself gives no columns."""
    for quoted in re.findall(r"'([^']+)'", message):
        found = re.search(rf"(?<!\w){re.escape(quoted)}(?!\w)", line)
        if found:
            return found.start() + 1
    return None
