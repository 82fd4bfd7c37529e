"""Clouds whose components are known, what of a text is read, and words for known numbers."""

import numpy as np
import pytest
import torch

from layerlab.loading.model import load_model
from layerlab.model.build import build
from layerlab.studies.engine.runner import study
from layerlab.studies.pangu23.trained.effective_dimension import (
    ARMS,
    FULL,
    NO_SERIES,
    NO_SHORTCUT,
    VANILLA,
)
from layerlab.studies.pangu23.trained.features_pca import (
    APART,
    COSINE,
    FIRST,
    KEPT,
    SECOND,
    WORDS,
    cloud,
    judge_along,
    judge_distinct,
    judge_diverse,
    judge_gathers,
    judge_isotropic,
    judge_outlying,
    judge_spreads,
    of_twin,
    read,
)
from layerlab.studies.support import small_models
from layerlab.studies.support.passages import get_model
from layerlab.tokenization.load import load_tokenizer
from tests.studies.small import made

LAYERS, TOKENS = 5, 32


def small(seed=0):
    model = build("llama", width=16, layers=LAYERS, heads=4, vocab=512, context=128, seed=seed)
    return load_model(model, tokenizer=load_tokenizer(small_models.WORDS))


def passages(count=4):
    draw = torch.Generator().manual_seed(0)
    return torch.randint(40, 60, (count, TOKENS), generator=draw)


def test_shares_are_those_of_the_covariance():
    model, ids = small(), passages()
    found, drawn = read(model, ids)
    assert found.shape == (LAYERS + 1, 6)
    with torch.no_grad():
        states = model.model(ids, output_hidden_states=True).hidden_states
    # The last of these is behind the final norm.
    for layer in range(LAYERS):
        for skip, columns in ((1, [0, 1, 2]), (0, [KEPT])):
            flat = states[layer][:, skip:].reshape(-1, 16).double().numpy()
            values = np.linalg.eigvalsh(np.cov(flat.T))[::-1]
            shares = (values / values.sum())[: len(columns)]
            assert found[layer, columns].numpy() == pytest.approx(shares, rel=1e-4)
    assert len(drawn["words"]) == WORDS and [*drawn["drawn"]] == ["3", "4"]


def test_what_is_drawn_lies_in_three_components_of_the_same_layer():
    found, drawn = read(small(), passages())
    for layer, places in drawn["drawn"].items():
        assert len(places) == WORDS and all(len(one) == 3 for one in places)
        assert 0 < found[int(layer), APART] <= 1
        # Frequent tokens have different embeddings: they are not one cluster.
        middles = np.array([[np.mean(axis) for axis in one] for one in places])
        assert np.ptp(middles, axis=0).max() > 0


def test_a_picture_shows_each_token_in_its_colour():
    kept = {"layers": torch.full((6, 6), 0.2).tolist(), "words": ["<a>", "\n"]}
    kept["drawn"] = {"3": [[[0.0, 1.0], [1.0, 2.0], [0.0, 0.0]], [[2.0], [3.0], [0.0]]]}
    picture = cloud(FULL, kept, "3")
    assert [trace["name"] for trace in picture.data] == ["'&lt;a&gt;'", r"'\n'"]
    assert picture.data[0]["y"] == [1.0, 2.0] and picture.name == "pangu-pi-3"
    assert "60.0%" in picture.title


@pytest.mark.full
def test_a_picture_of_a_model_of_a_user_has_a_name_that_a_file_can_have(tmp_path):
    kept = [tmp_path / run / "checkpoint-1" for run in ("early", "late")]
    for one in kept:
        made("gpt2").save_pretrained(one)
        get_model("llama").tokenizer.save_pretrained(one)
    quick = {"fast": True, "draws": 4, "progress": False, "threads": 1}
    found = study("features-pca", model=[*map(str, kept)], **quick).to_dict()
    assert [one["claim"].split()[3] for one in found["verdicts"][::2]] == [
        f"{one.parent.name}/checkpoint-1" for one in kept
    ]
    names = [one["name"] for one in found["pictures"]]
    assert len({*names}) == len(names) == 2 + 2 * 2 and not any("/" in name for name in names)


JUDGES = (judge_diverse, judge_isotropic, judge_spreads, judge_distinct)


def planted(**arms):
    """Three seeds of every arm: (first, cosine, apart) by arm, and the same in every layer."""
    spread = np.random.default_rng(0).normal(1, 1e-3, (len(ARMS), 3, LAYERS + 1))
    parts = {}
    for arm, noise in zip(ARMS, spread, strict=True):
        first, cosine, apart = arms[arm.replace("-", "_")]
        layers = np.zeros((3, LAYERS + 1, 6))
        layers[..., FIRST], layers[..., COSINE], layers[..., APART] = first, cosine, apart
        layers[..., SECOND] = 0.1
        layers[:, 0] = 9.0  # what stands behind the embedding is no block
        parts[arm] = {"layers": layers * noise[..., None]}
    return parts


