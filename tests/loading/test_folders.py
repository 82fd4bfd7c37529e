"""Which folder a name stands for."""

import shutil
from pathlib import Path

from layerlab import builtin
from layerlab.loading.folders import find_folder


def test_a_folder_that_is_called_as_a_built_in_model_is_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_folder("llama", with_weights=True) == builtin.path("llama")
    shutil.copytree(builtin.path("llama"), tmp_path / "llama")
    assert find_folder("llama", with_weights=True) == Path("llama")
