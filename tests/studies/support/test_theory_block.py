"""What a study cannot read of a model is refused by name, not by an error that nobody foresaw."""

import pytest
import torch

from layerlab import UserError, build
from layerlab.studies.engine.runner import study
from layerlab.studies.support.passages import get_model


@pytest.mark.full
@pytest.mark.parametrize("name", ["condition-table", "bound-depth"])
def test_a_block_without_attention_is_said(name):
    from transformers import Lfm2Config, Lfm2ForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"num_key_value_heads": 2, "block_ff_dim": 32, "conv_L_cache": 3, "vocab_size": 600}
    config = Lfm2Config(**sizes, **more, layer_types=["conv", "full_attention"])
    torch.manual_seed(0)
    model, words = Lfm2ForCausalLM(config).eval(), get_model("llama").tokenizer
    with pytest.raises(UserError, match=r"does not apply to \w+: .*layer 0 has no attention"):
        study(name, model=model, tokenizer=words, draws=8, progress=False, threads=1)


def test_a_model_without_a_norm_is_refused_by_its_name():
    sizes = {"width": 16, "layers": 1, "heads": 2, "vocab": 600, "context": 256}
    given = {
        "model": build("gpt2", norm="none", **sizes),
        "tokenizer": get_model("llama").tokenizer,
    }
    with pytest.raises(UserError, match=r"does not apply to gpt2: no layer norm or RMS norm reads"):
        study("layernorm-against-rmsnorm", **given, draws=4, progress=False, threads=1)
