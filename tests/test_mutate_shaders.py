"""The script that breaks each shader: every template has tests that can catch it, and changes that can be drawn."""

from __future__ import annotations

import mutate_shaders


def test_every_template_has_tests() -> None:
    templates = mutate_shaders.templates()
    shaders = {name for name in templates if not name.startswith("lib/")}
    assert set(mutate_shaders.TESTS) == shaders
    missing = {test for name in templates for test in mutate_shaders.tests_of(name) or (f"none of {name}",)}
    assert {test for test in missing if not (mutate_shaders.ROOT / test).exists()} == set()


def test_a_mutation_is_one_changed_line_of_code() -> None:
    for name in ("soft_max", "lib/rows"):
        lines = (mutate_shaders.SHADERS / f"{name}.metal.j2").read_text(encoding="utf-8").splitlines()
        mutations = mutate_shaders.candidates(name)
        assert mutations
        for each in mutations:
            assert lines[each.line] == each.before != each.after
            assert not each.before.lstrip().startswith(("//", "#", "{%"))
