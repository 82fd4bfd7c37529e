"""Weights that modules put together, against those of the same model made permanent."""

import peft
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

import layerlab
from layerlab.errors import NotApplicable
from layerlab.loading.model import load_model
from layerlab.observe.architecture.effective_weights import (
    count_parameters,
    effective_weight,
    effective_weights,
    linear_map,
)
from tests.measures.family import built

# PEFT asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")


def linears(model: nn.Module) -> list[nn.Module]:
    inner = model.base_model
    return [one for one in inner.modules() if isinstance(one, nn.Linear | Conv1D)]


def pruned(model: nn.Module, lasting: bool) -> None:
    for one in linears(model):
        prune.ln_structured(one, "weight", amount=0.5, n=2, dim=0)
        if lasting:
            prune.remove(one, "weight")


def normed(model: nn.Module, lasting: bool) -> None:
    for one in linears(model):
        parametrizations.weight_norm(one)
        with torch.no_grad():
            one.parametrizations.weight.original0.mul_(3)
        if lasting:
            parametrize.remove_parametrizations(one, "weight")


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def normed_of_old(model: nn.Module, lasting: bool) -> None:
    for one in linears(model):
        weight_norm(one)
        with torch.no_grad():
            one.weight_g.mul_(3)
        next(iter(one._forward_pre_hooks.values()))(one, None)
        if lasting:
            nn.utils.remove_weight_norm(one)


def adapted(model: nn.Module, lasting: bool) -> None:
    adapters = [one for one in model.modules() if hasattr(one, "get_delta_weight")]
    if not adapters:
        turned = model.config.model_type == "gpt2"
        names = ["c_attn", "c_fc"] if turned else ["q_proj", "down_proj", "embed_tokens"]
        peft.inject_adapter_in_model(
            peft.LoraConfig(r=2, target_modules=names, fan_in_fan_out=turned, lora_alpha=8), model
        )
        adapters = [one for one in model.modules() if hasattr(one, "get_delta_weight")]
        torch.manual_seed(5)
        for name, weight in model.named_parameters():
            if "lora_" in name:
                nn.init.normal_(weight, std=0.3)
    if lasting:
        for one in adapters:
            one.merge()


def trained_whole(model: nn.Module, lasting: bool) -> None:
    whole = ["c_proj"] if model.config.model_type == "gpt2" else ["down_proj", "up_proj"]
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules="all-linear", modules_to_save=whole)
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "modules_to_save" in name:
                weight.mul_(3)
    if lasting:
        wrapped.merge_and_unload()


@pytest.mark.few(3)
@pytest.mark.parametrize("change", [pruned, normed, normed_of_old, adapted, trained_whole])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated", "ignore:fan_in_fan_out")
def test_weights_are_those_of_the_model_made_permanent(family, change):
    model, lasting = built(family).eval(), built(family).eval()
    lasting.load_state_dict(model.state_dict())
    names = set(effective_weights(model))
    change(model, False)
    change(lasting, True)
    ids = torch.arange(3, 15)[None]
    torch.testing.assert_close(model(ids).logits, lasting(ids).logits, rtol=1e-4, atol=1e-4)
    found, wanted = effective_weights(model), effective_weights(lasting)
    assert set(found) == set(wanted) == names
    moved = 0
    for name, get in found.items():
        torch.testing.assert_close(get(), wanted[name](), rtol=1e-5, atol=1e-5)
        moved += not torch.equal(get(), built(family).state_dict()[name])
    assert moved >= 3


def spectra(model: PreTrainedModel) -> list[float]:
    found = layerlab.inspect(
        model, input_ids=torch.arange(3, 23), measures=["matrices", "lipschitz"], progress=False
    )
    tables = found.frame("matrices"), found.frame("lipschitz")
    columns = [tables[0]["norm"], tables[0]["rank"], tables[0]["dead_rows"], tables[1]["weights"]]
    return [value for column in columns for value in column.tolist()]


@pytest.mark.full
@pytest.mark.parametrize("change", [pruned, normed, adapted, trained_whole])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_measures_of_weights_read_what_the_model_computes_with(change):
    model, lasting = built("llama").eval(), built("llama").eval()
    lasting.load_state_dict(model.state_dict())
    before = spectra(model)
    change(model, False)
    change(lasting, True)
    found = spectra(model)
    assert found == pytest.approx(spectra(lasting), rel=1e-4, nan_ok=True)
    assert found != pytest.approx(before, rel=1e-2, nan_ok=True)


