"""A file that is loaded again runs with what it imports as that is now, and is known by it."""

import hashlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.evaluation.harness.cache import hash_code
from layerlab.loading.weights.saved import load_saved
from layerlab.model.build import build
from layerlab.plugins import load
from layerlab.variants import registry
from tests.model.test_outside import SIZES, forgotten, written

__all__ = ["forgotten"]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that modules are imported from, which are gone after a test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def importing(folder: Path, line: str) -> Path:
    """A file of a part that begins with a line."""
    file = written(folder / "scaled.py")
    file.write_text(f"{line}\n{file.read_text('utf-8')}", "utf-8")
    return file


def scale_of(file: Path) -> tuple[float, str]:
    """What a file has imported, and what its code beside it is said to be."""
    load(file)
    (found,) = (one for one in registry.origins() if one.path == file.resolve())
    module = sys.modules[found.module]
    assert isinstance(module.SCALE, float)
    return module.SCALE, found.helpers["scale"]


@pytest.mark.parametrize("line", ["from scale import SCALE", "from kit.inner import SCALE"])
def test_what_is_hashed_is_what_runs_once_code_beside_a_file_changes(line, beside):
    file = importing(beside, line)
    (beside / "kit").mkdir()
    (beside / "kit" / "__init__.py").write_text("from . import inner\n")
    (beside / "kit" / "inner.py").write_text("from scale import SCALE\n")
    found = []
    for value in (1.0, 2.0, 2.0, 3.0):
        (beside / "scale.py").write_text(f"SCALE = {value}\n")
        found.append((*scale_of(file), sys.modules["scale"]))
    assert [one[:2] for one in found] == [
        (value, hashlib.sha256(f"SCALE = {value}\n".encode()).hexdigest())
        for value in (1.0, 2.0, 2.0, 3.0)
    ]
    assert found[1][2] is found[2][2], "what stays as it was is not imported anew"


@pytest.mark.parametrize("line", ["from scale import SCALE", "from outer import SCALE"])
def test_a_module_that_was_imported_and_changed_before_is_imported_anew(line, beside):
    file = importing(beside, line)
    (beside / "outer.py").write_text("from scale import SCALE\n")
    (beside / "scale.py").write_text("SCALE = 1.0\n")
    importlib.import_module("scale")
    (beside / "scale.py").write_text("SCALE = 1.5 + 0.5\n")
    if "outer" in line:
        with pytest.raises(UserError, match="scale was changed after Python had imported it; load"):
            load(file)
    digest = hashlib.sha256(b"SCALE = 1.5 + 0.5\n").hexdigest()
    assert scale_of(file) == (2.0, digest)


def test_a_package_that_layerlab_uses_too_is_not_imported_anew(beside, monkeypatch):
    (beside / "peft").mkdir()
    (beside / "peft" / "__init__.py").write_text("SCALE = 1\n")
    file = importing(beside, "from peft import SCALE")
    monkeypatch.delitem(sys.modules, "peft", raising=False)
    load(file)
    (beside / "peft" / "__init__.py").write_text("SCALE = 2\n")
    with pytest.raises(UserError, match="peft was changed while Python was running, and layerlab"):
        load(file)


@pytest.mark.full
def test_scores_of_a_saved_model_are_known_by_what_its_file_imports(beside):
    file = importing(beside, "from scale import SCALE")
    found = []
    for value in (1.0, 2.0, 1.0):
        (beside / "scale.py").write_text(f"SCALE = {value}\n")
        load(file)
        if not (beside / "saved").exists():
            build("mine", **SIZES).save_pretrained(beside / "saved")
        found.append(hash_code(load_saved(beside / "saved")))
    assert found[0] == found[2] != found[1] and all(found)
    assert hash_code(build("llama", **SIZES)) == ""
