"""MNIST's IDX files: handwritten digits and what else comes in the same four files, such as Fashion-MNIST.

A file is a magic number of two zero bytes, the type of the values (8 for unsigned bytes) and the number of extents;
then the extents, each of four bytes with the highest first; then the values.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from mpsgrad.errors import DataError
from mpsgrad.training.pictures import Pictures, find_file, read_bytes, require_pairs

CLASSES = 10
UNSIGNED_BYTE = 8


def load(folder: Path) -> Pictures:
    """``train-`` and ``t10k-images-idx3-ubyte`` and ``-labels-idx1-ubyte`` of ``folder``, as they are or with ``.gz``.

    Also with ``.idx3`` and ``.idx1`` for ``-idx3`` and ``-idx1``. Raises ``DataError`` for a file that is missing, for
    another magic number, for more or fewer values than the extents say, and for classes above 9.
    """
    arrays: list[np.ndarray] = []
    for part in ("train", "t10k"):
        images_file = _find(folder, part, "images", 3)
        labels_file = _find(folder, part, "labels", 1)
        images, classes = read(images_file, 3), read(labels_file, 1).astype(np.int64)
        require_pairs(str(labels_file), images, classes, CLASSES)
        arrays += [images[..., None], classes]
    train_images, train_classes, test_images, test_classes = arrays
    return Pictures(train_images, train_classes, test_images, test_classes, CLASSES)


def _find(folder: Path, part: str, what: str, extents: int) -> Path:
    names = tuple(f"{part}-{what}{mark}idx{extents}-ubyte" for mark in "-.")
    return find_file(folder, names, "MNIST's IDX files")


def read(file: Path, extents: int) -> np.ndarray:
    """The unsigned bytes of one IDX file with so many extents. Raises ``DataError`` as ``load`` says."""
    data = read_bytes(file)
    expected = UNSIGNED_BYTE << 8 | extents
    header = 4 + 4 * extents
    if len(data) >= 4 and (magic := int.from_bytes(data[:4], "big")) != expected:
        raise DataError(
            f"{file}: the magic number is 0x{magic:08x}; it has to be 0x{expected:08x}, unsigned bytes with {extents} "
            f"extent{'s' * (extents > 1)}"
        )
    if len(data) < header:
        raise DataError(f"{file}: is truncated: {len(data)} bytes, but the header alone has {header}")
    shape = struct.unpack(f">{extents}I", data[4:header])
    count = 1
    for extent in shape:
        count *= extent
    if len(data) != header + count:
        how = "is truncated" if len(data) < header + count else "is too long"
        raise DataError(
            f"{file}: {how}: {len(data)} bytes, but the extents {'x'.join(map(str, shape))} make {header + count}"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)
