"""The loaders of ``mpsgrad train --data``: small files of each format, and what is wrong with damaged ones."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import cifar_records, idx_bytes, write, write_idx

import mpsgrad as mg
from mpsgrad.training import data
from mpsgrad.training.pictures import Pictures, as_floats

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def refused(text: str) -> str:
    with pytest.raises(mg.DataError) as caught:
        data.load(text)
    return str(caught.value)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_idx_files_are_read(tmp_path: Path, packed: bool) -> None:
    arrays = write_idx(tmp_path, packed=packed)
    found = data.load(f"idx:{tmp_path}")
    assert found.shape == (5, 7, 1) and found.classes == 10
    np.testing.assert_array_equal(found.train_images[..., 0], arrays[IMAGES])
    np.testing.assert_array_equal(found.train_classes, arrays[LABELS])
    np.testing.assert_array_equal(found.test_images[..., 0], arrays["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(found.test_classes, arrays["t10k-labels-idx1-ubyte"])
    ending = ".gz" if packed else ""
    (tmp_path / f"{LABELS}{ending}").rename(tmp_path / f"train-labels.idx1-ubyte{ending}")
    np.testing.assert_array_equal(data.load(f"idx:{tmp_path}").train_classes, arrays[LABELS])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (IMAGES, lambda b: b"\0\0\x0d\3" + b[4:], "magic number is 0x00000d03; it has to be 0x00000803, unsigned"),
        (LABELS, lambda b: b"\0\0\x08\3" + b[4:], "magic number is 0x00000803; it has to be 0x00000801, unsigned"),
        (IMAGES, lambda b: b[:-1], "is truncated: 225 bytes, but the extents 6x5x7 make 226"),
        (IMAGES, lambda b: b + b"\0", "is too long: 227 bytes, but the extents 6x5x7 make 226"),
        (IMAGES, lambda b: b[:9], "is truncated: 9 bytes, but the header alone has 16"),
        (IMAGES, lambda b: b"", "is truncated: 0 bytes, but the header alone has 16"),
        (IMAGES, lambda b: b[:4] + b"\xff" * 12 + b[16:], "the extents 4294967295x4294967295x4294967295 make"),
        (IMAGES, lambda b: idx_bytes(np.zeros((0, 5, 7), np.uint8)), "has no pictures: the shape is (0, 5, 7)"),
        (LABELS, lambda b: idx_bytes(np.zeros(5, np.uint8)), "6 pictures but 5 classes"),
        (LABELS, lambda b: b[:-1] + b"\x0a", "class 5 is 10; it has to be from 0 to 9"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, name: str, change: Any, message: str) -> None:
    write_idx(tmp_path)
    file = tmp_path / name
    file.write_bytes(change(file.read_bytes()))
    said = refused(f"idx:{tmp_path}")
    assert message in said and tmp_path.name in said


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert "has no t10k-labels-idx1-ubyte or t10k-labels.idx1-ubyte" in refused(f"idx:{tmp_path}")
    assert "is no folder" in refused(f"idx:{tmp_path / 'nowhere'}")
    assert "has no data_batch_1.bin" in refused(f"cifar:{tmp_path}")
    assert "No such file" in refused(f"npz:{tmp_path / 'nothing.npz'}")
    assert "digits, idx:DIR, cifar:DIR, npz:FILE" in refused("mnist:x")
    assert "no data 'idx'" in refused("idx") and "no data 'digits:x'" in refused("digits:x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-5], "is truncated: the gzip stream has no end"),
        (lambda b: b[:30] + bytes([b[30] ^ 0x10]) + b[31:], "is no gzip file or is damaged"),
        (lambda b: b"junk" + b, "is no gzip file or is damaged"),
    ],
)
def test_damaged_gzip_files_are_named(tmp_path: Path, change: Any, message: str) -> None:
    write_idx(tmp_path, packed=True)
    file = tmp_path / f"{IMAGES}.gz"
    file.write_bytes(change(file.read_bytes()))
    said = refused(f"idx:{tmp_path}")
    assert message in said and file.name in said


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_cifar_files_are_read(tmp_path: Path, packed: bool) -> None:
    parts = [cifar_records(3, (10,), seed) for seed in (1, 2)]
    for number, (_, _, content) in enumerate(parts, 1):
        write(tmp_path / f"data_batch_{number}.bin", content, packed)
    write(tmp_path / "test_batch.bin", parts[1][2], packed)
    found = data.load(f"cifar:{tmp_path}")
    assert found.shape == (32, 32, 3) and found.classes == 10
    np.testing.assert_array_equal(found.train_images, np.concatenate([images for images, _, _ in parts]))
    np.testing.assert_array_equal(found.train_classes, np.concatenate([labels[0] for _, labels, _ in parts]))
    np.testing.assert_array_equal(found.test_images, parts[1][0])
    images, labels, content = cifar_records(4, (20, 100))
    for name in ("train.bin", "test.bin"):
        write(tmp_path / name, content, packed)
    found = data.load(f"cifar:{tmp_path}")
    assert found.classes == 100
    np.testing.assert_array_equal(found.train_images, images)
    np.testing.assert_array_equal(found.test_classes, labels[1])


def test_damaged_cifar_files_are_named(tmp_path: Path) -> None:
    _, _, content = cifar_records(2, (10,))
    for name in ("data_batch_1.bin", "test_batch.bin"):
        write(tmp_path / name, content, packed=False)
    (tmp_path / "test_batch.bin").write_bytes(content[:-7])
    assert "test_batch.bin: has 6139 bytes, which is no multiple; a record of CIFAR-10 has 3073" in refused(
        f"cifar:{tmp_path}"
    )
    (tmp_path / "test_batch.bin").write_bytes(b"")
    assert "has 0 bytes, which is nothing" in refused(f"cifar:{tmp_path}")
    (tmp_path / "test_batch.bin").write_bytes(b"\x0a" + content[1:])
    assert "test_batch.bin: classes: class 0 is 10; it has to be from 0 to 9" in refused(f"cifar:{tmp_path}")
    (tmp_path / "train.bin").write_bytes(b"\x14\0" + bytes(3072))
    assert "train.bin: coarse classes: class 0 is 20; it has to be from 0 to 19" in refused(f"cifar:{tmp_path}")


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    made = {
        "x_train": random.random((5, 4, 6, 2)),
        "y_train": np.array([0, 1, 2, 1, 0]),
        "x_test": random.random((2, 4, 6, 2)),
        "y_test": np.array([2, 0], np.uint8),
    }
    return {name: array for name, array in (made | changes).items() if array is not None}


def test_npz_files_are_read(tmp_path: Path) -> None:
    file, given = tmp_path / "some.npz", arrays()
    np.savez_compressed(file, **given)
    found = data.load(f"npz:{file}")
    assert found.shape == (4, 6, 2) and found.classes == 3 and found.train_images.dtype == np.float32
    np.testing.assert_array_equal(found.train_images, given["x_train"].astype(np.float32))
    np.testing.assert_array_equal(found.test_classes, given["y_test"])
    gray = arrays(x_train=np.full((5, 3, 3), 255, np.uint8), x_test=np.zeros((2, 3, 3), np.uint8))
    np.savez(file, **gray | {"y_test": np.array([[2], [0]])})
    found = data.load(f"npz:{file}")
    assert found.shape == (3, 3, 1) and found.train_images.dtype == np.uint8
    assert as_floats(found.train_images).dtype == np.float32 and as_floats(found.train_images).max() == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "has no y_test; it has x_train, y_train, x_test"),
        ({"y_test": np.array([3, 0])}, "y_test: class 0 is 3; it has to be from 0 to 2"),
        ({"y_train": np.array([0, 1, -1, 1, 0])}, "y_train: class 2 is -1"),
        ({"y_train": np.array([0, 1, 2**40, 1, 0])}, "y_train has class 1099511627776; it has to be from 0 to 65535"),
        ({"y_train": np.zeros(5)}, "y_train is float64 of shape (5,); it has to be one integer"),
        ({"y_train": np.zeros(4, int)}, "y_train: 5 pictures but 4 classes"),
        ({"x_train": np.zeros((5, 4), np.uint8)}, "x_train has shape (5, 4)"),
        ({"x_train": np.zeros((5, 4, 4), np.int32)}, "x_train is int32; it has to be uint8 or a float"),
        ({"x_train": np.full((5, 4, 6, 2), np.nan)}, "x_train has values that are not finite"),
        ({"x_train": np.zeros((0, 4, 6, 2)), "y_train": np.zeros(0, int)}, "has no pictures"),
        ({"x_test": np.zeros((2, 5, 6, 2))}, "the test pictures are 5x6x2 but the training pictures 4x6x2"),
        ({"x_train": np.array([None, 1])}, "is no .npz of plain arrays"),
    ],
)
def test_wrong_npz_files_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "some.npz", **arrays(**changes))
    assert message in refused(f"npz:{tmp_path / 'some.npz'}")


def test_damaged_npz_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "some.npz"
    np.savez(file, **arrays())
    content = file.read_bytes()
    for damaged in (content[: len(content) // 2], b"junk", b"", content[:150] + b"\xff" + content[151:]):
        file.write_bytes(damaged)
        assert "truncated or damaged" in refused(f"npz:{file}")
    np.save(tmp_path / "one.npy", np.zeros(3))
    assert "is a single array" in refused(f"npz:{tmp_path / 'one.npy'}")


def test_digits_and_labels_of_classes() -> None:
    pytest.importorskip("sklearn")
    found = data.load("digits")
    assert found.shape == (8, 8, 1) and len(found.train_images) == 1438
    labels = found.one_hot(np.array([3, 9]))
    assert labels.shape == (2, 1, 1, 10) and labels[0, 0, 0, 3] == labels[1, 0, 0, 9] == 1 and labels.sum() == 2
    with pytest.raises(mg.DataError, match="2 pictures but 1 classes"):
        Pictures(found.train_images[:2], np.zeros(1, int), found.test_images, found.test_classes, 10)


def test_gzip_of_nothing(tmp_path: Path) -> None:
    write_idx(tmp_path, packed=True)
    (tmp_path / f"{IMAGES}.gz").write_bytes(gzip.compress(b""))
    assert "is truncated: 0 bytes" in refused(f"idx:{tmp_path}")
