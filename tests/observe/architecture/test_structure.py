import pytest
from torch import nn

from layerlab.errors import NotApplicable
from layerlab.observe.architecture.structure import anatomy, uses_interface


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


def test_the_interface_is_recognised_by_the_code_not_by_the_name(tiny):
    modern, legacy = anatomy(tiny("llama")), anatomy(tiny("openai-gpt"))
    assert all(part.interface for part in modern.attentions)
    assert not any(part.interface for part in legacy.attentions)
    assert not uses_interface(nn.Linear(2, 2))


def test_a_model_without_blocks_says_so(tiny):
    model = tiny("gpt2")
    model.transformer.h = nn.ModuleList()
    with pytest.raises(NotApplicable, match="GPT2LMHeadModel has no list of blocks"):
        anatomy(model)
