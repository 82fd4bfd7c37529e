"""What is saved and loaded is the same model, to the bit."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import layerlab.model.ecosystem.auto_classes  # noqa: F401  AutoModel learns of our models by it
from layerlab.model.build import build
from tests.model.exempt import bound
from tests.model.small import SIZES, shaken, small, tokens


@pytest.mark.parametrize("name", bound("saving"))
def test_a_saved_model_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = shaken(small(name, dtype=torch.float32))
    model.save_pretrained(tmp_path)
    assert list(tmp_path.glob("*.safetensors")) and not list(tmp_path.glob("*.bin"))
    again, told = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is type(model) and not any(told.values())
    assert again.config.parsed() == model.config.parsed()
    mine, theirs = model.state_dict(), again.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    x = tokens()
    assert torch.equal(again(x).logits, model(x).logits)


@pytest.mark.parametrize("name", bound("pickling"))
def test_a_model_can_be_pickled_and_copied(name: str) -> None:
    model = build(name, **SIZES)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        wanted, found = model.state_dict(), again.state_dict()
        assert wanted.keys() == found.keys()
        assert all(torch.equal(found[key], one) for key, one in wanted.items())
        assert torch.equal(again(tokens()).logits, model(tokens()).logits)
