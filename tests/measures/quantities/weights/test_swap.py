"""Weights of one checkpoint put into another: against copies that were changed by hand."""

import copy
import math
import re

import pytest
import torch
from torch.nn.functional import kl_div, log_softmax

from layerlab import inspect
from layerlab.loading.model import load_model
from tests.families.recipe import build
from tests.support.refused import refuses

IDS = torch.arange(10, 34)[None]


def saved_pair(family, folder, scale=0.1):
    """A model, and the folder of what it was changed from."""
    model, changed = build(family), build(family)
    model.save_pretrained(folder)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in changed.parameters():
            if one.dim() > 1:
                noise = torch.randn(one.shape, generator=generator)
                one += scale * one.abs().mean() * noise
    return changed, model


def swap(model, folder):
    found = inspect(model, input_ids=IDS, measures="swap", against=folder, progress=False)
    return found.frame("swap")


def divergence(true, seen):
    with torch.no_grad():
        p, q = (log_softmax(one(IDS).logits[0].double(), -1) for one in (true, seen))
    flips = (p.argmax(-1) != q.argmax(-1)).double().mean()
    return float(kl_div(q, p, log_target=True, reduction="sum")) / IDS.numel(), float(flips)


def mixed(base, other, inside):
    """A copy of a model with some of another's weights."""
    found = copy.deepcopy(base)
    theirs = dict(other.named_parameters())
    with torch.no_grad():
        for name, one in found.named_parameters():
            if inside(name):
                one.copy_(theirs[name])
    return found


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3_vl"])
def test_each_part_costs_what_copies_changed_by_hand_say(family, tmp_path):
    changed, model = saved_pair(family, tmp_path)
    rows = swap(changed, tmp_path).set_index(["by", "part"])
    whole = rows.loc[("all", "all weights")]
    assert whole.share == whole.saved == 1
    stack = {"llama": r"model\.layers", "gpt2": r"transformer\.h"}
    blocks = stack.get(family, r"model\.language_model\.layers")
    for (by, part), row in rows.iterrows():
        if by == "layer" and part.startswith("layer "):
            pattern = rf"{blocks}\.{part.split()[1]}\."
        elif by == "matrix":
            pattern = rf"({blocks}\.\d+\.)?{re.escape(part)}(\.weight)?$"
        elif by == "all":
            pattern = ""
        else:
            continue
        alone = mixed(model, changed, lambda name, pattern=pattern: re.match(pattern, name))
        rest = mixed(changed, model, lambda name, pattern=pattern: re.match(pattern, name))
        kl, flips = divergence(model, alone)
        assert row.kl == pytest.approx(kl, rel=1e-4, abs=1e-12) and row.flips == flips
        left, _ = divergence(model, rest)
        assert row.saved == pytest.approx(1 - left / whole.kl, rel=1e-3, abs=1e-6), part


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_layers_and_places_each_have_all_weights_that_differ(family, tmp_path):
    changed, model = saved_pair(family, tmp_path)
    rows = swap(changed, tmp_path)
    sizes = rows.groupby("by").weights.sum()
    differ = sum(
        one.numel()
        for name, one in changed.named_parameters()
        if not torch.equal(one, model.get_parameter(name))
    )
    assert set(sizes) == {differ}
    assert {"embedding", "layer 0", "layer 1"} <= set(rows[rows.by == "layer"].part)


def test_what_is_left_alone_has_no_row_and_the_change_is_relative(tmp_path):
    model = build("llama")
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight *= 1.5
    rows = swap(model, tmp_path)
    assert list(rows.part) == ["all weights", "layer 1", "mlp.down_proj"]
    assert list(rows.change) == pytest.approx([0.5] * 3, rel=1e-6)
    assert list(rows.saved) == [1, 1, 1] and rows.kl.nunique() == 1


def test_a_model_is_left_as_it_was_and_read_in_its_own_precision(tmp_path):
    changed, _ = saved_pair("llama", tmp_path)
    changed = changed.to(torch.bfloat16)
    before = {name: one.clone() for name, one in changed.state_dict().items()}
    assert swap(changed, tmp_path).kl[0] > 0
    assert all(torch.equal(one, before[name]) for name, one in changed.state_dict().items())


