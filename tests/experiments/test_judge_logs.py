"""Verdicts on somebody's logs: those that the tests of the textbook give."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from layerlab import UserError
from layerlab.experiments.judge_logs import JudgeRequest, check_request, judge_logs
from layerlab.experiments.log_values import JudgedStep
from layerlab.logs.training_log import TrainingLog
from layerlab.report.figures.comparison_svg import pictures
from layerlab.report.pages.comparison import render
from tests.support.refused import refusal, refuses

STEPS = np.arange(10.0, 101.0, 10.0)

DIFFERS = (
    "wide differs from plain in lr; type --allow lr for each that is compared on purpose, or leave "
    "out --strict"
)


def log(arm: str, seed: int | str | None, end: float, **given: Any) -> TrainingLog:
    losses = end + np.linspace(1.0, 0.0, len(STEPS))
    found: dict[str, Any] = {"steps": STEPS, "losses": losses, "loss_name": "loss"}
    number = None if seed is None else str(seed)
    return TrainingLog(place=f"{arm}-{seed}.csv", arm=arm, seed=number, **{**found, **given})


PLAIN = [3.00, 3.10, 2.95, 3.05]
WIDE = [2.90, 3.01, 2.83, 2.96]


def pair(seeds: bool = True, make: Callable[..., TrainingLog] = log) -> list[TrainingLog]:
    return [
        make(arm, n if seeds else None, end)
        for arm, ends in (("plain", PLAIN), ("wide", WIDE))
        for n, end in enumerate(ends)
    ]


def judged(logs: list[TrainingLog], step: JudgedStep | None = None, **given: Any) -> Any:
    return judge_logs(logs, JudgeRequest(judged=step or JudgedStep(), **given)).content


def test_seeds_that_are_the_same_are_paired():
    row = judged(pair())["rows"][1]
    expected = stats.ttest_rel(WIDE, PLAIN)
    assert row["paired"] and row["n"] == 4 and row["verdict"] == "better"
    assert row["p"] == pytest.approx(expected.pvalue, rel=1e-9)
    low, high = expected.confidence_interval()
    assert (row["low"], row["high"]) == pytest.approx((low, high))


def test_runs_that_no_seed_pairs_are_two_samples():
    content = judged(pair(seeds=False))
    row = content["rows"][1]
    expected = stats.ttest_ind(WIDE, PLAIN, equal_var=False)
    assert not row["paired"] and row["verdict"] == "not distinguishable"
    assert row["p"] == pytest.approx(expected.pvalue, rel=1e-9)
    assert "unpaired" in row["said"] and "not final" not in row["said"]


def test_one_run_an_arm_gives_a_difference_and_no_verdict():
    row = judged([log("plain", 1, 3.0), log("wide", 1, 2.9)])["rows"][1]
    assert row["verdict"] == "too few seeds" and row["difference"] == pytest.approx(-0.1)
    assert "run two or more of each arm" in row["said"]


def test_a_given_step_and_the_mean_of_the_last_readings():
    content = judged(pair(), JudgedStep(at=90, last=3))
    values = {run["run"]: run["loss"] for run in content["runs"]}
    assert values["plain, seed 0"] == pytest.approx(3.0 + np.mean([3, 2, 1]) / 9)


def test_a_table_of_results_has_no_step_to_speak_of():
    final = [replace(log(arm, n, 3.0 + n / 9), step_name="rows") for arm in "ab" for n in (1, 2)]
    final = [replace(one, steps=one.steps[:1], losses=one.losses[-1:]) for one in final]
    assert "what is judged is loss, the one reading of each run" in judged(final)["remarks"]


def test_a_margin_is_a_test_of_its_own():
    logs = [
        log(arm, n, 3.0 + 1e-4 * n * (arm == "wide")) for arm in ("plain", "wide") for n in range(5)
    ]
    (claim,) = judged(logs, margin=0.01)["claims"]
    assert (
        claim["verdict"] == "holds"
        and judged(pair(), margin=0.01)["claims"][0]["verdict"] == "fails"
    )


def test_a_run_that_ends_in_nothing_is_diverged_only_where_that_is_said():
    bad = np.array([3.0] * 9 + [math.nan])
    logs = [*pair(), log("plain", 9, 3.0), log("wide", 9, 0, losses=bad)]
    refuses(r"the loss of wide, seed 9 is nan at step 100 \(wide-9\.csv", judged, logs)
    with pytest.raises(UserError, match=r"the loss of wide, seed 9 is 1e\+308 at step 100"):
        judged([*logs[:-1], log("wide", 9, 0, losses=np.full(10, 1e308))])
    row = judged(logs, JudgedStep(nan_diverged=True))["rows"][1]
    assert row["diverged"] == [9] and "diverged at seed 9" in row["said"]


def test_settings_that_differ_are_named_in_the_verdict():
    given = {
        "plain": {"lr": 0.1, "seed": 1, "width": 8},
        "wide": {"lr": 0.2, "seed": 2, "width": 8},
    }

    def make(arm: str, n: int, end: float) -> TrainingLog:
        own = {"output_dir": f"{arm}{n}", "host": f"h{arm}{n}"}
        return log(arm, n, end, config={**given[arm], **own})

    logs = pair(make=make)
    assert "arms also differ in lr, so this is no comparison" in judged(logs)["rows"][1]["said"]
    assert "also differ" not in judged(logs, allowed=["lr"], strict=True)["rows"][1]["said"]
    refuses(DIFFERS, judged, logs, strict=True)


def test_settings_of_which_each_run_has_its_own_are_named():
    size = {"plain": 1_000_000, "wide": 4_000_000}
    logs = [
        replace(one, config={"text": f"/{one.arm}-{n}.bin", "tokens": size[one.arm] + n})
        for n, one in enumerate(pair())
    ]
    assert "differ in text, tokens" in judged(logs)["rows"][1]["said"]
    for one in logs:
        own = {"order": f"of seed {one.seed}", "seed": one.seed}
        vars(one)["config"] = own
    assert "differ in" not in judged(logs, strict=True)["rows"][1]["said"]


@pytest.mark.parametrize(
    ("logs", "step", "said"),
    [
        ([log("plain", 1, 3.0), log("plain", 2, 3.0)], {}, "all runs are of one arm, 'plain'"),
        ([*pair(), log("plain", 0, 3.0)], {}, "'plain' with seed 0 stands twice in plain-0.csv"),
        (
            [*pair(), log("wide", 7, 0, steps=STEPS[:9], losses=STEPS[:9])],
            {},
            "runs end at different steps, from 90 (wide, seed 7) to 100, and are not comparable "
            "there; type --at 90, the last that all have",
        ),
        (pair(), {"at": 95}, "has no reading at step 95, and 8 of 8 runs have none; its nearest"),
        (
            pair(),
            {"last": 11},
            "has 10 readings up to step 100; expected 11 or more: type --last 10",
        ),
    ],
)
def test_what_cannot_be_judged_is_one_line(logs, step, said):
    assert said in refusal(judged, logs, JudgedStep(**step))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"judged": JudgedStep(last=0)}, "--last is 0; expected 1 or more"),
        (
            {"judged": JudgedStep(target=-0.5)},
            "--target-loss is -0.5; expected a finite loss above 0",
        ),
        ({"judged": JudgedStep(target=math.nan)}, "--target-loss is nan; expected a finite"),
        ({"judged": JudgedStep(at=math.nan)}, "--at is nan; expected a step, or leave it out"),
        ({"margin": -1.0}, "--margin is -1; expected a number above 0"),
        ({"margin": math.inf}, "--margin is inf; expected a number above 0"),
        ({"confidence": 0.2}, "--confidence is 0.2; expected one between 0.5 and 1"),
    ],
)
def test_a_number_that_means_nothing_is_refused(given, said):
    refuses(said.replace("(", r"\("), check_request, JudgeRequest(**given))


def test_losses_of_different_kinds_are_not_compared():
    logs = [log("plain", 1, 3.0, loss_name="eval_loss"), log("wide", 1, 2.0)]
    refuses(r"'loss' .* 'eval_loss' .*not comparable; .* --loss COLUMN", judged, logs)
    logs[1] = log("wide", 1, 2.0, loss_name="val/loss")
    assert judged(logs)["rows"][1]["difference"] == pytest.approx(-1.0)


def named(logs: list[TrainingLog], name: str) -> list[TrainingLog]:
    return [replace(one, loss_name=name) for one in logs]


SETTINGS = "no configuration of their own lies beside the logs of plain, wide"
OFTEN = np.arange(1.0, 101.0)
EARLY = {"steps": STEPS[:-1], "losses": 3.0 - STEPS[:-1] / 100}


@pytest.mark.parametrize(
    ("logs", "given", "said"),
    [
        (pair(), {"baseline": "plian"}, "the baseline 'plian' is no arm of these logs: 'plain'"),
        (pair(), {"strict": True}, SETTINGS),
        (  # of some runs of an arm, which are not those of all
            [
                *(log(arm, 1, 3.0, config={"lr": 1}) for arm in ("plain", "wide")),
                log("plain", 2, 3.1),
            ],
            {"strict": True},
            SETTINGS,
        ),
        (named(pair(), "own"), {}, r"more of 'own' .* no word .*; type --loss own=lower or -"),
        (
            named(pair(), "f1"),
            {"step": JudgedStep(target=3.0)},
            "--target-loss is for what is better the lower it is, and",
        ),
        (
            [*named(pair()[:4], "accuracy"), *named(pair()[4:], "f1")],
            {},
            r"'f1' .* 'accuracy' .* not comparable; name one",
        ),
        (
            [log("plain", 1, 3.0), log("wide", 1, 3.0, steps=OFTEN, losses=3.0 - OFTEN / 100)],
            {"step": JudgedStep(last=5)},
            r"plain, seed 1 are of other .* 60 and 96: .* leave --last out",
        ),
        (
            [log("plain", 1, 3.0), log("plain", "01", 3.2), log("wide", 1, 2.0)],
            {},
            r"'plain' with seed 01 stands in plain-1\.csv and in plain-01\.csv",
        ),
        (  # what was nan at the end of a table is empty there, and the run must not look sound
            [log("plain", 0, 3.0), log("wide", 0, 2.9, **EARLY, blank=100.0)],
            {},
            r"wide, seed 0 has a row without a loss at step 100: write nan .* else type --at 90",
        ),
        (
            pair(),
            {"step": JudgedStep(target=99.0)},
            r"first reading, at step \d+, and when it came to 99 is not",
        ),
    ],
)
def test_logs_that_cannot_be_judged_are_refused(logs, given, said):
    refuses(said, judged, logs, **given)


@pytest.mark.parametrize("name", ["eval_accuracy", "accuracy", "metrics.f1", "BLEU"])
def test_more_is_better_of_what_is_called_a_score(name):
    """The same numbers as of a loss, and the other word."""
    logs = pair()
    asked = JudgeRequest(margin=0.01)
    lower, higher = (judge_logs(given, asked).content for given in (logs, named(logs, name)))
    (_, less), (_, more) = lower["rows"], higher["rows"]
    assert (less["verdict"], more["verdict"]) == ("better", "worse")
    numbers = ("difference", "low", "high", "holm", "detectable")
    assert [less[one] for one in numbers] == [more[one] for one in numbers]
    assert f"wide is worse than plain by 0.1000 in {name} (" in more["said"]
    assert higher["higher_is_better"] and not lower["higher_is_better"]
    assert (higher["judged"], lower["judged"]) == (name, "loss")
    assert higher["remarks"][0].startswith(f"the score is {name}, of which more is better, ")
    assert f"in {name}, with a margin of 0.01" in higher["claims"][0]["said"]
    assert [one["verdict"] for one in higher["claims"]] == [
        one["verdict"] for one in lower["claims"]
    ]


def test_more_is_better_where_that_is_said():
    found = judged(named(pair(), "own"), higher=True)
    assert found["rows"][1]["verdict"] == "worse"
    assert judged(named(pair(), "own"), higher=False)["rows"][1]["verdict"] == "better"


def test_runs_that_end_in_nan_speak_against_an_arm_of_which_more_is_better():
    logs = [log("plain", n, 0.5 + n / 1000, loss_name="f1") for n in range(8)]
    lost = np.full(len(STEPS), math.nan)
    logs += [log("wide", n, 0.5, losses=lost, loss_name="f1") for n in range(8)]
    (_, row) = judged(logs, JudgedStep(nan_diverged=True))["rows"]
    assert row["verdict"] == "worse"


@pytest.mark.full
def test_the_page_of_a_score_says_so():
    content = judged(named(pair(), "accuracy"))
    page, english = render(content), render(judged(pair()))
    assert 'class="rising"' in page and "Score less that of plain" in page
    assert 'class="rising"' not in english and "Loss less that of plain" in english
    assert "与 plain 同一种子的得分之差" in render(content, "zh")
    (drawn, *_) = pictures(content).values()
    assert "left of zero is a lower score, which is worse" in drawn
    assert "Left of zero is a lower score, which is worse." in page
    assert "Left of zero is a lower loss." in english and "a lower loss." not in page
    # plain is better, and stands above: in the picture of its own, and on the page.
    assert drawn.index(">plain<") < drawn.index(">wide<")
    forest = page[page.index('class="forest"') :]
    assert forest.index("<b>plain</b>") < forest.index("<b>wide</b>")


def test_a_run_that_stops_at_nan_is_diverged_wherever_it_stops():
    early = log("wide", 9, 3.0, steps=STEPS[:2], losses=np.array([3.0, math.nan]))
    row = judged([*pair(), early], JudgedStep(nan_diverged=True))["rows"][1]
    assert row["diverged"] == [9] and row["n"] == 4
    assert "its loss is nan at step 20" in row["said"]


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([3.2512345671234], True),
        ([float(np.float32(3.2512345))], False),
        ([3.2512345], False),
        ([float(np.float32(3.7)), float(np.float32(3.2512345))], True),
        ([3.71, 3.25], False),
        ([3.7123, 3.5123, 3.2512], True),
        ([3.7123, 3.7123, 3.7123], False),
        ([1e300, 3.0], False),
        ([math.nan, 3.2512345671234], True),
    ],
)
def test_few_readings_are_copies_where_chance_does_not_make_them(losses, told):
    """By the digits that runs of an arm need not share; single precision has seven of them."""
    given = {"steps": np.arange(1.0, len(losses) + 1), "losses": np.array(losses)}
    remarks = judged(
        [
            log("plain", 1, 0, **given),
            log("plain", 2, 0, **given),
            log("b", 1, 2.0, steps=given["steps"], losses=np.full(len(losses), 2.0)),
        ]
    )["remarks"]
    assert any("so that they are no two runs" in one for one in remarks) is told


def test_where_data_lies_and_rates_of_all_runs_are_settings():
    def make(arm: str, n: int, end: float) -> TrainingLog:
        return log(arm, n, end, config={"data_dir": arm, "out_dir": arm, "lr": end})

    logs = pair(make=make)
    assert "arms also differ in data_dir, lr, so" in judged(logs)["rows"][1]["said"]


def test_runs_without_a_seed_have_no_partner():
    remarks = judged([*pair(), log("plain", None, 3.3)])["remarks"]
    assert any("1 of no known seed) have no partner" in one for one in remarks)


def test_a_seed_is_one_however_it_is_written():
    written = [log("plain", 1, 3.2), log("plain", 2, 3.3), log("wide", 1, 3.1)]
    remarks = judged([*written, log("wide", "02", 3.15)])["remarks"]
    assert not any("have no partner" in one for one in remarks)
    remarks = judged([*written, log("wide", "03", 3.15)])["remarks"]
    assert any("over 1 of the seeds; the others (03, 2) have no partner" in one for one in remarks)
