"""docs/metal-stdlib.md lists what is tested; its measurements differ from machine to machine and are not looked at."""

from __future__ import annotations

from metal_table import ENGINES, document, rows, written


def test_the_table_lists_the_tested_names_and_types() -> None:
    table = rows()
    assert {key: cells[:4] for key, cells in written().items()} == {key: row.identity for key, row in table.items()}, (
        "docs/metal-stdlib.md is out of date: run make docs"
    )


def test_every_engine_has_a_result_for_every_name() -> None:
    assert {len(cells) for cells in written().values()} == {4 + len(ENGINES)}
    assert all(all(cells[4:]) for cells in written().values())


def test_engines_that_are_missing_keep_their_columns() -> None:
    table = rows()
    key = ("math", "exp")
    before = {key: ("`exp`", "half, float", "1, 2, 3, 4", "", "float 0.67", "float 1.25")}
    table[key].results["opencl"] = {"half": 0.5, "float": 0.75, "precise": 0.75, "fast": 0.8}
    line = next(line for line in document(table, before).splitlines() if line.startswith("| `exp` "))
    assert line.endswith("| half 0.50, float 0.75, fast 0.80 | float 1.25 |")