def test_an_adapter_that_is_off_or_no_plain_lora_is_not_added():
    model = built("llama").eval()
    before = {name: get() for name, get in effective_weights(model).items()}
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.inject_adapter_in_model(config, model)
    query = model.model.layers[0].self_attn.q_proj
    assert not torch.equal(effective_weight(query, "weight"), query.base_layer.weight)
    for layer in model.model.layers:
        layer.self_attn.q_proj.enable_adapters(False)
    off = {name: get() for name, get in effective_weights(model).items()}
    assert all(torch.equal(off[name], before[name]) for name in before)
    other = built("llama").eval()
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], use_dora=True)
    peft.inject_adapter_in_model(config, other)
    query = other.model.layers[0].self_attn.q_proj
    with pytest.raises(NotApplicable, match="not those of plain LoRA"):
        effective_weight(query, "weight")
    assert linear_map(query) is None


@pytest.mark.parametrize("more", [{}, {"modules_to_save": ["lm_head"]}, {"use_dora": True}])
def test_adapters_are_not_counted_whatever_the_model_was_built_by(more):
    model = built("llama")
    del model.model.layers[1:]
    parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)
    own = sum(one.numel() for one in model.parameters())
    assert count_parameters(model) == own
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], **more))
    assert load_model(model).facts()["parameters"] == own
    with adapted.disable_adapter():
        assert load_model(model).facts()["parameters"] == own


def test_a_weight_that_is_shared_is_listed_once_or_for_each():
    model = built("gpt2")
    once, each = effective_weights(model), effective_weights(model, shared=True)
    assert set(each) - set(once) == {"lm_head.weight"}


def test_a_weight_that_a_hook_makes_is_read_as_it_is_now():
    model, other = built("llama").eval(), built("llama").eval()
    nn.init.normal_(other.lm_head.weight)
    prune.identity(model.lm_head, "weight")
    model.lm_head.load_state_dict(
        {"weight_orig": other.lm_head.weight, "weight_mask": torch.ones_like(other.lm_head.weight)}
    )
    assert torch.equal(effective_weight(model.lm_head, "weight"), other.lm_head.weight)


def test_reading_a_weight_that_moves_when_it_is_read_leaves_it():
    layer = parametrizations.spectral_norm(nn.Linear(6, 5).train())
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    effective_weight(layer, "weight")
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in before.items())
    assert all(module.training for module in layer.modules())


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_an_adapter_changes_biases_too():
    model = built("gpt2").eval()
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], lora_bias=True, fan_in_fan_out=True)
    peft.inject_adapter_in_model(config, model)
    fused = model.transformer.h[0].attn.c_attn
    nn.init.ones_(fused.lora_B["default"].bias)
    found, x = linear_map(fused), torch.randn(3, 32)
    assert found is not None
    torch.testing.assert_close(nn.functional.linear(x, *found), fused(x))


def test_adapters_of_other_modules_change_nothing():
    model = built("llama").eval()
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    )
    wrapped.add_adapter(
        "other", peft.LoraConfig(r=2, target_modules=["v_proj"], init_lora_weights=False)
    )
    wrapped.base_model.set_adapter(["default", "other"])
    x = torch.randn(3, 32)
    for name in ("q_proj", "v_proj"):
        module = getattr(model.model.layers[0].self_attn, name)
        found = linear_map(module)
        assert found is not None
        torch.testing.assert_close(nn.functional.linear(x, *found), module(x))


def test_an_adapter_of_experts_is_added_to_them():
    model = built("mixtral").eval()
    names = ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"]
    config = peft.LoraConfig(r=2, target_parameters=names, init_lora_weights=False)
    wrapped = peft.get_peft_model(model, config)
    found = {name: get() for name, get in effective_weights(model).items()}
    wanted = dict(wrapped.merge_and_unload().named_parameters())
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name].data)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_a_head_is_listed_beside_the_adapted_embedding_that_it_shares():
    model = built("gpt2").eval()
    config = peft.LoraConfig(r=2, target_modules=["wte"], init_lora_weights=False)
    peft.inject_adapter_in_model(config, model)
    found = effective_weights(model)
    head, embedding = found["lm_head.weight"](), found["transformer.wte.weight"]()
    assert torch.equal(head, model.lm_head.weight)
    assert not torch.equal(head, embedding)


def test_an_adapter_that_is_no_plain_lora_refuses_the_measures_of_weights_alone():
    model = built("llama").eval()
    peft.get_peft_model(model, peft.IA3Config(target_modules=["q_proj"], feedforward_modules=[]))
    found = layerlab.inspect(
        model, input_ids=torch.arange(3, 23), measures=["matrices", "stream", "attention"]
    )
    refused = next(one for one in found.to_dict()["measures"] if one["name"] == "matrices")
    assert "merge it first" in refused["not_applicable"][0]["reason"]
    assert len(found.frame("stream")) == 3 and len(found.frame("attention")) == 8
