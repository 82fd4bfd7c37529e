"""Penalties, QK-clip and their laws."""

import copy
import json
import math

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from layerlab import build
from layerlab.measures.quantities.weights.querykey import factored_spectrum
from layerlab.model.modeling import LabForCausalLM
from layerlab.recipes.training_sections import ControlSection, EmulateSection
from layerlab.training.qk_control.heads import heads_of
from layerlab.training.qk_control.penalties import QKControl, extreme_values, log_condition
from layerlab.training.step.emulated_rounding import emulation
from tests.support.forked import Forked
from tests.support.refused import refusal
from tests.training.support.controlled import SIZES, largest_scores, model, words


def norms(one: PreTrainedModel) -> Tensor:
    return torch.cat(
        [
            head.scaling
            * factored_spectrum(head.query.weight().detach(), head.key.weight().detach())
            for head in heads_of(one)
        ]
    )


def train(one: LabForCausalLM, control: QKControl | None, updates: int, rate: float = 1e-2) -> None:
    optimizer = torch.optim.AdamW(one.parameters(), lr=rate)
    for _ in range(updates):
        optimizer.zero_grad()
        loss = one(words(), labels=words()).loss
        extra = control.loss() if control else None
        (loss if extra is None else loss + extra).backward()
        optimizer.step()
        if control:
            control.after_update()


@pytest.mark.few(1)
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("width", [3, 8])
def test_penalties_have_the_gradient_of_finite_differences(kv_heads, width):
    """Width 3 is less than a head's 4: the form then has rank 3."""
    draw = torch.Generator().manual_seed(1)
    query = torch.randn(2, 4, width, generator=draw, dtype=torch.float64, requires_grad=True)
    key = torch.randn(kv_heads, 4, width, generator=draw, dtype=torch.float64, requires_grad=True)

    def norm(query: Tensor, key: Tensor) -> Tensor:
        return extreme_values(query, key)[0].square().mean()

    def condition(query: Tensor, key: Tensor) -> Tensor:
        return log_condition(*extreme_values(query, key)).mean()

    assert torch.autograd.gradcheck(norm, (query, key))
    assert torch.autograd.gradcheck(condition, (query, key))


