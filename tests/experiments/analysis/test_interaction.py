"""Whether a gain holds under another optimizer: found in the arms, judged as differences are."""

import io
import json
import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.interaction import find_interactions
from layerlab.experiments.statistics.multiple_comparisons import holm
from layerlab.recipes.training import TrainingRecipe, load_recipe
from layerlab.report.pages.comparison import render
from tests.training.support.drawn import recipe, records

MUON = {"train.optimizer": "muon"}
ARMS: tuple[Any, ...] = (
    "llama",
    "pangu-pi",
    {"name": "llama-muon", "variant": "llama", "set": MUON},
    {"name": "pangu-pi-muon", "variant": "pangu-pi", "against": "llama-muon", "set": MUON},
)
SEEDS = [1, 2, 3, 4, 5, 6]


def crossed(*arms: Any, **compare: Any) -> TrainingRecipe:
    given = {"allowed_differences": ["train.*", "batch_tokens"], "seeds": SEEDS, **compare}
    return recipe(*(arms or ARMS), **given)


def found(given: TrainingRecipe) -> list[Any]:
    assert given.compare is not None
    return find_interactions(given, given.compare)


def drawn(gains: tuple[float, float], noise: float = 0.002, start: int = 0) -> dict[str, Any]:
    """Losses of all four arms: by seed, by block, by optimizer, and by both together."""
    rng = np.random.default_rng(start)
    shared = dict(zip(SEEDS, rng.normal(3, 0.3, len(SEEDS)), strict=True))
    means = {
        "llama": 0,
        "pangu-pi": -gains[0],
        "llama-muon": -0.1,
        "pangu-pi-muon": -0.1 - gains[1],
    }
    return {
        arm: {seed: float(of + mean + rng.normal(0, noise)) for seed, of in shared.items()}
        for arm, mean in means.items()
    }


def judged(losses: dict[str, Any], **compare: Any) -> Any:
    given = crossed(**compare)
    return compare_runs(given, records(given, losses))


def test_two_blocks_under_two_optimizers_are_one_interaction():
    (one,) = found(crossed())
    assert one.setting == "train.optimizer" and one.under == ("adamw", "muon")
    assert one.base == ("llama", "llama-muon") and one.block == ("pangu-pi", "pangu-pi-muon")
    assert one.test.arms == ("llama-muon", "pangu-pi-muon", "llama", "pangu-pi")
    assert one.test.turned.turned == one.test


def test_any_setting_of_training_will_do_and_a_rate_of_ones_own_is_no_difference():
    small = {"train.batch_size": 2, "train.learning_rate": 3e-3}
    arms = [{**arm, "set": small} if isinstance(arm, dict) else arm for arm in ARMS]
    (one,) = found(crossed(*arms))
    assert one.setting == "train.batch_size"
    assert one.under == ("batch_size = 4", "batch_size = 2")


@pytest.mark.parametrize("left", range(4))
def test_three_arms_are_none(left):
    arms = [
        {**arm, "against": None} if isinstance(arm, dict) else arm
        for place, arm in enumerate(ARMS)
        if place != left
    ]
    assert found(crossed(*arms)) == []


def test_where_two_settings_differ_nobody_could_say_which_it_is():
    both = {**MUON, "train.batch_size": 2}
    assert found(crossed(*({**a, "set": both} if isinstance(a, dict) else a for a in ARMS))) == []
    assert found(load_recipe("batch-confound")) == []
    other = {"emulate.format": "bf16"}
    assert found(crossed(*({**a, "set": other} if isinstance(a, dict) else a for a in ARMS))) == []


def test_of_three_blocks_each_has_its_own():
    more = {"name": "gpt2-muon", "variant": "gpt2", "against": "llama-muon", "set": MUON}
    assert [one.block for one in found(crossed(*ARMS, "gpt2", more))] == [
        ("pangu-pi", "pangu-pi-muon"),
        ("gpt2", "gpt2-muon"),
    ]


