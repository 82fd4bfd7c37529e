"""Claims of sources: which pairs they are made of, when they hold, fail, or stay open."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from layerlab.experiments.analysis.claims import pairs
from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.comparison import Comparison
from layerlab.recipes.arms import arms
from layerlab.recipes.comparison_sections import Claim
from layerlab.recipes.training import TrainingRecipe, list_packaged, load_recipe, make_recipe
from layerlab.records.run import RunRecord
from tests.support.refused import refuses
from tests.training.support.drawn import recipe, record, records, runs

SOURCES = Path(__file__).resolve().parents[3] / "docs" / "sources.md"
ARMS = ("llama", "gpt2", "history-1", "history-3")
BASE = {1: 3.0, 2: 3.3, 3: 3.1}
# Steps that are not all the same, so that there is a spread.
WOBBLE = {1: 0.0, 2: 0.0005, 3: -0.0005}


def moved(by: float, spread: float = 1.0) -> dict[int, float | None]:
    return {seed: value + by + spread * WOBBLE[seed] for seed, value in BASE.items()}


def claim(relation: str, **given: Any) -> dict[str, Any]:
    return {"source": "pangu23, Table 2", "statement": "It is so.", "relation": relation, **given}


def judged(
    *claims: dict[str, Any], losses: dict[str, dict[int, float | None]] | None = None, **extra: Any
) -> list[dict[str, Any]]:
    """What becomes of claims; arms without losses of their own end like the baseline."""
    # Each pair by its own t-test, as scipy has it.
    given = recipe(*ARMS, claims=list(claims), **{"variance": "own", **extra})
    found = {"llama": dict(BASE), **dict.fromkeys(ARMS[1:], moved(0.0)), **(losses or {})}
    return list(compare_runs(given, records(given, found)).content["claims"])


def one(*claims: dict[str, Any], **given: Any) -> dict[str, Any]:
    return judged(*claims, **given)[0]


@pytest.mark.parametrize(
    ("relation", "by", "verdict"),
    [
        ("better", -0.05, "holds"),
        ("better", 0.05, "fails"),
        ("worse", 0.05, "holds"),
        ("worse", -0.05, "fails"),
        ("alike", 0.004, "holds"),
        ("alike", -0.05, "fails"),
        ("alike", 0.05, "fails"),
        ("no better", 0.05, "holds"),
        ("no better", -0.004, "holds"),
        ("no better", -0.05, "fails"),
    ],
)
def test_a_claim_of_two_arms_holds_or_fails(relation, by, verdict):
    found = one(claim(relation, arm="gpt2"), losses={"gpt2": moved(by)})
    assert found["verdict"] == verdict
    assert found["said"].startswith(f"{verdict}: gpt2 against llama: {by:+.4f} nats")
    assert "95 % interval" in found["said"] and "3 seeds" in found["said"]
    assert found["pairs"][0]["difference"] == pytest.approx(by)
    assert found["margin"] == (0.02 if relation in ("alike", "no better") else None)


@pytest.mark.parametrize("relation", ["better", "worse", "alike", "no better"])
def test_what_the_seeds_cannot_tell_is_not_decided(relation):
    found = one(claim(relation, arm="gpt2"), losses={"gpt2": moved(-0.01, 100)})
    assert found["verdict"] == "not decided"
    assert found["said"].startswith("not decided at this budget: gpt2 against llama: -0.0100")


def test_alike_is_two_one_sided_tests_and_so_an_interval_within_the_margin():
    losses = {"gpt2": moved(0.004, 4)}
    gaps = np.array([losses["gpt2"][seed] - BASE[seed] for seed in BASE])
    low, high = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    for margin in (abs(high) * 0.99, abs(high) * 1.01):
        found = one(claim("alike", arm="gpt2", margin=float(margin)), losses=losses)
        inside = -margin < low and high < margin
        assert (found["p"] < 0.05) == inside
        one_sided = stats.ttest_1samp(gaps, margin, alternative="less").pvalue
        assert found["p"] == pytest.approx(min(1, 2 * one_sided))
        assert found["holm"] >= found["p"]
        assert f"with a margin of {margin:g}" in found["said"]


def test_an_order_needs_every_neighbour_and_fails_with_one_reversed():
    order = claim("order", arms=["history-1", ["gpt2", "history-3"], "llama"])
    right = {"history-1": moved(-0.3), "gpt2": moved(-0.1, 3), "history-3": moved(-0.2, 2)}
    found = one(order, losses=right)
    assert [(pair["arm"], pair["against"]) for pair in found["pairs"]] == [
        ("history-1", "gpt2"),
        ("history-1", "history-3"),
        ("gpt2", "llama"),
        ("history-3", "llama"),
    ]
    assert found["verdict"] == "holds"
    assert found["said"].startswith("holds, 4 of 4 pairs are as said; the least sure: ")
    # The claim is no surer than the least sure of its pairs.
    assert found["p"] == max(pair["p"] for pair in found["pairs"])
    assert found["holm"] == max(pair["as_said"] for pair in found["pairs"])
    wrong = one(order, losses={**right, "gpt2": moved(0.1, 3)})
    assert wrong["verdict"] == "fails"
    assert wrong["said"].startswith(
        "fails, 1 of 4 pairs looks otherwise; the surest: gpt2 against llama: +0.1000 nats"
    )
    assert wrong["holm"] == wrong["pairs"][2]["otherwise"] >= wrong["p"] == wrong["pairs"][2]["p"]
    unsure = one(order, losses={**right, "gpt2": moved(-0.1, 200)})
    assert unsure["verdict"] == "not decided"
    assert "2 of 4 pairs surely as said" in unsure["said"]


def test_arms_and_claims_are_corrected_together_so_that_a_pair_has_one_word():
    losses = {"gpt2": moved(-0.005, 2.2), "history-1": moved(0.0, 3), "history-3": moved(0.001, 9)}
    claims = [claim("better", arm=arm) for arm in ARMS[1:]]
    given = recipe(*ARMS, claims=claims, variance="own")
    found = compare_runs(given, records(given, {"llama": dict(BASE), **losses}))
    # The claims ask what the table asks: three tests, not six.
    assert found.content["tests"] == 3
    for row, judged_ in zip(found.rows[1:], found.content["claims"], strict=True):
        assert row["holm"] == judged_["holm"]
        assert (row["verdict"] == "better") == (judged_["verdict"] == "holds")
    more = recipe(*ARMS, claims=[*claims, claim("alike", arm="gpt2")], variance="own")
    found = compare_runs(more, records(more, {"llama": dict(BASE), **losses}))
    assert found.content["tests"] == 5
    assert "after Holm's correction for 5 tests" in found.content["claims"][0]["said"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_pair_has_one_word_from_whichever_arm_it_is_told(turned):
    names = ("gpt2", "llama") if turned else ("llama", "gpt2")
    order = claim("order", arms=list(names))
    losses = {"gpt2": moved(0.3, 3), "history-1": moved(0.01, 5), "history-3": moved(0.02, 4)}
    given = recipe(*ARMS, claims=[order])
    found = compare_runs(given, records(given, {"llama": dict(BASE), **losses}))
    row, judged_ = found.row("gpt2"), found.content["claims"][0]
    assert row["verdict"] == "worse" and row["holm"] == judged_["holm"]
    assert judged_["verdict"] == ("fails" if turned else "holds")


@pytest.mark.full
@pytest.mark.parametrize(("relation", "spread"), [("alike", 0.1), ("alike", 1), ("no better", 1)])
def test_a_claim_that_is_true_at_the_edge_of_its_margin_rarely_fails(relation, spread):
    """Beyond the margin is what has to be shown, not a difference from 0 (truth A1)."""
    rng, margin, draws = np.random.default_rng(0), 1.0, 200
    given = recipe(*ARMS[:2], claims=[claim(relation, arm="gpt2", margin=margin)])
    blank = [record(run, 3.0) for run in runs(given)]
    failed = 0
    for _ in range(draws):
        drawn = [
            replace(one, result={"nats": float(rng.normal(9 - 0.99 * (one.arm == "gpt2"), spread))})
            for one in blank
        ]
        failed += compare_runs(given, drawn).content["claims"][0]["verdict"] == "fails"
    assert failed <= stats.binom.ppf(0.999, draws, 0.05)


def test_pairs_follow_from_the_relation():
    baselines = {"a": "base", "b": "other", "c": "base"}

    def named(**given: Any) -> list[tuple[str, str]]:
        return list(pairs(Claim(source="Own", statement="x", **given), baselines))

    assert named(relation="better", arms=("a", "b")) == [("a", "base"), ("b", "other")]
    assert named(relation="worse", arms=("a", "b"), against="c") == [("a", "c"), ("b", "c")]
    assert named(relation="alike", arm="b") == [("b", "other")]
    assert named(relation="alike", arms=("a", "b", "c")) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert named(relation="alike", arms=(("a", "b"), ("c",))) == [("a", "b")]


@pytest.mark.parametrize("seeds", [3, 6])
def test_an_arm_that_always_diverges_is_worse_where_an_exact_test_says_so(seeds):
    claims = [claim(each, arm="gpt2") for each in ("worse", "better", "alike", "no better")]
    given = recipe("llama", "gpt2", claims=claims, seeds=list(range(seeds)))
    found = [
        record(run, 3.0 + run.seed, diverged="loss of 99" if run.arm == "gpt2" else None)
        for run in runs(given)
    ]
    rows = compare_runs(given, found).content["claims"]
    told = f"gpt2 against llama: {seeds} of {seeds} runs diverged against 0 of {seeds}"
    assert told in rows[0]["said"]
    words = ["not decided"] * 4 if seeds == 3 else ["holds", "fails", "fails", "holds"]
    assert [row["verdict"] for row in rows] == words
    both = [record(run, 2.0, diverged="loss of 99") for run in runs(given)]
    assert {row["verdict"] for row in compare_runs(given, both).content["claims"]} == {
        "not decided"
    }


def test_nothing_one_seed_and_no_difference():
    given = recipe(*ARMS, claims=[claim("better", arm="gpt2"), claim("alike", arm="gpt2")])
    nothing = compare_runs(given, []).content["claims"]
    assert {row["verdict"] for row in nothing} == {"not decided"}
    assert "no seed has finished for gpt2 and llama both" in nothing[0]["said"]
    assert nothing[0]["said"].endswith("planned seeds are missing: this verdict is not final.")
    single = one(claim("better", arm="gpt2"), losses={"gpt2": moved(-1)}, seeds=[1])
    assert single["verdict"] == "not decided"
    assert "-1.0000 nats; one seed tells nothing of chance" in single["said"]
    same = judged(claim("better", arm="gpt2"), claim("alike", arm="gpt2"), losses={"gpt2": BASE})
    assert [row["verdict"] for row in same] == ["not decided", "holds"]
    assert "a difference of exactly 0 at 3 seeds" in same[1]["said"]
    fixed = one(claim("better", arm="gpt2"), losses={"gpt2": {k: v - 1 for k, v in BASE.items()}})
    assert fixed["verdict"] == "not decided" and "tells nothing of chance" in fixed["said"]


@pytest.mark.parametrize(
    ("relation", "counts", "verdict"),
    [
        ("worse", (4, 4, 5), "holds"),
        ("worse", (0, 0, 0), "not decided"),
        ("alike", (0, 0, 0), "not decided"),
        ("no better", (0, 0, 0), "not decided"),
        ("worse", None, "not decided"),
    ],
)
def test_spikes_are_counted_where_a_monitor_heard_them(relation, counts, verdict):
    content = recipe(*ARMS, claims=[claim(relation, arm="gpt2", measure="spikes")]).model_dump()
    given = make_recipe({**content, "monitor": {"interval": 5 if counts else 0}})
    alarm = {"kind": "alarm", "update": 9, "measure": "loss", "text": "a spike", "value": 9.0}
    other = {**alarm, "measure": "score"}
    found = []
    for run in runs(given):
        spikes = counts[run.seed - 1] if counts and run.arm == "gpt2" else 0
        whole = record(run, 3.0)
        events = (*whole.events, other, *[alarm] * spikes)
        found.append(RunRecord(manifest=whole.manifest, events=events, result=whole.result))
    (row,) = compare_runs(given, found).content["claims"]
    assert row["verdict"] == verdict
    if counts is None:
        assert "for gpt2 and llama both with a monitor" in row["said"]
    elif any(counts):
        assert "gpt2 against llama: +4.3333 loss spikes a run" in row["said"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (claim("better", arm="gpt-2"), "names 'gpt-2', which is no arm; did you mean 'gpt2'?"),
        (claim("better", arm="gpt2", against="x"), "names 'x', which is no arm; arms: llama, gpt2"),
        (claim("better"), "names no arm; expected one of both: write arm"),
        (claim("better", arm="gpt2", arms=["llama"]), "names arm and arms; expected one of both"),
        (claim("order", arms=["gpt2"]), "orders 1 arms; expected two or more"),
        (claim("equal", arm="gpt2"), "claims.0.relation is 'equal'"),
        ({**claim("better", arm="gpt2"), "sauce": "x"}, "has no 'sauce'; did you mean 'source'"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(given, said):
    refuses(re.escape(said), recipe, *ARMS, claims=[given])


def test_an_arm_that_is_named_by_the_model_section_alone_is_known():
    given = recipe({"set": {"train.batch_size": 8}}, "gpt2", claims=[claim("better", arm="llama")])
    assert given.compare is not None and given.compare.claims[0].names() == ("llama",)


def test_claims_change_no_run():
    plain, judging = recipe(*ARMS), recipe(*ARMS, claims=[claim("better", arm="gpt2")])
    assert [run.name for run in runs(plain)] == [run.name for run in runs(judging)]
    assert plain.hash() == judging.hash()


def test_they_stand_in_the_terminal_and_in_a_table():
    import io

    from rich.console import Console

    given = recipe(*ARMS, claims=[claim("better", arm="gpt2")])
    found = compare_runs(given, records(given, {"llama": dict(BASE), "gpt2": moved(-0.05)}))
    stream = io.StringIO()
    Console(file=stream, width=80, force_terminal=False).print(found.table(80))
    assert "pangu23, Table 2: It is so - holds: gpt2 against llama" in " ".join(
        stream.getvalue().split()
    )
    assert found.content["claims"][0]["verdict"] == "holds"
    frame = found.frame("claims")
    assert list(frame["verdict"]) == ["holds"] and "pairs" not in frame
    # What an older version wrote has none.
    old = {name: part for name, part in found.content.items() if name != "claims"}
    Console(file=stream, width=80).print(Comparison(old).table(80))
    assert Comparison(old).frame("claims").empty


@pytest.mark.parametrize("name", list_packaged())
def test_every_claim_of_a_packaged_recipe_has_its_source_and_its_arms(name):
    given: TrainingRecipe = load_recipe(name)
    if given.compare is None:
        return
    known = set(re.findall(r"^\| ([a-z]+\d{2}) \|", SOURCES.read_text("utf-8"), re.MULTILINE))
    baselines = {str(arm.name): str(arm.against) for arm in arms(given.compare, given)}
    for each in given.compare.claims:
        keys = set(re.findall(r"\b[a-z]+\d{2}\b", each.source))
        assert keys and keys <= known, each.source
        assert each.statement.endswith(".") and list(pairs(each, baselines))
        assert all(arm != baseline for arm, baseline in pairs(each, baselines))
        assert each.measure == "loss" or given.monitor.interval
