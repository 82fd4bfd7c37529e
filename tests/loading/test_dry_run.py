"""What a model would compute for itself, found where nothing takes room."""

from functools import partial
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from layerlab import UserError
from layerlab.loading import dry_run
from layerlab.loading.weights.weightless import empty
from tests.families.recipe import family_config
from tests.support.refused import refuses

SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
MAMBA = {"num_heads": 4, "head_dim": 8, "n_groups": 1, "state_size": 8}


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("mamba2", {**MAMBA, "chunk_size": 10**5}, "GiB for itself, more than its weights have"),
        ("mamba2", {**MAMBA, "chunk_size": 10**12}, "GiB for itself, more than its weights have"),
        ("gptj", {"n_positions": 10**8, "rotary_dim": 4}, "GiB for itself, more than its weights"),
        ("llama", {"intermediate_size": 16, "num_hidden_layers": 900}, "takes more operations to "),
    ],
)
def test_what_no_weights_tell_of_is_refused(kind, change, said, monkeypatch):
    usual = {**change, "chunk_size": 8, "n_positions": 10**5, "num_hidden_layers": 1}
    empty(AutoConfig.for_model(kind, **{**SMALL, **usual}), "folder")
    monkeypatch.setattr(dry_run, "STEPS", 500)
    with pytest.raises(UserError) as refused:
        empty(AutoConfig.for_model(kind, **{**SMALL, **change}), "folder")
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("mamba2", MAMBA),
        ("mixtral", {"num_local_experts": 4, "intermediate_size": 24, "num_key_value_heads": 1}),
        ("llama", {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}),
    ],
)
def test_a_model_is_called_to_its_end_and_once(kind, sizes, monkeypatch):
    called: list[int] = []
    monkeypatch.setattr(dry_run, "_CALLED", {})
    config = AutoConfig.for_model(kind, **{**SMALL, **sizes})
    model = empty(config, "folder")
    model.register_forward_hook(lambda _, __, found: called.append(found.logits.shape[1]))
    assert dry_run.check_call(model, "the model")
    assert not called  # it was called when it was built
    dry_run._CALLED.clear()
    monkeypatch.setattr(dry_run, "STEPS", 0)  # each weight allows for some
    assert dry_run.check_call(model, "the model")
    assert called == [dry_run.TOKENS]


def test_a_call_may_take_four_times_the_room_of_the_weights_and_no_more(monkeypatch):
    monkeypatch.setattr(dry_run, "_CALLED", {})
    monkeypatch.setattr(dry_run, "TABLES", 0)
    model = empty(AutoConfig.for_model("llama", **SMALL, intermediate_size=16), "folder")
    weights = sum(one.numel() * one.itemsize for one in model.parameters())

    def widen(module: Any, given: Any, found: Any, more: int = 0) -> None:
        torch.empty(dry_run.TOKENS * weights + more, dtype=torch.uint8)

    for more in (0, 1):
        dry_run._CALLED.clear()
        hook = model.register_forward_hook(partial(widen, more=more))
        if more:
            refuses("computes tables of 0.0 GiB for itself", dry_run.check_call, model, "the model")
        else:
            assert dry_run.check_call(model, "the model")
        hook.remove()
    for more in (0, 1):
        dry_run._CALLED.clear()
        table = torch.empty(weights + more, dtype=torch.uint8, device="meta")
        model.register_buffer("table", table)
        if more:
            refuses("computes tables of 0.0 GiB for itself", dry_run.check_call, model, "the model")
        else:
            assert dry_run.check_call(model, "the model")


def test_a_call_that_failed_has_failed_the_next_time_too(monkeypatch):
    monkeypatch.setattr(dry_run, "_CALLED", {})
    model = empty(AutoConfig.for_model("llama", **SMALL), "folder")
    dry_run._CALLED.clear()

    def fail(*_: Any) -> None:
        raise NotImplementedError("an operation that the meta device does not have")

    model.register_forward_pre_hook(fail)
    assert not dry_run.check_call(model, "the model")
    assert not dry_run.check_call(model, "the model")


def test_a_model_of_one_dtype_that_fails_for_a_reason_of_its_own_is_left_to_it(tiny):
    model = tiny("llama")
    model.config.num_hidden_layers += 1
    model.forward = lambda **_: 1 / 0
    dry_run.check_loaded(model, model.model.layers)


def test_a_model_without_a_cache_can_be_called(tiny):
    model = tiny("llama")
    forward = model.forward
    model.forward = lambda input_ids: forward(input_ids=input_ids)
    dry_run.check_real_call(model, "folder")
    model.forward = lambda input_ids: 1 / 0
    refuses("cannot be called: .*use_cache", dry_run.check_real_call, model, "folder")


def test_logits_of_fewer_places_than_tokens_are_refused(monkeypatch):
    monkeypatch.setattr(dry_run, "_CALLED", {})
    model = empty(AutoConfig.for_model("llama", **SMALL), "folder")
    dry_run._CALLED.clear()

    def keep_last(module: Any, given: Any, found: Any) -> None:
        found.logits = found.logits[:, -1:]

    model.register_forward_hook(keep_last)
    refuses(r"logits of shape \(1, 1, 64\) for 4 tokens", dry_run.check_call, model, "the model")


def test_a_size_that_differs_by_layer_is_no_fault():
    assert empty(family_config("gemma4_text"), "folder").config.num_hidden_layers
