"""How the kernels share out their work on each kind of device: numbers that ``make tune`` finds by measuring.

``TUNING.toml`` in this folder has those of the devices with that ``Device.tuning``, which is mostly the device family;
what it does not name, and devices without a file, have the defaults, which suit GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mpsgrad.errors import ShaderError

FOLDER = Path(__file__).parent


NEVER, ALWAYS, WHERE_FEWER = 0, 1, 2
"""What ``..._by_eights`` may be: the last, of convolutions, is where channels leave simdgroups more products to do."""


def _number(default: int, *choices: int) -> Any:
    """A field with the numbers that it may have."""
    return field(default=default, metadata={"choices": choices})


@dataclass(frozen=True, eq=False)
class Tunables:
    """The numbers of one tuning. A simdgroup's share is long on CPUs, whose cores run one after another, and
    short on GPUs, which need many at once.

    ``chunk_elements`` are the elements of a share of what adds up pixels by channel (on CPUs batch normalization, and
    the slopes of PReLU); there are at most ``most_chunks`` shares, because each leaves a partial sum.
    ``stream_elements`` are the same for the kernels on CPUs that add up nothing. The neurons' numbers are those of
    images that are not one run of elements, which is taken by vectors. ``normalization_sums_per_lane``,
    ``convolution_pixels_per_tile`` and ``convolution_weights_rows_at_once`` are how many sums a lane has in registers
    where simdgroups work on their own; with ``convolution_by_eights`` the threads of a CPU do that instead, on eights
    of floats: always where it has 16 registers of eight floats, where that makes fewer products if it has larger ones.
    If the images of a kernel have more than ``cached_bytes`` together, CPUs write results past their caches. With
    ``pooling_gradient_by_eights`` gradients of max pooling over 3 x 3 taps at strides 1 and 2 are computed by eights of
    floats, too: a simdgroup needs more than 16 registers for them.
    """

    neuron_elements_per_simdgroup: int = _number(512, 256, 512, 1024, 2048, 4096, 8192)
    neuron_loads_before_a_store: int = _number(4, 1, 2, 4, 8)
    soft_max_elements_per_simdgroup: int = _number(512, 128, 256, 512, 1024, 2048, 4096, 16384)
    soft_max_rows_at_once: int = _number(4, 1, 2, 4)
    loss_pixels_per_simdgroup: int = _number(4, 1, 2, 4, 8)
    optimizer_elements_per_thread: int = _number(65536, 16384, 32768, 65536, 131072)
    convolution_sums_per_thread: int = _number(1, 1, 2, 4, 8)
    normalization_sums_per_lane: int = _number(4, 2, 4)
    convolution_pixels_per_tile: int = _number(8, 2, 4, 8)
    convolution_weights_rows_at_once: int = _number(8, 2, 4, 8)
    convolution_by_eights: int = _number(NEVER, NEVER, ALWAYS, WHERE_FEWER)
    chunk_elements: int = _number(4096, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
    stream_elements: int = _number(2048, 512, 1024, 2048, 4096, 8192, 32768, 65536)
    pooling_gradient_by_eights: int = _number(NEVER, NEVER, ALWAYS)
    most_chunks: int = _number(2048, 32, 512, 1024, 2048, 4096, 8192)
    cached_bytes: int = _number(2**24, 2**20, 2**21, 2**22, 2**23, 2**24, 2**25, 2**26)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            number = getattr(self, name)
            if number not in choices:
                raise ValueError(f"{name} is {number!r}; it has to be one of {', '.join(map(str, choices))}")

    @property
    def has_many_registers(self) -> bool:
        """Whether the CPU has more than 16 registers of eight floats."""
        return self.convolution_by_eights != ALWAYS

    @property
    def floats_of_register(self) -> int:
        """So many fit a register of the CPU."""
        return 16 if self.has_many_registers else 8

    @property
    def streamed_bytes(self) -> int:
        """As ``cached_bytes``, of kernels that go over their images once and compute little for an element.

        Up to a quarter above it what is left in the caches is worth more to them than lines that are not read before
        they are overwritten. On CPUs with more registers that is not known.
        """
        return self.cached_bytes if self.has_many_registers else self.cached_bytes // 4 * 5

    @property
    def cached_bytes_of_passes(self) -> int:
        """As ``cached_bytes``, of kernels that read their images again, as normalizations do.

        On CPUs with more registers so many images are read in the order of memory, and results written past the caches.
        """
        return self.cached_bytes // 2 if self.has_many_registers else self.cached_bytes

    def with_number(self, name: str, value: int) -> Tunables:
        """These numbers but for ``name``; raises ``ValueError`` for one that it may not have."""
        return replace(self, **{name: value})


CHOICES: Mapping[str, tuple[int, ...]] = {each.name: each.metadata["choices"] for each in fields(Tunables)}
"""The numbers that each tunable may have."""

_found: dict[str, Tunables] = {}


def tunables(tuning: str) -> Tunables:
    """The numbers of the devices with ``tuning``; raises ``ShaderError`` if its file has unknown names or numbers."""
    found = _found.get(tuning)
    if found is None:
        found = _found.setdefault(tuning, read(path(tuning)))
    return found


def set_tunables(tuning: str, numbers: Tunables) -> None:
    """Has ``tunables`` give other numbers in this process. What was compiled or encoded before keeps the old ones."""
    _found[tuning] = numbers


def path(tuning: str) -> Path:
    """Where the numbers are kept."""
    return FOLDER / f"{tuning}.toml"


def read(file: Path) -> Tunables:
    """The numbers in a file, or the defaults if there is none; raises ``ShaderError`` as ``tunables`` does."""
    if not file.is_file():
        return Tunables()
    import tomllib

    try:
        return Tunables(**tomllib.loads(file.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ShaderError(f"the tunables cannot be used: {error}", file=str(file)) from error


def write(file: Path, numbers: Tunables, comment: str) -> None:
    """Writes all numbers to a file that ``read`` understands, after ``comment`` lines."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{name} = {getattr(numbers, name)}" for name in CHOICES]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
