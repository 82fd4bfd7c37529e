"""Weights against another checkpoint's, matrix by matrix, without loading either."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

import layerlab
from layerlab.errors import NotApplicable
from layerlab.loading.model import LoadedModel
from layerlab.measures.quantities.weights.change import compare
from tests.support.packed_folder import pack_mlx, write_packed
from tests.support.refused import refuses

SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}


def llama(seed=0, **more):
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **HEADS, **more})).eval()


def read(model, against, **more):
    found = layerlab.inspect(
        model, weights=True, measures=["change"], against=against, progress=False, **more
    )
    return found, found.frames.get("change")


@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(1e-3, 10))
def test_numbers_are_those_of_the_difference(seed, rank, size):
    random = torch.Generator().manual_seed(seed)
    before = torch.randn(24, 40, generator=random, dtype=torch.float64)
    left, right = (torch.randn(n, rank, generator=random, dtype=torch.float64) for n in (24, 40))
    after = before + size * left @ right.T
    row, apart = compare(after, before), after - before
    values = torch.linalg.svdvals(apart)
    assert row["change"] == pytest.approx(float(apart.norm() / before.norm()))
    assert row["cosine"] == pytest.approx(
        float(torch.cosine_similarity(after.flatten(), before.flatten(), dim=0))
    )
    assert row["stable_rank"] == pytest.approx(float(values.square().sum() / values[0] ** 2))
    assert (row["rank"], row["full_rank"]) == (rank, 24)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_has_no_directions_of_its_own(kind):
    torch.manual_seed(0)
    before = (0.02 * torch.randn(256, 384)).to(kind)
    adapter = 0.002 * torch.randn(256, 8) @ torch.randn(8, 384)
    merged = (before.float() + adapter).to(kind)
    assert compare(merged, before)["rank"] == 8
    full = (before.float() + 0.002 * torch.randn(256, 384)).to(kind)
    assert compare(full, before)["rank"] > 250
    wide = 0.02 * torch.randn(256, 384, dtype=torch.float64)
    rounded = compare(wide.to(kind), wide)
    assert rounded["rank"] == 0 < rounded["change"] < torch.finfo(kind).eps


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [0.02, 1e-6])
def test_what_was_only_rounded_has_no_direction(kind, size):
    torch.manual_seed(0)
    alike = torch.cat([torch.randn(200, 256), torch.randn(1, 256).expand(56, 256)]).double()
    for wide in (size * alike, torch.full((256, 256), size / 3, dtype=torch.float64)):
        rounded = wide.to(kind)
        assert compare(rounded, wide)["rank"] == compare(wide, rounded)["rank"] == 0
        assert compare(rounded.double(), wide)["rank"] == 0  # a file may be wider than it holds


def test_numbers_too_small_for_half_precision_are_rounded_as_its_smallest():
    torch.manual_seed(0)
    wide = 1e-6 * torch.randn(128, 128, dtype=torch.float64)
    one, other = wide.half(), wide.bfloat16().half()
    assert not torch.equal(one.double(), wide) and not torch.equal(one, other)
    assert compare(one, other)["rank"] == 0


def test_what_is_the_same_is_no_change_and_what_is_empty_has_no_share():
    same = compare(torch.eye(3), torch.eye(3))
    assert same["change"] == same["rank"] == 0 and same["cosine"] == pytest.approx(1)
    nothing = compare(torch.eye(3), torch.zeros(3, 3))
    assert nothing["rank"] == 3 and nothing["change"] != nothing["change"]
    with pytest.raises(NotApplicable, match="holds numbers that are not finite"):
        compare(torch.full((2, 2), torch.nan), torch.eye(2))


@pytest.fixture
def folders(tmp_path):
    for name, seed in (("base", 0), ("tuned", 0)):
        model = llama(seed)
        if name == "tuned":
            weight = model.model.layers[1].mlp.down_proj.weight.data
            weight += 0.1 * torch.randn(64, 3) @ torch.randn(3, 96)
        model.save_pretrained(tmp_path / name)
    return tmp_path


def test_one_matrix_that_was_changed_is_found_in_files_and_in_memory(folders, monkeypatch):
    monkeypatch.setattr(
        LoadedModel, "batching", lambda *_: pytest.fail("a model was read that stays on the disk")
    )
    for model in (folders / "tuned", llama_of(folders / "tuned")):
        found, rows = read(model, folders / "base")
        apart = rows[rows.change > 0]
        assert list(apart.matrix) == ["mlp.down_proj"] and list(apart.layer) == [1]
        assert list(apart["rank"]) == [3] and len(rows) == 16
        told = [one.sentence for one in found.findings if one.id == "changed-0"]
        assert "in 3 of 64 directions; 1 of 16 matrices differ" in told[0]
    assert "against base" in json.dumps(found.to_dict())


def llama_of(folder):
    return LlamaForCausalLM.from_pretrained(folder).eval()


def test_experts_are_compared_one_by_one(tmp_path):
    for name in ("a", "b"):
        torch.manual_seed(0)
        config = MixtralConfig(**SIZES, **HEADS, num_local_experts=3)
        model = MixtralForCausalLM(config)
        if name == "b":
            model.model.layers[0].mlp.experts.down_proj.data[2] *= 1.5
        model.save_pretrained(tmp_path / name)
    _, rows = read(tmp_path / "b", tmp_path / "a")
    apart = rows[rows.change > 0]
    assert list(apart.expert) == [2] and float(apart.change.iloc[0]) == pytest.approx(0.5)


def save_mixtral(folder, **more):
    torch.manual_seed(0)
    sizes = {**SIZES, **HEADS, "intermediate_size": 16, "num_hidden_layers": 1}
    model = MixtralForCausalLM(MixtralConfig(**sizes, num_local_experts=12)).eval()
    model.save_pretrained(folder, **more)
    return model


def test_experts_are_compared_in_however_many_files_they_lie(tmp_path):
    save_mixtral(tmp_path / "whole")
    save_mixtral(tmp_path / "cut", max_shard_size="50KB")
    _, rows = read(tmp_path / "whole", tmp_path / "cut")
    assert len(rows) == 43 and (rows.change == 0).all()


def test_experts_that_are_joined_in_memory_are_compared_with_those_of_files(tmp_path):
    model = save_mixtral(tmp_path)
    with torch.no_grad():
        model.model.layers[0].mlp.experts.gate_up_proj[7] *= 1.5
    found, rows = read(model, tmp_path)
    apart = rows[rows.change > 0]
    assert len(rows) == 31 and list(apart.expert) == [7]
    assert list(apart.matrix) == ["mlp.experts.gate_up_proj"]
    assert "different architectures" not in json.dumps(found.to_dict())


def test_a_packed_model_is_compared_with_its_original(tmp_path, cache):
    model = llama().half()
    model.save_pretrained(tmp_path / "plain")
    write_packed(model, tmp_path / "packed", pack_mlx, {"bits": 8, "group_size": 32})
    _, rows = read(tmp_path / "packed", tmp_path / "plain")
    inside = rows[rows.layer.between(0, 1)]
    assert ((inside.change > 0) & (inside.change < 0.01)).all()
    assert (rows[~rows.layer.between(0, 1)].change == 0).all()


@pytest.mark.parametrize(
    ("change", "compared", "said"),
    [
        ({"num_hidden_layers": 1}, 8, "self_attn.q_proj (64x64) of layer 1 here, and lm_head"),
        ({"num_hidden_layers": 3}, 15, "lm_head (64x64) of layer 2 here, and self_attn.q_proj"),
        ({"intermediate_size": 32}, 10, "mlp.down_proj (64x96) of layer 1 here, and mlp"),
        ({"vocab_size": 80}, 14, "embed_tokens (64x64) of embedding here, and embed_tokens (80x"),
    ],
)
def test_matrices_without_a_counterpart_are_left_out_and_told(change, compared, said, folders):
    llama(**change).save_pretrained(folders / "other")
    found, rows = read(folders / "tuned", folders / "other")
    assert len(rows) == compared
    told = json.dumps(found.to_dict())
    assert "of different architectures, and not all is compared" in told
    assert said in told
    found, rows = read(folders / "other", folders / "tuned")
    assert "of different architectures, and not all is compared" in json.dumps(found.to_dict())


def test_a_head_that_only_the_other_has_is_told(folders):
    llama(tie_word_embeddings=True).save_pretrained(folders / "tied")
    for model in (folders / "tied", llama(tie_word_embeddings=True)):
        found, rows = read(model, folders / "base")
        assert len(rows) == 15
        assert "nothing here, and lm_head (64x64) of layer 2 there" in json.dumps(found.to_dict())


def test_the_matrix_that_cannot_be_compared_is_named(folders):
    broken = llama()
    with torch.no_grad():
        broken.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    found, rows = read(broken, folders / "base")
    assert len(rows) == 15
    told = json.dumps(found.to_dict())
    assert "mlp.up_proj of layer 1 is left out: it, or the other checkpoint's, holds" in told


def test_a_model_of_another_family_is_refused_for_that(folders):
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=16)
    GPT2LMHeadModel(config).save_pretrained(folders / "other")
    found, rows = read(folders / "base", folders / "other")
    refused = found.to_dict()["measures"][0]["not_applicable"]
    assert rows.empty and refused[0]["reason"].startswith("the two are of different architectures")


def test_what_was_asked_for_is_run_and_no_more(folders):
    both = layerlab.inspect(
        folders / "tuned", weights=True, against=folders / "base", progress=False
    )
    assert {"change", "matrices"} <= both.frames.keys() and "swap" not in both.frames
    alone = layerlab.inspect(folders / "tuned", weights=True, progress=False)
    assert "change" not in alone.frames
    found, _ = read(folders / "tuned", None)
    assert "nothing was named to compare its weights with" in json.dumps(found.to_dict())
    refuses("nothing lies at ./nowhere", read, folders / "tuned", "./nowhere")
