"""Alarms come before a run is lost, and do not come in a run that goes well."""

import json
import re
import warnings
from collections.abc import Callable
from math import inf, isfinite, nan
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from layerlab import Monitor, build
from layerlab.training.monitor.alerts import Alert, Limits, TrainingAlert
from layerlab.training.monitor.rules import Rules
from tests.support.refused import refusal, refuses
from tests.training.support.watched import BLOCK, VOCAB, batch, loss_of

Row = tuple[int | None, int | None, str, float]


def chain(rows: int, generator: torch.Generator) -> torch.Tensor:
    """A text whose next token depends on the one before."""
    table = torch.softmax(
        2 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1)), -1
    )
    found = [torch.randint(0, VOCAB, (rows,), generator=generator)]
    for _ in range(BLOCK - 1):
        found.append(torch.multinomial(table[found[-1]], 1, generator=generator)[:, 0])
    return torch.stack(found, 1)


def run(model: Any, optimizer: Any, updates: int, every: int, ramp: float | None = None) -> Any:
    """Losses and alarms; with a ramp the rate rises to it. It ends when the loss is no number."""
    monitor, generator = (
        Monitor(model, every=every, on_alarm=None),
        torch.Generator().manual_seed(5),
    )
    losses: list[float] = []
    while len(losses) < updates and (not losses or isfinite(losses[-1])):
        if ramp is not None:
            optimizer.param_groups[0]["lr"] = ramp * (len(losses) + 1) / updates
        loss = loss_of(model, chain(8, generator))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([one.grad for one in model.parameters()])
        monitor.step(loss, norm)
        optimizer.step()
        losses.append(loss.item())
    assert set(monitor.notes) <= {"querykey_norm"}
    return losses, monitor.alarms


UNDROPPED = {"gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, "llama": {}}
Family = Callable[..., PreTrainedModel]


def named(tiny: Family, name: str) -> Any:
    """A tiny model of a family, or a variant of ours."""
    if name in UNDROPPED:
        return tiny(name, **UNDROPPED[name]).train()
    placement = {"placement": "post"} if name == "llama-post" else {}
    sizes = {"width": 16, "layers": 2, "heads": 2, "vocab": VOCAB, "context": BLOCK}
    return build(name.removesuffix("-post"), **sizes, **placement).train()


def lost(losses: list[float]) -> int:
    """The first update whose loss is twice the first one's, or no number."""
    return next(n for n, one in enumerate(losses) if not isfinite(one) or one > 2 * losses[0])


@pytest.mark.parametrize(
    ("family", "adaptive", "ramp", "ahead"),
    [
        ("llama", False, 8.0, 10),
        pytest.param("llama", True, 2.0, 30, marks=pytest.mark.full),
        pytest.param("gpt2", True, 2.0, 15, marks=pytest.mark.full),
    ],
)
def test_a_rate_that_rises_too_far_is_told_before_the_loss_explodes(
    tiny, family, adaptive, ramp, ahead
):
    model = named(tiny, family)
    kind = torch.optim.AdamW if adaptive else torch.optim.SGD
    optimizer = kind(model.parameters(), **({} if adaptive else {"momentum": 0.9}))
    losses, alarms = run(model, optimizer, 60 if adaptive else 100, 5, ramp=ramp)
    assert alarms[0].update <= lost(losses) - ahead
    if not adaptive:
        assert not isfinite(losses[-1])
        assert any(alarm.text.startswith("the loss is nan") for alarm in alarms)


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        *(pytest.param(one, marks=pytest.mark.full) for one in ("gpt2", "llama-post", "qk-norm")),
    ],
)
def test_an_ordinary_run_is_left_in_peace(tiny, name):
    model = named(tiny, name)
    losses, alarms = run(model, torch.optim.AdamW(model.parameters(), lr=1e-2), 40, 5)
    assert losses[-1] < losses[0] - 0.2
    assert alarms == []


# The rules one by one


