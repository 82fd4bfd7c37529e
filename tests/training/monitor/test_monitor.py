"""A monitor reads what `inspect` would read, and leaves no trace in what is trained."""

import copy
import json
from collections.abc import Callable
from math import inf, isnan
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from layerlab import Monitor, UserError
from layerlab.records.layer_names import EMBEDDING
from tests.support.refused import refusal
from tests.training.support.watched import (
    COLUMNS,
    VOCAB,
    batch,
    expected,
    loss_of,
    ours,
    read_once,
    trained,
    values,
    weights,
)

UNDROPPED = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "openai-gpt": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {},
}
Family = Callable[..., PreTrainedModel]


@pytest.fixture(params=["ours", "gpt2", "llama", "openai-gpt"])
def model(request: pytest.FixtureRequest, tiny: Family) -> Any:
    """A model that has learnt a little, so that its heads differ."""
    name = request.param
    found = ours() if name == "ours" else tiny(name, **UNDROPPED[name]).train()
    return trained(found)


def test_values_are_those_of_the_measures(model):
    tokens = batch(9)
    reference = expected(model, tokens[0])
    monitor = read_once(model, tokens)
    assert not monitor.notes
    for name, cells in reference.items():
        assert values(monitor, name) == pytest.approx(cells, rel=2e-6), name


def test_gradients_are_those_of_the_parameters(model):
    monitor = Monitor(model)
    loss_of(model, batch(9)).backward()
    whole = nn.utils.clip_grad_norm_(model.parameters(), inf)
    monitor.step()
    found = values(monitor, "gradient")
    assert found[None, None] == pytest.approx(float(whole), rel=1e-5)
    block = next(one for one in model.modules() if isinstance(one, nn.ModuleList))[0]
    squares = [float(one.grad.double().square().sum()) for one in block.parameters()]
    assert found[0, None] == pytest.approx(sum(squares) ** 0.5, rel=1e-5)
    parts = [found[layer, None] ** 2 for layer in range(EMBEDDING, 3) if (layer, None) in found]
    assert sum(parts) == pytest.approx(float(whole) ** 2, rel=1e-5)


def test_a_weight_that_blocks_share_counts_in_each_of_them_and_once_in_the_whole():
    model = ours("widenet")
    monitor = Monitor(model)
    loss_of(model, batch(9)).backward()
    whole = nn.utils.clip_grad_norm_(model.parameters(), inf)
    monitor.step()
    found = values(monitor, "gradient")
    names = [len(dict(one.named_parameters())) for one in model.model.layers]
    assert len(set(names)) == 1, "each block has all of its parameters"
    for place, block in enumerate(model.model.layers):
        squares = [float(one.grad.double().square().sum()) for one in block.parameters()]
        assert found[place, None] == pytest.approx(sum(squares) ** 0.5, rel=1e-5)
    assert found[None, None] == pytest.approx(float(whole), rel=1e-5)


def test_gradients_are_told_as_they_were_before_clipping():
    model = ours()
    monitor = Monitor(model)
    loss_of(model, batch(9)).backward()
    before = model.model.layers[0].attention.query.weight.grad.clone()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
    monitor.step(norm=norm)
    assert before.norm() > 1e-4
    assert values(monitor, "gradient")[None, None] == pytest.approx(float(norm), rel=1e-5)


def test_several_sequences_tell_the_worst_or_the_mean():
    model, tokens = trained(ours()), batch(9)
    each = [expected(model, tokens[row]) for row in range(3)]
    monitor = read_once(model, tokens, Monitor(model, sequences=3))
    largest = {place: max(one["score"][place] for one in each) for place in each[0]["score"]}
    mean = {place: sum(one["entropy"][place] for one in each) / 3 for place in each[0]["entropy"]}
    assert values(monitor, "score") == pytest.approx(largest, rel=1e-5)
    assert values(monitor, "entropy") == pytest.approx(mean, rel=1e-5)


