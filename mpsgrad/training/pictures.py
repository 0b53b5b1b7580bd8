"""Pictures with classes, and the checks that all loaders share."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpsgrad.errors import DataError

LARGEST_BYTE = 255.0


@dataclass(frozen=True)
class Pictures:
    """Pictures (count x height x width x channels, uint8 or float32) and their classes (int64), for training and test.

    Classes are numbers from 0 to ``classes`` - 1. Raises ``DataError`` if there are no pictures, if those of test have
    other extents than those of training, if there are more or fewer classes than pictures, or classes out of range.
    """

    train_images: np.ndarray
    train_classes: np.ndarray
    test_images: np.ndarray
    test_classes: np.ndarray
    classes: int

    def __post_init__(self) -> None:
        for part, images, classes in (
            ("training", self.train_images, self.train_classes),
            ("test", self.test_images, self.test_classes),
        ):
            require_pairs(f"the {part} data", images, classes, self.classes)
            if images.shape[1:] != self.train_images.shape[1:]:
                raise DataError(
                    f"the test pictures are {extents(images)} but the training pictures {extents(self.train_images)}"
                )

    @property
    def checksum(self) -> str:
        """The SHA-256 of all arrays, their types and extents, in hexadecimal digits."""
        digest = hashlib.sha256()
        for array in (self.train_images, self.train_classes, self.test_images, self.test_classes):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture."""
        height, width, channels = self.train_images.shape[1:]
        return height, width, channels

    def one_hot(self, classes: np.ndarray) -> np.ndarray:
        """Labels of shape count x 1 x 1 x ``classes``, float32."""
        return np.eye(self.classes, dtype=np.float32)[classes].reshape(-1, 1, 1, self.classes)


def as_floats(images: np.ndarray) -> np.ndarray:
    """``images`` as float32: bytes divided by 255, floats as they are."""
    return images.astype(np.float32) / LARGEST_BYTE if images.dtype == np.uint8 else images


def extents(images: np.ndarray) -> str:
    """Height, width and channels as text: ``28x28x1``."""
    return "x".join(map(str, images.shape[1:]))


def require_pairs(where: str, images: np.ndarray, classes: np.ndarray, count: int) -> None:
    """Raises ``DataError`` unless there is one class from 0 to ``count`` - 1 for each picture, and a picture at all."""
    if 0 in images.shape:
        raise DataError(f"{where}: has no pictures: the shape is {images.shape}")
    if len(images) != len(classes):
        raise DataError(f"{where}: {len(images)} pictures but {len(classes)} classes; there has to be one for each")
    require_classes(where, classes, count)


def require_classes(where: str, classes: np.ndarray, count: int) -> None:
    """Raises ``DataError`` unless all ``classes`` are from 0 to ``count`` - 1, naming the first that is not."""
    wrong = np.flatnonzero((classes < 0) | (classes >= count))
    if wrong.size:
        raise DataError(f"{where}: class {wrong[0]} is {classes[wrong[0]]}; it has to be from 0 to {count - 1}")


def find_file(folder: Path, names: tuple[str, ...], what: str) -> Path:
    """The first of ``names`` that is in ``folder``, as it is or with ``.gz``. Raises ``DataError`` if none is."""
    for name in names:
        for ending in ("", ".gz"):
            if (folder / f"{name}{ending}").is_file():
                return folder / f"{name}{ending}"
    if not folder.is_dir():
        raise DataError(f"{folder}: is no folder; it has to be the one with {what}")
    raise DataError(f"{folder}: has no {' or '.join(names)} (.gz too), which belongs to {what}")


def read_bytes(file: Path) -> bytes:
    """The contents of ``file``, unpacked if it ends in ``.gz``. Raises ``DataError`` if that cannot be read."""
    try:
        data = file.read_bytes()
        return gzip.decompress(data) if file.suffix == ".gz" else data
    except EOFError:
        raise DataError(f"{file}: is truncated: the gzip stream has no end") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file}: is no gzip file or is damaged: {error}") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from None
