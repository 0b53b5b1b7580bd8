"""Apple GPUs through ``metalcompute`` (0.2.9): Metal compiles the source as it is, and buffers lie in shared memory.

What ``metalcompute`` does decides what a kernel may look like. It dispatches a 1-D grid in threadgroups of the
pipeline's largest size, which only ``[[max_total_threads_per_threadgroup(N)]]`` fixes, and divides by N / 32; it binds
whole buffers to consecutive indices and nothing else. Kernels that this would crash or misread are refused when they
are compiled.

It reports no failure of the GPU and has no GPU clock. Releasing a run's handle is the only way to wait for it; the wait
keeps Python's global lock, so other threads stand still meanwhile.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Sequence
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np

from mpsgrad.devices import translations
from mpsgrad.devices.contract import (
    LARGEST_THREADGROUP,
    Buffer,
    CompileOptions,
    Device,
    Dispatch,
    Function,
    Library,
    Submission,
    unknown_kernel,
)
from mpsgrad.errors import DeviceError, ShaderError
from mpsgrad.msl import KernelSignature, parse_compiler_log

INSTALL_HINT = "pip install metalcompute"
SIMD_WIDTH = 32

_SOURCE_NAME = "program_source"
_LINE_DIRECTIVE = re.compile(r'\s*#\s*(?:line\s+)?(\d+)(?:\s+"([^"]*)")?\s*$')
# metalcompute's Swift half numbers its errors one off from its C half, which prints the words: a pipeline state that
# cannot be made arrives as a command encoder.
_PIPELINE_ERRORS = ("Cannot create pipeline state", "Cannot create command encoder")


def _metalcompute() -> ModuleType:
    """The package; raises ``ImportError`` where it is missing."""
    return importlib.import_module("metalcompute")


def unavailable_reason() -> str | None:
    """Why no device of this driver can be used, in words that say what to install; None if there is one."""
    try:
        metalcompute = _metalcompute()
    except ImportError as error:
        if sys.platform != "darwin":
            return f"Metal exists only on macOS; there it needs the Python package metalcompute ({INSTALL_HINT})"
        if isinstance(error, ModuleNotFoundError):
            return f"the Python package metalcompute is not installed ({INSTALL_HINT})"
        return f"the Python package metalcompute cannot be imported: {error}"
    usable, unusable = _survey(metalcompute)
    if usable:
        return None
    return "; ".join(unusable) or "macOS lists no Metal device (virtual machines often have none)"


def devices() -> list[Device]:
    """The Apple GPUs of this machine; empty without ``metalcompute``."""
    try:
        metalcompute = _metalcompute()
    except ImportError:
        return []
    return list(_survey(metalcompute)[0])


def refused() -> list[str]:
    """One line for each Metal device that is present but cannot run the kernels, with the reason."""
    try:
        metalcompute = _metalcompute()
    except ImportError:
        return []
    return _survey(metalcompute)[1]


def _survey(metalcompute: ModuleType) -> tuple[list[MetalDevice], list[str]]:
    """The devices that can be used, and a line on each of the others."""
    usable: list[MetalDevice] = []
    unusable: list[str] = []
    try:
        listed = metalcompute.get_devices()
    except metalcompute.error as error:
        return [], [f"Metal devices cannot be listed: {error}"]
    for position, information in enumerate(listed):
        name = information.deviceName.strip()
        if not name.startswith("Apple"):
            unusable.append(f"{name}: is no Apple GPU, so its simdgroups need not have {SIMD_WIDTH} threads")
            continue
        try:
            usable.append(MetalDevice(metalcompute, position, information, len(usable)))
        except metalcompute.error as error:
            unusable.append(f"{name}: {error}")
    return usable, unusable


def _driver_version() -> str:
    try:
        version = importlib.metadata.version("metalcompute")
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    system = platform.mac_ver()[0]
    return f"{version}, macOS {system}" if system else version


class MetalBuffer(Buffer):
    """A Metal buffer in shared storage, which NumPy views through the buffer protocol."""

    def __init__(self, device: MetalDevice, handle: Any, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.handle = handle
        self._array = np.frombuffer(handle, np.uint8)[:nbytes]

    @property
    def memory(self) -> np.ndarray:
        return self._array

    def write(self, data: Any, byte_offset: int = 0) -> None:
        source = np.frombuffer(data, np.uint8)
        self._array[byte_offset : byte_offset + source.size] = source

    def read(self, byte_offset: int, nbytes: int) -> np.ndarray:
        return self._array[byte_offset : byte_offset + nbytes].copy()


class MetalFunction(Function):
    """A kernel function as ``metalcompute`` calls it: ``handle(threads, *buffers)``."""

    def __init__(self, handle: Any, signature: KernelSignature, threadgroup_size: int) -> None:
        self.name = signature.name
        self.signature = signature
        self.threadgroup_size = threadgroup_size
        self.handle = handle


class MetalLibrary(Library):
    """One compiled source. ``sizes`` has the threads per threadgroup of each kernel function."""

    def __init__(
        self, metalcompute: ModuleType, kernel: Any, signatures: dict[str, KernelSignature], sizes: dict[str, int]
    ) -> None:
        self._metalcompute = metalcompute
        self._kernel = kernel
        self._signatures = signatures
        self._sizes = sizes
        self._functions: dict[str, MetalFunction] = {}

    @property
    def function_names(self) -> tuple[str, ...]:
        return tuple(self._signatures)

    def function(self, name: str) -> MetalFunction:
        function = self._functions.get(name)
        if function is None:
            if name not in self._signatures:
                raise unknown_kernel(name, self._signatures)
            try:
                handle = self._kernel.function(name)
            except self._metalcompute.error as error:
                raise KeyError(f"Metal does not find the kernel function {name!r}: {error}") from error
            function = MetalFunction(handle, self._signatures[name], self._sizes[name])
            self._functions[name] = function
        return function


class MetalSubmission(Submission):
    """Holds the runs' handles, and each handle its buffers; releasing a handle blocks until its run has ended."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles

    def wait(self) -> None:
        self._handles.clear()

    @property
    def is_complete(self) -> bool:
        """Whether ``wait`` has returned: ``metalcompute`` cannot be asked without blocking."""
        return not self._handles

    @property
    def gpu_time(self) -> float | None:
        return None


