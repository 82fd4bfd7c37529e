"""Spectra of weights against NumPy, powerlaw and WeightWatcher; and what is read without a text."""

import contextlib
import io
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import PreTrainedModel

from layerlab import UserError, inspect
from layerlab.loading import model as loading
from layerlab.loading.weights.matrices import find_weight_faults
from layerlab.measures.quantities.weights.matrices import (
    MEASURES,
    dead,
    fit_tail,
    singular_values,
)
from layerlab.measures.runner import readings
from layerlab.observe.architecture.weight_matrices import MatrixNames
from layerlab.records.layer_names import EMBEDDING
from tests.families.recipe import FAMILIES, UNBUILT
from tests.families.recipe import build as family
from tests.measures.asked import subject

(MATRICES,) = MEASURES
# By itself powerlaw looks no further than 3.
ANY = {"alpha": [1, 100]}


def pareto(seed: int, alpha: float, count: int = 300) -> torch.Tensor:
    draw = np.random.default_rng(seed)
    return torch.from_numpy((1 - draw.random(count)) ** (-1 / (alpha - 1)))


def spectrum(seed: int, rows: int = 120, columns: int = 90, scale: float = 1.0) -> torch.Tensor:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    weight += scale * torch.outer(weight[:, 0], weight[0])
    return singular_values(weight).square()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("alpha", [1.7, 3.0, 6.0])
def test_the_exponent_is_that_of_powerlaw(seed, alpha):
    powerlaw = pytest.importorskip("powerlaw")
    for values in (pareto(seed, alpha), spectrum(seed), spectrum(seed, 60, 60)):
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = powerlaw.Fit(values.numpy(), verbose=False, parameter_ranges=ANY)
        found = fit_tail(values)
        assert found.start == pytest.approx(fit.xmin, rel=1e-12)
        assert found.alpha == pytest.approx(fit.alpha, rel=1e-9)
        assert found.error == pytest.approx(fit.sigma, rel=1e-9)
        assert found.distance == pytest.approx(fit.D, rel=1e-9)


@pytest.mark.full
def test_the_exponent_and_the_ranks_are_those_of_weightwatcher():
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weightwatcher = pytest.importorskip("weightwatcher")
        layers = [nn.Linear(90, 120), nn.Linear(120, 80)]
        with torch.no_grad():
            for seed, layer in enumerate(layers):
                layer.weight.copy_(
                    torch.from_numpy(np.random.default_rng(seed).pareto(2, layer.weight.shape))
                )
        table = weightwatcher.WeightWatcher(model=nn.Sequential(*layers)).analyze(plot=False)
    for layer, row in zip(layers, table.to_dict("records"), strict=True):
        values = singular_values(layer.weight)
        found = fit_tail(values.square())
        # It decomposes in float32.
        assert found.alpha == pytest.approx(row["alpha"], rel=1e-3)
        assert found.error == pytest.approx(row["sigma"], rel=1e-3)
        assert found.distance == pytest.approx(row["D"], rel=1e-2)
        stable = float(values.square().sum() / values[0] ** 2)
        assert stable == pytest.approx(row["stable_rank"], rel=1e-4)


@given(seed=st.integers(0, 2**16), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_a_scale_moves_the_tail_and_not_its_exponent(seed, scale):
    values = pareto(seed, 2.5, 80)
    one, other = fit_tail(values), fit_tail(scale * values)
    assert other.alpha == pytest.approx(one.alpha, rel=1e-6)
    assert other.start == pytest.approx(scale * one.start, rel=1e-9)


def test_equal_numbers_have_no_tail():
    assert math.isnan(fit_tail(torch.ones(60, dtype=torch.float64)).alpha)
    twice = torch.cat([pareto(0, 3.0, 60), pareto(0, 3.0, 60)])
    assert fit_tail(twice).alpha > 1


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (25, 25)])
@pytest.mark.parametrize("smallest", [1.0, 1e-4, 1e-9, 0.0])
def test_singular_values_are_those_of_numpy(shape, smallest):
    draw = np.random.default_rng(3)
    u, s, v = np.linalg.svd(draw.normal(size=shape), full_matrices=False)
    s[-1] = smallest
    weight = (u * s) @ v
    found = singular_values(torch.from_numpy(weight)).numpy()
    # Squares have half the digits; what is 1e-4 of the largest or less is decomposed itself.
    np.testing.assert_allclose(
        found, np.linalg.svd(weight, compute_uv=False), rtol=1e-8, atol=1e-13
    )