def told(rules: Rules, rows: list[Row], update: int = 0) -> list[Alert]:
    return rules.reading(update, rows, norm_judged=False)


def test_a_spike_is_told_once_and_again_only_after_it_was_over():
    rules = Rules()
    losses = [5 - 0.02 * n + 0.05 * (-1) ** n for n in range(40)]
    assert not any(rules.update(n, loss, None) for n, loss in enumerate(losses))
    (alarm,) = rules.update(40, 8.0, None)
    assert (alarm.measure, alarm.value, alarm.update) == ("loss", 8.0, 40)
    assert 5 < alarm.limit < 7
    assert alarm.text.startswith("the loss rose to 8, its running median is 4.6")
    assert rules.update(41, 8.1, None) == []
    assert rules.update(42, 4.2, None) == []
    assert len(rules.update(43, 8.0, None)) == 1


def test_an_early_loss_must_double_to_be_told():
    rules = Rules()
    assert not any(rules.update(n, 4.0, None) for n in range(4))
    assert not rules.update(4, 8.5, None)
    assert rules.update(5, 50.0, None)


def test_an_early_loss_below_zero_is_no_spike_where_it_stays():
    rules = Rules()
    assert not any(rules.update(n, loss, None) for n, loss in enumerate([-5.0, -5.2, -5.1, -4.9]))
    assert rules.update(4, 3.0, None)


@pytest.mark.parametrize("norm", [nan, inf])
@pytest.mark.parametrize("step", [1, 5, 50])
def test_a_gradient_that_stays_lost_is_told(norm, step):
    """A scaler that looks for its scale skips updates, sixteen of them at most."""
    rules, told = Rules(), list[Alert]()
    for number in range(5):
        assert rules.update(number, None, 1.0) == rules.update(number, None, norm) == []
    for number in range(10, 200, step):
        rules.restore(json.loads(json.dumps(rules.state())))
        told += rules.update(number, 4.0, norm)
    (alarm,) = told
    said = f"the gradient's norm is {norm:g}, and was not finite since update 4: go back to a"
    assert alarm.text.startswith(said)
    assert alarm.update == min(one for one in range(10, 200, step) if one >= 20)
    assert rules.update(200, 4.0, 1.0) == [] and rules.lost is None


@pytest.mark.parametrize("loss", [nan, inf])
def test_a_loss_that_is_no_number_is_told_and_not_remembered(loss):
    rules = Rules()
    (alarm,) = rules.update(0, loss, None)
    assert alarm.text.startswith(f"the loss is {loss:g}: go back to a checkpoint")
    assert rules.losses == []


def test_a_gradient_is_judged_by_the_logarithm_of_its_norm():
    rules = Rules()
    for update in range(20):
        assert not rules.update(update, None, 1.0 + 0.5 * (update % 3))
    assert not rules.update(20, None, 4.0)
    (alarm,) = rules.update(21, None, 40.0)
    assert alarm.measure == "gradient" and alarm.layer is None
    assert "the gradient has norm 40, usual is 1.5" in alarm.text


def test_the_gradient_of_one_layer_is_told_from_readings():
    rules = Rules()
    for update in range(6):
        assert not told(rules, [(layer, None, "gradient", 1.0) for layer in range(3)], update)
    rows: list[Row] = [(layer, None, "gradient", 1.0 + 99 * (layer == 2)) for layer in range(3)]
    (alarm,) = told(rules, rows, 6)
    assert (alarm.layer, alarm.value) == (2, 100.0)


def test_the_worst_of_several_scores_is_told_with_their_number():
    rules = Rules()
    rows: list[Row] = [
        (1, head, "score", value) for head, value in enumerate([20.0, 150.0, 300.0, 99.0])
    ]
    (alarm,) = told(rules, rows)
    assert (alarm.layer, alarm.head, alarm.value, alarm.limit) == (1, 2, 300, 100)
    assert "layer 1, head 2 is 300, above 100 (and 1 more place)" in alarm.text
    assert told(rules, rows) == []
    (other,) = told(rules, [*rows, (1, 4, "score", 101.0)])
    assert other.head == 4


