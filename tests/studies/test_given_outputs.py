"""Models whose numbers are not finite on the text: no study judges what is left of them."""

import re

import pytest
import torch

from layerlab import UserError
from layerlab.known_names import OF_MODELS
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.given_models import load_given
from layerlab.studies.engine.runner import study
from layerlab.studies.support.passages import get_model
from tests.studies.small import FAMILIES, QUICK, made


def overflow(model, part):
    """Give a part of a model weights that are finite, and with which its numbers are not."""
    parts = {
        "the embeddings": model.model.embed_tokens,
        "layer 1": model.model.layers[1].mlp.up_proj,
        "the logits": model.lm_head,
    }
    weight = torch.full_like(parts[part].weight, 3e38)
    parts[part].weight = torch.nn.Parameter(weight)
    if part == "the embeddings":  # of which only those scaled by it overflow
        parts[part].register_forward_hook(lambda module, given, output: output * 2)
    return model


@pytest.mark.full
@pytest.mark.parametrize("part", ["the embeddings", "layer 1", "the logits"])
def test_a_model_whose_numbers_are_not_finite_on_the_text_is_refused(part):
    """All its weights are finite; what is NaN would be left out of a verdict over all layers."""
    model, words = overflow(made("llama"), part), get_model("llama").tokenizer
    for name in OF_MODELS:
        found = studies()[name]
        given = [model] * (len(found.roles) or 1)
        with pytest.raises(UserError) as told:
            study(name, model=given, tokenizer=words, **QUICK)
        told = str(told.value)
        assert re.search(f"of the text is NaN or infinite, first in {part}, and no study", told)
        assert "\n" not in told


@pytest.mark.parametrize("family", [*FAMILIES])
def test_a_sound_model_of_every_family_is_not_refused(family):
    found, words = studies()["saliency-repeat"], get_model("llama").tokenizer
    options = {**found.options, **found.fast}
    (given,) = load_given(found, options, model=made(family), tokenizer=words).values()
    assert not given.subject.model.training
