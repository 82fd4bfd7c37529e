"""Advice on precision: what it promises is measured again here, beside counts done by hand."""

import copy
from collections.abc import Sequence
from functools import cache
from math import inf

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from layerlab import UserError
from layerlab.numerics.emulation import unfused_attention
from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import emulate, reference
from layerlab.numerics.emulation.emulated_tensor import unwrap
from layerlab.numerics.emulation.policies.apply import apply_precision
from layerlab.numerics.emulation.policies.policy import Policy
from layerlab.numerics.formats.formats import find
from layerlab.numerics.formats.round import round_to
from layerlab.numerics.mixed_precision.advice import (
    FAILS,
    HOLDS,
    OPEN,
    Advice,
)
from layerlab.numerics.mixed_precision.literature_advice import (
    ALL,
    RoundedScores,
    attentions,
    exact_scores,
    literature_advice,
)
from layerlab.numerics.mixed_precision.policy_runs import PolicyRuns
from layerlab.numerics.mixed_precision.select_policy import (
    PolicyCost,
    advise,
    bits,
    candidates,
    silent,
)
from tests.measures.family import built
from tests.support.oldest import refuses_mixed
from tests.support.refused import refuses

TOKENS = 40
BUDGET = 0.5


def run(model: nn.Module) -> Tensor:
    ids = torch.randint(3, 64, (2, TOKENS), generator=torch.Generator().manual_seed(3))
    return model(ids, use_cache=False).logits


@cache
def llama() -> PreTrainedModel:
    return built("llama")


@cache
def searched() -> PolicyRuns:
    return PolicyRuns(llama(), run, "bf16", silent)


@cache
def advised() -> tuple[Advice, list[str]]:
    steps: list[str] = []
    return advise(llama(), run, "bf16", BUDGET, steps.append), steps


def squared(seen: Tensor, true: Tensor) -> float:
    return float((seen.double() - true).square().sum())


@pytest.mark.full
def test_the_budget_is_kept_in_emulation_and_in_a_real_run():
    advice, _ = advised()
    with reference(llama()):
        true = run(llama())
    with emulate(llama(), "bf16"):
        whole = squared(run(llama()), true)
    with emulate(llama(), "bf16", policy=advice.policy):
        left = squared(run(llama()), true)
    with torch.no_grad():
        plain = apply_precision(copy.deepcopy(llama()), Policy(format="bf16"))
        kept = apply_precision(copy.deepcopy(llama()), advice.policy)
        real = squared(run(kept), true) / squared(run(plain), true)
    assert advice.reached and advice.policy.keep
    assert advice.left == pytest.approx(left / whole) and left / whole <= BUDGET
    assert advice.real == pytest.approx(real) and real <= BUDGET
    assert advice.error == pytest.approx(whole / float(true.square().sum()))


@pytest.mark.full
def test_nothing_that_is_kept_can_be_let_go():
    advice, _ = advised()
    search = searched()
    for name in advice.policy.keep:
        rest = [other for other in advice.policy.keep if other != name]
        assert not search.within(rest, BUDGET)
        assert max(search.share(rest), search.real_share(rest)) > BUDGET


@pytest.mark.full
def test_every_candidate_was_tried_and_every_run_was_told():
    advice, steps = advised()
    assert {one.keep for one in advice.choices} | set(advice.refused) == set(candidates(llama()))
    assert [one.alone for one in advice.choices] == sorted(one.alone for one in advice.choices)
    assert {one.keep for one in advice.choices if one.left is not None} == set(advice.policy.keep)
    assert min(one.left for one in advice.choices if one.left is not None) == advice.left
    # Shares that are known already are not run again.
    assert advice.runs <= len(steps)


@refuses_mixed
def test_what_cannot_be_kept_apart_is_refused_with_the_reason():
    search = PolicyRuns(built("xglm"), run, "bf16", silent)
    assert search.alone("model.embed_tokens") is not None and not search.refused
    assert search.alone("model.layers.*.self_attn.v_proj") is None
    (why,) = search.refused.values()
    assert "torch refuses to mix dtypes at model.layers.0.self_attn" in why
    assert [one.verdict for one in literature_advice(search, BUDGET)] == [OPEN, OPEN]


@pytest.mark.parametrize("budget", [0.0, 1.0, -1.0, inf, float("nan")])
def test_a_budget_is_a_share(budget):
    with pytest.raises(UserError, match="; expected a share of the squared error, between 0"):
        advise(llama(), run, "bf16", budget)


