"""Normalization by the values around: across channels, of pixels, by local contrast; and the gradients."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError, StateError
from mpsgrad.geometry import LARGEST_POSITION, EdgeMode, ceiling_divide, integer
from mpsgrad.image import Image
from mpsgrad.kernel import IMAGE_LAYOUT, BaseKernel, GradientKernel, Kernel, Regions
from mpsgrad.kernel_property import RealProperty
from mpsgrad.kernels.divisor import DIVISOR
from mpsgrad.kernels.format_conversion import add_conversion
from mpsgrad.kernels.pointwise import Layout, dense_layout
from mpsgrad.kernels.walk import (
    CONSTANTS,
    CPU_CONSTANTS_WITH_LINES,
    DIVISORS,
    divisors_of,
    threads_of,
    walk_of,
    works_by_rows,
)
from mpsgrad.kernels.window_strips import NUMBERS, add_forward, add_gradient
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.state import ForwardSnapshot, GradientState
from mpsgrad.tunables import tunables

PARAMETERS = ParameterStruct(
    "ResponseNormalizationParameters",
    gradient=IMAGE_LAYOUT,
    source=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    shift_x="int",
    shift_y="int",
    source_x="int",
    source_y="int",
    before_x="int",
    behind_x="int",
    before_y="int",
    behind_y="int",
    **NUMBERS,
    blocks="int",
    **DIVISORS,
)
"""``shift`` is where destination pixel 0 lies in the image with the windows, ``share`` is 1 / N, and ``slope`` the
constant of the gradient's factors. ``alpha`` is over N. The destination has ``blocks`` of rows on GPUs, whose divisors
are of the threads of a pixel, of pixels along x and of blocks along y."""
MOST_CHANNELS_BY_LINES = 15
"""On CPUs: more fill half of the lanes of a pixel of their own, which then need not test each column of a window."""
FORWARD_CHANNELS_OF_EIGHTS = (8, *range(11, 25))
GRADIENT_CHANNELS_OF_EIGHTS = range(8, 32)
"""On CPUs with few registers: of so many, threads that work alone take eight at a time. Simdgroups would leave lanes
without a channel idle, or ask of each lane where its windows end."""
FEWEST_TAPS_AS_FLOATS = 1 << 16
"""CPUs with few registers load halves one by one where a pixel does not fill a simdgroup. From so many taps of windows
on halves are converted before and after, which takes less than that does."""
THREADS_OF_ROW = 32
"""Of a CPU: one row for each threadgroup, since rows take long, and images have few of them."""
ROWS_OF_COLUMNS = 4
"""Of windows around pixels a thread of a GPU has so many below each other, which share most of what it loads."""
CHANNELS_AT_ONCE = 5
"""Gradients across so many channels are one kernel on GPUs where these have vectors."""
FEWEST_THREADS_OF_COLUMNS = 1 << 17
"""Fewer would not keep a GPU busy: then each has one pixel."""
FAMILY = ShaderFamily(
    "response_normalization",
    (IMAGE_LAYOUT, DIVISOR, PARAMETERS),
    {**CONSTANTS, "rows_of_columns": (1, ROWS_OF_COLUMNS)},
    {"cpu": {**CPU_CONSTANTS_WITH_LINES, "threads_of_row": THREADS_OF_ROW}},
    ahead_of_time=False,
)


class ResponseNormalizationGradientState(GradientState):
    """The state of a normalization by the values around: its snapshot, and the values of the kernel's parameters.

    Source: ``MPSNNGradientState``.
    """

    def __init__(
        self,
        kernel: _ResponseNormalization,
        snapshot: ForwardSnapshot,
        *,
        command_buffer: CommandBuffer | None = None,
    ) -> None:
        super().__init__(snapshot, (), kernel.device, command_buffer=command_buffer)
        self.settings = kernel._settings

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        return (self.snapshot, tuple(self.settings.items()))


class _Response:
    """What a forward kernel and its gradient kernel share: the parameters, and the shader's values for them."""

    alpha = RealProperty(1.0, "The factor of the sum, or of the variance.", minimum=0.0)
    beta = RealProperty(5.0, "The exponent.")
    delta = RealProperty(1.0, "What is added before the power is taken.")

    supported_edge_modes: ClassVar[tuple[EdgeMode, ...]] = (EdgeMode.ZERO,)
    remembers_encodes: ClassVar[bool] = True
    _function: ClassVar[str]
    _parameter_names: ClassVar[tuple[str, ...]] = ("alpha", "beta", "delta")
    _size: tuple[int, int]

    @property
    def _settings(self) -> dict[str, Any]:
        """The parameters by name, and the size of the window."""
        return {"window": self._size, **{name: getattr(self, name) for name in self._parameter_names}}

    def _numbers(self) -> dict[str, Any]:
        """The shader's parameters that do not depend on images."""
        width, height = self._size
        share = 1.0 / (width * height)
        return {
            "before_x": width // 2,
            "behind_x": (width - 1) // 2,
            "before_y": height // 2,
            "behind_y": (height - 1) // 2,
            "alpha": self.alpha * share,
            "beta": self.beta,
            "delta": self.delta,
            "p0": getattr(self, "p0", 0.0),
            "pm": getattr(self, "pm", 0.0),
            "ps": getattr(self, "ps", 1.0),
            "share": share,
            "slope": 2.0 * self.alpha * self.beta * share,
        }

    def _works_by_eights(self, device: Device, channels: int, is_forward: bool) -> bool:
        """Whether threads of a CPU go through windows around pixels for eight channels at a time."""
        if not works_by_rows(device) or "cross" in self._function or tunables(device.tuning).has_many_registers:
            return False
        return channels in (FORWARD_CHANNELS_OF_EIGHTS if is_forward else GRADIENT_CHANNELS_OF_EIGHTS)

    def _takes_floats(
        self, device: Device, metal_type: str, source: Layout, destination: Layout, is_forward: bool
    ) -> bool:
        """Whether windows over ``source`` around the pixels of ``destination`` are sooner gone through in float32."""
        (columns, rows), (*_, width, height, channels, images) = self._size, destination
        return (
            metal_type == "half"
            and rows > 1
            and walk_of(device, [source, destination]) == "short_pixels"
            and not tunables(device.tuning).has_many_registers
            and not self._works_by_eights(device, channels, is_forward)
            and columns * rows * width * height * channels * images >= FEWEST_TAPS_AS_FLOATS
        )

    def _add(
        self,
        command_buffer: CommandBuffer,
        suffix: str,
        metal_type: str,
        buffers: tuple[Buffer, ...],
        layouts: dict[str, Layout],
        shift: tuple[int, int],
        source_shift: tuple[int, int] = (0, 0),
    ) -> None:
        device = command_buffer.device
        is_across = "cross" in self._function
        takes_lines = is_across or layouts["source"][6] <= MOST_CHANNELS_BY_LINES
        walk = walk_of(device, list(layouts.values()), has_line=takes_lines)
        if self._works_by_eights(device, layouts["source"][6], is_forward=not suffix):
            walk = "eights"
        *_, width, height, _, _ = destination = layouts["destination"]
        blocks = height
        if not is_across and not works_by_rows(device):
            blocks = ceiling_divide(height, ROWS_OF_COLUMNS)
            rows = ROWS_OF_COLUMNS
            if threads_of(walk, destination, width, blocks) < FEWEST_THREADS_OF_COLUMNS:
                blocks, rows = height, 1
            suffix = f"{suffix}_of_{rows}_rows"
        function = FAMILY.function(device, f"{self._function}{suffix}_by_{walk}", metal_type)
        parameters = PARAMETERS.pack(
            gradient=layouts.get("gradient", layouts["source"]),
            source=layouts["source"],
            destination=destination,
            shift_x=shift[0],
            shift_y=shift[1],
            source_x=source_shift[0],
            source_y=source_shift[1],
            **self._numbers(),
            blocks=blocks,
            **divisors_of(walk, destination, width, blocks),
        )
        threads = threads_of(walk, destination, width, blocks)
        command_buffer.add_dispatch(
            function, -(-threads // function.threadgroup_size), *buffers, device.constant_buffer(parameters)
        )


def _floats(command_buffer: CommandBuffer, layout: Layout) -> tuple[Buffer, Layout]:
    """Scratch memory for an image of the extents of ``layout``."""
    dense = dense_layout(*layout[4:])
    return command_buffer.scratch(4 * dense[3] * dense[7]), dense


def _as_floats(command_buffer: CommandBuffer, halves: tuple[Buffer, Layout]) -> tuple[Buffer, Layout]:
    """A copy of an image of ``halves``."""
    floats = _floats(command_buffer, halves[1])
    add_conversion(command_buffer, "half", halves, floats)
    return floats


class _ResponseNormalization(_Response, Kernel[ResponseNormalizationGradientState]):
    """A forward kernel."""

    def _make_state(
        self, source: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> ResponseNormalizationGradientState:
        snapshot = self._shared_snapshot(source, destination)
        return ResponseNormalizationGradientState(self, snapshot, command_buffer=command_buffer)

    def _require_state(self, state: Any, source: Image, destination: Image) -> None:
        super()._require_state(state, source, destination)
        for name, value in self._settings.items():
            if state.settings[name] != value:
                raise StateError(
                    f"{type(self).__name__}: {name} is {value} but destination_state was made when it was "
                    f"{state.settings[name]}; make the state after the last property is set"
                )

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        metal_type = source.channel_format.metal_type
        read, made = (source.buffer, regions.sources[0]), (destination.buffer, regions.destination)
        offset = self.offset.x, self.offset.y
        if add_forward(
            command_buffer, self._function, self._size[0], metal_type, read, made, offset, self._numbers()
        ):
            return
        takes_floats = self._takes_floats(command_buffer.device, metal_type, read[1], made[1], is_forward=True)
        if takes_floats:
            read, made = _as_floats(command_buffer, read), _floats(command_buffer, made[1])
        self._add(
            command_buffer,
            "",
            "float" if takes_floats else metal_type,
            (read[0], made[0]),
            {"source": read[1], "destination": made[1]},
            offset,
        )
        if takes_floats:
            add_conversion(command_buffer, "float", made, (destination.buffer, regions.destination))


class _ResponseNormalizationGradient(_Response, GradientKernel):
    """A gradient kernel. Its parameters have to be those of the forward kernel."""

    @property
    def _is_made_at_once(self) -> bool:
        """Whether GPUs have a kernel that makes both passes."""
        return False

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        for name, value in self._settings.items():
            if state.settings[name] != value:
                raise StateError(
                    f"{type(self).__name__}: {name} is {value} but that of gradient_state's kernel was "
                    f"{state.settings[name]}"
                )

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        first = self.secondary_offset
        behind = first.x + regions.width, first.y + regions.height
        if min(first.x, first.y) < 0 or behind[0] > source_image.width or behind[1] > source_image.height:
            raise GeometryError(
                f"{type(self).__name__}: the destination is {regions.width} wide and {regions.height} high and begins "
                f"at pixel ({first.x}, {first.y}) of source_image but that is {source_image.width} x "
                f"{source_image.height}"
            )
        gradient, dx, dy = self._pointwise_gradient(regions.sources[0], state)
        *_, width, height, channels, images = gradient
        metal_type = source_image.channel_format.metal_type
        source = regions.sources[1]
        layouts = {"gradient": gradient, "source": source, "destination": regions.destination}
        if self._is_made_at_once and walk_of(command_buffer.device, list(layouts.values())) == "element4":
            self._add(
                command_buffer,
                "_gradient_at_once",
                metal_type,
                (source_gradient.buffer, source_image.buffer, destination.buffer),
                layouts,
                (dx, dy),
                (first.x, first.y),
            )
            return
        offset = state.snapshot.offset.x, state.snapshot.offset.y
        if (first.x - dx, first.y - dy) == offset and add_gradient(
            command_buffer,
            self._function,
            self._size[0],
            metal_type,
            (source_gradient.buffer, source_image.buffer, destination.buffer),
            layouts,
            offset,
            (dx, dy),
            self._numbers(),
        ):
            return
        dense = dense_layout(width, height, channels, images)
        count = 3 if "p0" in self._parameter_names else 2
        scratch = tuple(command_buffer.scratch(4 * width * height * channels * images) for _ in range(count))
        incoming, read = (source_gradient.buffer, gradient), (source_image.buffer, source)
        takes_floats = self._takes_floats(command_buffer.device, metal_type, source, dense, is_forward=False)
        if takes_floats:
            incoming, read = _as_floats(command_buffer, incoming), _as_floats(command_buffer, read)
        self._add(
            command_buffer,
            "_factors",
            "float" if takes_floats else metal_type,
            (incoming[0], read[0], *scratch),
            {"gradient": incoming[1], "source": read[1], "destination": dense},
            offset,
        )
        self._add(
            command_buffer,
            "_gradient",
            metal_type,
            (source_image.buffer, *scratch, destination.buffer),
            {"gradient": dense, "source": source, "destination": regions.destination},
            (dx, dy),
            (first.x, first.y),
        )


class _AcrossChannels:
    """The window of both kernels across channels."""

    _function: ClassVar[str] = "cross_channel_normalization"
    _size: tuple[int, int]

    @property
    def _is_made_at_once(self) -> bool:
        return self._size[0] == CHANNELS_AT_ONCE

    @property
    def kernel_size(self) -> int:
        """How many channels a sum is over."""
        return self._size[0]


def _channels(owner: str, kernel_size: int) -> tuple[int, int]:
    size = integer(owner, "kernel_size", kernel_size, 1)
    if size > LARGEST_POSITION:
        raise GeometryError(f"{owner}: kernel_size is {size}; it has to be at most {LARGEST_POSITION}")
    return size, 1


def _square(owner: str, kernel_width: int, kernel_height: int) -> tuple[int, int]:
    width, height = integer(owner, "kernel_width", kernel_width, 1), integer(owner, "kernel_height", kernel_height, 1)
    if width != height:
        raise GeometryError(f"{owner}: kernel_width is {width} but kernel_height {height}; the window has to be square")
    return width, height


class CrossChannelNormalization(_AcrossChannels, _ResponseNormalization):
    """``y[c] = x[c] / (delta + alpha / N * sum x[q]^2) ^ beta`` of each pixel.

    The sum is over the channels ``c - N // 2`` to ``c + (N - 1) // 2`` that exist, N being ``kernel_size``. A base that
    is not positive gives an undefined result. Raises ``GeometryError`` for a ``kernel_size`` below 1 and a negative
    alpha. Source: ``MPSCNNCrossChannelNormalization``.
    """

    # objc: -initWithDevice:kernelSize:
    def __init__(self, kernel_size: int = 5, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(device=device, label=label)
        self._size = _channels(type(self).__name__, kernel_size)


class CrossChannelNormalizationGradient(_AcrossChannels, _ResponseNormalizationGradient):
    """The gradient of ``CrossChannelNormalization``. Source: ``MPSCNNCrossChannelNormalizationGradient``.

    With ``L`` the base of the power, and the sum over the channels whose windows channel ``c`` is in::

        dx[c] = g[c] L[c]^-beta - 2 alpha beta / N x[c] sum_r g[r] x[r] L[r]^(-beta - 1)

    Apple prints the second term without ``1 / N``, which is not the derivative. Parameters have to be the forward
    kernel's.
    """

    forward_kernels = ("CrossChannelNormalization",)

    # objc: -initWithDevice:kernelSize:
    def __init__(self, kernel_size: int = 5, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(device=device, label=label)
        self._size = _channels(type(self).__name__, kernel_size)


class _AroundPixels(_Response):
    """The window of kernels over pixels."""

    def _take_window(self, kernel_width: int, kernel_height: int) -> None:
        self._size = _square(type(self).__name__, kernel_width, kernel_height)
        self._set_window(*self._size, 1, 1, 1, 1)  # type: ignore[attr-defined]


class _ForwardAroundPixels(_AroundPixels, _ResponseNormalization):
    # objc: -initWithDevice:kernelWidth:kernelHeight:
    def __init__(
        self, *, kernel_width: int, kernel_height: int, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._take_window(kernel_width, kernel_height)


class _GradientAroundPixels(_AroundPixels, _ResponseNormalizationGradient):
    # objc: -initWithDevice:kernelWidth:kernelHeight:
    def __init__(
        self, *, kernel_width: int, kernel_height: int, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._take_window(kernel_width, kernel_height)

    @property
    def kernel_width(self) -> int:
        """Taps along x."""
        return self._size[0]

    @property
    def kernel_height(self) -> int:
        """Taps along y."""
        return self._size[1]


class SpatialNormalization(_ForwardAroundPixels):
    """``y = x / (delta + alpha / N * sum x^2) ^ beta`` for each channel. Source: ``MPSCNNSpatialNormalization``.

    The sum is over the N pixels of a square window; those outside the source are 0, and N counts them: MPS does not
    say. Raises ``GeometryError`` for a window that is not square or below 1 and a negative alpha,
    ``NotImplementedError`` for edge modes but ZERO.
    """

    _function = "spatial_normalization"


class SpatialNormalizationGradient(_GradientAroundPixels):
    """The gradient of ``SpatialNormalization``. Source: ``MPSCNNSpatialNormalizationGradient``.

    With ``T`` the base of the power, and the sum over the pixels whose windows pixel ``i`` is in::

        dx[i] = g[i] T[i]^-beta - 2 alpha beta / N x[i] sum_l g[l] x[l] T[l]^(-beta - 1)

    Apple prints it without ``1 / N`` and with ``T[i]`` in the sum, which is not the derivative. Parameters have to be
    the forward kernel's.
    """

    forward_kernels = ("SpatialNormalization",)
    _function = "spatial_normalization"


class _LocalContrast(_Response):
    """The parameters of local contrast normalization."""

    alpha = RealProperty(0.0, "The factor of the variance.", minimum=0.0)
    beta = RealProperty(0.5, "The exponent.")
    delta = RealProperty(1.0 / 1024.0, "What is added before the power is taken.")
    p0 = RealProperty(1.0, "The factor of the mean that is subtracted.")
    pm = RealProperty(0.0, "What is added to the result.")
    ps = RealProperty(1.0, "The factor of the result.")

    _function = "local_contrast_normalization"
    _parameter_names = ("alpha", "beta", "delta", "p0", "pm", "ps")


class LocalContrastNormalization(_LocalContrast, _ForwardAroundPixels):
    """``y = pm + ps (x - p0 M) / (delta + alpha V) ^ beta`` for each channel.

    ``M`` and ``V`` are mean and variance of the N pixels of a square window; those outside the source are 0, and N
    counts them: MPS does not say. Source: ``MPSCNNLocalContrastNormalization``. Raises what ``SpatialNormalization``
    raises.
    """


class LocalContrastNormalizationGradient(_LocalContrast, _GradientAroundPixels):
    """The gradient of ``LocalContrastNormalization``. Source: ``MPSCNNLocalContrastNormalizationGradient``.

    With ``T = delta + alpha V``, and the sum over the pixels whose windows pixel ``i`` is in::

        dx[i] = ps (g[i] T[i]^-beta - sum_l g[l] (p0 / N T[l]^-beta
                    + 2 alpha beta / N (x[l] - p0 M[l]) (x[i] - M[l]) T[l]^(-beta - 1)))

    What Apple prints is not the derivative. Parameters have to be the forward kernel's.
    """

    forward_kernels = ("LocalContrastNormalization",)
