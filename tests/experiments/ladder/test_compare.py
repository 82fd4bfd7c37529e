"""A ladder judged: by size, the trend, what lies beyond, and all of it corrected together."""

import json
import math
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from layerlab.console.units import amount
from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.comparison import Comparison
from layerlab.experiments.analysis.ladder_table import ladder_table
from layerlab.experiments.ladder.compare import compare_ladder
from layerlab.experiments.ladder.rates import warn_of_drift
from layerlab.experiments.ladder.sentences import describe_trend, warn_of_length
from layerlab.experiments.plan.ladder import Rung, plan_rungs
from layerlab.experiments.plan.plan import plan
from layerlab.experiments.statistics.differences import Level
from layerlab.experiments.statistics.multiple_comparisons import holm
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.records.run import RunRecord
from layerlab.training.run_spec import RunSpec
from tests.training.support.drawn import record

EXTENT = CorpusSize(vocab=300, tokens=10_000_000, digest="d1")
SIZES = [100_000, 200_000, 400_000]
Sizes = list[tuple[Rung, list[RunRecord]]]


def recipe(ladder: Any = None, **compare: Any) -> TrainingRecipe:
    return make_recipe(
        {
            "name": "drawn",
            "model": {"width": 64, "layers": 4, "heads": 8, "context": 16},
            "train": {"max_steps": 20, "batch_size": 4},
            "compare": {"arms": ["llama", "relu2"], "seeds": [1, 2, 3, 4], **compare},
            "ladder": {"sizes": SIZES, "tokens_per_parameter": 2, **(ladder or {})},
        }
    )


def drawn(given: TrainingRecipe, loss: Callable[[int, RunSpec], float | None]) -> Sizes:
    """Runs of a ladder whose losses are given by size and run."""
    found = []
    for place, size in enumerate(plan_rungs(given, EXTENT)):
        runs = plan(size.recipe, EXTENT)
        made = [record(run, loss(place, run)) for run in runs]
        found.append((size, made))
    return found


def gaining(*gains: float, noise: float = 0.01) -> Callable[[int, RunSpec], float]:
    """Losses in which relu2 gains so much at each size; noise by seed, arm and size."""

    def loss(place: int, run: RunSpec) -> float:
        rng = np.random.default_rng([place, run.seed, run.arm == "relu2"])
        gain = gains[place] if run.arm == "relu2" else 0.0
        return float(4 - 0.3 * place - gain + noise * rng.standard_normal())

    return loss


def judged(given: TrainingRecipe, loss: Callable[[int, RunSpec], float | None]) -> Comparison:
    return compare_ladder(given, drawn(given, loss))


def arm(found: Comparison) -> dict[str, Any]:
    (row,) = found.content["ladder"]["arms"]
    return dict(row)


def test_a_gain_that_shrinks_is_said_by_size_with_its_change_and_its_scale():
    found = judged(recipe(), gaining(0.30, 0.20, 0.10))
    row = arm(found)
    assert [one["verdict"] for one in row["gains"]] == ["better"] * 3
    assert row["trend"]["verdict"] == "shrinks"
    doublings = [math.log2(one["parameters"]) for one in row["gains"]]
    slope = np.polyfit(doublings, [one["gain"] for one in row["gains"]], 1)[0]
    assert row["trend"]["slope"] == pytest.approx(slope)
    assert row["trend"]["low"] < slope < row["trend"]["high"] < 0
    said = row["said"]
    assert said.startswith("relu2 against llama: better at 104 k, 192 k and 366 k parameters;")
    assert "; from 104 k to 366 k its" in said
    assert "its gain shrinks by 0.1" in said and "nats per doubling; at" in said
    assert "2 a parameter; 4 seeds a size; p is corrected for 5 tests." in said
    json.dumps(found.content, allow_nan=False)


def test_the_largest_size_is_the_content_and_all_sizes_stand_beside():
    given = recipe()
    sizes = drawn(given, gaining(0.3, 0.2, 0.1))
    found = compare_ladder(given, sizes)
    alone = compare_runs(sizes[-1][0].recipe, sizes[-1][1])
    assert found.row("relu2")["difference"] == alone.row("relu2")["difference"]
    assert found.content["recipe"]["ladder"]["sizes"] == SIZES
    ladder = found.content["ladder"]
    assert [size["parameters"] for size in ladder["sizes"]] == [one.parameters for one, _ in sizes]
    frame = found.frame("ladder")
    assert list(frame["size"]) == [one.parameters for one, _ in sizes for _ in range(2)]
    assert list(frame["arm"]) == 3 * ["llama", "relu2"]
    for size, (rung, records) in zip(ladder["sizes"], sizes, strict=True):
        own = compare_runs(rung.recipe, records).row("relu2")
        row = size["rows"][1]
        assert row["difference"] == own["difference"] and row["rate"] == own["rate"]
        assert size["tokens"] == rung.tokens == 2 * rung.parameters


