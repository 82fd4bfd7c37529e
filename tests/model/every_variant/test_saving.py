"""What is saved and loaded is the same model, to the bit."""

import copy
import os
import pickle

import pytest
import torch
from transformers import AutoModelForCausalLM

import layerlab
import layerlab.model.ecosystem.auto_classes
from layerlab import UserError
from layerlab.model.build import build
from layerlab.variants import registry
from layerlab.variants.template import write_template
from tests.model.exempt import bound
from tests.model.small import SIZES, shaken, small, tokens


@pytest.mark.few(3)
@pytest.mark.parametrize("name", bound("saving"))
def test_a_saved_model_comes_back_bit_for_bit(name, tmp_path):
    model = shaken(small(name, dtype=torch.float32))
    model.save_pretrained(tmp_path)
    assert list(tmp_path.glob("*.safetensors")) and not list(tmp_path.glob("*.bin"))
    again, told = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is type(model) and not any(told.values())
    assert again.config.parse_spec() == model.config.parse_spec()
    mine, theirs = model.state_dict(), again.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    x = tokens()
    assert torch.equal(again(x).logits, model(x).logits)


@pytest.mark.parametrize("name", bound("pickling"))
def test_a_model_can_be_pickled_and_copied(name):
    model = build(name, **SIZES)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        wanted, found = model.state_dict(), again.state_dict()
        assert wanted.keys() == found.keys()
        assert all(torch.equal(found[key], one) for key, one in wanted.items())
        assert torch.equal(again(tokens()).logits, model(tokens()).logits)


@pytest.mark.full
def test_saving_replaces_no_file_that_was_edited_since(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_ADDED", {})
    own = tmp_path / "my_saved_idea.py"
    write_template(own)
    layerlab.load(own)
    model = build("my-saved-idea", **SIZES)
    model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)  # as a save before it left it
    own.write_text(edited := own.read_text() + "\n# an hour of work\n")
    with pytest.raises(UserError, match=r"my_saved_idea\.py is not what an earlier save wrote"):
        model.save_pretrained(tmp_path)
    assert own.read_text() == edited
    model.save_pretrained(tmp_path / "other")
    own.write_bytes((tmp_path / "other" / own.name).read_bytes())
    model.save_pretrained(tmp_path)


@pytest.mark.parametrize("planted", ["link", "nowhere", "pipe", "text"])
def test_the_code_of_a_model_is_written_over_nothing_else(planted, tmp_path):
    mine, place = tmp_path / "notes.txt", tmp_path / "saved"
    place.mkdir()
    code = place / "modeling_layerlab.py"
    if planted == "pipe":
        os.mkfifo(code)
    elif planted == "text":
        code.write_text("mine")
    else:
        mine.write_text("mine") if planted == "link" else None
        code.symlink_to(mine)
    with pytest.raises(UserError, match="saving would replace it; save the model into another"):
        small("llama").save_pretrained(place)
    assert mine.exists() == (planted == "link") and list(place.iterdir()) == [code]
    if planted in ("link", "text"):
        assert code.read_text() == "mine"
