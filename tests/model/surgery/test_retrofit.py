"""A pretrained model as a variant: the same function before training, and trainable after."""

from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model, inject_adapter_in_model
from torch.nn.utils import parametrizations, prune
from transformers import PreTrainedModel

from layerlab import UserError
from layerlab.model.cost.cost import account
from layerlab.model.modeling import LabForCausalLM
from layerlab.model.surgery.convert import read
from layerlab.model.surgery.retrofit import rebuild, step0
from layerlab.model.surgery.transplant import graft
from layerlab.variants.registry import variant, variants
from tests.model.family import pretrained
from tests.support.refused import refuses

IDENTICAL = [
    name
    for name, one in variants().items()
    if one.start == "identity" and one.baseline == "llama" and name != "llama"
]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", IDENTICAL)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_identity_starts_keep_the_logits(kind, name):
    model = pretrained(kind)
    new = rebuild(model, name, {})
    said = step0(model, new)
    # A start that computes more than it adds may round once more in each of 2 x 2 sublayers.
    assert said.difference <= 64 * torch.finfo(torch.float32).eps * said.scale, said
    assert said.dropped == ()


def test_pangu_on_gpt2_keeps_gpt2s_own_feed_forward():
    new = rebuild(pretrained("gpt2"), "pangu-pi", {})
    options = new.config.parse_spec().block.ffn.given()
    assert options["body"] == "mlp" and options["bias"] is True
    assert new.config.parse_spec().stack.position == "learned"


