"""transformers' auto classes know our models, whichever of the two is imported first."""

import sys

import pytest

from tests.support.forked import BEFORE, empty_python, python

NEITHER = """
import sys
assert not {"transformers", "layerlab"} & sys.modules.keys()
"""
ASK = """
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
config = AutoConfig.for_model(
    "layerlab", hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=8, vocab_size=11,
)
for auto in (AutoModel, AutoModelForCausalLM):
    print(type(auto.from_config(config)).__name__)
"""
ORDERS = {
    "layerlab first": "import layerlab",
    "transformers first": "import transformers; import layerlab",
    "the list of configurations first": "from transformers import AutoConfig; import layerlab",
    "the list of models first": "from transformers import AutoModelForCausalLM; import layerlab",
    "our models first": "from layerlab.model.modeling import LabModel",
    "what our models import first": "import layerlab; from transformers import GenerationMixin",
    "a model of transformers first": "import layerlab; from transformers import LlamaForCausalLM",
    "another model first": "import layerlab; from transformers import GPT2LMHeadModel",
}


def fresh(code: str) -> str:
    done = empty_python("-c", code, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.parametrize("order", ORDERS)
def test_auto_classes_build_our_models(order):
    done = python("-c", NEITHER + ORDERS[order] + ASK, server=BEFORE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["LabModel", "LabForCausalLM"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "spared"),
    [
        ("", {"torch", "transformers", "layerlab.model.config", "layerlab.blocks"}),
        ("import transformers", {"layerlab.model.config", "layerlab.blocks"}),
        (
            "from transformers import AutoConfig",
            {"layerlab.model.modeling", "layerlab.blocks.part"},
        ),
    ],
)
def test_import_brings_no_more_than_is_there(before, spared):
    loaded = fresh(f"{before}\nimport sys, layerlab; print(*sys.modules)")
    assert not spared & set(loaded.split())


def test_importing_the_package_imports_three_small_files_and_nothing_of_others():
    code = "import sys; before = {*sys.modules}; import layerlab; print(*{*sys.modules} - before)"
    loaded = set(fresh(code).split())
    foreign = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names}
    folders = {"layerlab", "layerlab.model", "layerlab.model.ecosystem"}
    own = {"errors", "version", "model.ecosystem.auto_classes"}
    assert foreign == folders | {f"layerlab.{name}" for name in own}