@pytest.mark.parametrize("scale", [1e155, 1e300, 1e-170])
def test_singular_values_of_entries_without_squares_are_found(scale):
    weight = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = singular_values(scale * weight) / scale
    torch.testing.assert_close(found, torch.linalg.svdvals(weight), rtol=1e-12, atol=0)


def test_rows_and_columns_next_to_nothing_are_counted():
    weight = torch.full((6, 4), 0.1)
    weight[2], weight[:, 1] = 1e-6, 0.0
    assert dead(weight, 0) == 1 and dead(weight, 1) == 1
    assert dead(torch.zeros(3, 2), 0) == 3


def test_weights_without_squares_are_named(tiny):
    model = tiny("llama").double()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = 1e155
    found = inspect(model, weights=True, measures="matrices", progress=False)
    (notes,) = [one["notes"] for one in found.to_dict()["measures"]]
    assert notes[0].endswith("squares of mlp.up_proj of layer 1 are not finite in float64")


def rows(model: PreTrainedModel | str, **options: Any) -> pd.DataFrame:
    found = inspect(model, weights=True, measures=["matrices(fewest=4)"], progress=False, **options)
    return found.frames["matrices"].drop(columns="model")


@pytest.mark.full
def test_a_folder_is_read_as_the_model_in_memory_and_never_loaded(tiny, tmp_path, monkeypatch):
    def refuse(*args: Any) -> None:
        raise AssertionError("it was loaded")

    monkeypatch.setattr(loading, "weights", refuse)
    # The head of gpt_neox is stored by another name.
    models = {"gpt2": tiny("gpt2"), "llama": tiny("llama"), "gpt_neox": family("gpt_neox")}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        pd.testing.assert_frame_equal(rows(str(tmp_path / name)), rows(model))


def test_the_rows_of_a_transposed_matrix_are_its_outputs(tiny):
    model = tiny("gpt2")
    model.transformer.h[1].mlp.c_fc.weight.data[:, :3] = 0  # Conv1D: input x output
    read = rows(model).set_index(["layer", "matrix"])
    row = read.loc[(1, "mlp.c_fc")]
    assert (row["rows"], row["columns"], row.dead_rows, row.dead_columns) == (64, 16, 3, 0)
    assert read.loc[(0, "mlp.c_fc")].dead_rows == 0
    weight = model.transformer.h[1].mlp.c_proj.weight.detach().double().numpy()
    values = np.linalg.svd(weight, compute_uv=False)
    row = read.loc[(1, "mlp.c_proj")]
    assert row.norm == pytest.approx(values[0]) and row["rank"] == row.full_rank == 16
    assert row.condition == pytest.approx(values[0] / values[-1])
    assert row.stable_rank == pytest.approx((values**2).sum() / values[0] ** 2)


@pytest.mark.full
def test_embeddings_stand_in_front_and_a_head_of_its_own_behind(tiny):
    read = rows(tiny("llama", tie_word_embeddings=False))
    outside = read[~read.layer.isin([0, 1])]
    assert outside[["layer", "matrix"]].values.tolist() == [[-1, "embed_tokens"], [2, "lm_head"]]
    assert set(rows(tiny("llama", tie_word_embeddings=True)).layer) == {-1, 0, 1}


@pytest.mark.full
def test_each_expert_is_a_matrix_however_it_is_stored(tmp_path):
    model = family("mixtral")
    read = rows(model)
    experts = read[read.expert.notna()]
    assert set(experts.expert) == set(range(model.config.num_local_experts))
    fused = model.model.layers[0].mlp.experts.down_proj[3].detach().double().numpy()
    row = experts[(experts.layer == 0) & (experts.expert == 3)].set_index("matrix")
    assert row.loc["mlp.experts.down_proj"].norm == pytest.approx(np.linalg.norm(fused, 2))
    model.save_pretrained(tmp_path)  # one by one, under other names
    stored = rows(str(tmp_path))
    stored = stored[stored.expert.notna()]
    assert set(stored.expert) == set(experts.expert)
    norms = stored[(stored.layer == 0) & (stored.expert == 3)].norm
    own = row.loc["mlp.experts.down_proj"].norm
    assert any(norm == pytest.approx(own, rel=1e-9) for norm in norms)