def test_all_tests_of_all_sizes_are_corrected_together():
    found = judged(recipe(), gaining(0.02, 0.015, 0.0, noise=0.01))
    row, ladder = arm(found), found.content["ladder"]
    raw = [size["rows"][1]["p"] for size in ladder["sizes"]]
    corrected = [size["rows"][1]["holm"] for size in ladder["sizes"]]
    assert ladder["tests"] == 5
    beyond = row["beyond"][0]
    whole = holm([row["trend"]["p"], beyond["p"], *raw])
    assert [row["trend"]["holm"], beyond["holm"], *corrected] == pytest.approx(whole)


@pytest.mark.full
def test_sizes_tell_of_each_others_noise_unless_each_is_to_keep_its_own():
    losses = gaining(0.3, 0.2, 0.1)
    shared, alone = judged(recipe(), losses), judged(recipe(variance="own"), losses)
    for one, other in zip(
        shared.content["ladder"]["sizes"], alone.content["ladder"]["sizes"], strict=True
    ):
        assert one["rows"][1]["difference"] == pytest.approx(other["rows"][1]["difference"])
        assert one["rows"][1]["p"] != other["rows"][1]["p"]


def test_what_lies_beyond_is_said_where_the_line_was_tested_and_sure():
    row = arm(judged(recipe(), gaining(0.30, 0.31, 0.32)))
    (beyond,) = row["beyond"]
    assert beyond["verdict"] == "better" and 0 < beyond["low"] < beyond["gain"] < beyond["high"]
    assert "better if the line goes on" in row["said"]
    last, before = (row["gains"][place]["parameters"] for place in (2, 1))
    assert beyond["parameters"] == pytest.approx(last * last / before)
    # The band ends in the forecast, and inside of the ladder seeds alone make it wide.
    band, ends = row["band"], ("parameters", "gain", "low", "high")
    assert [band[name][-1] for name in ends] == pytest.approx([beyond[name] for name in ends])
    width = np.subtract(band["high"], band["low"])
    inside = np.array(band["parameters"]) <= last
    assert width[inside].max() < width[~inside].min() and len(row["left_out"]) == 3


@pytest.mark.full
@pytest.mark.parametrize(
    ("gains", "ladder", "why", "words"),
    [
        ((0.272, 0.14, 0.0), {}, "unseen", "as the largest size does not show it"),
        ((0.30, 0.10, 0.05), {}, "unsure", "not decidable from here"),
        ((0.30, 0.31, 0.32), {"beyond": ["100M"]}, "far", "leaving out a size tests no more than"),
    ],
)
def test_what_cannot_be_decided_from_here_says_so(gains, ladder, why, words):
    row = arm(judged(recipe(ladder), gaining(*gains, noise=5e-4)))
    (beyond,) = row["beyond"]
    assert (beyond["verdict"], beyond["why"]) == ("not decidable", why)
    assert words in row["said"] and "not decidable from here" in row["said"]


def test_two_sizes_have_a_trend_and_decide_nothing_beyond():
    given = recipe({"sizes": SIZES[:2]})
    row = arm(judged(given, gaining(0.3, 0.1)))
    assert row["trend"]["verdict"] == "shrinks"
    assert row["beyond"][0]["why"] == "untested"
    assert "as a line takes three sizes to be tested" in row["said"]


def test_a_size_whose_arms_share_no_seed_is_left_out_of_the_trend():
    def loss(place: int, run: RunSpec) -> float | None:
        lost = place == 0 and (run.arm == "relu2") == (run.seed > 2)
        return None if lost else gaining(0.30, 0.31, 0.32)(place, run)

    row = arm(judged(recipe(variance="own"), loss))
    assert row["trend"]["from"] == row["gains"][1]["parameters"] and row["scatter"] == 0.0
    assert row["trend"]["verdict"] == "not distinguishable" and "nan" not in row["said"]


def test_a_gain_that_turns_falls_and_one_that_stays_is_not_said_to_change():
    assert arm(judged(recipe(), gaining(0.3, 0.1, -0.1)))["trend"]["verdict"] == "falls"
    row = arm(judged(recipe(), gaining(0.1, 0.1, 0.1)))
    assert row["trend"]["verdict"] == "not distinguishable"
    assert "its gain does not change distinguishably" in row["said"]
    assert "Holm" not in row["said"].split(";")[1]


