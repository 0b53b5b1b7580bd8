"""The programs in metalcompute's own source distribution run on ``mpsgrad.metalcompute`` as they are.

The distribution is fetched from the package index; without one these tests are skipped. It has examples and no tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import mpsgrad as mg

VERSION = "0.2.9"
EXAMPLES = ["metalcompute-mandelbrot", "metalcompute-measure", "metalcompute-pipe", "metalcompute-raymarch"]

RUN = """
import runpy, sys
import mpsgrad.metalcompute
sys.modules["metalcompute"] = mpsgrad.metalcompute
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the program that the arguments name, to which our module is ``metalcompute``."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution."""
    folder = tmp_path_factory.mktemp("metalcompute")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "metalcompute", "--dest", folder]
    try:
        result = subprocess.run([*command, f"metalcompute=={VERSION}"], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index did not answer within five minutes")
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["pip failed"])[-1]
        pytest.skip(f"metalcompute's source distribution cannot be fetched: {reason}")
    with tarfile.open(folder / f"metalcompute-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"metalcompute-{VERSION}"


def run(program: Path, *arguments: str, input: bytes = b"", timeout: float = 300) -> bytes:
    """What the program prints; runs in the folder of the distribution."""
    variables = {**os.environ, "PYTHONPATH": str(Path(mg.__file__).parent.parent)}
    result = subprocess.run(
        [sys.executable, "-c", RUN, str(program), *arguments],
        input=input, capture_output=True, timeout=timeout, cwd=program.parent.parent, env=variables,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout


def image(source: Path, name: str) -> np.ndarray:
    pillow = pytest.importorskip("PIL.Image", reason="the example writes its image with Pillow")
    with pillow.open(source / name) as opened:
        return np.asarray(opened.convert("RGB")).astype(int)


def test_these_are_all_its_programs(source: Path) -> None:
    assert sorted(path.name for path in (source / "examples").iterdir()) == EXAMPLES
    assert not (source / "tests").exists()


def test_mandelbrot(source: Path) -> None:
    pytest.importorskip("PIL", reason="the example needs Pillow")
    size, iterations = 128, 64
    output = run(
        source / "examples" / "metalcompute-mandelbrot",
        "-width", str(size), "-height", str(size), "-iters", str(iterations), "-outname", "mandelbrot.png",
    )  # fmt: skip
    assert b"Device: metalcompute.Device(" in output
    found = image(source, "mandelbrot.png")
    place = np.arange(size) / size
    x, y = 2.5 * (place - 0.5) - 0.7, 2.5 * (0.5 - place)
    c = x[None, :] + 1j * y[:, None]
    z, inside = c.copy(), np.ones(c.shape, bool)
    with np.errstate(all="ignore"):
        for _ in range(iterations):
            z = np.where(inside, z * z + c, z)
            inside &= np.abs(z) < 2
    # The set is black; where rounding does not decide, outside it is not.
    border = np.zeros(c.shape, bool)
    for axis in (0, 1):
        for step in (-1, 1):
            border |= inside != np.roll(inside, step, axis)
    black = (found == 0).all(-1)
    assert (black[inside & ~border]).all()
    assert (black[~inside & ~border]).mean() < 0.01
    assert 0.1 < inside.mean() < 0.5


def test_raymarch(source: Path) -> None:
    pytest.importorskip("PIL", reason="the example needs Pillow")
    size = 64
    run(
        source / "examples" / "metalcompute-raymarch",
        "-width", str(size), "-height", str(size), "-outname", "raymarch.png",
    )  # fmt: skip
    found = image(source, "raymarch.png")
    expected = _raymarched(size)
    # Rays that graze a ball end elsewhere when the last bit of a step differs.
    assert (np.abs(found - expected).max(-1) <= 4).mean() > 0.9


def _raymarched(size: int) -> np.ndarray:
    """The scene in float32: balls at every integer place, above a floor."""
    single = np.float32
    camera, target = np.array([1, 1, -2], single), np.array([0, 0.9, 0], single)

    def unit(v: np.ndarray) -> np.ndarray:
        return v / np.sqrt((v * v).sum(-1, keepdims=True))

    pixel = np.arange(size, dtype=single) / single(size)
    u, v = np.meshgrid(pixel - single(0.5), 1 - pixel - single(0.5))
    forward = unit(target - camera)
    right = unit(np.cross(forward, np.array([0, 1, 0], single)))
    down = unit(np.cross(forward, right))
    ray = unit(u[..., None] * right - v[..., None] * down + forward).astype(single)
    length = np.zeros((size, size), single)
    with np.errstate(all="ignore"):
        for _ in range(300):
            place = camera + length[..., None] * ray
            cell = place - target
            cell = cell - np.floor(cell) - single(0.5)
            ball = (cell * cell).sum(-1) - single(0.2) * single(0.2)
            length = length + np.minimum(ball, place[..., 1] + single(0.6))
        place = camera + length[..., None] * ray
        fog = np.where(length > 100, 0, np.minimum(1, 4 / length))
        return ((place - np.floor(place)) * fog[..., None] * 255).astype(int)


def test_pipe(source: Path) -> None:
    text = bytes(range(256)) * 5 + b"and the rest of a threadgroup"
    output = run(source / "examples" / "metalcompute-pipe", "out[id] = in[id] ^ 0x55", input=text)
    assert output == bytes(letter ^ 0x55 for letter in text)


@pytest.mark.nightly
def test_measure(source: Path) -> None:
    """Nightly, because it takes its 36e12 floating-point operations from whatever device there is."""
    output = run(source / "examples" / "metalcompute-measure", timeout=3600).decode()
    count = output.count("Using device:")
    assert count > 0
    assert len(re.findall(r"Estimated GPU TFLOPS: [0-9.]+", output)) == count
    assert len(re.findall(r"Data transfer rate: [0-9.]+ GB/s", output)) == count
