"""What a file of the user's own imports is known by its bytes, unless it is installed."""

import hashlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerlab.system.untrusted.python_file import hash_definition, hash_imports, import_anew

SOURCE = b"import json, numpy\nimport layerlab\nfrom own_helper import SCALE\n"


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A helper with a helper of its own, both imported; and one that is not."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_helper.py").write_text("from own_package.inner import SCALE\n")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    (tmp_path / "own_package" / "inner.py").write_text(
        "from . import other\nSCALE = 1\ndef read():\n    return SCALE\n"
    )
    (tmp_path / "own_package" / "other.py").write_text("")
    importlib.import_module("own_helper")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_modules_that_are_not_installed_are_found_through_each_other(helpers):
    found = hash_imports(SOURCE)
    names = ["own_helper", "own_package", "own_package.inner", "own_package.other"]
    assert list(found) == names
    assert (
        found["own_helper"] == hashlib.sha256((helpers / "own_helper.py").read_bytes()).hexdigest()
    )


def test_a_change_far_away_is_seen_and_nothing_is_imported_for_it(helpers):
    before = hash_imports(SOURCE)
    (helpers / "own_package" / "other.py").write_text("CHANGED = True\n")
    after = hash_imports(SOURCE)
    assert [name for name in before if before[name] != after[name]] == ["own_package.other"]
    assert hash_imports(b"import not_imported_yet\ndef f():\n    import own_helper\n") == {}
    assert hash_imports(b"def (:") == {}
    assert hash_imports(b"from .... import own_helper", "own_package.inner") == {}


def test_a_module_that_was_edited_after_it_was_imported_counts_as_it_runs(helpers):
    for name in hash_imports(SOURCE):
        del sys.modules[name]
    with import_anew(SOURCE, "scaled"):
        importlib.import_module("own_helper")
    before, function = hash_imports(SOURCE), sys.modules["own_package.inner"].read
    known = hash_definition(function)
    for name in ("own_helper.py", "own_package/inner.py"):
        (helpers / name).write_text("SCALE = 2\n")
    assert hash_imports(SOURCE) == before and hash_definition(function) == known
    with import_anew(SOURCE, "scaled"):
        importlib.import_module("own_helper")
    after = hash_imports(SOURCE)
    assert after["own_helper"] == hashlib.sha256(b"SCALE = 2\n").hexdigest()
    importlib.import_module("own_package.inner")
    assert sys.modules["own_package"].inner.SCALE == 2


def test_a_module_that_its_user_imported_again_counts_as_it_is_then(helpers):
    with import_anew(SOURCE, "scaled"):
        module = importlib.import_module("own_helper")
    (helpers / "own_helper.py").write_text("SCALE = 2, 2\n")
    importlib.reload(module)
    digest = hashlib.sha256(b"SCALE = 2, 2\n").hexdigest()
    assert hash_imports(SOURCE)["own_helper"] == digest


def test_a_package_counts_as_a_whole_wherever_it_is_installed():
    importlib.import_module("safetensors.torch")
    assert hash_imports(b"import safetensors.torch") == {}
    found = hash_imports(b"import safetensors.torch", "safetensors.mine")
    assert {"safetensors", "safetensors.torch"} <= set(found)


def test_a_function_is_known_by_its_whole_file(helpers):
    function = sys.modules["own_package.inner"].read
    before = hash_definition(function)
    assert set(before) == {"inner.py", "own_package", "own_package.other"}
    (helpers / "own_package" / "inner.py").write_text("SCALE = 2\n")
    assert hash_definition(function)["inner.py"] != before["inner.py"]
    kind = type("Kind", (), {"read": function, "__module__": "own_package.inner"})
    assert hash_definition(kind) == hash_definition(function)
    assert hash_definition(Path.cwd.__func__) == hash_definition(Path) == {}