def test_it_is_the_t_test_of_the_change_of_the_gain():
    losses = drawn((0.05, 0.02))
    comparison = judged(losses, variance="own")
    (row,) = comparison.content["interactions"]
    gains = [
        [losses[base][seed] - losses[block][seed] for seed in SEEDS]
        for base, block in (("llama", "pangu-pi"), ("llama-muon", "pangu-pi-muon"))
    ]
    oracle = stats.ttest_rel(gains[1], gains[0])
    assert row["gains"] == pytest.approx([np.mean(one) for one in gains])
    assert row["difference"] == pytest.approx(np.mean(gains[1]) - np.mean(gains[0]))
    assert row["p"] == pytest.approx(oracle.pvalue) and row["n"] == 6
    assert (row["low"], row["high"]) == pytest.approx(tuple(oracle.confidence_interval()))
    assert row["verdict"] == "smaller" and row["variance"] == "paired"
    # It is one of the tests that are corrected together, beside those of three arms.
    rows = [*comparison.rows[1:], row]
    assert [one["holm"] for one in rows] == holm([one["p"] for one in rows])
    assert comparison.content["tests"] == len(rows) == 4
    size = abs(row["difference"])
    assert row["said"].startswith(
        f"the gain of pangu-pi over llama is {size:.4f} nats smaller under muon than under adamw "
        "(95 % interval -0.0"
    )
    assert "after Holm's correction for 4 tests, 6 seeds)" in row["said"]
    told = f"a gain of {np.mean(gains[1]):+.4f} nats under muon and of {np.mean(gains[0]):+.4f}"
    assert f"; at 1.00 k parameters and 1.92 k tokens a run; {told} under adamw." in row["said"]
    json.dumps(comparison.content, allow_nan=False)


def test_all_arms_tell_of_its_noise():
    losses = drawn((0.05, 0.02))
    (own,) = judged(losses, variance="own").content["interactions"]
    (row,) = judged(losses).content["interactions"]
    assert row["variance"] == "moderated" and row["difference"] == pytest.approx(own["difference"])
    # Four residual variances, each of one loss: the interval is of four independent numbers.
    assert 0.5 < row["difference_sd"] / (2 * 0.002) < 2


@pytest.mark.parametrize(
    ("gains", "word"),
    [((0.02, 0.05), "larger"), ((-0.02, -0.05), "smaller"), ((0.05, 0.05), "not distinguishable")],
)
def test_its_word_is_about_the_gain_and_not_about_the_loss(gains, word):
    (row,) = judged(drawn(gains)).content["interactions"]
    assert row["verdict"] == word
    if word == "not distinguishable":
        assert row["low"] < 0 < row["high"]
        assert row["said"].startswith(
            "the gain of pangu-pi over llama is not distinguishable under muon from that under "
            "adamw at this budget: "
        )


def test_where_a_run_diverged_it_is_not_judged():
    losses = drawn((0.05, 0.02))
    losses["pangu-pi-muon"][2] = math.nan
    (row,) = judged(losses).content["interactions"]
    assert row["verdict"] == "diverged" and row["p"] is None
    assert row["said"].startswith(
        "no verdict on the gain of pangu-pi over llama under muon and adamw: runs of pangu-pi-muon "
        "diverged, and which seeds are left is no chance; at 1.00 k parameters"
    )


def test_what_is_not_finished_is_not_final_and_one_seed_is_too_few():
    losses = drawn((0.05, 0.02))
    losses["llama-muon"][6] = None
    (row,) = judged(losses).content["interactions"]
    assert row["n"] == 5 and row["missing"] == [6]
    assert row["said"].endswith("5 of 6 planned seeds: this verdict is not final.")
    (row,) = judged(losses, seeds=[1]).content["interactions"]
    assert row["verdict"] == "too few seeds" and "one seed cannot say" in row["said"]
    given = crossed()
    (row,) = compare_runs(given, []).content["interactions"]
    assert row["verdict"] == "no verdict" and row["difference"] is None
    assert row["said"] == (
        "no verdict on the gain of pangu-pi over llama under muon and adamw: no seed has finished "
        "for all four arms; 0 of 6 planned seeds: this verdict is not final."
    )


def test_a_look_that_decides_stays_decided():
    (row,) = judged(drawn((0.3, -0.3)), looks=[4, 6]).content["interactions"]
    assert row["verdict"] == "smaller" and "decided by the look at 4 seeds" in row["said"]


@pytest.mark.full
def test_terminal_and_page_say_it():
    comparison = judged(drawn((0.05, 0.02)))
    (row,) = comparison.content["interactions"]
    screen = Console(file=io.StringIO(), width=2000)
    screen.print(comparison.table(2000))
    assert row["said"] in screen.file.getvalue()  # type: ignore[attr-defined]
    page = render(comparison.content)
    assert "Does the gain hold?" in page
    assert "nats smaller under muon than under adamw (" in page
    assert "Does the gain hold?" not in render({**comparison.content, "interactions": []})


def test_a_declared_difference_is_told_of_those_who_differ():
    """The baseline of a pair that trains alike is none of another optimizer."""
    comparison = judged(drawn((0.05, 0.02)))
    apart = "arms also differ in train.optimizer"
    said = {row["arm"]: apart in row["said"] for row in comparison.rows}
    assert said == {
        "llama": False,
        "pangu-pi": False,
        "llama-muon": True,
        "pangu-pi-muon": False,
    }
