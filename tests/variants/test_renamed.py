"""Files that were written for layerlab 0.1 are read under the names of today."""

import importlib
import re

import pytest
import torch

import layerlab
from layerlab.variants.renamed import _NAMES, _NEW, update_imports
from tests.model.small import SIZES, tokens

# As `layerlab variants --new` of 0.1 wrote its imports.
OLD = '''"""An idea of 0.1."""

import torch

from layerlab import UserError
from layerlab.blocks.activation import activated
from layerlab.blocks.cost import Cost
from layerlab.blocks.ffn import Gated
from layerlab.blocks.flow import Flow
from layerlab.blocks.piece import large
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import Choice, Spec, Variant
from layerlab.blocks.start import Constant, starts
from layerlab.domain import Domain
from layerlab.shapes import Stream
from layerlab.variants.siaf import Siaf


class Old(Gated):
    """The feed-forward of Llama."""

    slot = "ffn"
    name = "old-gated"


PARTS = (Old,)
VARIANTS = (
    Variant(
        name="old",
        spec=Spec().with_block(ffn=Choice("old-gated")),
        equation="x",
        source="Own",
        about="As it was.",
    ),
)
'''


def test_every_new_name_is_a_module():
    for name in _NEW.values():
        importlib.import_module(f"layerlab.{name}")
    for module, names in _NAMES.items():
        assert set(names.values()) <= set(dir(importlib.import_module(f"layerlab.{module}")))


def test_a_file_keeps_its_lines_and_what_is_no_import():
    first = 'if x := "from layerlab.domain import y":\n'
    text = f"{first}\tfrom layerlab.domain import (\n\ty, Domain, shown as told)\n"
    found = update_imports(text)
    new = "\tfrom layerlab.validation import (\n\ty, Constraint as Domain, short_repr as told)\n"
    assert found == first + new
    assert update_imports("from layerlab.domain import (") == "from layerlab.domain import ("
    assert update_imports("from layerlab.domains import x") == "from layerlab.domains import x"


@pytest.mark.full
def test_a_variant_of_the_earlier_version_is_built_saved_and_carried(tmp_path):
    file = tmp_path / "old.py"
    file.write_text(OLD)
    layerlab.load(file)
    model = layerlab.build("old", **SIZES)
    assert torch.isfinite(model(tokens()).logits).all()
    model.save_pretrained(tmp_path / "saved")
    carried = (tmp_path / "saved" / "old.py").read_bytes()
    assert carried == file.read_bytes(), "the file itself is as its user wrote it"
    code = "".join(one.read_text() for one in (tmp_path / "saved").glob("*layerlab*.py"))
    assert not re.search(r"layerlab_blocks_flow|layerlab_domain", code)