def test_one_sequence_that_is_not_finite_is_not_hidden_by_others():
    model, tokens = ours(), batch(9).clamp_max(VOCAB - 2)
    with torch.no_grad():
        model.get_input_embeddings().weight[VOCAB - 1] = torch.nan
    for bad in range(3):
        given = tokens.clone()
        given[bad, 5] = VOCAB - 1
        monitor = read_once(model, given, Monitor(model, sequences=3, on_alarm=None))
        monitor.close()
        for measure in ("stream_norm", "relative_residual", "growth"):
            assert isnan(values(monitor, measure)[EMBEDDING, None]), measure
        for measure in ("score", "entropy", "attention_norm"):
            assert isnan(values(monitor, measure)[0, 0]), measure


@pytest.mark.few(2)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("options", "row", "part"),
    [
        ({"attention_mask": torch.tensor([[0] * 4 + [1] * 12] * 4)}, 0, slice(4, 16)),
        ({"attention_mask": torch.tensor([[1] * 11 + [0] * 5] * 4)}, 0, slice(0, 11)),
        ({"position_ids": torch.tensor([[*range(7), *range(9)]] * 4)}, 0, slice(0, 7)),
    ],
    ids=["left padding", "right padding", "packed documents"],
)
def test_padding_and_other_documents_are_not_read(tiny, implementation, options, row, part):
    model = trained(tiny("llama").train())
    model.set_attn_implementation(implementation)
    tokens = batch(9)
    reference = expected(model, tokens[row, part])
    monitor = read_once(model, tokens, **options)
    assert not monitor.notes
    for name in ("score", "sink_mass", "attention_norm", "relative_residual"):
        assert values(monitor, name) == pytest.approx(reference[name], rel=1e-4), name


def test_padding_that_a_mask_in_second_place_names_is_not_read():
    model, tokens = trained(ours()), batch(9)
    reference = expected(model, tokens[0, 4:])
    monitor = Monitor(model)
    mask = torch.tensor([[0] * 4 + [1] * 12] * 4)
    model(tokens, mask, labels=tokens).loss.backward()
    monitor.step()
    for name in ("score", "sink_mass", "attention_norm", "relative_residual"):
        assert values(monitor, name) == pytest.approx(reference[name], rel=1e-4), name


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")
def test_padding_behind_tokens_that_a_wrapper_puts_in_front_is_not_read(tiny):
    model = tiny("llama")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    wrapped = peft.get_peft_model(model, config).train()
    monitor = Monitor(wrapped)
    given, mask = batch(9)[:1], torch.tensor([[0] * 6 + [1] * 10])
    streams: list[torch.Tensor] = []
    model.model.layers[1].register_forward_hook(lambda *call: streams.append(call[2].detach()))
    wrapped(input_ids=given, attention_mask=mask, labels=given).loss.backward()
    monitor.step()
    norm = float(streams[0][0, 10:].norm(dim=-1).mean())
    assert values(monitor, "stream_norm")[1, None] == pytest.approx(norm, rel=1e-5)


def test_a_beginning_is_read_as_if_it_stood_alone():
    model, tokens = trained(ours()), batch(9)
    monitor = read_once(model, tokens, Monitor(model, tokens=6))
    reference = expected(model, tokens[0, :6])
    for name in COLUMNS:
        assert values(monitor, name) == pytest.approx(reference[name], rel=1e-5), name


# What is trained stays as it is


@pytest.mark.few(1)
def test_a_whole_number_of_numpy_is_one(tiny):
    monitor = Monitor(tiny("llama").train(), every=np.int64(2), tokens=np.int64(4))
    trained(monitor.model, monitor, updates=3)
    assert set(monitor.frame()["update"]) == {0, 2}