@pytest.mark.parametrize("format", ["fp32", "fp64", "tf32"])
def test_float32_has_nothing_to_keep(format):
    refuses("is in float32 already: there is nothing to keep", advise, llama(), run, format)


class Table(nn.Module):
    """A model that looks numbers up, and multiplies them."""

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        self.table = nn.Embedding(len(values), 1)
        self.table.weight.data = torch.tensor(values)[:, None]

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids) * self.table(ids)


def look_up(model: nn.Module) -> Tensor:
    return model(torch.arange(4)[None])


def test_without_an_error_there_is_nothing_to_keep():
    refuses("the logits have no rounding error in", advise, Table([1.0, 2.0, 3.0, 4.0]), look_up)


def test_an_error_that_is_not_finite_has_no_shares():
    with pytest.raises(UserError, match="the logits are not finite, so no share of their error"):
        advise(Table([1.0, 2.0, 3.0, 400.0]), look_up, "fp16")


def test_a_model_of_no_family_can_be_advised():
    advice = advise(Table([0.1, 0.2, 0.3, 0.4]), look_up, "fp8_e4m3", 0.01)
    assert advice.policy.keep == ("table",) and advice.left == pytest.approx(0, abs=1e-9)
    assert advice.real is None and "real run" not in str(advice)


class Picky(Table):
    """A model that does not run in bfloat16."""

    def forward(self, ids: Tensor) -> Tensor:
        value = self.table.weight
        if type(value) is nn.Parameter and value.dtype == torch.bfloat16:
            raise RuntimeError("not implemented for 'BFloat16'")
        return super().forward(ids)


def test_a_model_that_torch_does_not_run_is_judged_by_emulation():
    advice = advise(Picky([0.1, 0.2, 0.3, 0.4]), look_up, "bf16", 0.01)
    assert advice.real is None and advice.reached and advice.policy.keep == ("table",)
    assert "not implemented for" in advice.refused["torch's own bf16"]


def test_kept_modules_of_stored_formats_are_not_quantized():
    everything = Policy(format="int8", keep=("*", "residual"))
    with reference(llama()):
        true = run(llama())
    with emulate(llama(), "int8", policy=everything):
        left = squared(run(llama()), true) / float(true.square().sum())
    assert left < (100 * 2.0**-24) ** 2


def test_cost_is_what_is_counted_by_hand():
    config, tokens = llama().config, 2 * TOKENS
    head = 2 * tokens * config.hidden_size * config.vocab_size
    found = PolicyCost(llama(), run, "bf16").of(("lm_head",))
    assert (found.flops, found.bytes) == (head, 2 * config.hidden_size * config.vocab_size)
    sizes = [value.numel() for value in llama().parameters()]
    assert found.all_bytes == 2 * sum(sizes)
    unlimited = PolicyCost(llama(), run, "t11").of(())  # torch stores it in 16 bits
    assert unlimited.all_bytes == found.all_bytes
    attention = PolicyCost(llama(), run, "bf16").of((ALL,))
    # Scores and weighted sum: two products of two operations for each pair of tokens and feature.
    pairs = 2 * TOKENS**2 * config.hidden_size
    assert (attention.flops, attention.bytes) == (4 * config.num_hidden_layers * pairs, 0)
    everything = PolicyCost(llama(), run, "bf16").of(("*",))
    assert everything.work == pytest.approx(1, abs=0.01) and everything.growth == 1


def test_experts_count_for_the_tokens_that_they_are_given():
    model = built("mixtral")
    config = model.config
    found = PolicyCost(model, run, "int8").of(("model.layers.*.mlp.experts",))
    expert = 3 * config.hidden_size * config.intermediate_size
    chosen = 2 * TOKENS * config.num_experts_per_tok * config.num_hidden_layers
    assert found.flops == 2 * chosen * expert
    stored = config.num_local_experts * config.num_hidden_layers * expert
    assert found.bytes == 3 * stored


def test_a_head_that_is_not_quantized_grows_from_two_bytes():
    head = PolicyCost(llama(), run, "int8").of(("lm_head",))
    numbers = llama().lm_head.weight.numel()
    assert (head.numbers, head.bytes) == (numbers, 2 * numbers)
    assert head.all_bytes < 2 * head.all_numbers


@pytest.mark.parametrize(
    ("name", "width"),
    [
        *[("bf16", 16), ("fp6_e2m3", 6), ("tf32", 19), ("nvfp4", 4.5), ("fp8_e4m3:channel", 8)],
        ("t11", None),
    ],
)
def test_bits_are_those_of_the_format(name, width):
    assert bits(find(name)) == width


