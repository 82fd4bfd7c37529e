"""What may share a batch is found by trying, and batches hold nothing else."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerlab.loading.batching import Batching, find_batching, reads_ahead
from tests.evaluation.candidate import candidate
from tests.families import recipe

ANY, EQUAL, NONE = Batching(), Batching(0), Batching(0, alone=True)
# Positions that no mask shifts, a state that reads what stands in front, a window cut by slots.
IN_FRONT = ("bart", "bigbird_pegasus", "blenderbot", "git", "marian", "mbart", "mvp", "pegasus")
# Both directions, buckets of the whole row, or a mask made of the tokens.
BEHIND = ("cpmant", "prophetnet", "reformer", "xlm", "xlnet")
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 8.0, 32.0, 64.0],
    "original_max_position_embeddings": 48,
    "factor": 8.0,
    "rope_theta": 10000.0,
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("side", "expected", "families"),
    [
        ("left", EQUAL, (*IN_FRONT, "plbart", "trocr", "deepseek_v4", "recurrent_gemma")),
        ("left", NONE, ("rwkv",)),
        ("left", ANY, ("llama", "gpt2", "mamba", "gemma2", "mixtral", "roformer")),
        ("right", EQUAL, BEHIND),
        ("right", ANY, (*IN_FRONT, "llama", "gpt2", "mamba", "rwkv", "mixtral")),
    ],
)
def test_it_is_tried(side, expected, families):
    found = {family: find_batching(recipe.build(family), side) for family in families}
    assert found == dict.fromkeys(families, expected)


@pytest.mark.full
def test_a_model_that_has_seen_the_next_token_is_found():
    seeing = ("cpmant", "xlnet", "xlm")
    blind = (*IN_FRONT, "llama", "gpt2", "mamba", "rwkv", "mixtral", "bert", "prophetnet")
    found = {family: reads_ahead(recipe.build(family)) for family in (*seeing, *blind)}
    assert found == dict.fromkeys(seeing, True) | dict.fromkeys(blind, False)


def test_rounding_of_narrow_weights_is_not_taken_for_padding_that_is_read():
    found = {
        family: find_batching(recipe.build(family).to(torch.bfloat16), "left")
        for family in ("llama", "roformer", "moss_transcribe_diarize", "rwkv", "bart")
    }
    assert [*found.values()] == [ANY, ANY, ANY, NONE, EQUAL]


@pytest.mark.parametrize("side", ["left", "right"])
def test_longrope_pads_up_to_where_its_frequencies_change(side):
    assert find_batching(candidate(rope_parameters=LONGROPE).model, side) == Batching(48)
    assert candidate().batching(side) == ANY


def test_of_layers_with_frequencies_of_their_own_those_that_change_first_decide():
    kinds = {"sliding_attention": 32, "full_attention": 48}
    rope = {
        kind: {**LONGROPE, "original_max_position_embeddings": most} for kind, most in kinds.items()
    }
    model = recipe.build("gemma3_text", changes={"rope_parameters": rope})
    assert find_batching(model, "right") == Batching(32)


def test_settings_of_generation_change_nothing_and_are_put_back():
    model = candidate().model
    model.generation_config.num_beams, model.generation_config.min_new_tokens = 3, 9
    before = model.generation_config.to_dict()
    assert find_batching(model.train(), "left") == ANY
    assert model.generation_config.to_dict() == before and model.training


@given(
    st.lists(st.integers(1, 9), max_size=12),
    st.sampled_from([0, 4, 6, math.inf]),
    st.integers(0, 4),
    st.none() | st.integers(1, 5),
    st.booleans(),
)
def test_each_is_in_one_batch_beside_its_like(lengths, padded, new, most, alone):
    parts = Batching(padded, alone).split(lengths, most, new=new)
    assert sorted(number for part in parts for number in part) == [*range(len(lengths))]
    assert all(1 <= len(part) <= (1 if alone else most or len(lengths)) for part in parts)
    for part in parts:
        sizes = [lengths[number] for number in part]
        assert len({*sizes}) == 1 or max(sizes) + new <= padded
    if not alone and most is None:
        longer = {length for length in lengths if length + new > padded}
        assert len(parts) == len(longer) + any(length + new <= padded for length in lengths)