def test_what_follows_each_other_in_a_list_is_told_apart_and_no_expert():
    read = rows(family("ctrl"))
    own = read[read.layer == 0].set_index("matrix")
    assert {"ffn.0", "ffn.2"} <= {*own.index} and own.expert.isna().all()
    first, last = (own.loc[f"ffn.{number}"] for number in (0, 2))
    assert (first.rows, first.columns) == (last.columns, last.rows)


def test_a_model_of_low_rank_and_one_that_is_not_finite(tiny):
    model = tiny("llama")
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data = weight.data[:, :3] @ weight.data[:3]
    model.model.layers[1].mlp.up_proj.weight.data[0, 0] = torch.nan
    found = inspect(model, weights=True, measures=["matrices"], progress=False)
    read = found.frames["matrices"].set_index(["layer", "matrix"])
    assert read.loc[(0, "mlp.up_proj")]["rank"] == 3
    assert read.alpha.isna().all(), "16 eigenvalues are too few for a tail"
    assert (1, "mlp.up_proj") not in read.index
    assert "mlp.up_proj of layer 1 holds numbers that are not finite" in found.to_json()


def test_no_forward_is_run_and_every_measure_of_weights_is_read(tiny):
    model = tiny("llama")

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("a forward was run")

    model.forward = refuse
    found = inspect(model, weights=True, progress=False)
    assert set(found.frames) == {"querykey", "matrices"}
    assert len(found.frames["querykey"]) == 8 and found.text["sequences"] == []
    assert "weights alone" in found.to_dict()["text"]["source"]


def test_what_needs_a_text_is_refused_beside_weights():
    with pytest.raises(UserError, match="measure 'stream' reads a text, and weights"):
        inspect("llama", weights=True, measures=["stream"])
    with pytest.raises(
        UserError, match="texts means nothing beside it; leave texts out, or weights=T"
    ):
        inspect("llama", weights=True, texts="A text.")
    with pytest.raises(UserError, match="runs no model, so that dtype means nothing"):
        inspect("llama", weights=True, dtype="float32")


@pytest.mark.full
def test_a_text_may_be_read_beside_the_matrices(tiny):
    ids = torch.arange(8)[None]
    model = tiny("gpt2")
    found = inspect(model, input_ids=ids, measures=["stream", "matrices"], progress=False)
    assert len(found.frames["stream"]) == 3 and len(found.frames["matrices"]) == 10


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - UNBUILT))
def test_each_family_has_matrices(name):
    patient = subject(family(name))
    found = readings(patient, [], [MATRICES.given(fewest=4)])
    read = found.rows["matrices"]
    blocks = 0 if isinstance(patient.stack, str) else len(patient.stack.blocks)
    assert {row["layer"] for row in read} >= set(range(blocks))
    assert all(row["rank"] <= row["full_rank"] and row["norm"] >= 0 for row in read)


@pytest.mark.full
@pytest.mark.parametrize("name", ["aria_text", "gpt_oss", "llama4_text", "mixtral"])
def test_rows_of_experts_are_their_outputs(name, tmp_path):
    """All but Mixtral's are stored the other way round; files hold Mixtral's one by one."""
    model = family(name)
    width, inner = model.config.hidden_size, model.config.intermediate_size
    assert width not in (inner, 2 * inner)
    experts = next(one for one in model.modules() if hasattr(one, "gate_up_proj"))
    dead = experts.gate_up_proj.detach()[1]
    (dead.mT if len(dead) == width else dead)[:5] = 0
    model.save_pretrained(tmp_path)
    for source in [model] if name == "mixtral" else [model, str(tmp_path)]:
        read = rows(source)
        one = read[(read.expert == 1) & read.matrix.str.endswith("gate_up_proj")].iloc[0]
        assert (one["rows"], one["columns"]) == (2 * inner, width)
        assert (one.dead_rows, one.dead_columns) == (5, 0)
        assert not read.matrix.str.endswith("bias").any()


