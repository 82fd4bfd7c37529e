import math
import tempfile
import weakref
from unittest.mock import patch

import pandas as pd
import pytest
import torch
from accelerate import cpu_offload
from transformers import AutoModelForCausalLM, MambaConfig, MambaForCausalLM

from layerlab.console.progress import Progress
from layerlab.errors import NotApplicable, UserError
from layerlab.measures.measure import Measure
from layerlab.measures.runner import readings
from layerlab.observe.architecture.effective_weights import linear_map
from layerlab.plugins import resolve
from layerlab.records.layer_names import EMBEDDING
from tests.measures.asked import subject

TOKENS = [torch.arange(2, 26), torch.arange(10, 40)]


def own(read, **changes) -> Measure:
    fields = {
        "name": "own",
        "title": "Own",
        "unit": "none",
        "source": "Own",
        "about": "One. Two.",
        "equation": "1",
        "per": ("sequence", "layer"),
        "columns": {"value": "a number"},
        "plot": ("value",),
        "better": None,
        "needs": frozenset({"stream"}),
        "read": read,
    }
    return Measure(**{**fields, **changes})


class Watcher(Progress):
    def __init__(self):
        self.total, self.steps = 0, []

    def begin(self, name, steps=0):
        self.total = steps

    def step(self, now="", steps=1):
        self.steps.append(now)


def test_quantized_weights_are_not_read_as_the_numbers_of_the_model(tiny):
    model = tiny("llama")
    weight = model.model.layers[0].self_attn.q_proj.weight
    weight.data = (weight.data * 448).to(torch.float8_e4m3fn)
    found = readings(subject(model), [], resolve(["querykey", "matrices"]))
    said = "model.layers.0.self_attn.q_proj.weight is quantized: its numbers are not those that"
    assert all(reason.startswith(said) for reason in found.refused.values())
    assert set(found.refused) == {"querykey", "matrices"} and not any(found.rows.values())


def test_a_product_of_quantized_weights_is_no_number(tiny):
    model = tiny("llama")
    down = model.model.layers[0].mlp.down_proj
    scaled = torch.nn.Linear(down.in_features, down.out_features, bias=False)
    scaled.weight = torch.nn.Parameter(down.weight.to(torch.float8_e4m3fn), requires_grad=False)
    scaled.forward = lambda features: features @ (scaled.weight.float() / 4).T
    model.model.layers[0].mlp.down_proj = scaled
    found = readings(subject(model), TOKENS[:1], resolve(["lipschitz"]))
    rows = found.rows["lipschitz"]
    assert all(math.isnan(row["weights"]) for row in rows) and not math.isnan(rows[1]["local"])
    assert "is quantized" in found.notes["lipschitz"][0]
    assert linear_map(scaled) is None


@pytest.mark.full
@pytest.mark.parametrize("family", ["gpt2", "openai-gpt", "llama"])
def test_every_default_measure_reads_every_layer_of_a_plain_model(tiny, family):
    usual = [measure for measure in resolve() if not measure.rare]
    found = readings(subject(tiny(family)), TOKENS, usual)
    assert found.refused == {} and found.faults == []
    assert set(found.rows) == {measure.name for measure in usual}
    heads = tiny(family).config.num_attention_heads
    assert len(found.rows["spectrum"]) == len(TOKENS) * 2 * heads
    assert len(found.rows["querykey"]) == 2 * heads
    assert len(found.rows["dimension"]) == 3
    assert len(found.rows["diversity"]) == len(TOKENS) * (1 + 2 * 3)
    assert len(found.rows["gain"]) == len(TOKENS) * 2 * 2
    for measure in usual:
        for row in found.rows[measure.name]:
            assert set(measure.per) <= set(row) <= {*measure.per, *measure.columns}


def test_progress_announces_as_many_steps_as_it_takes(tiny):
    watcher = Watcher()
    readings(subject(tiny("llama")), TOKENS, resolve(["stream", "spectrum", "querykey"]), watcher)
    assert watcher.total >= len(watcher.steps) >= 2 * 3 + 2 * 2 + 2
    assert "layer 1: spectrum" in watcher.steps