def test_a_score_that_doubles_is_told_when_it_matters():
    def rising(values: list[float]) -> list[list[Alert]]:
        rules = Rules()
        return [told(rules, [(0, 0, "score", float(value))]) for value in values]

    assert not any(rising([1, 2, 4, 8, 16, 29]))
    assert not any(rising([30, 33, 36, 40, 44, 48, 53, 58, 64, 70, 77, 85, 93]))
    *before, last = rising([16, 17, 25, 33])
    assert not any(before)
    assert "grew from 16 to 33 within 3 readings" in last[0].text
    assert "grew from 16 to 33 within one reading:" in rising([16, 33])[-1][0].text


def test_jumps_count_while_the_loss_does_not_fall():
    for losses, expected in (([3.0, 2.0, 1.0], 0), ([1.0, 2.0, 3.0], 1), ([], 1)):
        rules = Rules(losses=losses)
        for update in range(5):
            assert not told(rules, [(0, 0, "querykey_norm", 1.0 + update / 10)], update)
        assert not told(rules, [(0, 0, "querykey_norm", 4.0)], 5)
        found = told(rules, [(0, 0, "querykey_norm", 6.0)], 6)
        assert len(found) == expected, losses


@pytest.mark.parametrize(
    ("measure", "healthy", "broken", "said"),
    [
        ("sink_mass", [0.999, 0.5], [0.999, 0.992], "every head of layer 0 gives 0.992"),
        (
            "entropy",
            [0.001, 0.4],
            [0.001, 0.002],
            "entropy of layer 0 has collapsed: at most 0.002",
        ),
    ],
)
def test_attention_collapses_in_all_heads(measure, healthy, broken, said):
    rules = Rules()
    assert not told(rules, [(0, head, measure, one) for head, one in enumerate(healthy)])
    (alarm,) = told(rules, [(0, head, measure, one) for head, one in enumerate(broken)])
    assert said in alarm.text and alarm.head is None


def test_tokens_that_become_alike_are_told():
    rules = Rules()
    assert not told(rules, [(3, None, "relative_residual", 0.02)])
    assert not told(rules, [(3, None, "relative_residual", nan)])  # a single token has none
    (alarm,) = told(rules, [(3, None, "relative_residual", 0.004)])
    assert "after layer 3 only 0.004 of the stream differs" in alarm.text


def test_a_gradient_that_only_readings_tell_may_be_lost_in_one_of_them():
    rules = Rules()
    for update, norm in enumerate([inf, 1.0, nan, nan, nan]):
        found = told(
            rules, [(None, None, "gradient", norm), (0, None, "gradient", norm)], 10 * update
        )
        assert len(found) == (update == 4), update
        assert found == [] or "was not finite since update 20" in found[0].text
    assert rules.update(41, 4.0, nan) == []  # it was told


def test_norms_that_are_too_far_apart_for_a_limit_are_judged():
    rules = Rules()
    found = [rules.update(update, None, (1e-44, 1e38)[update % 2]) for update in range(40)]
    assert all(isfinite(alarm.limit) for alarms in found for alarm in alarms)


@pytest.mark.parametrize("measure", ["score", "stream_norm", "querykey_norm"])
def test_what_is_no_number_is_told(measure):
    (alarm,) = told(Rules(), [(1, 0, measure, nan), (2, 0, measure, inf)])
    assert "is not finite in layer 1, head 0 (and 1 more place)" in alarm.text


