"""A model is known again by what it makes of a few tokens."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers.models.llama import modeling_llama

from layerlab.loading.trial import ELSEWHERE, TrialRun, is_same_trial, trial_ids, try_model
from tests.families import recipe

SCALE = 1.0


class Scaled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * SCALE


def tried(model: Any) -> TrialRun:
    found = try_model(model)
    assert found is not None
    return found


def test_the_same_model_is_the_same_to_the_bit_and_elsewhere_about():
    model = recipe.build("llama")
    one, again = tried(model), tried(model.train())
    assert one == again and is_same_trial(one, again)
    moved = {**one, "where": {**one["where"], "threads": 99}}
    near = [value * (1 + 1e-6) for value in one["values"]]
    assert is_same_trial(one, moved) and is_same_trial(one, {**moved, "values": near})
    assert not is_same_trial(one, {**one, "values": near})
    far = [value * 1.01 for value in one["values"]]
    assert not is_same_trial(one, {**moved, "values": far})
    assert not is_same_trial(one, {**moved, "dtype": "torch.bfloat16"})
    on_gpu = {**one, "where": {"device": "cuda"}}
    assert is_same_trial(on_gpu, {**on_gpu, "values": near}), "its sums have no order"


def test_it_is_what_the_model_says_of_each_next_token_and_of_the_likeliest():
    model = recipe.build("llama").eval()
    ids = trial_ids(model)
    with torch.no_grad():
        said = model(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
    own = [float(said[place, token]) for place, token in enumerate(ids[1:])]
    likeliest = [max(row) for row in said.tolist()]
    torch.testing.assert_close(tried(model)["values"], own + likeliest)


def test_a_method_of_a_class_that_was_replaced_is_seen(monkeypatch):
    model = recipe.build("llama")
    before = tried(model)
    plain = modeling_llama.LlamaMLP.forward
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, x: -plain(self, x))
    assert not is_same_trial(before, tried(model))


def test_a_number_that_a_class_reads_of_its_file_is_seen(monkeypatch):
    model = recipe.build("llama")
    for layer in model.model.layers:
        layer.mlp = Scaled(layer.mlp)
    before = tried(model)
    monkeypatch.setattr("tests.loading.test_trial.SCALE", 1.00001)
    assert not is_same_trial(before, tried(model))


def test_what_gives_no_finite_logits_is_no_trial():
    model = recipe.build("llama")
    assert try_model(model.model) is None and is_same_trial(None, None)
    assert not is_same_trial(tried(model), None) and not is_same_trial(None, tried(model))
    with torch.no_grad():
        model.lm_head.weight[0] = torch.nan
    assert try_model(model) is None


@given(
    values=st.lists(st.floats(-20, 0), min_size=2, max_size=8),
    dtype=st.sampled_from([str(one) for one in ELSEWHERE]),
)
def test_a_trial_is_one_of_itself_wherever_it_ran(values, dtype):
    one = {"dtype": dtype, "where": {"device": "cuda"}, "values": values}
    other = {**one, "where": {"device": "cpu"}}
    assert is_same_trial(one, other) and is_same_trial(one, one)
