"""Sigma-reparametrisation: the plain model at step 0 and after the end, its norm in between."""

import copy

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from layerlab.model.modeling import LabForCausalLM
from layerlab.recipes.training_sections import ControlSection, TrainSection
from layerlab.training.optimizer import build_optimizer
from layerlab.training.qk_control.heads import heads_of
from layerlab.training.qk_control.penalties import QKControl
from tests.training.support.controlled import model, words

FORMS = ControlSection(sigma_reparam=True)


def logits(one: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return one.eval()(words()).logits


def made(
    one: PreTrainedModel, section: ControlSection = FORMS
) -> tuple[QKControl, torch.optim.Optimizer]:
    return QKControl(one, section), torch.optim.AdamW(one.parameters(), lr=1e-2)


def train(
    one: PreTrainedModel, parts: tuple[QKControl, torch.optim.Optimizer], updates: int
) -> None:
    control, optimizer = parts
    one.train()
    for _ in range(updates):
        optimizer.zero_grad()
        one(words(), labels=words()).loss.backward()
        optimizer.step()
        control.after_update()


@pytest.mark.parametrize("family", ["llama", "gpt2", "ours", "shared"])
def test_step_0_and_the_finished_model_are_plain(family, tiny):
    one = (
        {"ours": model, "shared": lambda: model(sharing="blocks")}[family]()
        if family in ("ours", "shared")
        else tiny(family)
    )
    plain, names = logits(one), list(one.state_dict())
    parts = made(one)
    assert torch.equal(logits(one), plain)
    train(one, parts, 3)
    trained = logits(one)
    assert not torch.equal(trained, plain)
    parts[0].finish()
    assert torch.equal(logits(one), trained)
    assert list(one.state_dict()) == names
    assert all("Parametrized" not in type(module).__name__ for module in one.modules())
    parts[0].finish()  # twice is once


def test_gamma_is_the_norm_that_the_model_has():
    one = model()
    parts = made(one)
    train(one, parts, 20)
    for head in heads_before(one):
        gamma = head.parametrizations.weight[0].gamma
        largest = torch.linalg.matrix_norm(head.weight.detach(), 2)
        assert largest == pytest.approx(float(gamma.detach().abs()), rel=0.05)


def heads_before(one: LabForCausalLM) -> list[torch.nn.Module]:
    return [
        matrix
        for layer in one.model.layers
        for matrix in (layer.attention.query, layer.attention.key)
    ]


def test_a_fused_matrix_has_a_norm_for_queries_and_one_for_keys(tiny):
    one = tiny("gpt2")
    values = one.transformer.h[0].attn.c_attn.weight[:, 32:].detach().clone()
    made(one)
    sigma = one.transformer.h[0].attn.c_attn.parametrizations.weight[0]
    assert sigma.gamma.shape == (2,)
    with torch.no_grad():
        sigma.gamma.copy_(torch.tensor([3.0, 5.0]))
    weight = one.transformer.h[0].attn.c_attn.weight.detach()
    query, key, value = weight.split(16, 1)
    assert float(torch.linalg.matrix_norm(query, 2)) == pytest.approx(3.0, rel=1e-5)
    assert float(torch.linalg.matrix_norm(key, 2)) == pytest.approx(5.0, rel=1e-5)
    assert torch.equal(value, values)


def test_one_is_the_source_s_start():
    one = model()
    QKControl(one, ControlSection(sigma_reparam=True, gamma="one"))
    for matrix in heads_before(one):
        assert float(torch.linalg.matrix_norm(matrix.weight.detach(), 2)) == pytest.approx(1.0)


def test_power_iteration_follows_and_does_not_care_for_forward_passes():
    one, other = model(), model()
    parts = made(one)
    query = one.model.layers[0].attention.query.parametrizations.weight
    right = query[0].right0.clone()
    logits(one), logits(one.train())
    assert torch.equal(query[0].right0, right)
    train(one, parts, 5)
    assert not torch.equal(query[0].right0, right)
    for _ in range(200):
        parts[0].after_update()
    exact = torch.linalg.svdvals(query.original.detach())[0]
    found = query[0]._norms(query.original).detach()
    assert float(found) == pytest.approx(float(exact), rel=1e-4)
    assert set(other.state_dict()) < set(one.state_dict()) | set(other.state_dict())


def test_the_gradient_is_that_of_finite_differences():
    one = model().double()
    made(one)
    forms = one.model.layers[0].attention.key.parametrizations.weight
    sigma = forms[0]
    start = forms.original.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(sigma, (start,), atol=1e-6)


def test_a_resumed_run_keeps_every_bit():
    whole, halved = model(), model()
    parts = made(whole)
    train(whole, parts, 6)
    first = made(halved)
    train(halved, first, 3)
    weights = copy.deepcopy(halved.state_dict())
    moments = copy.deepcopy(first[1].state_dict())
    assert any(name.endswith(".left0") for name in weights)
    again = model()
    second = made(again)
    again.load_state_dict(weights)
    second[1].load_state_dict(moments)
    train(again, second, 3)
    named = again.state_dict()
    assert all(torch.equal(value, named[name]) for name, value in whole.state_dict().items())


def test_matrices_decay_as_before_and_gamma_does_not():
    one = model()
    QKControl(one, FORMS)
    still = next(
        group
        for group in build_optimizer(one, TrainSection()).param_groups
        if not group["weight_decay"]
    )
    gammas = {id(value) for name, value in one.named_parameters() if name.endswith("gamma")}
    assert len(gammas) == 4 and gammas <= {id(value) for value in still["params"]}
    names = {id(value): name for name, value in one.named_parameters()}
    assert not any(names[id(value)].endswith("original") for value in still["params"])


def test_the_finished_model_is_an_ordinary_folder(tmp_path):
    one = model()
    parts = made(one)
    train(one, parts, 2)
    parts[0].finish()
    one.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(one))


def test_penalties_see_the_weights_that_the_model_multiplies_with():
    plain, wrapped = model(), model()
    expected = QKControl(plain, ControlSection(spectral_penalty=1.0)).loss()
    control = QKControl(wrapped, ControlSection(spectral_penalty=1.0, sigma_reparam=True))
    assert float(control.loss().detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    control.loss().backward()
    assert all(
        value.grad is not None
        for name, value in wrapped.named_parameters()
        if name.endswith(("gamma", "original"))
    )
    assert len(heads_of(plain)) == 2
