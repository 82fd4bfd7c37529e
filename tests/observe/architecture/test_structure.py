import pytest
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from layerlab.errors import NotApplicable, UserError
from layerlab.loading.inputs import passage, sequences
from layerlab.loading.model import LoadedModel
from layerlab.observe.architecture.structure import anatomy, context_length, uses_interface
from tests.families.recipe import FAMILIES, UNBUILT, build


@pytest.mark.parametrize("family", ["gpt2", "openai-gpt", "llama"])
def test_every_block_has_its_attention(tiny, family):
    model = tiny(family)
    found = anatomy(model)
    assert len(found.blocks) == model.config.num_hidden_layers
    assert [part.block for part in found.attentions] == [0, 1]
    assert [part.number for part in found.attentions] == [0, 1]
    for part in found.attentions:
        assert model.get_submodule(part.name) is part.module
        assert model.get_submodule(found.path(part.block)) is found.blocks[part.block]


def test_the_interface_is_recognized_by_the_code_not_by_the_name(tiny):
    modern, legacy = anatomy(tiny("llama")), anatomy(tiny("openai-gpt"))
    assert all(part.interface for part in modern.attentions)
    assert not any(part.interface for part in legacy.attentions)
    assert not uses_interface(nn.Linear(2, 2))


@pytest.mark.parametrize("shape", [(32,), (3, 32)])
def test_a_query_that_is_a_parameter_attends_over_depth_not_over_tokens(tiny, shape):
    class DepthAttention(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config
            self.query = nn.Parameter(torch.zeros(shape))
            self.norm = nn.RMSNorm(32, elementwise_affine=False)

        def forward(self, states):
            attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
            return attend(self, self.query.expand_as(states), states, states, None)[0]

    model = tiny("llama")
    found = anatomy(model)
    for block in model.model.layers:
        block.mlp_input = DepthAttention(model.config)
        assert uses_interface(block.mlp_input)
    assert anatomy(model).attentions == found.attentions


def test_a_model_without_blocks_says_so(tiny):
    model = tiny("gpt2")
    model.transformer.h = nn.ModuleList()
    with pytest.raises(NotApplicable, match="GPT2LMHeadModel has no list of blocks"):
        anatomy(model)


@pytest.mark.full
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - UNBUILT.keys()))
def test_every_family_reads_an_input_as_long_as_its_context(family):
    model = build(family)
    length = context_length(model) or 64
    if family == "prophetnet":  # its second stream looks a position ahead
        length -= 1
    with torch.no_grad():
        found = model(input_ids=10 + torch.arange(length)[None], use_cache=False)
    assert found.logits.isfinite().all()


def test_positions_begin_behind_that_of_padding():
    """Of RoBERTa's 64 positions one is that of padding, the token 0."""
    model = build("roberta")
    subject = LoadedModel(name="family", source="memory", model=model, tokenizer=None)
    assert context_length(model) == subject.context == 63
    with pytest.raises(UserError, match="text 0 has 64 tokens, the context of family is 63; give"):
        sequences(passage(input_ids=[list(range(10, 74))]), subject)
    assert context_length(build("xlnet")) is None
    assert context_length(build("llama")) == 64
