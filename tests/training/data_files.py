"""Small files of the formats that the loaders read, with random pictures."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


def write(file: Path, data: bytes, packed: bool) -> None:
    """``data`` as ``file``, or packed as ``file.gz``."""
    if packed:
        file = file.with_name(f"{file.name}.gz")
    file.write_bytes(gzip.compress(data, mtime=0) if packed else data)


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, counts: tuple[int, int] = (6, 4), packed: bool = False) -> dict[str, np.ndarray]:
    """MNIST's four files with pictures of 5 x 7 pixels; returns the arrays by the names of the files."""
    random = np.random.default_rng(1)
    arrays = {}
    for part, count in zip(("train", "t10k"), counts, strict=True):
        arrays[f"{part}-images-idx3-ubyte"] = random.integers(0, 256, (count, 5, 7), np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = random.integers(0, 10, count, np.uint8)
    for name, array in arrays.items():
        write(folder / name, idx_bytes(array), packed)
    return arrays


def cifar_records(count: int, classes: tuple[int, ...], seed: int = 2) -> tuple[np.ndarray, list[np.ndarray], bytes]:
    """Pictures (count x 32 x 32 x 3), the classes of each byte before the pixels, and the file's bytes."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, 32, 32, 3), np.uint8)
    labels = [random.integers(0, limit, count, np.uint8) for limit in classes]
    pixels = images.transpose(0, 3, 1, 2).reshape(count, -1)
    return images, labels, np.concatenate([*(label[:, None] for label in labels), pixels], 1).tobytes()