class MetalDevice(Device):
    """One Apple GPU. ``compute_units`` is 0: ``metalcompute`` does not tell how many cores it has."""

    def __init__(self, metalcompute: ModuleType, position: int, information: Any, index: int) -> None:
        super().__init__(
            identifier=f"metal:{index}",
            name=information.deviceName.strip(),
            driver="metalcompute",
            driver_version=_driver_version(),
            family="apple",
            memory_bytes=information.recommendedWorkingSetSize,
            compute_units=0,
            unified_memory=True,
            features=frozenset({"half", "simdgroup"}),
        )
        self._metalcompute = metalcompute
        self._handle = metalcompute.Device(position)
        # The runs of one submission follow each other without any of another thread's between.
        self._starting = Lock()

    __hash__ = Device.__hash__

    def allocate(self, nbytes: int) -> MetalBuffer:
        try:
            # Metal makes no empty buffers, and metalcompute copies a NumPy integer instead of reading its value.
            handle = self._handle.buffer(max(int(nbytes), 1))
        except (self._metalcompute.error, OverflowError) as error:
            raise DeviceError(
                f"{self.identifier}: cannot allocate {nbytes} bytes; the device has {self.memory_bytes} in all"
            ) from error
        return MetalBuffer(self, handle, nbytes)

    def translate(self, source: str, *, name: str) -> str:
        """``source`` without its ``#line`` directives.

        Whether Metal's run-time compiler follows them is not documented, so ``compile`` maps its line numbers itself.
        """
        return _without_line_directives(source, name)[0]

    def is_compiled(self, source: str, *, name: str) -> bool:
        """True: Metal compiles within milliseconds, has a cache of its own on disk, and cannot be asked what is in it.

        So importing the package compiles nothing here, and each source is compiled at its first use.
        """
        return True

    def compile(self, source: str, *, name: str, options: CompileOptions | None = None) -> MetalLibrary:
        """As the contract has it, but raises ``NotImplementedError`` for what ``metalcompute`` cannot pass on."""
        if options is not None:
            _require_passable(options)
        translation = translations.translated(source, "opencl", name)
        signatures = translation.kernels
        if translation.function_constants:
            names = ", ".join(constant.name for constant in translation.function_constants)
            raise NotImplementedError(f"{self.identifier}: metalcompute cannot set function constants ({names})")
        text, origins = _without_line_directives(source, name)
        lines = text.splitlines()
        sizes = {}
        for signature in signatures.values():
            reason = _not_dispatchable(signature)
            if reason is not None:
                place = (signature.file, signature.line)
                shown = (line for line, origin in zip(lines, origins, strict=True) if origin == place)
                raise ShaderError(
                    f"kernel function '{signature.name}' {reason}",
                    file=signature.file,
                    line=signature.line,
                    # A template's loop gives several kernel functions one place.
                    source_line=next((line for line in shown if signature.name in line), None),
                )
            assert signature.threadgroup_size is not None
            sizes[signature.name] = signature.threadgroup_size
        try:
            kernel = self._handle.kernel(text)
        except self._metalcompute.error as error:
            raise _shader_error(str(error), lines, origins, name) from error
        return MetalLibrary(self._metalcompute, kernel, signatures, sizes)

    def submit(self, dispatches: Sequence[Dispatch], label: str | None = None) -> MetalSubmission:
        for dispatch in dispatches:
            _require_row(dispatch)
            expected = len(dispatch.function.signature.arguments)
            if len(dispatch.buffers) != expected:
                raise DeviceError(
                    f"{dispatch.function.name}: takes {expected} buffers but was given {len(dispatch.buffers)}"
                )
        handles: list[Any] = []
        with self._starting:
            for dispatch in dispatches:
                function = dispatch.function
                assert isinstance(function, MetalFunction)
                assert isinstance(dispatch.threadgroups, int)
                threads = dispatch.threadgroups * function.threadgroup_size
                try:
                    handles.append(function.handle(threads, *[buffer.handle for buffer in dispatch.buffers]))  # type: ignore[attr-defined]
                except self._metalcompute.error as error:
                    handles.clear()
                    raise DeviceError(_refusal(function, str(error))) from error
        return MetalSubmission(handles)


