"""A NumPy archive of pictures and classes: ``x_train``, ``y_train``, ``x_test`` and ``y_test``, as Keras names them."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from mpsgrad.errors import DataError
from mpsgrad.training.pictures import Pictures, require_pairs

NAMES = ("x_train", "y_train", "x_test", "y_test")
LARGEST_CLASS = 65535


def load(file: Path) -> Pictures:
    """The pictures and classes of ``file``; there are as many classes as the largest of ``y_train`` says.

    Pictures are count x height x width x channels, or without channels; uint8, or floats of any size, which are taken
    as float32. Classes are integers up to 65535, one for each picture. Raises ``DataError`` for a file that is no such
    archive or is damaged, for a missing array, for other dtypes and shapes, for numbers that are not finite, and for
    classes below 0, above 65535 or, in ``y_test``, above those of ``y_train``.
    """
    arrays = _read(file)
    classes = {name: _classes(f"{file}: {name}", arrays[name]) for name in ("y_train", "y_test")}
    images = {name: _images(f"{file}: {name}", arrays[name]) for name in ("x_train", "x_test")}
    largest = int(classes["y_train"].max(initial=0))
    if largest > LARGEST_CLASS:
        raise DataError(f"{file}: y_train has class {largest}; it has to be from 0 to {LARGEST_CLASS}")
    count = largest + 1
    for part in ("train", "test"):
        require_pairs(f"{file}: y_{part}", images[f"x_{part}"], classes[f"y_{part}"], count)
    return Pictures(images["x_train"], classes["y_train"], images["x_test"], classes["y_test"], count)


def _read(file: Path) -> dict[str, np.ndarray]:
    try:
        # Opened here: np.load leaves a damaged file that it opened itself open.
        with open(file, "rb") as opened:
            loaded = np.load(opened, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise DataError(f"{file}: is a single array; it has to be an .npz with {', '.join(NAMES)}")
            with loaded as archive:
                missing = [name for name in NAMES if name not in archive]
                if missing:
                    found = ", ".join(archive.files) or "nothing"
                    raise DataError(f"{file}: has no {', '.join(missing)}; it has {found}")
                return {name: archive[name] for name in NAMES}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, MemoryError, NotImplementedError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: is no .npz of plain arrays, or is truncated or damaged: {error}") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from None


def _images(where: str, array: np.ndarray) -> np.ndarray:
    if array.ndim not in (3, 4):
        raise DataError(f"{where} has shape {array.shape}; it has to be (pictures, height, width) or with channels")
    if array.dtype != np.uint8:
        if array.dtype.kind != "f":
            raise DataError(f"{where} is {array.dtype.name}; it has to be uint8 or a float")
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise DataError(f"{where} has values that are not finite as float32")
    return np.ascontiguousarray(array if array.ndim == 4 else array[..., None])


def _classes(where: str, array: np.ndarray) -> np.ndarray:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            f"{where} is {array.dtype.name} of shape {array.shape}; it has to be one integer for each picture"
        )
    return array.astype(np.int64)
