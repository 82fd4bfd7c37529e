"""What a model would compute for itself, found where nothing takes room."""

import pytest
from transformers import AutoConfig

from layerlab import UserError
from layerlab.loading import dry_run
from layerlab.loading.weights.weightless import empty
from tests.families.recipe import family_config

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
    monkeypatch.setattr(dry_run, "STEPS", 500)
    with pytest.raises(UserError) as refused:
        empty(AutoConfig.for_model(kind, **{**SMALL, **change}), "folder")
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("mamba2", MAMBA),
        ("mixtral", {"num_local_experts": 4, "intermediate_size": 16, "num_key_value_heads": 1}),
        ("llama", {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}),
    ],
)
def test_a_model_is_called_to_its_end_and_once(kind, sizes, monkeypatch):
    called: list[int] = []
    monkeypatch.setattr(dry_run, "_CALLED", {})
    config = AutoConfig.for_model(kind, **{**SMALL, **sizes})
    model = empty(config, "folder")
    model.register_forward_hook(lambda _, __, found: called.append(found.logits.shape[1]))
    dry_run.check_call(model, "the model")
    assert not called  # it was called when it was built
    dry_run._CALLED.clear()
    dry_run.check_call(model, "the model")
    assert called == [dry_run.TOKENS]


def test_a_size_that_differs_by_layer_is_no_fault():
    assert empty(family_config("gemma4_text"), "folder").config.num_hidden_layers
