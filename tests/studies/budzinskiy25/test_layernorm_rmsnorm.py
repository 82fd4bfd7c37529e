"""Norms of a stream are known by what they compute, whatever their classes are called."""

import pytest
import torch

from layerlab.studies.budzinskiy25.layernorm_rmsnorm import inputs
from layerlab.studies.support.passages import get_model
from tests.families.examination import subject
from tests.families.recipe import build
from tests.studies.small import given_of

TEXT = torch.arange(3, 11)


@pytest.mark.parametrize(
    ("family", "norms"), [("cohere", 3), ("gpt2", 5), ("qwen3", 5), ("olmo", 5)]
)
def test_norms_of_the_stream_are_found_by_what_they_do(family, norms):
    whole = subject(build(family))
    found = inputs(whole, TEXT)
    assert len(found) == norms
    assert all(rows.shape == (8, 32) for rows in found.values())


@pytest.mark.parametrize("model", ["llama:layers=2", "gpt2:layers=2"])
def test_norms_of_our_own_blocks_are_read(model):
    (given,) = given_of("layernorm-against-rmsnorm", model=model).values()
    found = inputs(given.subject, given.tokens[:8])
    # Two in each block and one before the head.
    assert len(found) == 5
    first = next(iter(found.values()))
    embedded = given.subject.model.get_input_embeddings()(given.tokens[:8]).double()
    assert first.shape == embedded.shape


@pytest.mark.full
def test_norms_of_the_built_in_models_are_all_read():
    for name in ("llama", "pre-norm", "post-norm"):
        model = get_model(name)
        found = inputs(model, torch.arange(8))
        norms = [one for one, _ in model.model.named_modules() if "norm" in one or "ln_" in one]
        assert [*found] and {*found} == {*norms}
