"""Attention whose rows do not sum to 1 is not what is said of matrices whose rows do."""

from types import SimpleNamespace

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM

from layerlab import UserError
from layerlab.errors import NotApplicable
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.runner import study
from layerlab.studies.support.attention_scores import check_rows
from layerlab.studies.support.passages import get_model

QUICK = {"fast": True, "draws": 4, "progress": False, "threads": 1}
ROWS = ("attention-lambda", "attention-gain", "block-anatomy", "gpt-curves", "deep-curve")


def with_sinks():
    """A random model whose attention gives a part of every row to nobody."""
    config = GptOssConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        max_position_embeddings=256,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GptOssForCausalLM(config).eval()


def test_sinks_take_a_part_of_the_rows():
    check_rows(SimpleNamespace(sums_to_one=True))
    with pytest.raises(NotApplicable, match="sinks take probability, so its rows do not sum to 1"):
        check_rows(SimpleNamespace(sums_to_one=False))


@pytest.mark.full
@pytest.mark.parametrize("name", ROWS)
def test_what_is_said_of_rows_that_sum_to_one_is_said_of_no_others(name):
    given = [with_sinks()] * (len(studies()[name].roles) or 1)
    with pytest.raises(UserError, match="do not sum to 1"):
        study(name, model=given, tokenizer=get_model("llama").tokenizer, **QUICK)
