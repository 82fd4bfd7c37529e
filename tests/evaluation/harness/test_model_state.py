"""A model of the user's own class is another one once what its file imports has changed."""

import importlib
import sys
from pathlib import Path

import pytest

from layerlab.evaluation.harness.model_state import describe_state

OWN = """
from torch import nn
from beside_own_model import SCALE


class Own(nn.Linear):
    def forward(self, x):
        return SCALE * super().forward(x)
"""


def test_a_module_beside_the_class_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_model.py").write_text(OWN)
    helper = tmp_path / "beside_own_model.py"
    helper.write_text("SCALE = 1\n")
    model = importlib.import_module("own_model").Own(2, 2)
    before = describe_state(model)
    assert describe_state(model) == before
    helper.write_text("SCALE = 2\n")
    assert describe_state(model) != before
    for name in ("own_model", "beside_own_model"):
        del sys.modules[name]