def test_limits_can_be_set():
    assert told(Rules(Limits(score=10.0)), [(0, 0, "score", 11.0)])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"window": 0}, "window=0 is no whole number of 1 or more; type Limits(window=5)"),
        ({"least": 1.5}, "least=1.5 is no whole number of 1 or more; type Limits(least=16)"),
        ({"score": "x"}, "score='x' is no number of 0 or more; type Limits(score=100.0)"),
        ({"spike": nan}, "spike=nan is no number of 0 or more; type Limits(spike=10.0)"),
        ({"jump": True}, "jump=True is no number of 0 or more; type Limits(jump=4.0)"),
        ({"past": 8}, "least=16 is more than past=8, which is how many are remembered; type"),
    ],
)
def test_limits_that_no_rule_can_hold_are_refused(given, said):
    assert refusal(Limits, **given).startswith(said)


def test_a_limit_without_end_silences_its_rule():
    rules = Rules(Limits(score=inf, spike=inf, gradient=inf, jump=inf, entropy=0, sink=1))
    for update in range(20):
        assert not rules.update(update, 1.0 + 1e3 * (update == 19), 1.0 + 1e9 * (update == 19))
        places = {
            "score": 10.0**update,
            "querykey_norm": 10.0**update,
            "entropy": 0,
            "sink_mass": 1,
        }
        assert not told(Rules(rules.limits), [(0, 0, *one) for one in places.items()], update)


# What a monitor does with an alarm


def test_a_scaler_that_looks_for_its_scale_raises_no_alarm(tiny):
    model = tiny("llama").train()
    monitor, scaler = (
        Monitor(model, every=2, on_alarm="raise"),
        torch.amp.GradScaler("cpu", 2.0**20),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    norms = []
    for update in range(8):
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model, batch(update))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        monitor.step(loss, norms[-1])
        scaler.step(optimizer)
        scaler.update()
    assert not isfinite(norms[0]) and isfinite(norms[-1])


def stepped(model: Any, on_alarm: Any) -> Monitor:
    monitor = Monitor(model, on_alarm=on_alarm)
    loss_of(model, batch(0)).backward()
    monitor.step(nan)
    return monitor


def test_an_alarm_warns_raises_or_is_handed_over(tiny):
    model = tiny("llama").train()
    with pytest.warns(RuntimeWarning, match="update 0: the loss is nan"):
        stepped(model, "warn")
    with pytest.raises(TrainingAlert, match="update 0: the loss is nan") as caught:
        stepped(model, "raise")
    assert caught.value.alarm.measure == "loss"
    heard: list[Alert] = []
    assert stepped(model, heard.append).alarms == heard
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(stepped(model, None).alarms) == 1


@pytest.mark.parametrize(
    ("given", "kind"), [((CausalLMOutput(),), "CausalLMOutput"), ((torch.ones(3),), "Tensor[3]")]
)
def test_what_is_no_number_is_refused_as_a_loss(tiny, given, kind):
    model = tiny("llama")
    said = f"loss is a {kind}, not one number; type monitor.step(output.loss, norm)"
    for tell in (Monitor(model).step, Monitor(model).judge):
        refuses(re.escape(said), tell, *given)


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (torch.ones(1, dtype=torch.complex64), "complex64 on cpu"),
        (torch.ones(1, device="meta"), "float32 on meta"),
    ],
)
def test_a_number_that_is_not_real_or_not_there_is_refused_as_a_loss(tiny, loss, kind):
    refuses(f"loss is a {kind}, not one real number in memory", Monitor(tiny("llama")).step, loss)


def test_of_an_older_state_the_losses_alone_are_remembered():
    """It counted layers from the embedding: a norm of then is held against no other layer's."""
    rules = Rules(Limits())
    rules.restore({"losses": [2.0], "norms": {"reading/1": [0.1]}, "tops": {}, "active": {}})
    assert (rules.losses, rules.norms) == ([2.0], {})
    later = Rules(Limits())
    later.restore(json.loads(json.dumps(rules.state())))
    assert later == rules


@pytest.mark.parametrize("state", [None, {}, {"updates": "x"}, {"updates": 1, "rules": {}}])
def test_what_is_no_state_is_refused(tiny, state):
    refuses("is no state of a monitor", Monitor(tiny("llama")).restore, state)
