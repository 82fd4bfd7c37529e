"""A model's own settings of generation: special ids count, nothing else does."""

from typing import Any

import pytest
from transformers import GenerationConfig

from layerlab.loading.generation import ignore_settings, list_unused, special_ids, stop_at
from tests.evaluation.candidate import candidate
from tests.support.refused import refusal


def model_with(**settings: Any) -> Any:
    found = candidate().model
    found.generation_config = GenerationConfig(**settings)
    return found


def test_special_ids_are_kept():
    model = model_with(bos_token_id=1, eos_token_id=[2, 3], max_time=0.001, num_beams=4)
    given = model.generation_config
    with ignore_settings(model):
        assert model.generation_config.eos_token_id == [2, 3]
        assert model.generation_config.bos_token_id == 1
        assert model.generation_config.max_time is None
    assert model.generation_config is given and given.num_beams == 4
    given.pad_token_id, given.eos_token_id = -1, 2**31 - 1  # as of a token that a model lacks
    found = special_ids(model)
    assert (found["pad_token_id"], found["eos_token_id"]) == (-1, 2**31 - 1)


@pytest.mark.parametrize("value", ["x", True, 1.5, [0, None], {"a": 1}, 2**31, -2, [[1]]])
def test_an_id_is_a_whole_number(value):
    model = model_with()
    model.generation_config.eos_token_id = value
    assert refusal(special_ids, model) == (
        f"eos_token_id is {value!r} in the model's generation_config.json or config.json; "
        "expected a token id or a list of them: mend it there"
    )


def test_what_is_not_used_is_named():
    assert list_unused(model_with(eos_token_id=1, use_cache=True)) == []
    assert list_unused(model_with(do_sample=False, output_attentions=False)) == []
    assert list_unused(model_with(max_time=0.5, repetition_penalty=1.5)) == [
        *("max_time", "repetition_penalty")
    ]


@pytest.mark.parametrize(("ends", "wanted"), [(None, 5), (1, [1, 5]), ([1, 2], [1, 2, 5])])
def test_a_model_that_stops_at_one_token_more_can_be_saved(ends, wanted, tmp_path):
    """Its temperature does nothing without do_sample, as that of many models that are published."""
    model = model_with(eos_token_id=ends, temperature=0.5)
    assert stop_at(model, 5) and not stop_at(model, 5)
    model.generation_config.save_pretrained(tmp_path)
    found = GenerationConfig.from_pretrained(tmp_path)
    assert (found.eos_token_id, found.temperature) == (wanted, 0.5)