@pytest.mark.parametrize(
    ("against", "reason"),
    [
        ("wider", "of different architectures: .* is .* here and .* there"),
        ("same", "every weight is that of the other checkpoint"),
        (None, "nothing was named to compare its weights with: type --against MODEL"),
    ],
)
def test_what_cannot_be_swapped_is_told(against, reason, tmp_path):
    model = build("llama")
    other = build("llama", changes={"intermediate_size": 64}) if against == "wider" else model
    other.save_pretrained(tmp_path)
    options = {} if against is None else {"against": tmp_path}
    report = inspect(model, input_ids=IDS, measures="swap", progress=False, **options)
    (refused,) = report.measures["swap"]["not_applicable"]
    assert re.search(reason, refused["reason"])


def test_a_difference_in_more_than_weights_is_in_the_whole_and_told(tmp_path):
    changed, model = saved_pair("llama", tmp_path)
    config = copy.deepcopy(model.config)
    config.rope_parameters["rope_theta"] = 3.0
    other = type(model)(config).eval()
    other.load_state_dict(changed.state_dict())
    report = inspect(other, input_ids=IDS, measures="swap", against=tmp_path, progress=False)
    whole = report.frame("swap").iloc[0]
    assert (whole.kl, whole.flips) == pytest.approx(divergence(model, other), rel=1e-4)
    assert whole.saved < 0.9
    assert any("the two differ in more" in one for one in report.measures["swap"]["notes"])


def test_buffers_that_are_saved_are_weights(tmp_path):
    changed, model = saved_pair("deepseek_v3", tmp_path)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    changed.get_buffer(name).copy_(torch.arange(4) * 0.5)
    rows = swap(changed, tmp_path).set_index("part")
    kl, _ = divergence(model, changed)
    assert rows.kl["all weights"] == pytest.approx(kl, rel=1e-4)
    assert rows.share["mlp.gate.e_score_correction_bias"] > 0.5


@pytest.mark.parametrize("where", ["own", "other"])
def test_a_divergence_from_no_number_is_none(where, tmp_path):
    changed, model = saved_pair("llama", tmp_path)
    spoiled = changed if where == "own" else model
    spoiled.model.layers[1].mlp.down_proj.weight.data[0, 0] = math.nan
    model.save_pretrained(tmp_path)
    rows = swap(changed, tmp_path).set_index("part")
    assert math.isnan(rows.kl["all weights"]) and math.isnan(rows.kl["layer 1"])
    assert math.isnan(rows.kl["embedding"]) == (where == "other")


def test_what_rounding_has_lost_is_asked_for_in_float32(tmp_path):
    model = build("llama").to(torch.bfloat16)
    build("llama").save_pretrained(tmp_path)
    report = inspect(model, input_ids=IDS, measures="swap", against=tmp_path, progress=False)
    (refused,) = report.measures["swap"]["not_applicable"]
    assert "type --dtype float32" in refused["reason"]


def test_another_checkpoint_that_is_not_there_is_refused_before_any_work(tmp_path):
    message = "nothing lies at .*nowhere; expected the folder that holds config.json"
    refuses(message, inspect, "llama", against=tmp_path / "nowhere")


def test_a_finding_names_the_part_that_costs_most_for_its_size(tmp_path):
    changed, _ = saved_pair("llama", tmp_path, scale=1.0)
    report = inspect(changed, input_ids=IDS, measures="stream", against=tmp_path, progress=False)
    (found,) = [one for one in report.findings if one.measure == "swap"]
    rows = report.frame("swap")
    parts = rows[(rows.by != "all") & (rows.share >= min(0.1, rows.share[1:].max()))]
    top = parts.part[(parts.share / parts.weights).idxmax()]
    assert f"the weights of {top}," in found.sentence
    assert found.severity == ("warning" if rows.flips[0] > 0.05 else "info")


def test_weights_that_are_offloaded_are_not_swapped(tmp_path, monkeypatch):
    changed, _ = saved_pair("llama", tmp_path)
    subject = load_model(changed)
    monkeypatch.setattr(type(subject), "offloaded", property(lambda self: True))
    report = inspect(changed, input_ids=IDS, measures="swap", against=tmp_path, progress=False)
    (refused,) = report.measures["swap"]["not_applicable"]
    assert "some weights are offloaded" in refused["reason"]
