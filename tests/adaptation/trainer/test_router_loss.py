"""A mixture of experts learns what its routers are to do as well, in both kinds of training."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from layerlab.adaptation.pretraining.train import PretrainingRun
from layerlab.adaptation.sft.train import mean_loss
from layerlab.adaptation.trainer.router_loss import weigh_router_loss
from tests.adaptation.small import llama

FAMILIES = {
    "mixtral": {"num_local_experts": 4, "router_aux_loss_coef": 0.5},
    "jetmoe": {"num_local_experts": 4, "aux_loss_coef": 0.5, "kv_channels": 8},
}


def experts(family: str, **options: Any) -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = AutoConfig.for_model(family, **sizes, **heads, **FAMILIES[family], **options)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)


def pretraining(model: Any) -> PretrainingRun:
    """A run with updates of four blocks of eight tokens."""
    section: Any = SimpleNamespace(batch_size=4)
    given: dict[str, Any] = dict.fromkeys(("tokenizer", "text", "settings", "sharding", "merge"))
    return PretrainingRun(model=model, section=section, seed=0, block=8, **given)


ROWS = torch.randint(0, 64, (4, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_both_learn_the_loss_that_the_model_itself_gives(family):
    model = experts(family, output_router_logits=True)
    outputs = model(input_ids=ROWS, labels=ROWS, use_cache=False)
    assert outputs.aux_loss.item() > 0.1
    tuned = mean_loss(model, outputs, ROWS, 4 * 8)
    assert tuned.item() == pytest.approx(outputs.loss.item(), rel=1e-6)
    outputs = model(input_ids=ROWS[:, :-1], use_cache=False)
    found = pretraining(model).loss(outputs, ROWS[:, 1:])
    plain = torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), ROWS[:, 1:].flatten())
    assert found.item() == pytest.approx((plain + 0.5 * outputs.aux_loss).item(), rel=1e-6)


def test_rows_count_by_their_share():
    model = experts("mixtral", output_router_logits=True)
    for part in (slice(0, 1), slice(1, 4)):
        outputs = model(input_ids=ROWS[part], use_cache=False)
        share = len(ROWS[part]) / 4
        found = mean_loss(model, outputs, ROWS[part], 4 * 8)
        plain = mean_loss(llama(64), SimpleNamespace(logits=outputs.logits), ROWS[part], 4 * 8)
        routers = 0.5 * share * outputs.aux_loss.item()
        assert (found - plain).item() == pytest.approx(routers, 1e-5)
        outputs = model(input_ids=ROWS[part, :-1], use_cache=False)
        logits, labels = outputs.logits.flatten(0, 1), ROWS[part, 1:]
        nats = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum").item()
        routers = 0.5 * share * outputs.aux_loss.item()
        found = pretraining(model).loss(outputs, labels)
        assert found.item() == pytest.approx(nats / (4 * 8) + routers, rel=1e-6)


def test_its_weight_is_that_which_the_model_itself_takes():
    model = experts("mixtral", output_router_logits=True)
    model.router_aux_loss_coef = 0.25
    outputs = model(input_ids=ROWS, labels=ROWS, use_cache=False)
    assert mean_loss(model, outputs, ROWS, 4 * 8).item() == pytest.approx(outputs.loss.item(), 1e-6)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_adapters_learn_it_too_and_nobody_who_did_not_ask():
    from peft import LoraConfig, get_peft_model

    model = experts("mixtral", output_router_logits=True)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    outputs = adapted(input_ids=ROWS)
    found = weigh_router_loss(adapted, outputs, 0.25)
    assert found.item() == pytest.approx(0.125 * outputs.aux_loss.item())
    silent = experts("mixtral")
    assert weigh_router_loss(silent, silent(input_ids=ROWS), 1.0) == 0