@pytest.mark.parametrize("family", ["gpt2", "llama", "openai-gpt"])
def test_a_monitored_run_ends_with_the_same_weights_to_the_bit(tiny, family):
    plain, seen = (tiny(family).train() for _ in range(2))  # GPT-2 and GPT-1 drop out, too
    trained(plain, updates=6)
    after = torch.get_rng_state()
    trained(seen, Monitor(seen, every=2), updates=6)
    assert torch.equal(after, torch.get_rng_state())
    torch.testing.assert_close(weights(seen), weights(plain), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_is_left_alone(tiny, reentrant):
    models = [tiny("gpt2").train() for _ in range(2)]
    for one in models:
        one.gradient_checkpointing_enable({"use_reentrant": reentrant})
    monitor = Monitor(models[1], every=2)
    torch.testing.assert_close(
        weights(trained(models[1], monitor)), weights(trained(models[0])), rtol=0, atol=0
    )
    assert not monitor.notes
    assert len(values(monitor, "score", 2)) == 4


def test_autocast_does_not_reach_the_measures(tiny):
    plain, seen = (tiny("llama").train() for _ in range(2))
    monitor = Monitor(seen)
    for one, watch in ((plain, None), (seen, monitor)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(one, batch(0))
        loss.backward()
        if watch is not None:
            watch.step(loss)
    assert not monitor.notes
    pairs = zip(plain.parameters(), seen.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)
    reference = expected(plain, batch(0)[0])
    assert values(monitor, "score") == pytest.approx(reference["score"], rel=0.05)
    assert values(monitor, "querykey_norm") == pytest.approx(reference["querykey_norm"], rel=2e-6)


def test_parametrised_weights_are_not_moved_by_being_read():
    models = [ours() for _ in range(2)]
    for one in models:
        for layer in one.model.layers:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                nn.utils.parametrizations.spectral_norm(layer.attention.query)
    torch.testing.assert_close(
        weights(trained(models[1], Monitor(models[1], 2))),
        weights(trained(models[0])),
        rtol=0,
        atol=0,
    )


def hooks(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


def test_hooks_stand_only_while_they_are_needed():
    model, before = ours(), dict(ALL_ATTENTION_FUNCTIONS.items())
    monitor, standing = Monitor(model, every=3), []
    for update in range(5):
        standing.append(hooks(model))
        loss_of(model, batch(update)).backward()
        assert hooks(model) == standing[-1]
        monitor.step()
    assert [bool(one) for one in standing] == [True, False, False, True, False]
    assert dict(ALL_ATTENTION_FUNCTIONS.items()) == before
    monitor.close()
    assert hooks(model) == 0
    assert sorted({row["update"] for row in monitor.rows}) == [0, 3]


def test_evaluation_and_later_pieces_of_a_batch_are_not_read():
    model = trained(ours())
    reference = expected(model, batch(1)[0])
    monitor = Monitor(model)
    with torch.no_grad():
        loss_of(model, batch(0))
    loss_of(model, batch(1)).backward()
    read_once(model, batch(2), monitor)
    assert values(monitor, "score") == pytest.approx(reference["score"], rel=1e-5)


def test_a_forward_pass_that_failed_is_read_when_it_is_tried_again():
    model = ours()
    monitor = Monitor(model)
    with pytest.raises(IndexError):
        loss_of(model, batch(0) + VOCAB)
    read_once(model, batch(0), monitor)
    assert not monitor.notes
    assert len(values(monitor, "score")) == 4


def test_a_copy_of_the_model_is_not_watched():
    model = ours()
    monitor = Monitor(model)
    average = copy.deepcopy(model)
    loss_of(average, batch(0))
    read_once(model, batch(1), monitor)
    assert values(monitor, "score") == pytest.approx(expected(model, batch(1)[0])["score"])


# What is handed out


def test_news_are_told_once_and_as_json():
    model = ours()
    monitor = Monitor(model, on_alarm=None)
    loss_of(model, batch(0)).backward()
    monitor.step(inf)
    rows, alarms = monitor.news()
    assert set(rows[0]) == {"layer", "head", "measure", "value"}
    assert len(rows) == len(monitor.rows)
    (alarm,) = alarms
    assert alarm["text"].startswith("the loss is inf: ") and "update" not in alarm
    assert alarm["value"] is None
    assert "Infinity" not in json.dumps([rows, alarms])
    assert monitor.news() == ([], [])


def test_a_frame_holds_every_reading():
    model = ours()
    monitor = Monitor(model, every=2)
    trained(model, monitor)
    frame = monitor.frame()
    assert list(frame) == ["update", "layer", "head", "measure", "value"]
    assert set(frame["measure"]) == {*COLUMNS, "gradient"}
    assert frame["update"].unique().tolist() == [0, 2]
    streams = frame.query("measure == 'stream_norm' and update == 0")
    assert streams["layer"].tolist() == [EMBEDDING, 0, 1] and streams["head"].isna().all()
    assert monitor.latest["score"] == frame.query("update == 2 and measure == 'score'").value.max()
    assert (
        monitor.latest["entropy"] == frame.query("update == 2 and measure == 'entropy'").value.min()
    )


def test_a_state_stays_as_it_was_while_the_run_goes_on():
    model = ours()
    monitor = read_once(model, batch(9), Monitor(model, every=1))
    state = monitor.state()
    before = json.dumps(state)
    loss = loss_of(model, batch(8))
    loss.backward()
    monitor.step(loss, norm=1.0)
    assert json.dumps(state) == before
    assert json.dumps(monitor.state()) != before


@pytest.mark.full
def test_a_resumed_run_reads_and_judges_the_same():
    straight, monitor = ours(), None
    monitor = Monitor(straight, every=2, on_alarm=None)
    resumed: list[Monitor] = []
    optimizer = torch.optim.SGD(straight.parameters(), lr=0.1)
    for update in range(24):
        if update == 19:
            after = Monitor(straight, every=2, on_alarm=None)
            after.restore(json.loads(json.dumps(monitor.state())))
            resumed = [after]
        loss = loss_of(straight, batch(update))
        optimizer.zero_grad()
        loss.backward()
        said = loss.item() + 9 * (update in (21, 22))
        alarms = [one.step(said) for one in (monitor, *resumed)]
        assert len(alarms[0]) == (update == 21)
        assert alarms[0] == alarms[-1]
        optimizer.step()
    (after,) = resumed
    assert after.rows == [row for row in monitor.rows if row["update"] >= 19]
    assert [row["update"] for row in after.rows[:1]] == [20]


# What a user can mend


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (nn.Linear(2, 2), {}, "given a Linear; a monitor reads a causal language model"),
        (None, {"every": 0}, "every=0 is no whole number of 1 or more; type every=100"),
        (None, {"every": True}, "every=True is no whole number of 1 or more; type every=100"),
        (None, {"tokens": 1}, "tokens=1 is no whole number of 2 or more; type tokens=256"),
        (None, {"tokens": -1}, "tokens=-1 is no whole number of 2 or more; type tokens=256"),
        (None, {"sequences": 0}, "sequences=0 is no whole number of 1 or more; type sequences=1"),
        (None, {"on_alarm": "stop"}, "on_alarm='stop' is not known; expected 'warn', 'raise'"),
    ],
)
def test_what_cannot_be_monitored_is_refused(model, options, said):
    assert said in refusal(Monitor, ours() if model is None else model, **options)


def test_a_model_without_blocks_is_refused():
    from transformers import PreTrainedConfig

    class Empty(PreTrainedModel):
        config_class = PreTrainedConfig

    with pytest.raises(UserError) as caught:
        Monitor(Empty(PreTrainedConfig()))
    assert "Empty cannot be monitored, because Empty has no list of blocks" in str(caught.value)


def test_an_encoder_is_refused():
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    with pytest.raises(UserError, match="because its attention reads later tokens, too; expected"):
        Monitor(BertForMaskedLM(BertConfig(**sizes)))
