"""`generate` of every variant: with a cache it writes what it writes without one."""

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from tests.model.exempt import bound
from tests.model.small import kept, shaken, small, tokens

LENGTH = 4


def written(name: str, **options: object) -> torch.Tensor:
    x = tokens(2, 7)
    mask = torch.ones_like(x)
    mask[1, :3] = 0  # padding on the left, as batches of prompts have it
    given: torch.Tensor = kept(name).generate(
        x, attention_mask=mask, max_new_tokens=LENGTH, do_sample=False, pad_token_id=0, **options
    )
    assert given.shape == (2, 7 + LENGTH) and torch.equal(given[:, :7], x)
    return given


@pytest.mark.parametrize("name", bound("generation"))
def test_greedy_words_are_the_same_with_a_cache_and_without(name):
    assert torch.equal(written(name), written(name, use_cache=False))


@pytest.mark.parametrize("name", bound("generation"))
def test_beams_are_the_same_with_a_cache_and_without(name):
    assert torch.equal(written(name, num_beams=2), written(name, num_beams=2, use_cache=False))


def test_continuous_batching_writes_what_each_prompt_alone_gives():
    model = shaken(small("value-residual", dtype=torch.float32))
    prompts = [[1, 2, 3, 4], [5, 6, 7, 8, 9, 10]]
    given = GenerationConfig(max_new_tokens=LENGTH, do_sample=False, pad_token_id=0, eos_token_id=0)
    small_cache = ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=16)
    found = model.generate_batch(
        prompts, generation_config=given, continuous_batching_config=small_cache
    )
    written = [found[key].generated_tokens for key in sorted(found)]
    alone = [model.generate(torch.tensor([one]), given)[0, len(one) :].tolist() for one in prompts]
    assert written == alone
