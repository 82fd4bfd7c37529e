"""Arithmetics by name, and what perplexity is under them."""

import math
from io import StringIO

import pytest
import torch
from rich.console import Console

from layerlab import Policy
from layerlab.evaluation.harness.low_precision import PrecisionSetting, arithmetics, perplexity
from layerlab.evaluation.results.table import render_table
from layerlab.loading.inputs import sequences
from layerlab.loading.model import load_model
from layerlab.loading.text_input import sample
from tests.support.refused import refuses


def test_as_loaded_comes_first_and_each_once():
    policy = Policy(format="bf16", keep=("lm_head",))
    found = arithmetics("bf16, int4,bf16", policy)
    assert [one.name for one in found] == ["", "bf16", "int4", "bf16, 1 kept"]
    assert len({one.key for one in found}) == 4
    assert arithmetics(None, None) == (PrecisionSetting(),)


def test_an_unknown_format():
    refuses(r"^--format: ", arithmetics, "bf17", None)


def test_perplexity_is_that_of_the_loss():
    loaded = load_model("llama")
    found = perplexity(loaded)
    total = 0.0
    for ids in sequences(sample(samples=4, context=256), loaded):
        with torch.no_grad():
            loss = loaded.model(input_ids=ids[None], labels=ids[None]).loss
        total += float(loss) * (len(ids) - 1)
    assert found["nats_per_token"] == pytest.approx(total / found["tokens"], rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["nats_per_token"]))


def test_a_model_that_computes_no_number_has_no_perplexity():
    broken = load_model("llama")
    with torch.no_grad():
        next(broken.model.parameters()).fill_(math.nan)
    found = perplexity(broken)
    assert found["perplexity"] is None and found["nats_per_token"] is None and found["tokens"]
    console = Console(width=100, file=StringIO(), record=True)
    content = {"arms": [], "benchmarks": [], "left_out": [], "remarks": []}
    console.print(render_table({**content, "precision": [{"arm": "a in fp16", **found}]}, 100))
    assert "a in fp16: perplexity on the built-in sample is not finite (" in console.export_text()


@pytest.mark.full
def test_a_coarse_format_costs_and_the_model_is_as_before():
    loaded = load_model("llama")
    exact = perplexity(loaded)
    with PrecisionSetting("int4").running(loaded):
        coarse = perplexity(loaded)
    assert coarse["nats_per_token"] > exact["nats_per_token"]
    assert perplexity(loaded) == exact
