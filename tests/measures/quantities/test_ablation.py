"""The loss without a part, held against the loss of a model whose weights were set to zero."""

import math
from copy import deepcopy
from typing import Any

import pandas as pd
import pytest
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from layerlab import UserError, inspect
from layerlab.measures.quantities import ablation
from layerlab.measures.quantities.ablation import MEASURES, losses
from layerlab.measures.quantities.spectrum import MEASURES as SPECTRUM
from layerlab.measures.runner import readings
from layerlab.model.build import build
from tests.families.recipe import FAMILIES, TOKENS, UNBUILT
from tests.families.recipe import build as family
from tests.measures.asked import subject

(ABLATION,) = MEASURES
IDS = torch.randint(3, 60, (3, 24), generator=torch.Generator().manual_seed(1))


def report(model: PreTrainedModel, measure: str = "ablation", ids: torch.Tensor = IDS) -> Any:
    return inspect(model, input_ids=ids, measures=[measure], progress=False)


def rows(model: PreTrainedModel, measure: str = "ablation") -> pd.DataFrame:
    return report(model, measure).frames["ablation"]


@torch.no_grad()
def loss(model: PreTrainedModel) -> list[float]:
    """The next-token loss of every text, by transformers itself."""
    return [float(model(input_ids=one[None], labels=one[None]).loss) for one in IDS]


def test_the_loss_is_the_cross_entropy():
    logits = 5 * torch.randn(3, 150, 40, generator=torch.Generator().manual_seed(0))
    words = torch.randint(0, 40, (150,))
    expected = [functional.cross_entropy(one.double(), words) for one in logits]
    torch.testing.assert_close(losses(logits, words), torch.stack(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "blocks", "output", "last"),
    [
        ("gpt2", "transformer.h", "attn.c_proj", "mlp.c_proj"),
        ("llama", "model.layers", "self_attn.o_proj", "mlp.down_proj"),
    ],
)
def test_each_change_is_that_of_weights_set_to_zero(tiny, name, blocks, output, last):
    model = family(name)
    own, read = loss(model), rows(model)
    heads = model.config.num_attention_heads
    assert len(read) == 2 * (heads + 2)
    for row in read.to_dict("records"):
        copy = deepcopy(model)
        path = last if row["component"] == "ffn" else output
        part = copy.get_submodule(f"{blocks}.{row['layer']}.{path}")
        weight = part.weight.data if name == "gpt2" else part.weight.data.T  # input x output
        width = len(weight) // heads
        whole = math.isnan(row["head"])
        assert whole == (row["component"] != "head")
        weight[
            slice(None) if whole else slice(width * int(row["head"]), width * int(row["head"] + 1))
        ] = 0
        if whole and part.bias is not None:
            part.bias.data.zero_()
        changes = torch.tensor(loss(copy)).double() - torch.tensor(own).double()
        # Losses of some 5 nats in float32.
        assert row["change"] == pytest.approx(float(changes.mean()), abs=1e-5)
        assert row["error"] == pytest.approx(float(changes.std()) / 3**0.5, abs=1e-5)
        assert row["texts"] == 3


