"""The binary files of CIFAR-10 and CIFAR-100: colored pictures of 32 x 32 pixels.

A file is a row of records: the class in one byte (CIFAR-100: the coarse class, then the fine one, which is the one that
is learned), and 3072 bytes of red, then green, then blue, each row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpsgrad.errors import DataError
from mpsgrad.training.pictures import Pictures, find_file, read_bytes, require_classes

SIZE = 32
CHANNELS = 3
PIXEL_BYTES = CHANNELS * SIZE * SIZE


@dataclass(frozen=True)
class _Format:
    """One of the two data sets: its name, its files, and the number of values of each byte before the pixels."""

    name: str
    train_files: tuple[str, ...]
    test_file: str
    classes: tuple[int, ...]


CIFAR_10 = _Format("CIFAR-10", tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin", (10,))
CIFAR_100 = _Format("CIFAR-100", ("train.bin",), "test.bin", (20, 100))


def load(folder: Path) -> Pictures:
    """The pictures of ``folder``: CIFAR-100 if it has ``train.bin``, otherwise CIFAR-10; as they are or with ``.gz``.

    CIFAR-10 may have fewer than its five training files. Raises ``DataError`` for a file that is missing, for a length
    that is no multiple of a record's, and for classes out of range.
    """
    kind = CIFAR_100 if any((folder / f"train.bin{ending}").is_file() for ending in ("", ".gz")) else CIFAR_10
    what = f"the binary files of {kind.name}"
    find_file(folder, kind.train_files[:1], what)
    train = [name for name in kind.train_files if any((folder / f"{name}{end}").is_file() for end in ("", ".gz"))]
    parts = [read(find_file(folder, (name,), what), kind) for name in train]
    test_images, test_classes = read(find_file(folder, (kind.test_file,), what), kind)
    return Pictures(
        np.concatenate([images for images, _ in parts]),
        np.concatenate([classes for _, classes in parts]),
        test_images,
        test_classes,
        kind.classes[-1],
    )


def read(file: Path, kind: _Format) -> tuple[np.ndarray, np.ndarray]:
    """The pictures (uint8) and classes of one file. Raises ``DataError`` as ``load`` says."""
    data = read_bytes(file)
    labels = len(kind.classes)
    record = labels + PIXEL_BYTES
    if not data or len(data) % record:
        raise DataError(
            f"{file}: has {len(data)} bytes, which is {'nothing' if not data else 'no multiple'}; a record of "
            f"{kind.name} has {record}, so it is truncated or of another format"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, record)
    for index, count in enumerate(kind.classes):
        which = "coarse " if index < labels - 1 else ""
        require_classes(f"{file}: {which}classes", records[:, index], count)
    images = records[:, labels:].reshape(-1, CHANNELS, SIZE, SIZE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, labels - 1].astype(np.int64)