def test_retrofitted_model_trains():
    new = rebuild(pretrained("llama"), "pangu-pi", {"r": 8}).train()
    ids = torch.randint(0, 61, (2, 16), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(new.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = new(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


def test_one_of_ours_can_be_rebuilt_again():
    first = rebuild(pretrained("llama"), "pangu-pi-no-siaf", {})
    again = rebuild(first, None, {})
    assert again.config.spec == first.config.spec
    assert step0(first, again).identical


def test_a_model_that_computes_no_numbers_is_refused():
    model = pretrained("llama")
    with torch.no_grad():
        model.model.norm.weight.mul_(1e30)
        model.lm_head.weight.mul_(1e20)
    refuses("logits on random tokens are not finite, though its weig", rebuild, model, "as-32", {})


def test_a_filled_slot_is_not_overwritten():
    spec = variant("qk-norm").spec
    with pytest.raises(UserError, match="slot of this model holds 'qk-norm' already"):
        graft(spec, variant("value-residual"), kind="qk-norm")


def accounted(model: LabForCausalLM) -> int:
    """As many parameters as the spec and the sizes in the configuration say."""
    return account(model.config.parse_spec(), model.config.shape()).parameters


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        ("llama", "pangu-pi", {}),
        ("qwen2", "pangu-pi", {"head": "tied"}),
        ("qwen2", "pangu-pi", {"head": "untied"}),
        ("gpt2", "pangu-pi", {"head": "untied"}),
        ("gpt2", None, {"position": "rotary"}),
        ("llama", None, {"position": "none"}),
        ("gpt2", "gpt1-final-norm", {}),
        ("openai-gpt", "ffn-relu", {}),
        ("llama", "attention-only", {}),
    ],
)
def test_what_is_built_has_the_parameters_that_its_spec_says(kind, name, options):
    model = pretrained(kind)
    new = rebuild(model, name, options)
    head = new.config.parse_spec().stack.head
    assert new.config.tie_word_embeddings == (head == "tied")
    assert (new.lm_head.weight is new.model.embed_tokens.weight) == (head == "tied")
    assert new.num_parameters() == accounted(new)
    said = step0(model, new)
    lost = {key: one for key, one in read(model).state.items() if key in said.dropped}
    assert new.num_parameters() == (
        model.num_parameters() + said.added - sum(one.numel() for one in lost.values())
    )


def test_a_tied_head_that_is_untied_is_a_matrix_of_its_own():
    model = pretrained("gpt2")
    for shared in (False, True):
        new = rebuild(model, None, {"head": "untied"}, shared=shared)
        said = step0(model, new)
        assert said.identical and said.added == new.lm_head.weight.numel()
        assert new.lm_head.weight.data_ptr() != new.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize(
    ("kind", "name", "options", "message"),
    [
        ("llama", "pangu-pi", {"head": "tied"}, "one weight in the variant and.* type head=untied"),
        ("llama", None, {"sharing": "blocks"}, "two that differ in the model;.* type sharing=none"),
        ("llama", "widenet", {}, "in the variant; expected the same sizes"),
        ("llama", "widenet", {"ffn": {"experts": 1, "k": 1}}, "two that differ in the model"),
        ("llama", None, {"position": "learned"}, "no table of positions to learn on from.*=rotary"),
        ("llama", "gpt2", {}, "a llama model cannot be rebuilt as gpt2: expected a variant of lla"),
        ("llama", "gpt1", {}, "a llama model cannot be rebuilt as gpt1"),
        ("gpt2", "llama", {}, "a gpt2 model cannot be rebuilt as llama"),
        ("openai-gpt", "gpt2", {}, "a gpt1 model cannot be rebuilt as gpt2"),
        ("qwen3", "llama", {}, "a qk-norm model cannot be rebuilt as llama"),
        ("llama", "gpt1-pre-norm", {}, "gpt1-pre-norm changes nothing of a llama model: what sets"),
        ("llama", 5, {}, "the variant is a int; expected the name of a variant: type retrofit"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(kind, name, options, message):
    refuses(message, rebuild, pretrained(kind), name, options)


def test_weights_of_another_size_are_refused():
    model = pretrained("llama")
    model.config.intermediate_size = 128
    refuses("in the variant; expected the same sizes", rebuild, model, None, {})


def adapted(kind: str, target: str, *, inner: bool = False) -> PreTrainedModel:
    """A model with an adapter that changes nothing yet, and so computes what it did before."""
    model = pretrained(kind)
    adapter = LoraConfig(target_modules=[target], r=2, fan_in_fan_out=kind == "gpt2")
    if inner:
        return get_peft_model(model, adapter).base_model.model
    return inject_adapter_in_model(adapter, model)


def pruned() -> PreTrainedModel:
    model = pretrained("gpt2")
    prune.l1_unstructured(model.transformer.h[0].attn.c_attn, "weight", amount=0.3)
    return model


def weight_normed() -> PreTrainedModel:
    model = pretrained("llama")
    parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)
    return model


def cut() -> PreTrainedModel:
    model = pretrained("llama")
    model.model.layers = model.model.layers[:1]
    return model


def extended() -> PreTrainedModel:
    model = pretrained("qwen2")
    model.lm_head.bias = torch.nn.Parameter(torch.ones(61))
    return model


QUERY = r"0\.attention\.query\.[a-z]+ and has model\.layers\.0\.attention\.query\.base_layer\."
MERGE = r"merge the adapter: type PeftModel\.from_pretrained\(model, folder\)\.merge_and_unload"


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("variant", [None, "pangu-pi"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(adapted, "llama", "q_proj"), rf"the model lacks model\.layers\.{QUERY}.*{MERGE}"),
        (partial(adapted, "llama", "q_proj", inner=True), QUERY),
        (partial(adapted, "gpt2", "c_attn"), MERGE),
        (pruned, r"key\.weight and has .* type torch\.nn\.utils\.prune\.remove\(module, name"),
        (weight_normed, r"ffn\.up\.weight and has .* type .*remove_parametrizations\(module, name"),
        (cut, r"the model lacks model\.layers\.1\.[a-z_.]+; expected the weights that its conf"),
        (extended, r"the model has lm_head\.bias besides; .* set model\.config to what the model"),
    ],
)
def test_a_model_with_other_weights_than_its_configuration_names_is_refused(make, message, variant):
    refuses(message, rebuild, make(), variant, {})


def hooked() -> PreTrainedModel:
    model = pretrained("gpt2")
    model.transformer.h[0].mlp.register_forward_hook(lambda module, given, out: 2 * out)
    return model


def activated() -> PreTrainedModel:
    model = pretrained("llama")
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()
    return model


@pytest.mark.parametrize("variant", [None, "pangu-pi"])
@pytest.mark.parametrize("make", [hooked, activated])
def test_a_model_that_computes_what_its_weights_do_not_say_is_refused(make, variant):
    refuses(r"computes something else than .* take its hooks", rebuild, make(), variant, {})


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_rounding_of_half_precision_is_no_other_function(kind):
    model = pretrained(kind).to(torch.bfloat16)
    assert rebuild(model, "pangu-pi", {}).dtype == torch.bfloat16


def test_a_head_that_was_replaced_can_be_kept_as_the_error_says():
    model = pretrained("qwen2")
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 2)
    refuses("type head=untied", rebuild, model, None, {})
    assert step0(model, rebuild(model, None, {"head": "untied"})).identical


def test_a_model_whose_first_layer_was_cut_off_is_what_is_left():
    """Its layers keep their numbers, by which a cache would look for them."""
    model = pretrained("llama", num_hidden_layers=3)
    model.model.layers, model.config.num_hidden_layers = model.model.layers[1:], 2
    ids = torch.arange(12)[None]
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        torch.testing.assert_close(rebuild(model, None, {})(ids).logits, expected)


def test_layers_that_are_alike_may_be_shared():
    model = pretrained("llama")
    model.model.layers[1].load_state_dict(model.model.layers[0].state_dict())
    new = rebuild(model, None, {"sharing": "blocks"})
    first, second = new.model.layers
    assert first.attention.query.weight is second.attention.query.weight
    assert new.num_parameters() == accounted(new) and step0(model, new).identical


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt2", "gpt2"),
        ("openai-gpt", "gpt1"),
        ("gpt2", "gpt1"),
        ("gpt2", "gpt1-pre-norm"),
        ("gpt2", "gpt1-scaled-init"),
        ("openai-gpt", "gpt1-final-norm"),
    ],
)
def test_a_variant_of_the_models_kind_becomes_what_its_spec_says(kind, name):
    model = pretrained(kind)
    new = rebuild(model, name, {})
    found, wanted = new.config.parse_spec(), variant(name).spec
    assert found.block.placement == wanted.block.placement
    assert found.stack.final_norm.name == wanted.stack.final_norm.name
    assert found.stack.initialisation == wanted.stack.initialisation
    assert step0(model, new).remark == ""


