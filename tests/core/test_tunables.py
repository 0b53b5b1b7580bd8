"""The numbers of each device family: the committed files, what they may hold, and that the shaders take them."""

from __future__ import annotations

from pathlib import Path

import pytest

import mpsgrad as mg
from mpsgrad.shader import families
from mpsgrad.tunables import CHOICES, FOLDER, Tunables, path, read, tunables, write


def test_the_committed_files_can_be_used_and_name_every_number() -> None:
    files = sorted(FOLDER.glob("*.toml"))
    assert path("cpu") in files
    for file in files:
        numbers = read(file)
        assert {name: getattr(numbers, name) for name in CHOICES}.keys() == CHOICES.keys()
        assert all(f"{name} = " in file.read_text() for name in CHOICES), file


def test_a_family_without_a_file_has_the_defaults() -> None:
    numbers = tunables("a family that nobody measured")
    assert all(getattr(numbers, name) == getattr(Tunables(), name) for name in CHOICES)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    numbers = Tunables().with_number("chunk_elements", 1024)
    write(tmp_path / "x.toml", numbers, "two\nlines")
    again = read(tmp_path / "x.toml")
    assert all(getattr(again, name) == getattr(numbers, name) for name in CHOICES)
    assert (tmp_path / "x.toml").read_text().startswith("# two\n# lines\n")


@pytest.mark.parametrize(
    "text, message",
    [
        ("chunk_elements = 3\n", "chunk_elements is 3; it has to be one of 1024, 2048"),
        ("no_such_number = 3\n", "no_such_number"),
        ("chunk_elements\n", "x.toml"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(mg.ShaderError, match=message) as caught:
        read(tmp_path / "x.toml")
    assert str(tmp_path / "x.toml") in str(caught.value)


def test_shaders_take_the_numbers_of_their_device_family() -> None:
    for family, number in (("cpu", tunables("cpu").neuron_elements_per_simdgroup), ("apple", 512)):
        assert f"* {number};" in families()["neuron_relu"].render("float", family).source
