"""A part that is taken out is as if its output weights were zero, on families of every form."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from layerlab.errors import NotApplicable
from layerlab.loading.model import LoadedModel
from layerlab.observe.architecture.head_weights import project
from layerlab.observe.architecture.structure import anatomy, text_config
from layerlab.observe.tracing.ablation import (
    BlockParts,
    Means,
    Removal,
    find_parts,
    hearing_heads,
    removing,
    touching,
)
from layerlab.observe.tracing.readout import answer, resume
from layerlab.observe.tracing.records import Layer
from layerlab.observe.tracing.trace import observing, trace
from tests.families.recipe import FAMILIES, SCALE, UNBUILT, family_config
from tests.families.recipe import build as family

TEXT = torch.arange(3, 27)
PLACES = torch.tensor([0, 5, 20, 23])
# Where a block keeps the matrix behind its heads, and the one that ends its feed-forward.
WEIGHTS = {
    "gpt2": ("attn.c_proj", "mlp.c_proj"),
    "openai-gpt": ("attn.c_proj", "mlp.c_proj"),
    "llama": ("self_attn.o_proj", "mlp.down_proj"),
    "gemma2": ("self_attn.o_proj", "mlp.down_proj"),
    "olmo2": ("self_attn.o_proj", "mlp.down_proj"),
    "qwen3_next": ("self_attn.o_proj", None),
    "deepseek_v3": ("self_attn.o_proj", "mlp.down_proj"),
    "mixtral": ("self_attn.o_proj", "mlp.experts.down_proj"),
    "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h"),
    # One dropout stands behind both of its branches.
    "phi": ("self_attn.dense", "mlp.fc2"),
    "gptj": ("attn.out_proj", "mlp.fc_out"),
    "codegen": ("attn.out_proj", "mlp.fc_out"),
    "bloom": ("self_attention.dense", "mlp.dense_4h_to_h"),
    "falcon": ("self_attention.dense", "mlp.dense_4h_to_h"),
    "mpt": ("attn.out_proj", "ffn.down_proj"),
    "opt": ("self_attn.out_proj", "fc2"),
}

# Their experts or their norms know no float64.
SINGLE = {"qwen3_next", "deepseek_v3", "mixtral"}


def parts_of(model: PreTrainedModel) -> dict[int, BlockParts]:
    stack, found = anatomy(model), dict[int, BlockParts]()
    rotary = next((one for one in model.modules() if hasattr(one, "attention_scaling")), None)

    def keep(layer: Layer) -> None:
        if layer.attention is not None and layer.block is not None:
            part = stack.attention(layer.attention.name)
            weights = project(layer.block, part, config=text_config(model), rotary=rotary)
            layer = Layer(**{**vars(layer), "weights": weights})
        found[layer.layer] = find_parts(stack, layer)

    trace(model, stack, [TEXT], keep)
    return {number: one for number, one in found.items() if number >= 0}


@torch.no_grad()
def without(model: PreTrainedModel, layer: int, removed: list[Removal | None]) -> Tensor:
    stack, parts = anatomy(model), parts_of(model)[layer]
    with observing(model):
        given = answer(model, stack, TEXT, PLACES)
        with removing(stack, parts, removed):
            return resume(model, stack, given, layer, len(removed))


@torch.no_grad()
def by_hand(model: PreTrainedModel, layer: int, path: str, columns: slice = slice(None)) -> Tensor:
    """Logits where the weights that read some columns are zero, in a copy; all: the bias too."""
    copy = deepcopy(model)
    found: Any = anatomy(copy).blocks[layer].get_submodule(path.rpartition(".")[0])
    last = getattr(found, path.rpartition(".")[2])
    if isinstance(last, nn.Parameter):  # experts in one tensor
        last.zero_()
    else:
        weight = last.weight.T if type(last).__name__ == "Conv1D" else last.weight
        weight[:, columns] = 0
        if columns == slice(None) and last.bias is not None:
            last.bias.zero_()
    return copy(input_ids=TEXT[None], use_cache=False).logits[0, PLACES]


def width_of(model: PreTrainedModel, layer: int, path: str) -> int:
    last = anatomy(model).blocks[layer].get_submodule(path)
    return int(last.weight.shape[0 if type(last).__name__ == "Conv1D" else 1])


@pytest.mark.few(1)
@pytest.mark.parametrize("name", WEIGHTS)
@torch.no_grad()
def test_each_head_and_sublayer_is_as_if_its_output_weights_were_zero(name):
    model = family(name)
    if name not in SINGLE:
        model.double()
    layer = 1 if name == "qwen3_next" else 0  # its first block has no softmax attention
    parts = parts_of(model)[layer]
    output, inner = WEIGHTS[name]
    rows: list[Removal | None] = [None]
    rows += [Removal(component="head", head=head) for head in range(parts.heads)]
    rows += [Removal(component="attention")]
    rows += [Removal(component="ffn")] if inner else []
    found = without(model, layer, rows)
    width = width_of(model, layer, output) // parts.heads
    assert parts.heads == text_config(model).num_attention_heads
    whole = model(input_ids=TEXT[None], use_cache=False).logits[0, PLACES]
    hand = [whole]
    hand += [
        by_hand(model, layer, output, slice(head * width, (head + 1) * width))
        for head in range(parts.heads)
    ]
    hand += [by_hand(model, layer, path) for path in (output, inner) if path]
    # Softmaxes and some norms are float32 in these families, whatever the weights are.
    for row, (one, other) in enumerate(zip(found, hand, strict=True)):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4, msg=f"{rows[row]}")
        assert row == 0 or float((other - whole).abs().max()) > 2e-3, "it makes a difference"


# A gate stands between the heads of qwen3_next and their projection; bloom, falcon and mpt add the
# stream inside their attention or hand heads on in another form.
HEARD = ("gpt2", "openai-gpt", "llama", "gemma2", "olmo2", "deepseek_v3", "gpt_neox", "gptj", "opt")
COMPUTED = ("qwen3_next", "bloom")


@pytest.mark.parametrize("name", [*HEARD, *COMPUTED])
@torch.no_grad()
def test_heads_that_were_heard_are_not_computed_again(name):
    model = family(name)
    layer = 1 if name == "qwen3_next" else 0
    stack, parts = anatomy(model), parts_of(model)[layer]
    assert parts.attention is not None
    rows: list[Removal | None] = [None, Removal(component="head", head=1)]
    rows += [Removal(component="attention"), Removal(component="ffn")]
    with observing(model):
        with hearing_heads(stack, [parts]) as heads:
            given = answer(model, stack, TEXT, PLACES)
        with removing(stack, parts, rows):
            whole = resume(model, stack, given, layer, len(rows))
        with removing(stack, parts, rows, heads=heads.get(parts.key)):
            own = parts.attention.module.forward
            found = resume(model, stack, given, layer, len(rows))
    assert (parts.key in heads) == (name in HEARD)
    assert (own.__name__ == "stand_in") == (name in HEARD)
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)
    assert parts.attention.module.forward.__name__ == "forward"


# Their blocks, and the attention inside, hand a choice of keys on to the next block.
HANDING = ("glm_moe_dsa", "hy_v4")
REST = sorted(set(FAMILIES) - set(UNBUILT) - set(HANDING))


@pytest.mark.parametrize(
    "name", [*HANDING, *(pytest.param(one, marks=pytest.mark.full) for one in REST)]
)
@torch.no_grad()
def test_with_nothing_taken_out_every_row_is_the_text_itself(name):
    model = shared_choice() if name == "glm_moe_dsa" else family(name)
    try:
        stack, parts = anatomy(model), parts_of(model)
        with observing(model), hearing_heads(stack, list(parts.values())) as heads:
            given = answer(model, stack, TEXT, PLACES)
    except NotApplicable as error:
        pytest.skip(str(error))
    allowed = 1e-4 * float(given.logits.abs().max())
    with observing(model):
        for layer, one in parts.items():
            with removing(stack, one, [None] * 3, heads=heads.get(one.key)):
                found = resume(model, stack, given, layer, 3)
            torch.testing.assert_close(found, given.logits.expand_as(found), rtol=0, atol=allowed)


def shared_choice() -> PreTrainedModel:
    """Return a GLM whose second and fourth blocks attend to the keys that the one before chose."""
    config = family_config("glm_moe_dsa")
    config.num_hidden_layers, config.mlp_layer_types = 4, ["dense"] * 4
    config.indexer_types, config.layer_types = ["full", "shared"] * 2, config.layer_types[:1] * 4
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(SCALE)
    return model


@torch.no_grad()
def test_a_choice_of_keys_that_is_handed_on_is_that_of_the_whole_model():
    model = shared_choice()
    stack, parts = anatomy(model), parts_of(model)[0]
    rows = [Removal(component="head", head=head) for head in range(parts.heads)]
    path = "self_attn.o_proj"
    width = width_of(model, 0, path) // parts.heads
    with observing(model):
        with hearing_heads(stack, [parts]) as heads:
            given = answer(model, stack, TEXT, PLACES)
        with removing(stack, parts, rows, heads=heads[parts.key]):
            found = resume(model, stack, given, 0, len(rows))
    for head in range(parts.heads):
        hand = by_hand(model, 0, path, slice(head * width, (head + 1) * width))
        assert float((hand - given.logits).abs().max()) > 2e-3
        torch.testing.assert_close(found[head], hand, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom"])
def test_a_mean_stands_where_a_hook_puts_it(name):
    model = family(name)
    stack, parts = anatomy(model), parts_of(model)[0]
    path = WEIGHTS[name][0]
    width = width_of(model, 0, path) // parts.heads
    projection = stack.blocks[0].get_submodule(path)
    means, seen = Means(), []
    with torch.no_grad(), observing(model):
        hook = projection.register_forward_pre_hook(lambda module, args: seen.append(args[0][0]))
        with touching(stack, [parts], ("head", "attention"), means.add):
            for text in (TEXT, TEXT + 5):
                model(input_ids=text[None], use_cache=False)
        hook.remove()
        mean = torch.cat(seen)[:, width : 2 * width].mean(0)

        def replace(module: nn.Module, args: Any) -> Any:
            changed = args[0].clone()
            changed[..., width : 2 * width] = mean
            return (changed, *args[1:])

        with hearing_heads(stack, [parts]) as heads:
            given = answer(model, stack, TEXT, PLACES)
        with removing(
            stack, parts, [Removal(component="head", head=1)], means, heads.get(parts.key)
        ):
            found = resume(model, stack, given, 0, 1)[0]
        hook = projection.register_forward_pre_hook(replace)
        hand = model(input_ids=TEXT[None], use_cache=False).logits[0, PLACES]
        hook.remove()
    assert means.mean(parts, "attention").shape == (text_config(model).hidden_size,)
    torch.testing.assert_close(found, hand, rtol=1e-4, atol=1e-4)


def test_the_model_is_as_it_was_also_after_an_error(tiny):
    for name in ("gpt2", "openai-gpt"):
        model = tiny(name)
        before = model(input_ids=TEXT[None]).logits
        with pytest.raises(ZeroDivisionError):
            with removing(anatomy(model), parts_of(model)[0], [Removal(component="head", head=0)]):
                _ = 1 / 0
        assert torch.equal(model(input_ids=TEXT[None]).logits, before)
        hooks = [one._forward_hooks or one._forward_pre_hooks for one in model.modules()]
        assert not any(hooks)


def test_blocks_without_heads_say_why():
    model = family("qwen3_next")
    first = parts_of(model)[0]
    assert first.heads == 0 and "no softmax attention" in first.refused["head"]
    assert "not expose it" in first.refused["attention"]


def test_an_output_projection_that_is_not_known_is_not_guessed(tiny):
    model = tiny("openai-gpt")
    found = []
    trace(model, anatomy(model), [TEXT], lambda layer: found.append(layer))
    parts = find_parts(anatomy(model), found[1])  # no weights were recognized
    assert parts.heads == 0 and "a head gives is not known" in parts.refused["head"]


def test_an_attention_of_another_form_is_refused(tiny):
    model = tiny("gpt2")
    parts = parts_of(model)[0]
    other = BlockParts(block=0, heads=3, attention=parts.attention)
    given = answer(model, anatomy(model), TEXT, PLACES)
    with removing(anatomy(model), other, [Removal(component="head", head=0)]):
        with pytest.raises(NotApplicable, match="not one row per token and head"):
            resume(model, anatomy(model), given, 0, 1)


def test_a_subject_has_the_same_parts(tiny):
    model = tiny("llama")
    patient = LoadedModel(name="tiny", source="memory", model=model, tokenizer=None)
    assert not isinstance(patient.stack, str)
    assert [one.heads for one in parts_of(model).values()] == [4, 4]
    assert all(set(one.sublayers) == {"attention", "ffn"} for one in parts_of(model).values())


@torch.no_grad()
def test_what_is_taken_out_of_a_block_stays_in_those_that_share_its_modules(tiny):
    shared, apart = tiny("llama"), tiny("llama")
    first, second = shared.model.layers
    second.self_attn, second.mlp = first.self_attn, first.mlp
    for parameter in first.parameters():
        parameter.mul_(8 if parameter.dim() > 1 else 1)
    apart.load_state_dict(shared.state_dict())
    rows: list[Removal | None] = [Removal(component="head", head=1)]
    rows += [Removal(component="attention"), Removal(component="ffn")]
    found = without(shared, 0, rows)
    attention, ffn = WEIGHTS["llama"]
    width = width_of(apart, 0, attention) // 4
    hand = [by_hand(apart, 0, attention, slice(width, 2 * width))]
    hand += [by_hand(apart, 0, path) for path in (attention, ffn)]
    for one, other in zip(found, hand, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4)
