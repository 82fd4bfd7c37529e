"""Which layer a parameter belongs to, in families whose names do not say it."""

import pytest
import torch

from layerlab.observe.architecture.parameter_layers import hearing_front, layer_of
from layerlab.observe.architecture.structure import anatomy
from layerlab.records.layer_names import EMBEDDING
from layerlab.training.monitor.monitor import Monitor
from tests.families import recipe

TOKENS = torch.arange(2, 18)[None]
OPT = "model.decoder"
FRONT = {
    # The embedding is called `w`.
    "ctrl": {"transformer.w.weight"},
    # `project_in` and `project_out` are declared before the blocks, in the other order.
    "opt": {f"{OPT}.{name}.weight" for name in ("embed_tokens", "embed_positions", "project_in")},
    # The last norm is called `embedding_norm`.
    "lfm2": {"model.embed_tokens.weight"},
}
CHANGES = {"opt": {"word_embed_proj_dim": 16}}


@pytest.mark.parametrize("family", FRONT)
def test_what_stands_in_front_of_the_blocks_is_what_has_run_before_them(family):
    model = recipe.build(family, changes=CHANGES.get(family))
    stack = anatomy(model)
    with hearing_front(model, stack) as front:
        model(input_ids=TOKENS, use_cache=False)
    assert front == FRONT[family]
    layers = {name: layer_of(name, stack, front) for name, _ in model.named_parameters()}
    assert {name for name, layer in layers.items() if layer == EMBEDDING} == FRONT[family]
    assert {layer for name, layer in layers.items() if f"{stack.name}.1." in name} == {1}
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_that_names_no_embedding_is_heard_all_the_same(monkeypatch):
    model = recipe.build("llama")

    def refuse(model):
        raise NotImplementedError

    monkeypatch.setattr(type(model), "get_input_embeddings", refuse)
    with hearing_front(model, anatomy(model)) as front:
        model(input_ids=TOKENS, use_cache=False)
    assert front == {"model.embed_tokens.weight"}


def test_a_monitor_counts_a_gradient_where_its_parameter_stands():
    model = recipe.build("opt", changes=CHANGES["opt"]).train()
    monitor = Monitor(model, every=1)
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    named = dict(model.named_parameters())
    wanted = sum(float(named[name].grad.double().square().sum()) for name in FRONT["opt"]) ** 0.5
    monitor.step()
    frame = monitor.frame()
    found = frame[(frame["measure"] == "gradient") & (frame["layer"] == EMBEDDING)]
    assert float(found["value"].iloc[0]) == pytest.approx(wanted, rel=1e-5)


def test_an_embedding_that_the_caller_runs_stands_in_front_of_the_blocks():
    model = recipe.build("llama").train()
    monitor = Monitor(model, every=1)
    vectors = model.get_input_embeddings()(TOKENS)
    model(inputs_embeds=vectors, labels=TOKENS).loss.backward()
    monitor.step()
    frame = monitor.frame()
    found = frame[(frame["measure"] == "gradient") & (frame["layer"] == EMBEDDING)]
    wanted = float(model.get_input_embeddings().weight.grad.double().norm())
    assert found["value"].tolist() == pytest.approx([wanted], rel=1e-5)