def test_a_stack_that_a_file_holds_the_other_way_round_is_turned():
    """As files of Qwen3-VL's mixtures do."""
    model = family("mixtral")
    path = "model.layers.0.mlp.experts.down_proj"
    stack = model.get_parameter(path).detach()
    first, *_ = MatrixNames(model).cut(path, stack.mT.contiguous())
    assert torch.equal(first.weight, stack[0])


@pytest.mark.parametrize(
    ("name", "weight", "front"),
    [
        # The head is declared in front of the model that it reads.
        ("camembert", "lm_head.dense", False),
        ("camembert", "roberta.embeddings.word_embeddings", True),
        # One of the embeddings is declared behind the blocks.
        ("gemma4_text", "model.embed_tokens_per_layer", True),
    ],
)
def test_heads_stand_behind_the_blocks_and_embeddings_in_front(name, weight, front):
    names = MatrixNames(family(name))
    assert names.key(f"{weight}.weight")[0] == (EMBEDDING if front else names.blocks)


def test_experts_that_lie_below_each_other_are_told_apart():
    """As DBRX has them, the last of an expert's with a row for each input."""
    model = family("dbrx")
    experts = model.transformer.blocks[0].ffn.experts.mlp
    experts.w1.data.unflatten(0, (4, -1))[1] *= 10
    experts.w2.data.unflatten(0, (4, -1))[2, :, 5] = 0
    read = rows(model)
    read = read[(read.layer == 0) & read.matrix.str.contains("experts")]
    assert read.groupby("matrix").expert.apply(list).map(lambda one: one == [0, 1, 2, 3]).all()
    width, inner = experts.hidden_size, experts.ffn_hidden_size
    for name, weight in {"w1": experts.w1, "v1": experts.v1, "w2": experts.w2}.items():
        found = read[read.matrix.str.endswith(name)]
        norms = torch.linalg.matrix_norm(weight.detach().double().unflatten(0, (4, -1)), 2)
        assert list(found.norm) == pytest.approx(norms.tolist(), rel=1e-6)
        shape = (width, inner) if name == "w2" else (inner, width)
        assert set(zip(found["rows"], found["columns"], strict=True)) == {shape}
        assert list(found.dead_rows) == [0, 0, int(name == "w2"), 0]


def test_an_axis_of_heads_is_no_list_of_experts():
    """As in XLNet's attention."""
    model = family("xlnet")
    read = rows(model)
    for name in "qkvor":
        weight = getattr(model.transformer.layer[0].rel_attn, name).detach().flatten(1)
        (found,) = read[(read.layer == 0) & (read.matrix == f"rel_attn.{name}")].itertuples()
        assert np.isnan(found.expert) and (found.rows, found.columns) == weight.shape
        assert found.norm == pytest.approx(float(np.linalg.norm(weight.numpy(), 2)), rel=1e-6)


# A folder of these says that it is no causal language model.
OTHERS = {"bert-generation", "emu3", "mllama", "musicgen", "musicgen_melody"}
STORED = sorted(FAMILIES.keys() - UNBUILT - OTHERS - {"nemotron_h"})


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["nemotron_h", *STORED])
def test_a_folder_has_in_each_layer_what_the_model_has(name, tmp_path):
    """By the sum of all squares, which joining or dividing matrices leaves as it is."""
    model = family(name)
    model.save_pretrained(tmp_path)
    sums = []
    for read in (rows(model), rows(str(tmp_path))):
        read["squares"] = read.stable_rank.fillna(0) * read.norm**2
        sums.append(read.groupby(["layer", "expert"], dropna=False).squares.sum())
    pd.testing.assert_series_equal(*sums, rtol=1e-5)


def test_a_stored_expert_that_is_not_finite_lies_in_its_layer(tmp_path):
    """Files of Nemotron-H call it otherwise, and hold each expert by itself."""
    model = family("nemotron_h")
    model.model.layers[1].mixer.experts.down_proj.data[2, 0, 0] = torch.nan
    model.save_pretrained(tmp_path)
    (fault,) = find_weight_faults(loading.load_model(str(tmp_path), unloaded=True))
    assert fault["layer"] == 1 and ".experts.2." in fault["name"]