def _require_passable(options: CompileOptions) -> None:
    """Raises ``NotImplementedError`` for options of the compiler that ``metalcompute`` does not set."""
    if not options.fast_math:
        raise NotImplementedError("metalcompute compiles with fast math only; fast_math=False is not possible")
    if options.function_constants:
        raise NotImplementedError("metalcompute cannot set function constants")


def _require_row(dispatch: Dispatch) -> None:
    """Raises ``NotImplementedError`` unless ``dispatch`` is one of whole threadgroups in a row."""
    size = dispatch.function.threadgroup_size
    name = dispatch.function.name
    if isinstance(dispatch.threadgroups, tuple) or dispatch.threads is not None:
        raise NotImplementedError(
            f"{name}: metalcompute dispatches grids of one dimension in whole threadgroups only, not "
            f"{dispatch.threads or dispatch.threadgroups}"
        )
    if dispatch.threadgroup not in (None, (size, 1, 1)):
        raise NotImplementedError(
            f"{name}: metalcompute dispatches threadgroups of {size} threads as the kernel declares, not "
            f"{dispatch.threadgroup}"
        )
    if dispatch.threadgroup_memory:
        raise NotImplementedError(f"{name}: metalcompute cannot set the length of [[threadgroup(n)]] arguments")


def _not_dispatchable(signature: KernelSignature) -> str | None:
    """Why ``metalcompute`` could not run the kernel function as declared, or None if it can."""
    size = signature.threadgroup_size
    if size is None:
        return "needs [[max_total_threads_per_threadgroup(N)]]: without it the threadgroups' size on Metal is not known"
    if not SIMD_WIDTH <= size <= LARGEST_THREADGROUP or size % SIMD_WIDTH:
        return (
            f"has max_total_threads_per_threadgroup({size}), but on Metal it must be a multiple of {SIMD_WIDTH} "
            f"from {SIMD_WIDTH} to {LARGEST_THREADGROUP}"
        )
    for argument in signature.arguments:
        if argument.address_space == "threadgroup":
            return f"has the threadgroup argument '{argument.name}', whose length metalcompute cannot set"
        if argument.holds_pointers:
            return f"has the argument '{argument.name}', which holds pointers: metalcompute cannot fill them in"
    indices = [argument.index for argument in signature.arguments]
    if not indices:
        return "takes no buffer, and metalcompute runs nothing without one"
    if indices != list(range(len(indices))):
        return f"has the buffer indices {', '.join(map(str, indices))}, but metalcompute binds consecutive ones from 0"
    return None


def _without_line_directives(source: str, name: str) -> tuple[str, list[tuple[str, int]]]:
    """``source`` without ``#line`` directives, and for each line left the file and line that they gave it."""
    lines: list[str] = []
    origins: list[tuple[str, int]] = []
    file, number = name, 1
    for text in source.splitlines():
        directive = _LINE_DIRECTIVE.match(text)
        if directive:
            number = int(directive[1])
            file = file if directive[2] is None else directive[2]
            continue
        lines.append(text)
        origins.append((file, number))
        number += 1
    return "\n".join(lines) + "\n", origins


def _shader_error(log: str, lines: list[str], origins: list[tuple[str, int]], name: str) -> ShaderError:
    """The compiler's first error, pointing at the line of Metal source that it came from."""
    errors = [entry for entry in parse_compiler_log(log, "opencl") if entry.severity == "error"]
    if not errors:
        return ShaderError(f"the Metal compiler failed: {log}", file=name)
    first = next((entry for entry in errors if entry.file == _SOURCE_NAME), errors[0])
    if first.file != _SOURCE_NAME or not 1 <= first.line <= len(lines):
        return ShaderError(first.message, file=first.file, line=first.line, column=first.column)
    file, line = origins[first.line - 1]
    return ShaderError(first.message, file=file, line=line, column=first.column, source_line=lines[first.line - 1])


def _refusal(function: MetalFunction, words: str) -> str:
    text = f"{function.name}: the device refused the dispatch: {words}"
    if words in _PIPELINE_ERRORS:
        text += (
            f"; the pipeline state cannot be made, as when a kernel has more threadgroup memory or more threads per "
            f"threadgroup ({function.threadgroup_size}) than the device"
        )
    return text
