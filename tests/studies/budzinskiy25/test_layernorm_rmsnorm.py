"""Norms of a stream are known by what they compute, whatever their classes are called."""

import pytest
import torch

from layerlab.studies.budzinskiy25.layernorm_rmsnorm import inputs
from layerlab.studies.support.passages import patient
from tests.studies.test_given_models import given_of


@pytest.mark.parametrize("model", ["llama:layers=2", "gpt2:layers=2"])
def test_norms_of_our_own_blocks_are_read(model):
    (given,) = given_of("layernorm-against-rmsnorm", model=model).values()
    found = inputs(given.subject, given.tokens[:8])
    # Two in each block and one before the head.
    assert len(found) == 5
    first = next(iter(found.values()))
    embedded = given.subject.model.get_input_embeddings()(given.tokens[:8]).double()
    assert first.shape == embedded.shape


def test_norms_of_the_built_in_models_are_all_read():
    for name in ("llama", "pre-norm", "post-norm"):
        subject = patient(name)
        found = inputs(subject, torch.arange(8))
        norms = [one for one, _ in subject.model.named_modules() if "norm" in one or "ln_" in one]
        assert [*found] and {*found} == {*norms}
