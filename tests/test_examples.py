"""The scripts in examples/, in a short form: they learn something and leave their picture."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("port_training_loop", ["--steps", "40"]),
        ("style_transfer", ["--steps", "8", "--size", "40"]),
        ("super_resolution", ["--steps", "20"]),
    ],
)
def test_an_example_learns_and_leaves_a_picture(name: str, arguments: list[str], tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = module.main([*arguments, "--output", str(tmp_path)])
    assert result["last_loss"] < 0.9 * result["first_loss"]
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
