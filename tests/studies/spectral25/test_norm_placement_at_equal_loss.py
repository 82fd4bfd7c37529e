"""One loss for two placements: rates, targets, stops, and words for numbers that are known."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from layerlab.errors import DamageWarning
from layerlab.experiments.session import prepare
from layerlab.records.kept import read_kept, write_kept
from layerlab.studies.spectral25.norm_placement_at_equal_loss import (
    PRE,
    edges,
    judge_apart,
    judge_expressive,
    judge_further,
    judge_louder,
    judge_settled,
    judge_sooner,
    run,
)
from layerlab.studies.support import small_models, train_to_loss
from layerlab.studies.support.stored_readings import FOLDER
from layerlab.studies.support.train_to_loss import (
    ARMS,
    TrainingContest,
    Trial,
    gather_trials,
    goal,
    recipe,
    run_contest,
    train_one,
)
from layerlab.training.setup import build_model
from tests.studies.small import context

SIZES = {"layers": 1, "width": 16, "updates": 2}
LAYERS = 4


def planted(norm=1.0, updates=1.0, residual=1.0, dimension=1.0, kept=0.9):
    """Three seeds; post-norm has so many times the norms and updates, pre-norm the rest."""
    spread = np.random.default_rng(0).normal(1, 1e-3, (2, 3))
    runs = {}
    for arm, noise in zip(ARMS, spread, strict=True):
        ours = arm == PRE
        runs[arm] = [
            {
                "curve": [(10, 3.0), (100 if ours else round(100 * updates), 2.0)],
                "reached": True,
                "layers": [
                    [
                        one * (residual if ours and layer else 1),
                        0.2 * one * (dimension if ours else 1),
                    ]
                    for layer in range(LAYERS + 1)
                    for one in [seed * (kept if layer else 1)]
                ],
                "norms": [2 * seed * (1 if ours else norm)] * LAYERS,
            }
            for seed in noise
        ]
    sweep = {arm: {1e-3: 2.0, 3e-3: 1.9} for arm in ARMS}
    return TrainingContest(target=2.0, rates=dict.fromkeys(ARMS, 3e-3), sweep=sweep, runs=runs)


def test_what_the_source_says_is_recognized():
    found = planted(norm=1.1, updates=1.5, residual=1.1)
    assert [
        judge(found).word for judge in (judge_louder, judge_sooner, judge_further, judge_expressive)
    ] == ["holds"] * 4
    assert judge_louder(found).number == pytest.approx(1.1, rel=0.01)
    assert judge_sooner(found).number == pytest.approx(1.5)
    assert [judge_apart(found, arm).word for arm in ARMS] == ["holds"] * 2


def test_equal_arms_are_no_difference():
    found = planted(dimension=0.8, kept=0.3)
    words = [
        judge(found).word for judge in (judge_louder, judge_sooner, judge_further, judge_expressive)
    ]
    # Nobody knows on which side of 1 the third is; that it is no twentieth is no word against it.
    assert words == ["fails", "fails", "not decided", "fails"]
    assert judge_further(planted(residual=1.02)).word == "smaller than asked"
    assert [judge_apart(found, arm).word for arm in ARMS] == ["fails"] * 2


def test_a_run_that_missed_the_target_leaves_nothing_decided():
    found = planted(norm=1.1)
    assert judge_settled(found, judge_louder(found)) == judge_louder(found)
    found.runs[PRE][0]["reached"] = False
    verdict = judge_settled(found, judge_louder(found))
    assert verdict.word == "not decided"
    assert verdict.said.startswith("1 of 6 runs did not come to the target; at 2.00 nats")


def test_a_rate_at_the_edge_is_told():
    found = planted()
    assert edges(found) == []
    assert edges(replace(found, rates={**found.rates, PRE: 1e-2})) == [
        "The rate of pre-norm is at the edge of those that were tried."
    ]


def test_each_arm_gets_its_best_rate_and_both_one_target():
    asked = []

    def fetch(trial):
        asked.append(trial)
        best = {"pre-norm": 3e-3, "post-norm": 1e-3}[trial.arm]
        low = 2.0 + abs(np.log10(trial.rate / best)) + (trial.arm == "post-norm") * 0.123
        return {"curve": [(15, 5.0), (30, low + 0.1), (40, low)], "reached": True}

    found = run_contest(fetch, [7, 8])
    assert found.rates == {"pre-norm": 3e-3, "post-norm": 1e-3}
    # Post-norm is slower: at three quarters of the way it has 2.223.
    assert found.target == 2.23
    assert {trial.seed for trial in asked if trial.target is None} == {train_to_loss.SWEEP}
    assert [(trial.arm, trial.seed) for trial in asked if trial.target] == [
        ("pre-norm", 7),
        ("pre-norm", 8),
        ("post-norm", 7),
        ("post-norm", 8),
    ]


def test_a_target_is_one_that_every_curve_has_come_to():
    # What comes after three quarters of the way counts for nothing.
    assert goal([[(1, 4.0), (3, 2.001), (4, 0.5)], [(1, 3.0), (3, 1.0), (4, 1.0)]]) == 2.01
    assert goal([[(1, 4.0)]]) == 4.0


def test_the_arms_differ_in_placement_alone(tmp_path):
    parts = []
    for arm in ARMS:
        asked = recipe(Trial(arm=arm, seed=1, rate=1e-3), **SIZES)
        (one,) = prepare(asked, tmp_path / arm, progress=False).runs
        parts.append((one, build_model(one, torch.device("cpu"))))
    (pre, first), (post, second) = parts
    assert pre.recipe.model.variant != post.recipe.model.variant
    assert pre.recipe.train == post.recipe.train
    weights = [dict(model.named_parameters()) for model in (first, second)]
    assert {name: one.shape for name, one in weights[0].items()} == {
        name: one.shape for name, one in weights[1].items()
    }
    assert all(torch.equal(one, weights[1][name]) for name, one in weights[0].items())
    ids = torch.arange(8)[None]
    assert not torch.allclose(first(ids).logits, second(ids).logits)


@pytest.mark.full
def test_a_run_stops_at_its_target_and_is_read_there():
    found = train_one(Trial(arm="post-norm", seed=3, rate=1e-3, target=9.0), **SIZES)
    assert found["reached"] and [update for update, _ in found["curve"]] == [1]
    assert len(found["norms"]) == 1 and np.shape(found["layers"]) == (2, 2)
    missed = train_one(Trial(arm="pre-norm", seed=3, rate=1e-3, target=0.1), **SIZES)
    assert not missed["reached"] and [update for update, _ in missed["curve"]] == [1, 2, 3, 4]
    swept = train_one(Trial(arm="pre-norm", seed=3, rate=1e-3), **SIZES)
    assert [update for update, _ in swept["curve"]] == [1, 2] and "layers" not in swept
    assert swept["curve"] == missed["curve"][:2]


work = partial(context, options=SIZES)


def made_up(trial, **sizes):
    found = planted(norm=1.1, updates=1.5).runs[trial.arm][0]
    return {**found, "curve": [(1, 3.0), (2, 2.0)]}


@pytest.mark.full
def test_what_lies_there_is_judged_and_not_trained_again(tmp_path, monkeypatch):
    monkeypatch.setattr(train_to_loss, "train_one", made_up)
    first = work(tmp_path)
    before, notes = gather_trials(first)
    assert notes == () and (first.done, first.kept) == (12, 0)
    assert len([*(tmp_path / FOLDER).iterdir()]) == 12
    monkeypatch.setattr(train_to_loss, "train_one", None)
    for fast in (False, True):
        again = work(tmp_path, fast=fast)
        after, notes = gather_trials(again)
        assert again.kept == 12 and after.target == before.target
        for arm, runs in after.runs.items():
            assert [one["norms"] for one in runs] == [one["norms"] for one in before.runs[arm]]
        assert notes == ("Of 12 models 12 had been trained before, and are read.",)
    assert run(work(tmp_path, fast=True)).verdicts[0].word == "holds"


@pytest.mark.full
@pytest.mark.parametrize(
    "change", [None, {"curve": []}, {"curve": [[1, "x"]]}, {"reached": []}, {"norms": None}]
)
def test_what_is_not_what_was_written_is_trained_again(tmp_path, monkeypatch, change):
    monkeypatch.setattr(train_to_loss, "train_one", made_up)
    gather_trials(work(tmp_path))
    file = next((tmp_path / FOLDER).glob("*post-norm-s[1-9]*"))
    whole = file.read_bytes()
    if change is None:
        file.write_text(file.read_text().replace("true", "false"))
    else:
        write_kept(file, {**read_kept(file), **change})
    again = work(tmp_path)
    with pytest.warns(DamageWarning, match=f"{file.name} does not count: ") as said:
        gather_trials(again)
    assert (again.kept, len(said)) == (11, 1) and file.read_bytes() == whole


def test_another_documentation_is_trained_on_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(train_to_loss, "train_one", made_up)
    gather_trials(work(tmp_path))
    for file in (tmp_path / FOLDER).iterdir():
        write_kept(file, {**read_kept(file), "text": "of another Python"})
    again = work(tmp_path)
    gather_trials(again)
    assert again.kept == 0


@pytest.mark.full
def test_other_code_trains_anew_and_the_fast_mode_tells_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(train_to_loss, "train_one", made_up)
    gather_trials(work(tmp_path))
    monkeypatch.setattr(train_to_loss, "fingerprint", lambda module: "of a trainer that changed")
    fast = work(tmp_path, fast=True)
    _, notes = gather_trials(fast)
    assert fast.kept == 12
    assert notes[-1].startswith("Of these models 12 were trained and read by other code")
    again = work(tmp_path)
    _, notes = gather_trials(again)
    assert again.kept == 0 and notes == ()


def test_the_fast_mode_leaves_nothing_where_nothing_lies(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        train_to_loss, "train_one", lambda trial, **sizes: asked.append(sizes) or made_up(trial)
    )
    found, notes = gather_trials(work(tmp_path, fast=True))
    assert asked == [small_models.FAST] * 12 and [*tmp_path.iterdir()] == []
    assert notes[0].startswith("No runs were at hand: layers 2") and found.target == 3.0