def test_progress_takes_a_step_for_each_matrix(tiny):
    watcher = Watcher()
    readings(subject(tiny("llama")), TOKENS, resolve(["matrices"]), watcher)
    assert watcher.total == len(watcher.steps) > 0


def test_a_batch_reads_like_each_sequence_alone(tiny):
    chosen = resolve(["diversity", "spectrum", "attention"])
    both = readings(subject(tiny("llama")), TOKENS, chosen)
    alone = readings(subject(tiny("llama")), TOKENS[1:], chosen)
    for name, rows in alone.rows.items():
        second = [row for row in both.rows[name] if row["sequence"] == 1]
        assert [{**row, "sequence": 1} for row in rows] == second


@pytest.mark.full
def test_a_model_without_attention_reads_what_it_has():
    config = MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=64, state_size=4)
    found = readings(subject(MambaForCausalLM(config).eval()), TOKENS, resolve())
    for name in ("spectrum", "attention", "querykey"):
        assert found.refused[name] == "MambaForCausalLM has no softmax attention"
    assert {"diversity", "dimension", "stream"} <= set(found.rows)


def test_a_reason_is_kept_in_place_of_readings(tiny):
    def refuse(layer, run):
        raise NotApplicable("there is nothing to read")

    chosen = [
        own(refuse),
        own(lambda layer, run: [], name="mute"),
        own(lambda layer, run: [], name="other", applies=lambda subject: "it is another kind"),
    ]
    found = readings(subject(tiny("gpt2")), TOKENS, chosen)
    assert found.refused == {
        "own": "there is nothing to read",
        "mute": "it gave no reading on this model",
        "other": "it is another kind",
    }
    assert found.rows == {}


def test_what_is_read_of_weights_alone_says_nothing_of_a_text(tiny):
    alone, beside = (
        readings(subject(tiny("llama")), TOKENS, resolve(names))
        for names in (["querykey"], ["querykey", "stream"])
    )
    assert alone.loss_nats == [] and len(beside.loss_nats) == 2
    assert all(math.isnan(row["attained"]) for row in alone.rows["querykey"])
    assert not any(math.isnan(row["attained"]) for row in beside.rows["querykey"])


def test_a_number_of_tokens_that_is_left_open_is_that_of_the_longest_sequence(tiny):
    def read(layer, run):
        yield {"sequence": layer.sequence, "layer": layer.layer, "value": run.options["tokens"]}

    chosen = [own(read, name=str(tokens), options={"tokens": tokens}) for tokens in (None, 7)]
    found = readings(subject(tiny("gpt2")), TOKENS, chosen)
    assert {name: {row["value"] for row in rows} for name, rows in found.rows.items()} == {
        "None": {30},
        "7": {7},
    }


def test_a_model_in_training_is_read_without_dropout_by_every_kind_of_measure(tiny):
    def pool(layer, tokens, run):
        seen.append(model.training)

    def read(record, run):
        seen.append(model.training)
        return [{"sequence": 0, "layer": 0, "value": 0.0}]

    model, seen = tiny("gpt2").train(), []
    chosen = [own(read, pool=pool), own(read, name="whole", needs=frozenset({"model"}))]
    found = readings(subject(model), TOKENS[:1], chosen, more=[TOKENS[1][None]])
    assert set(found.rows) == {"own", "whole"} and model.training
    assert seen == [False] * (3 + 3 + 1)  # layers of the text, layers of more, the whole


def test_a_measure_that_runs_the_model_is_refused_alone(tiny):
    def refuse(context, run):
        raise UserError("its kernel cannot be looked into")

    chosen = [own(refuse, needs=frozenset({"model"})), *resolve(["stream"])]
    found = readings(subject(tiny("gpt2")), TOKENS, chosen)
    assert found.refused == {"own": "its kernel cannot be looked into"} and found.rows["stream"]


def test_weights_that_are_not_finite_are_faults_with_their_layer(tiny):
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight[0, 0] = torch.inf
    found = readings(subject(model), TOKENS, resolve(["diversity", "spectrum"]))
    assert [(fault["kind"], fault["layer"]) for fault in found.faults] == [
        ("weights", 1),
        ("stream", 1),
    ]
    assert found.faults[0]["name"] == "transformer.h.1.attn.c_attn.weight"
    assert {row["layer"] for row in found.rows["diversity"]} == {EMBEDDING, 0}
    assert {row["layer"] for row in found.rows["spectrum"]} == {0}