def test_a_trend_whose_own_interval_leaves_zero_out_says_its_corrected_p():
    trend = {"from": 1e5, "to": 3e5, "slope": -0.02, "low": -0.03, "high": -0.01}
    said = describe_trend({**trend, "holm": 0.123, "verdict": "not distinguishable"}, "nats")
    assert said.endswith("nats per doubling, p = 0.12 after Holm's correction")


def test_runs_that_diverged_leave_no_trend():
    def loss(place: int, run: RunSpec) -> float:
        lost = (place, run.arm, run.seed) == (0, "relu2", 2)
        return math.nan if lost else gaining(0.3, 0.2, 0.1)(place, run)

    row = arm(judged(recipe(), loss))
    assert row["trend"]["verdict"] == "no verdict" and row["beyond"][0]["gain"] is None
    assert "no trend: runs diverged at 104 k parameters" in row["said"]
    assert "not decidable from here, as there is no trend" in row["said"]
    assert "three sizes" not in row["said"] and row["beyond"][0]["why"] == "missing"


def test_what_is_not_finished_is_said_not_to_be_final():
    def loss(place: int, run: RunSpec) -> float | None:
        return None if place == 2 else gaining(0.3, 0.2, 0.1)(place, run)

    found = judged(recipe(), loss)
    row = arm(found)
    assert "planned runs are missing, so this is not final" in row["said"]
    assert [one["verdict"] for one in row["gains"]] == ["better", "better", "no verdict"]
    json.dumps(found.content, allow_nan=False)


def swept(
    best: Callable[[str, int], float], odd: tuple[str, int, int] | None = None
) -> tuple[TrainingRecipe, Comparison]:
    """A ladder of swept rates, of which an arm's best in octaves is given by size.

    The best of one odd run, by arm, size and seed, is beyond all rates.
    """
    rates = [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]
    given = recipe(learning_rates=rates, seeds=[1, 2, 3, 4])

    def loss(place: int, run: RunSpec) -> float:
        rng = np.random.default_rng([place, run.seed, run.arm == "relu2"])
        middle = 2.4 if (run.arm, place, run.seed) == odd else best(run.arm, place)
        away = math.log2(run.rate / 4e-3) - middle - 0.1 * rng.standard_normal()
        return float(4 - 0.3 * place + 0.05 * away**2 + 0.001 * rng.standard_normal())

    return given, judged(given, loss)


@pytest.mark.full
def test_the_best_rate_drifts_in_octaves_per_doubling():
    _, found = swept(lambda name, place: 0.8 - 0.8 * place if name == "relu2" else 0.0)
    llama, relu = found.content["ladder"]["rates"]
    assert abs(llama["drift"]) < 0.15 and llama["low"] < 0 < llama["high"]
    assert relu["drift"] == pytest.approx(-0.8, abs=0.2) and relu["high"] < 0
    assert [one["rate"] for one in llama["best"]] == [4e-3] * 3
    apart = [one for one in found.content["remarks"] if "drift apart" in one]
    assert len(apart) == 1 and apart[0].startswith("the best rates of relu2 and llama drift apart")
    assert (
        " octaves per doubling, a difference of -0." in apart[0] and " (95 % interval -" in apart[0]
    )


def test_rates_that_drift_apart_are_corrected_for_the_arms():
    names = [f"a{number}" for number in range(7)]
    rng = np.random.default_rng(1)

    def rates(name: str) -> dict[str, Any]:
        seeds = range(1 if name == "a3" else 4)  # the others have not finished yet
        octaves = [{str(seed): 0.1 * rng.standard_normal() for seed in seeds} for _ in SIZES]
        best = [{"parameters": size, "edge": None, "swept": 5} for size in SIZES]
        return {"arm": name, "drift": 0.0, "best": best, "octaves": octaves, "at_ends": []}

    pairs = [(name, names[0]) for name in names[1:]]
    draws = 300
    wrong = sum(bool(warn_of_drift([*map(rates, names)], pairs, Level())) for _ in range(draws))
    assert wrong / draws < 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)