@pytest.mark.full
def test_an_attention_that_hands_on_its_values_is_run_again():
    """Later layers of value-residual read those of the first."""
    model = build("value-residual", width=32, layers=3, heads=4, vocab=64, context=64, seed=0)
    read = rows(model)
    assert len(read) == 3 * (4 + 2)
    whole = read[read["component"] == "attention"].set_index("layer")["change"]
    for layer in range(3):
        copy = deepcopy(model)
        copy.model.layers[layer].attention.output.weight.data.zero_()
        changes = torch.tensor(loss(copy)).double() - torch.tensor(loss(model)).double()
        assert whole[layer] == pytest.approx(float(changes.mean()), abs=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("measure", ["ablation", 'ablation(replace="mean")'])
def test_of_modules_that_blocks_share_one_block_loses_its_own(measure):
    shared, apart = family("llama"), family("llama")
    for name in ("self_attn", "mlp"):
        setattr(shared.model.layers[1], name, getattr(shared.model.layers[0], name))
    apart.load_state_dict(shared.state_dict())
    pd.testing.assert_frame_equal(rows(shared, measure), rows(apart, measure), atol=2e-6)


@pytest.mark.full
def test_a_batch_of_any_size_reads_the_same(monkeypatch):
    model = family("llama")
    at_once = rows(model)
    monkeypatch.setattr(ablation, "_BYTES", 1)  # a row at a time
    one_by_one = rows(model)
    assert list(one_by_one.columns) == list(at_once.columns)
    pd.testing.assert_frame_equal(one_by_one, at_once, rtol=1e-3, atol=2e-6)


@pytest.mark.full
def test_a_mean_takes_less_away_than_zeros():
    """Where all tokens are one and the same, a head gives its mean: without it nothing changes."""
    model = family("llama")
    ids = torch.full((1, 20), 7)
    changed = report(model, 'ablation(replace="mean")', ids).frames["ablation"]
    zero = report(model, ids=ids).frames["ablation"]
    assert float(changed.change.abs().max()) < 1e-5 < 1e-3 < float(zero.change.abs().max())
    assert changed.error.isna().all(), "one text has no spread"


@pytest.mark.full
def test_fewer_positions_are_spread_over_the_text():
    few, every = rows(family("gpt2"), "ablation(samples=4)"), rows(family("gpt2"))
    assert len(few) == len(every) and few.change.tolist() != every.change.tolist()


def test_another_replacement_is_refused():
    with pytest.raises(UserError, match="option replace of measure 'ablation' got 'median'"):
        ABLATION.given(replace="median")


@pytest.mark.full
@torch.no_grad()
def test_heads_of_both_attentions_of_a_block_are_taken_out_and_counted_on():
    """As `spectrum` counts them."""
    model = family("longcat_flash")
    own, read = loss(model), rows(model)
    assert list(read["head"]) == [*range(8)] * 2 and set(read.component) == {"head"}
    for row in read.itertuples():
        number, head = divmod(int(row.head), 4)
        changed = deepcopy(model)
        output = changed.model.layers[row.layer].self_attn[number].o_proj.weight
        output.unflatten(1, (4, -1))[:, head] = 0
        change = sum(loss(changed)) / len(own) - sum(own) / len(own)
        assert row.change == pytest.approx(change, abs=2e-6)


def test_a_model_without_attention_has_no_heads_to_take_out():
    assert "MambaForCausalLM has no softmax attention" in report(family("mamba")).to_json()


def test_a_hybrid_says_which_layers_have_no_heads():
    found = report(family("qwen3_next"))
    heads = found.frames["ablation"]
    heads = heads[heads.component == "head"]
    assert set(heads.layer) == {1}
    assert "head of layer 0: none, because the block has no softmax attention" in found.to_json()


def test_a_block_that_is_not_finite_is_not_said_to_hide_its_parts(tiny):
    model = tiny("llama")
    model.model.layers[0].mlp.down_proj.weight.data[0, 0] = math.nan
    assert "no block gives finite features" in report(model).to_json()


def test_what_more_than_the_stream_leads_on_is_refused(tiny):
    model = tiny("llama")
    model.model.layers[1].register_forward_pre_hook(
        lambda module, args: (args[0] + torch.rand(()),)
    )
    assert "with nothing taken out, layer" in report(model).to_json()


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - UNBUILT))
def test_each_family_is_read_or_says_why(name):
    model = family(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = readings(subject(model), list(IDS[:, :TOKENS]), [ABLATION, *SPECTRUM])
    read, reason = found.rows.get("ablation", []), found.refused.get("ablation", "")
    assert (len(read) > 0) != (len(reason) > 10)
    heads = [(one["layer"], one["head"]) for one in read if one["component"] == "head"]
    known = [(one["layer"], one["head"]) for one in found.rows.get("spectrum", [])]
    layers = {layer for layer, _ in heads}
    assert len(set(heads)) == len(heads)
    assert set(heads) == {one for one in known if one[0] in layers}
    assert all(math.isfinite(row["change"]) for row in read)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.full
def test_the_page_says_that_texts_go_on_behind_what_is_read():
    model = family("gpt2")
    said = "the first 12 tokens of each text are read; all of them: ablation(tokens=24)"
    assert said in report(model, "ablation(tokens=12)").to_json()
    assert "tokens of each text are read" not in report(model, "ablation(tokens=24)").to_json()