def as_the_source():
    found = planted(
        pangu_pi=(0.1, 0.1, 0.8),
        pangu_pi_no_siaf=(0.6, 0.3, 0.5),
        pangu_pi_no_as=(0.7, 0.4, 0.4),
        llama=(0.8, 0.5, 0.3),
    )
    # The shares of PanGu-pi fall with depth.
    found[FULL]["layers"][..., FIRST] *= np.linspace(2, 1, LAYERS + 1)
    return found


def test_the_figure_of_the_source_is_recognized():
    parts = as_the_source()
    verdicts = [judge(parts) for judge in JUDGES]
    assert [one.word for one in verdicts] == ["holds"] * 4
    assert [judge_gathers(parts, arm).word for arm in (NO_SERIES, NO_SHORTCUT)] == ["holds"] * 2
    assert judge_isotropic(parts).number == pytest.approx(0.2, rel=0.02)
    assert judge_gathers(parts, NO_SERIES).number == pytest.approx(0.6, rel=0.01)


def test_equal_twins_are_no_figure():
    parts = planted(**dict.fromkeys([arm.replace("-", "_") for arm in ARMS], (0.2, 0.3, 0.5)))
    verdicts = [judge(parts) for judge in JUDGES]
    assert [one.word for one in verdicts] == ["not decided"] * 4
    assert judge_gathers(parts, NO_SHORTCUT).word == "fails"


def test_one_arm_is_enough_against_most():
    parts = as_the_source()
    parts[VANILLA] = parts[FULL]
    assert judge_diverse(parts).word == judge_isotropic(parts).word == "fails"


def test_a_layer_that_gathers_again_is_enough_though_the_last_is_below_the_first():
    parts = as_the_source()
    parts[FULL]["layers"][:, -1, FIRST] *= 1.3
    found = judge_spreads(parts)
    last = parts[FULL]["layers"].shape[1] - 1
    assert found.word == "fails" and f"from block {last - 1} to {last}, the step" in found.said
    assert f"It rises in 3 of {3 * (last - 1)} steps of single seeds" in found.said
    assert found.unit == "3 seeds of training"


def test_what_is_said_of_modules_asks_nothing_of_a_llama():
    parts = as_the_source()
    parts[VANILLA] = parts[FULL]
    assert judge_distinct(parts).word == "holds"  # it is said of the modules alone


def drawn_shares(first, kept):
    found = np.zeros((8, LAYERS + 1, 6))
    found[..., FIRST], found[..., KEPT] = first, kept
    found[:, 3] *= 0.5
    return found


def test_a_built_in_model_is_judged_where_it_is_most_so():
    assert judge_along(drawn_shares(0.7, 0.7), "it", 0).word == "holds"
    assert judge_along(drawn_shares(0.2, 0.2), "it", 0).word == "fails"
    assert judge_outlying(drawn_shares(0.2, 0.6), "it", 0).number == pytest.approx(3)
    assert judge_outlying(drawn_shares(0.2, 0.2), "it", 0).word == "fails"


def test_what_is_kept_of_a_twin_is_all_that_is_drawn():
    kept = of_twin(small_models.Twin(small(), 6.0, passages()))
    assert kept["nats"] == 6 and np.shape(kept["layers"]) == (LAYERS + 1, 6)
    assert [cloud(FULL, kept, layer).name for layer in kept["drawn"]] == [
        "pangu-pi-3",
        "pangu-pi-4",
    ]


@pytest.mark.full
def test_a_run_without_runs_trains_small_twins_and_says_so(tmp_path, monkeypatch):
    def taught(arm, seed, **sizes):
        assert sizes == small_models.FAST
        return small_models.Twin(small(seed), 6.0, passages())

    monkeypatch.setattr(small_models, "train_one", taught)
    found = study("features-pca", fast=True, draws=4, progress=False, threads=1, runs=tmp_path)
    content = found.to_dict()
    assert len(content["verdicts"]) == 8 and len(content["pictures"]) == 2 + 2 * 2
    assert content["remarks"][-1].startswith("No runs were at hand") and not [*tmp_path.iterdir()]
    frame = found.frame()
    assert len(frame) == (len(ARMS) * 3) * (LAYERS + 1) + 3 * 9


def test_the_layer_that_is_most_one_sided_of_many_is_judged_as_one_of_them():
    spread = 0.05 * np.linspace(-1.6, 1.6, 12)[:, None]
    found = np.full((12, 41, 6), 0.55 + spread[..., None])
    found[..., KEPT] = found[..., FIRST] * (1.55 + spread)
    for judge in (judge_along, judge_outlying):
        assert judge(found[:, :3], "it", 0).word == "holds"
        assert judge(found, "it", 0).word == "not decided"
    seeds = {FULL: {"layers": found[[0, 5, 11]] + 0.25}}
    assert judge_gathers({FULL: {"layers": seeds[FULL]["layers"][:, :2]}}, FULL).word == "holds"
    assert judge_gathers(seeds, FULL).word == "not decided"