def test_a_seed_that_has_not_finished_at_a_rate_has_no_best_one_yet():
    given = recipe(learning_rates=[1e-3, 2e-3, 4e-3])

    def loss(place: int, run: RunSpec, late: float | None = None) -> float | None:
        odd = run.seed == 4 and place == 2
        if odd and run.rate == 4e-3 and late is None:
            return None
        rng = np.random.default_rng([place, run.seed, run.arm == "relu2"])
        middle = 1 + 0.1 * rng.standard_normal()
        return float(4 + 0.05 * (math.log2(run.rate / 1e-3) - middle) ** 2 - 0.3 * place)

    def llama(late: float | None) -> dict[str, Any]:
        found = judged(given, lambda place, run: loss(place, run, late))
        return dict(found.content["ladder"]["rates"][0])

    assert llama(1.0)["drift"] is not None
    unfinished = llama(None)
    assert unfinished["drift"] is None and unfinished["at_ends"] == [[], [], []]


@pytest.mark.full
def test_one_seed_at_an_end_leaves_the_drift_unknown():
    """Without it the rest would be too sure: which seeds are left is no chance."""
    _, found = swept(
        lambda name, place: 0.8 - 0.8 * place if name == "relu2" else 0.0, ("llama", 1, 2)
    )
    llama, relu = found.content["ladder"]["rates"]
    assert llama["drift"] is None and relu["drift"] is not None
    assert [bool(seeds) for seeds in llama["at_ends"]] == [False, True, False]
    assert llama["at_ends"][1] == [2] and not any(one["edge"] for one in llama["best"])
    assert any(
        one.startswith("the best rate of llama is at an end of the range for the seeds 2 at some")
        for one in found.content["remarks"]
    )


@pytest.mark.full
def test_a_best_rate_at_an_end_leaves_its_drift_unknown():
    _, found = swept(lambda name, place: 2.5 if name == "relu2" and place == 2 else 0.0)
    relu = found.content["ladder"]["rates"][1]
    assert relu["drift"] is None and relu["best"][2]["edge"] == "largest"
    assert any(
        one.startswith("the best rate of relu2 is at an end of the range at")
        for one in found.content["remarks"]
    )


def remarks_on_length(given: TrainingRecipe) -> Sequence[str]:
    return [
        one for one in judged(given, gaining(0.1, 0.1, 0.1)).content["remarks"] if "over" in one
    ]


def test_what_changes_with_size_beside_it_is_a_remark():
    tokens = {"tokens": [100_000, 200_000, 200_000], "tokens_per_parameter": None}
    unequal = remarks_on_length(recipe({**tokens, "unequal_tokens": True}))
    assert any("tokens per parameter, 0.96" in one for one in unequal)
    assert any(one.startswith("the text is read") and "repetition" in one for one in unequal)


def test_a_text_that_is_read_once_is_none_that_is_repeated():
    sizes = drawn(recipe(), gaining(0.1, 0.1, 0.1))
    for size, made in sizes:
        for one in made:
            one.manifest["data"]["train_tokens"] = size.tokens
    assert warn_of_length(sizes) == []


def test_a_remark_on_some_sizes_says_at_which_and_one_on_all_does_not():
    def loss(place: int, run: RunSpec) -> float:
        best = 0.012 if place == 0 else 0.006
        return gaining(0.2, 0.2, 0.2)(place, run) + 0.3 * abs(math.log2(run.rate / best))

    found = judged(recipe(learning_rates=[0.003, 0.006, 0.012]), loss).content
    first, *_ = found["ladder"]["sizes"]
    edge = "the best learning rate of llama, 0.012, is the largest of the sweep: add 0.024"
    assert edge in first["remarks"]
    assert f"at {amount(first['parameters'])} parameters: {edge}" in found["remarks"]
    chosen = [one for one in found["remarks"] if "judged at the learning rate" in one]
    assert len(chosen) == 1 and chosen[0].startswith("each seed")


def test_a_declared_difference_is_said_once_and_not_by_size():
    muon = {"name": "muon", "variant": "llama", "set": {"train.optimizer": "muon"}}
    given = recipe(arms=["llama", "relu2", muon], allowed_differences=["train.optimizer"])
    remarks = judged(given, gaining(0.2, 0.2, 0.2)).content["remarks"]
    assert sum("declared to differ" in one for one in remarks) == 1
    assert any(one.startswith("declared to differ: train.optimizer") for one in remarks)


def test_the_terminal_names_the_size_whose_rows_follow_also_where_none_has_ended():
    given = recipe(seeds=[1, 2, 3])
    ended = gaining(0.03, 0.03, 0.03)
    found = judged(given, lambda place, run: None if place == 2 else ended(place, run)).content
    console = Console(width=160, record=True, file=StringIO())
    for part in ladder_table(found, 160):
        console.print(part)
    assert [row["n"] for row in found["rows"]] == [0, 0]
    size = amount(found["ladder"]["sizes"][-1]["parameters"])
    assert f"What follows is of {size} parameters" in console.export_text()