@pytest.mark.full
def test_a_model_whose_weights_lie_on_disk_reads_the_same(tiny, tmp_path):
    whole = tiny("llama")
    whole.save_pretrained(tmp_path)
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    places |= {"lm_head": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
    with tempfile.TemporaryDirectory() as scratch:
        spread = AutoModelForCausalLM.from_pretrained(
            tmp_path, device_map=places, offload_folder=scratch, use_safetensors=True
        )
        chosen = [measure for measure in resolve() if not measure.rare]
        mine, theirs = (readings(subject(model), TOKENS, chosen) for model in (spread, whole))
    assert subject(spread).offloaded and not subject(whole).offloaded
    assert not mine.refused
    # A backward pass through the whole model would hold every weight.
    assert all(math.isnan(row["gradient"]) for row in mine.rows["lipschitz"])
    assert "some weights are offloaded" in mine.notes["lipschitz"][0]
    for row in theirs.rows["lipschitz"]:
        row["gradient"] = math.nan
    for name in mine.rows:
        # What is read from a file lies elsewhere in memory, where products round otherwise.
        mine_frame, theirs_frame = (pd.DataFrame(one.rows[name]) for one in (mine, theirs))
        pd.testing.assert_frame_equal(mine_frame, theirs_frame, rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("name", ["rounding", "logits", "condition", "ablation", "lens"])
def test_a_model_that_is_run_again_may_have_its_weights_elsewhere(tiny, name):
    whole, away = tiny("llama"), tiny("llama")
    away.load_state_dict(whole.state_dict())
    cpu_offload(away, torch.device("cpu"))
    mine, theirs = (readings(subject(one), TOKENS, resolve([name])) for one in (away, whole))
    assert all(weight.is_meta for weight in away.parameters())
    assert theirs.rows[name] and repr(mine.rows) == repr(theirs.rows)


def test_what_would_hold_every_weight_is_refused_where_they_are_elsewhere(tiny):
    away = tiny("llama")
    cpu_offload(away, torch.device("cpu"))
    chosen = resolve(["gradients", "saliency"])
    found = readings(subject(away), TOKENS, chosen)
    assert set(found.refused) == {"gradients", "saliency"}
    assert all("a backward pass through the model holds all" in w for w in found.refused.values())


@pytest.mark.full
def test_of_weights_that_are_elsewhere_one_layer_at_a_time_is_fetched(tiny):
    away = tiny("llama", num_hidden_layers=6, hidden_size=128, intermediate_size=512)
    layer = sum(one.numel() * 4 for one in away.model.layers[0].parameters())
    cpu_offload(away, torch.device("cpu"))
    store = away.model.layers[0].self_attn.q_proj._hf_hook.weights_map
    fetched: list[weakref.ref] = []
    own = type(store).__getitem__

    def fetch(self, key):
        # As from a disk, each time anew.
        found = own(self, key).clone()
        fetched.append(weakref.ref(found.untyped_storage()))
        alive = [one() for one in fetched if one() is not None]
        assert sum(one.nbytes() for one in alive) < 4 * layer
        return found

    with patch.object(type(store), "__getitem__", fetch):
        found = readings(subject(away), TOKENS, resolve(["gain", "querykey", "lipschitz"]))
    assert fetched and not found.refused


def test_gain_takes_what_the_spectrum_found_whatever_the_order(tiny, monkeypatch):
    def never(attended, *, exact=False):
        raise AssertionError("the contraction is known")

    monkeypatch.setattr("layerlab.measures.quantities.gain.contraction", never)
    found = readings(subject(tiny("llama")), TOKENS, resolve(["gain", "spectrum"]))
    assert list(found.rows) == ["gain", "spectrum"]
    largest = max(row["contraction"] for row in found.rows["spectrum"] if row["layer"] == 1)
    gains = [row for row in found.rows["gain"] if row["layer"] == 1]
    assert largest in [row["contraction"] for row in gains if row["sublayer"] == "attention"]
