"""``Pictures``: a data set in memory, and ``load``, which reads it from where ``mpsgrad train --data`` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpsgrad.errors import DataError
from mpsgrad.training import cifar, digits, idx, npz
from mpsgrad.training.pictures import Pictures


@dataclass(frozen=True)
class _Kind:
    """One way to name data: what follows the colon (empty for nothing), and the loader."""

    place: str
    load: Callable[[Path], Pictures]


def _digits(_: Path) -> Pictures:
    data = digits.load()
    return Pictures(data.train_images, data.train_classes, data.test_images, data.test_classes, digits.CLASSES)


KINDS = {
    "digits": _Kind("", _digits),
    "idx": _Kind("DIR", idx.load),
    "cifar": _Kind("DIR", cifar.load),
    "npz": _Kind("FILE", npz.load),
}


def forms() -> str:
    """The forms of a data set's name: ``digits, idx:DIR, ...``."""
    return ", ".join(f"{name}:{kind.place}" if kind.place else name for name, kind in KINDS.items())


def load(text: str) -> Pictures:
    """The data set that ``text`` names: ``digits``, ``idx:DIR``, ``cifar:DIR`` or ``npz:FILE``.

    Raises ``DataError`` for another form and for what the loaders refuse.
    """
    name, _, place = text.partition(":")
    kind = KINDS.get(name)
    if kind is None or bool(place) != bool(kind.place):
        raise DataError(f"no data {text!r}; it has to be one of {forms()}")
    return kind.load(Path(place))
