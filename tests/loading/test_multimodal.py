"""Models of images or sounds and text, which are loaded by name and read as models of text."""

import pytest
import torch

from layerlab.loading.model import check_named, load_model
from tests.families.examination import logits
from tests.families.recipe import MULTIMODAL, UNBUILT, build
from tests.support.refused import refuses

NO_LANGUAGE = {
    "udop": "is a UdopForConditionalGeneration, not a causal language model",
    "blip": "cannot be called: .* missing 1 required positional argument: 'pixel_values'",
    "diffusion_gemma": r"gives logits of shape \(1, 256, 256\) for 4 tokens, and not one row for",
}
# Saved weights of transformers that it does not load itself.
UNLOADED = {"evolla", "shieldgemma2"}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", sorted(MULTIMODAL.keys() - UNBUILT - UNLOADED))
def test_a_model_is_loaded_by_name_as_it_was_saved(name, tmp_path):
    model = build(name)
    model.save_pretrained(tmp_path)
    check_named([tmp_path])
    found = load_model(str(tmp_path))
    assert type(found.model) is type(model) and not isinstance(found.stack, str)
    assert torch.equal(logits(found.model), logits(model))


@pytest.mark.parametrize("name", NO_LANGUAGE)
def test_a_model_that_reads_no_text_alone_is_refused_each_time(name, tmp_path):
    build(name).save_pretrained(tmp_path)
    for _ in range(2):
        refuses(NO_LANGUAGE[name], load_model, str(tmp_path))