def overheard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, ...]]:
    """Queries, keys and values of every fused attention from now on."""
    found: list[tuple[Tensor, ...]] = []
    own = unfused_attention.attention

    def listen(*args: Tensor, **options: object) -> Tensor:
        found.append(tuple(unwrap(value).detach().clone() for value in args[:3]))
        return own(*args, **options)

    monkeypatch.setattr(unfused_attention, "attention", listen)
    return found


def test_exact_scores_are_those_of_exact_queries_and_keys(monkeypatch):
    search = searched()
    found = overheard(monkeypatch)
    exact_scores(search)
    layers = llama().config.num_hidden_layers
    assert len(found) == 2 * layers
    for true, seen in zip(found[:layers], found[layers:], strict=True):
        assert torch.equal(unwrap(seen[0]).float(), unwrap(true[0]).float())
        assert torch.equal(unwrap(seen[1]).float(), unwrap(true[1]).float())
        assert not torch.equal(unwrap(seen[2]).float(), unwrap(true[2]).float())
    assert not any("exchanges" in name for module in llama().modules() for name in vars(module))


@pytest.mark.full
def test_where_attention_gives_nothing_exact_scores_change_nothing():
    model = built("llama")
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    search = PolicyRuns(model, run, "bf16", silent)
    assert search.remaining_share(exact_scores(search)) == pytest.approx(1)
    higher, control = literature_advice(search, BUDGET)
    assert (higher.verdict, control.verdict) == (FAILS, FAILS)
    assert higher.left == pytest.approx(1) and "can buy 0.000 at most" in control.reason


class Attending(nn.Module):
    """Fused attention and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, value)


def test_lowered_scores_are_rounded_step_by_step():
    drawn = torch.Generator().manual_seed(0)
    given = [torch.randn(2, 7, 16, generator=drawn).bfloat16().float() for _ in range(3)]
    with RoundedScores(model := Attending(), make_arithmetic("bf16")).running():
        seen = model(*given)

    def low(value: Tensor) -> Tensor:
        return round_to(value, "bf16")

    query, key, value = given
    scores = low(query @ key.transpose(-2, -1)) * 16**-0.5
    shifted = low(scores - low(scores.amax(-1, keepdim=True)))
    weights = low(shifted.exp())
    mixed = low(weights @ value / low(weights.sum(-1, keepdim=True)))
    assert torch.equal(seen, mixed)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("left", "real", "exact", "verdicts"),
    [
        (0.2, 0.45, 0.1, (HOLDS, OPEN)),
        (0.9, 0.95, 0.8, (FAILS, FAILS)),
        (0.45, 0.55, 0.8, (OPEN, FAILS)),
        (0.2, None, 0.8, (HOLDS, FAILS)),
    ],
)
def test_verdicts_follow_the_numbers(left, real, exact, verdicts, monkeypatch):
    search = searched()
    monkeypatch.setattr(search, "share", lambda keep: left)
    monkeypatch.setattr(search, "real_share", lambda keep: real)
    monkeypatch.setattr(search, "remaining_share", lambda logits: exact)
    monkeypatch.setattr(search, "deviation", lambda logits: 0.0)
    monkeypatch.setattr(search, "deviations", {})
    monkeypatch.setattr(search, "real_deviation", lambda keep: 0.0)
    assert tuple(one.verdict for one in literature_advice(search, BUDGET)) == verdicts


def test_attention_that_cannot_be_kept_is_not_decided(monkeypatch):
    search = searched()

    def refuse(keep: object) -> float:
        raise UserError("torch refuses to mix dtypes at model")

    monkeypatch.setattr(search, "share", refuse)
    higher, _ = literature_advice(search, BUDGET)
    assert (higher.verdict, higher.reason) == (OPEN, "torch refuses to mix dtypes at model")
    assert search.refused == {}


def test_what_autocast_leaves_stands_beside_the_policy():
    """The share of a real run under autocast."""
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        real = searched().remaining_share(run(llama()))
    assert searched().autocast() == pytest.approx(real, rel=0.2)
    assert PolicyRuns(llama(), run, "fp8_e4m3", silent).autocast() is None


@pytest.mark.parametrize(("family", "heard"), [("llama", 2), ("bloom", 0), ("qwen3_next", 1)])
def test_attention_is_kept_where_it_is_asked_for(family, heard):
    assert len(attentions(built(family))) == heard
