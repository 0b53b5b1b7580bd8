"""Compiling what was compiled before: nothing is translated, and nothing that is out of date is used."""

import hashlib

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.devices import CompileOptions, cache, translations
from mpsgrad.msl import translator

SOURCE = """#include <metal_stdlib>
using namespace metal;
#include "factor.h"
constant int addend [[function_constant(0)]];
struct Box { float4 corner; int count; };
kernel void scale(device float* out [[buffer(0)]], constant Box& box, uint i [[thread_position_in_grid]]) {
    out[i] = FACTOR * i + addend + box.count;
}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MPSGRAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "factor.h").write_text("#define FACTOR 2\n")
    path = tmp_path / "scale.metal"
    path.write_text(SOURCE)
    return path


def third(path, addend=5):
    """What the kernel stores for its last thread, 2 * FACTOR + addend + 100."""
    out = np.zeros(3, np.float32)
    function = mg.compile(path, function_constants={"addend": addend}).function("scale")
    box = np.zeros((), np.dtype({"names": ["count"], "formats": ["i4"], "offsets": [16], "itemsize": 32}))
    box["count"] = 100
    function(3, out, box)
    return out[2]


def forbid(monkeypatch):
    def translate(*arguments, **options):
        raise AssertionError("this was to be found in the cache")

    monkeypatch.setattr(translator, "translate", translate)


def entries(folder):
    digest_bytes = 32
    return [file for file in folder.iterdir() if file.is_file() and file.read_bytes()[digest_bytes:][:1] == b"{"]


def test_a_second_compile_does_not_translate_and_has_the_same_functions(folder, path, monkeypatch):
    assert third(path) == 109
    first = mg.compile(path, function_constants={"addend": 5}).function("scale")
    forbid(monkeypatch)
    assert third(path) == 109
    again = mg.compile(path, function_constants={"addend": 5}).function("scale")
    assert repr(again) == repr(first) and again.arguments == first.arguments
    assert again._function.signature == first._function.signature
    assert again._function.pointee_sizes == first._function.pointee_sizes


def test_what_changes_the_result_is_noticed(folder, path):
    assert third(path) == 109
    assert third(path, addend=7) == 111
    (path.parent / "factor.h").write_text("#define FACTOR 3\n")
    assert third(path) == 111
    path.write_text(SOURCE.replace("FACTOR * i", "FACTOR * 2 * i"))
    assert third(path) == 117


def test_an_entry_is_named_after_all_that_a_translation_depends_on(tmp_path):
    def name(source="s", called="n", driver=("opencl", "one"), options=None):
        return translations.name_of(driver, source, called, options)

    options = [
        None,
        CompileOptions(),
        CompileOptions(fast_math=False),
        CompileOptions(language_version="3.1"),
        CompileOptions(include_directory=tmp_path),
        *(CompileOptions(function_constants={key: value}) for key in (0, "0", "a") for value in (0, 1, True, 1.0, [1])),
    ]
    names = [name(options=each) for each in options]
    names += [name("t"), name(called="m"), name(driver=("opencl", "two")), name(driver=("opencl", "one", "more"))]
    names += [name("\ud800 a character that UTF-8 does not have")]
    assert None not in names and len(set(names)) == len(names)
    assert name(options=CompileOptions(function_constants={"a": object()})) is None


def test_nothing_is_kept_of_a_translator_that_changed_since_it_was_loaded(monkeypatch):
    assert translations._translator() is not None
    translations._translator.cache_clear()
    monkeypatch.setattr(translations, "_LOADED", 0)
    try:
        assert translations.name_of(("opencl",), "s", "n", None) is None
    finally:
        translations._translator.cache_clear()


@pytest.mark.parametrize("damage", ["flip", "no JSON", "no entry", "other fields", "other types", "no program"])
def test_damage_costs_a_translation(folder, path, damage):
    assert third(path) == 109
    (entry,) = entries(folder)
    whole = entry.read_bytes()
    if damage == "flip":
        entry.write_bytes(whole[:-1] + b"?")
    elif damage == "no program":
        for file in folder.iterdir():
            if file.is_file() and file != entry:
                file.unlink()
    else:
        payload = {
            "no JSON": b'"kernels" {',
            "no entry": b'["kernels"]',
            "other fields": whole[32:].replace(b'"entry_point"', b'"entry"'),
            "other types": b'{"kernels": 3, "includes": [], "program": "x", "pointee_sizes": {}}',
        }[damage]
        entry.write_bytes(hashlib.sha256(payload).digest() + payload)
    assert third(path) == 109
    assert entry.read_bytes() == whole


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path, path, monkeypatch):
    (tmp_path / "a file").write_text("not a folder")
    monkeypatch.setenv("MPSGRAD_CACHE", str(tmp_path / "a file"))
    assert third(path) == third(path) == 109


def test_what_is_refused_is_refused_again(folder):
    for _ in range(2):
        with pytest.raises(mg.ShaderError, match="'gone.h' file not found"):
            mg.compile('#include "gone.h"\nkernel void f(device float* x) {}')
    assert cache.directory() == folder and not folder.exists()