def test_what_is_carried_over_to_another_kind_is_said():
    model = pretrained("gpt2")
    said = step0(model, rebuild(model, "pangu-pi", {})).summary("gpt2", "pangu-pi", "there")
    assert (
        "only what pangu-pi changes of llama is carried over (ffn, shortcut); all else stays as in "
        "gpt2\n"
    ) in said


@pytest.mark.parametrize("kind", ["gpt2", "openai-gpt", "llama"])
def test_that_padding_is_counted_is_said_where_it_is(kind):
    model = pretrained(kind).eval()
    new = rebuild(model, None, {}).eval()
    tokens, mask = torch.arange(3, 13)[None], torch.ones(1, 10, dtype=torch.long)
    mask[0, :4] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        theirs, told, ours = (
            one(tokens, attention_mask=mask, **more).logits[0, 4:]
            for one, more in ((model, {}), (model, {"position_ids": places}), (new, {}))
        )
    torch.testing.assert_close(ours, told)
    counted = not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    said = step0(model, new).summary("it", "x", "there")
    assert ("padding on the left: it counts it" in said) == counted
    # The first GPT of transformers knows no other attention; ours does.
    assert ("with attn_implementation='eager', which the original" in said) == (
        kind == "openai-gpt"
    )


def test_many_weights_without_a_place_are_named_in_short():
    model = pretrained("llama")
    said = step0(model, rebuild(model, "attention-only", {}))
    assert len(said.dropped) > 4
    assert f" and {len(said.dropped) - 4} more\n" in said.summary("x", "y", "z")


def test_step0_compares_without_dropout_and_leaves_both_modes():
    model = pretrained("gpt2").train()
    new = rebuild(model, None, {}).train()
    model.transformer.h[1].eval()
    before = {name: one.training for name, one in model.named_modules()}
    assert step0(model, new).identical
    assert {name: one.training for name, one in model.named_modules()} == before
    assert all(one.training for one in new.modules())


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_training_the_result_leaves_the_source_alone_unless_shared(kind):
    model = pretrained(kind)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    new = rebuild(model, "pangu-pi", {})
    theirs = {one.untyped_storage().data_ptr() for one in model.parameters()}
    assert not theirs & {one.untyped_storage().data_ptr() for one in new.parameters()}
    with torch.no_grad():
        for one in new.parameters():
            one.zero_()
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_settings_of_generation_are_kept():
    settings = {
        "bos_token_id": 3,
        "eos_token_id": 4,
        "pad_token_id": 5,
        "initializer_range": 0.5,
    }
    model = pretrained("llama", **settings)
    model.generation_config.temperature = 0.3
    new = rebuild(model, "as-4", {})
    assert {name: getattr(new.config, name) for name in settings} == settings
    assert new.generation_config.temperature == 0.3
    assert new.generation_config is not model.generation_config