def test_values_are_the_singular_values_of_the_product():
    query, key = (
        torch.randn(4, 3, 8, dtype=torch.float64),
        torch.randn(2, 3, 8, dtype=torch.float64),
    )
    largest, smallest = extreme_values(query, key)
    for head in range(4):
        exact = torch.linalg.svdvals(key[head // 2].T @ query[head])
        assert torch.allclose(largest[head], exact[0]) and torch.allclose(smallest[head], exact[2])


@pytest.mark.parametrize("query", [torch.eye(3, 5), torch.zeros(3, 5), torch.ones(3, 5)])
def test_coincident_and_missing_singular_values_are_safe(query):
    query = query[None].requires_grad_()
    largest, smallest = extreme_values(query, torch.eye(3, 5)[None])
    total = largest.square().sum() + log_condition(largest, smallest).sum()
    total.backward()
    assert torch.isfinite(total) and torch.isfinite(query.grad).all()


def test_the_loss_is_what_it_says(tiny):
    for one in (model(kv_heads=2), tiny("gpt2"), tiny("llama")):
        values = norms(one)
        both = QKControl(one, ControlSection(spectral_penalty=0.5, condition_penalty=0.25)).loss()
        condition = (values[:, 0] / values[:, -1]).log().mean()
        expected = 0.5 * values[:, 0].square().mean() + 0.25 * condition
        assert both.item() == pytest.approx(float(expected), rel=1e-4)
        both.backward()
        changed = [name for name, value in one.named_parameters() if value.grad is not None]
        assert len(changed) == {"GPT2LMHeadModel": 2}.get(type(one).__name__, 4)


def test_without_settings_a_run_keeps_every_bit():
    plain, controlled = model(), model()
    control = QKControl(controlled, ControlSection())
    assert control.loss() is None
    train(plain, None, 3)
    train(controlled, control, 3)
    control.finish()
    named = controlled.state_dict()
    assert all(torch.equal(value, named[name]) for name, value in plain.state_dict().items())


@pytest.mark.full
def test_the_spectral_penalty_makes_the_norm_smaller():
    free, held = model(large=8.0), model(large=8.0)
    start = norms(free)[:, 0].mean()
    train(free, None, 50)
    train(held, QKControl(held, ControlSection(spectral_penalty=1.0)), 50)
    assert norms(held)[:, 0].mean() < 0.5 * start
    assert norms(held)[:, 0].mean() < 0.5 * norms(free)[:, 0].mean()


@pytest.mark.full
def test_the_condition_penalty_makes_the_condition_smaller():
    def condition(one: LabForCausalLM) -> float:
        values = norms(one)
        return float((values[:, 0] / values[:, -1]).log().mean())

    free, held = model(), model()
    train(free, None, 30)
    train(held, QKControl(held, ControlSection(condition_penalty=1.0)), 30)
    assert condition(held) < condition(free) - 1


def test_penalties_under_emulated_rounding_reach_the_weights():
    one = model(large=8.0)
    control = QKControl(one, ControlSection(spectral_penalty=1.0, condition_penalty=0.1))
    control.loss().backward()
    query = one.model.layers[0].attention.query.weight
    exact, query.grad = query.grad, None
    for parameter in one.parameters():
        parameter.grad = None
    with emulation(one, EmulateSection(format="bf16"), 0, 0):
        control.loss().backward()
    assert float((query.grad - exact).norm() / exact.norm()) < 0.05


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_clip_bounds_the_scores_of_the_same_batch(kv_heads):
    one = model(large=40.0, layers=1, kv_heads=kv_heads)
    before = largest_scores(one)
    clip = float(before.min()) * 0.99
    control = QKControl(one, ControlSection(qk_clip=clip))
    keys = one.model.layers[0].attention.key.weight.clone()
    for rows in words().split(1):  # the maximum is that of all micro-batches
        with torch.no_grad():
            one(rows)
    control.after_update()
    assert control.clipped == 4
    control.finish()
    after = largest_scores(one)
    assert torch.allclose(after, torch.full_like(after, clip), rtol=1e-4)
    assert torch.equal(keys, one.model.layers[0].attention.key.weight) == (kv_heads == 2)


def test_a_head_below_the_limit_keeps_every_bit():
    one = model(large=40.0, layers=1)
    scores = largest_scores(one)[0]
    control = QKControl(one, ControlSection(qk_clip=float(scores.median()) * 1.001))
    before = one.model.layers[0].attention.query.weight.clone().view(4, 4, 16)
    with torch.no_grad():
        one(words())
    control.after_update()
    after = one.model.layers[0].attention.query.weight.view(4, 4, 16)
    kept = [torch.equal(before[head], after[head]) for head in range(4)]
    assert kept == (scores <= control.section.qk_clip).tolist() and set(kept) == {True, False}
    control.after_update()  # nothing was heard since
    assert control.clipped == 0


def test_clipping_holds_scores_down_in_training():
    one = model(large=40.0)
    control = QKControl(one, ControlSection(qk_clip=2.0))
    assert float(largest_scores(model(large=40.0)).max()) > 8
    train(one, control, 12, rate=1e-4)
    control.finish()
    assert float(largest_scores(one).max()) < 2.2


def test_layers_that_share_weights_are_scaled_once():
    one = model(large=40.0, sharing="blocks")
    control = QKControl(one, ControlSection(qk_clip=1.0))
    with torch.no_grad():
        one(words())
    largest = torch.stack([vars(head.part.module)["largest_scores"] for head in control.heads])
    before = one.model.layers[1].attention.query.weight.clone().view(4, 4, 16)
    control.after_update()
    after = one.model.layers[1].attention.query.weight.view(4, 4, 16)
    factors = (1.0 / largest.amax(0)).clamp_max(1.0).sqrt()
    assert torch.allclose(after, before * factors[:, None, None])


def test_numbers_that_are_not_finite_are_left_to_the_loop():
    one = model()
    control = QKControl(
        one, ControlSection(spectral_penalty=1.0, condition_penalty=1.0, qk_clip=1.0)
    )
    with torch.no_grad():
        one.model.layers[0].attention.query.weight[0, 0] = math.nan
        one(words())
    assert not torch.isfinite(control.loss())
    before = copy.deepcopy(one.model.layers[1].attention.key.weight)
    control.after_update()
    assert torch.equal(before, one.model.layers[1].attention.key.weight)


def test_what_cannot_be_controlled_is_said():
    said = []
    for one, section in (
        (model(), ControlSection(qk_clip=1.0, sigma_reparam=True)),
        (build("qk-norm", **SIZES), ControlSection(spectral_penalty=1.0)),
    ):
        said.append(refusal(QKControl, one, section))
    assert said == [
        "control.qk_clip and control.sigma_reparam both set the size of the query and key weights; "
        "choose one of them",
        "a norm stands on queries and keys (QK-norm), so the size of W_k^T W_q does not reach the "
        "scores; leave spectral, condition and clip out",
    ]


PROCESS = """
import json, sys, torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from layerlab.training.qk_control.penalties import QKControl
from layerlab.recipes.training_sections import ControlSection
from tests.training.support.controlled import model, words
torch.set_num_threads(1)
rank, store = int(sys.argv[1]), distributed.FileStore(sys.argv[2], 2)
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
found = []
SECTIONS = (ControlSection(qk_clip=2.0, spectral_penalty=0.1), ControlSection(sigma_reparam=True))
for section in SECTIONS:
    one = model(large=40.0)
    control = QKControl(one, section)
    wrapped = DistributedDataParallel(one)
    optimizer = torch.optim.SGD(one.parameters(), lr=0.01)
    rows = words()[2 * rank : 2 * rank + 2]
    for _ in range(3):
        optimizer.zero_grad()
        loss, extra = wrapped(rows, labels=rows, use_cache=False).loss, control.loss()
        (loss if extra is None else loss + extra).backward()
        optimizer.step()
        control.after_update()
    found += [control.clipped, *(float(value.double().sum()) for value in one.parameters())]
print(json.dumps(found))
"""


@pytest.mark.full
def test_two_processes_stay_alike(tmp_path):
    """Each hears other scores; both scale by the larger, or their weights would part."""
    running = [Forked("-c", PROCESS, str(rank), tmp_path / "store") for rank in range(2)]
    first, second = (json.loads(one.wait().stdout.splitlines()[-1]) for one in running)
    assert first == second and first[0] > 0
