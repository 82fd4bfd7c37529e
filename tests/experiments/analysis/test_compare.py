"""From runs to a comparison: choice of rates, verdicts, and what is said of all that is lacking."""

import io
import json
import math
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from layerlab import UserError
from layerlab.experiments.analysis.compare import compare_runs
from layerlab.records.run import RunRecord
from tests.training.support.drawn import recipe, record, records, runs, write

# Three seeds that differ much, and an arm that is better by a hundredth at each.
BASE = {1: 3.0, 2: 3.3, 3: 3.1}
BETTER = {1: 2.99, 2: 3.2895, 3: 3.0905}


def losses(*given: dict[int, float | None]) -> dict[str, dict[int, float | None]]:
    return dict(zip(("llama", "gpt2"), given, strict=True))


def test_a_comparison_says_how_much_how_sure_and_at_what_cost():
    found = compare_runs(recipe(), records(recipe(), losses(BASE, BETTER)))
    base, row = found.row("llama"), found.row("gpt2")
    oracle = stats.ttest_rel(list(BETTER.values()), list(BASE.values()))
    assert base["verdict"] == "baseline" and base["n"] == 3 and base["difference"] is None
    assert base["nats"] == pytest.approx(np.mean(list(BASE.values())))
    assert base["sd"] == pytest.approx(np.std(list(BASE.values()), ddof=1))
    assert row["p"] == pytest.approx(oracle.pvalue) == row["holm"]
    assert (row["low"], row["high"]) == pytest.approx(tuple(oracle.confidence_interval()))
    assert row["verdict"] == "better"
    assert row["said"].startswith("gpt2 is better than llama by 0.0100 nats (95 % interval -0.0")
    assert row["tokens_per_second"] == 100 and row["peak_memory_bytes"] == 2**20
    assert row["start"] == 0 and row["diverged"] == row["missing"] == []
    assert found.content["remarks"] == [
        "compared at one learning rate 0.001 for all: an arm with a different optimal learning "
        "rate may look worse than it is",
        "intervals are over seeds, and hold for this held-out text alone: runs kept no losses by "
        "block",
        "more than one part differs from the baseline's, and no verdict can say which of them "
        "counts: gpt2 (norm, attention, ffn, stack)",
    ]
    json.dumps(found.content, allow_nan=False)


def test_an_arm_is_worse_where_the_signs_are_turned_and_the_same_where_they_are_mixed():
    worse = compare_runs(recipe(), records(recipe(), losses(BETTER, BASE))).row("gpt2")
    assert worse["verdict"] == "worse" and worse["difference"] == pytest.approx(0.01, rel=0.01)
    mixed = {1: 2.99, 2: 3.32, 3: 3.10}
    row = compare_runs(recipe(), records(recipe(), losses(BASE, mixed))).row("gpt2")
    assert row["verdict"] == "not distinguishable"
    least, most = row["seeds_needed"]
    assert 3 < least < most and f"need {least - 3:,} to {most - 3:,} more seeds" in row["said"]
    low, high = row["detectable"]
    assert f"an effect of {low:.4f} to {high:.4f} with" in row["said"]


def test_what_is_read_from_folders_is_what_was_given(tmp_path):
    given = records(recipe(), losses(BASE, {**BETTER, 3: None}))
    folders = [write(tmp_path, one) for one in given]
    assert compare_runs(recipe(), folders).content == compare_runs(recipe(), given).content
    for name in ("manifest.json", "result.json"):  # a run that has not begun
        (folders[0] / name).unlink()
    assert compare_runs(recipe(), folders).row("llama")["missing"] == [1]


def test_an_unfinished_comparison_says_that_it_is_not_final():
    found = compare_runs(recipe(), records(recipe(), losses(BASE, {1: 2.99, 2: 3.29, 3: None})))
    row = found.row("gpt2")
    assert row["n"] == 2 and row["missing"] == [3]
    assert row["said"].endswith("2 of 3 planned seeds: this verdict is not final.")
    assert any(one.startswith("seeds that have not finished: gpt2 3") for one in remarks(found))
    none = compare_runs(recipe(), [])
    assert none.row("gpt2")["verdict"] == "no verdict"
    assert "no seed has finished for it and llama both" in none.row("gpt2")["said"]


def test_one_seed_is_too_few_for_a_verdict():
    single = recipe(seeds=[1])
    row = compare_runs(single, records(single, losses(BASE, BETTER))).row("gpt2")
    assert row["verdict"] == "too few seeds" and row["difference"] == pytest.approx(-0.01)
    assert row["p"] is row["low"] is row["detectable"] is None
    assert row["said"].startswith("too few seeds for a verdict (1): gpt2 ended -0.0100 nats from")
    assert "cannot say how much of that is chance" in row["said"]


def test_a_diverged_run_is_named_and_not_dropped():
    given = records(recipe(), losses(BASE, BETTER))
    index = next(i for i, one in enumerate(given) if (one.arm, one.seed) == ("gpt2", 2))
    broken = {**dict(given[index].result or {}), "nats": math.nan, "diverged": "NaN in layer 3"}
    given[index] = RunRecord(manifest=given[index].manifest, result=broken)
    found = compare_runs(recipe(), given)
    row = found.row("gpt2")
    assert row["verdict"] == "diverged" and row["diverged"] == [2]
    assert row["said"].startswith("no verdict on gpt2: gpt2 diverged at seed 2 (NaN in layer")
    assert "1 of 3 runs against 0 of 3, Fisher's exact p = 1" in row["said"]
    assert row["n"] == 2
    turned = compare_runs(recipe(baseline="gpt2"), given)
    row = turned.row("llama")
    assert row["verdict"] == "diverged" and "gpt2 diverged at seed 2" in row["said"]
    # The baseline's own runs are what others are held against: they count as nothing themselves.
    assert f"{given[index].name} diverged: NaN in layer 3" in remarks(turned)
    assert not any("counts as worse" in one for one in remarks(turned))
    json.dumps(found.content, allow_nan=False)


def test_a_curve_has_a_gap_where_a_loss_is_not_finite():
    first, *others = records(recipe(), losses(BASE, BETTER))
    lost = [
        {"kind": "train", "update": 31, "loss": math.inf},
        {"kind": "evaluation", "update": 31, "nats": math.nan, "bits_per_byte": -math.inf},
    ]
    found = compare_runs(recipe(), [replace(first, events=(*first.events, *lost)), *others])
    curve = found.content["curves"][0]
    assert curve["train"]["loss"] == [5.0, 4.0, 3.0, None]
    assert curve["evaluation"]["nats"] == [5.0, 4.0, 3.0, None]
    assert curve["evaluation"]["bits_per_byte"] == [2.5, 2.0, 1.5, None]


def test_each_seed_is_judged_at_the_best_rate_of_those_before():
    swept = recipe(learning_rates=[1e-3, 3e-3, 1e-2], seeds=[1, 2, 3, 4])
    best, base = {"llama": 3e-3, "gpt2": 1e-2}, {**BASE, 4: 3.2}
    given = [
        record(run, base[run.seed] + abs(math.log(run.rate / best[run.arm]))) for run in runs(swept)
    ]
    found = compare_runs(swept, given)
    assert {one["arm"]: one["rate"] for one in found.rows} == best
    assert found.row("gpt2")["verdict"] == "identical"
    assert "exactly 0 at 3 seeds" in found.row("gpt2")["said"]
    widest = "the best learning rate of gpt2, 0.01, is the largest of the sweep: add 0.03"
    assert widest in remarks(found)
    assert not any("best learning rate of llama" in one for one in remarks(found))
    assert any("the first seed of a sweep chooses" in one for one in remarks(found))
    assert not any("are no sweep" in one for one in remarks(found))
    assert sum(one["chosen"] for one in found.content["runs"]) == 6
    fewer = [one for one in given if (one.arm, one.rate) != ("gpt2", 1e-3)]
    partial = compare_runs(swept, fewer)
    assert any("unequally many learning rates (llama 3, gpt2 2)" in one for one in remarks(partial))
    assert "this verdict is not final" in partial.row("gpt2")["said"]


def test_a_rate_at_which_a_run_diverged_is_not_chosen():
    swept = recipe(learning_rates=[1e-3, 3e-3])
    given = [
        record(run, 2.0, diverged="loss of 99")
        if (run.rate, run.seed) == (3e-3, 1)
        else record(run, BASE[run.seed] - (run.rate == 3e-3))
        for run in runs(swept)
    ]
    found = compare_runs(swept, given)
    assert {one["rate"] for one in found.rows} == {1e-3}
    told = [one for one in remarks(found) if "diverged" in one]
    assert [one.split(" diverged")[1] for one in told] == [
        ", so its rate is not chosen: loss of 99"
    ] * 2


def test_where_both_sides_diverged_no_run_counts_as_worse():
    given = [record(run, 2.0, diverged="loss of 99") for run in runs(recipe())]
    found = compare_runs(recipe(), given)
    assert found.row("gpt2")["verdict"] == "diverged"
    told = [one for one in remarks(found) if "diverged" in one]
    assert told == [f"{one.name} diverged: loss of 99" for one in by_arm(given)]


def test_two_seeds_are_told_what_they_cannot_say():
    for seeds, expected in (([1, 2], True), ([1], False), ([1, 2, 3], False)):
        planned = recipe(seeds=seeds)
        found = compare_runs(planned, records(planned, losses(BASE, BETTER)))
        said = [one for one in remarks(found) if one.startswith("with two seeds the spread is")]
        assert bool(said) == expected
    for seeds, expected in (([1, 2], False), ([1, 2, 3], True), ([1, 2, 3, 4], False)):
        swept = recipe(seeds=seeds, learning_rates=[1e-3, 3e-3])
        content = compare_runs(swept, records(swept, losses(BASE, BETTER)))
        assert any(one.startswith("of three seeds") for one in remarks(content)) == expected
        assert any(one.startswith("two learning rates are no sweep") for one in remarks(content))


def test_unequal_runs_are_refused_and_declared_ones_are_told_with_every_verdict():
    arms = ["llama", {"name": "gpt2", "variant": "gpt2", "set": {"train.batch_size": 2}}]
    plain, declared = recipe(*arms), recipe(*arms, allowed_differences=["train.batch_size"])
    with pytest.raises(UserError, match=r"train.batch_size is 4 in llama-s1"):
        compare_runs(plain, records(plain, losses(BASE, BETTER)))
    found = compare_runs(declared, records(declared, losses(BASE, BETTER)))
    assert (
        "arms also differ in train.batch_size, so this is no comparison of variants alone"
        in (found.row("gpt2")["said"])
    )
    assert any(
        one.startswith("declared to differ: train.batch_size is 4") for one in remarks(found)
    )


def test_other_tokens_are_compared_by_the_byte():
    arms = ["llama", {"name": "gpt2", "variant": "gpt2", "set": {"data.vocab_size": 300}}]
    given = recipe(*arms, allowed_differences=["data.vocab_size"])
    found = compare_runs(given, records(given, losses(BASE, BETTER)))
    assert found.content["metric"] == "bits_per_byte"
    assert found.row("gpt2")["difference"] == pytest.approx(-0.005, rel=0.01)
    assert "by 0.0050 bits per byte" in found.row("gpt2")["said"]


def test_an_arm_whose_tokens_do_not_give_the_text_back_has_no_verdict():
    arms = ["llama", {"name": "gpt2", "variant": "gpt2", "set": {"data.vocab_size": 300}}]
    given = recipe(*arms, allowed_differences=["data.vocab_size"])
    made = records(given, losses(BASE, BETTER))

    def lossy(*names: str) -> Any:
        found = [
            replace(one, result={**one.result, "bits_per_byte": None}) if one.arm in names else one
            for one in made
        ]
        return compare_runs(given, found)

    row = lossy("gpt2").row("gpt2")
    assert (row["verdict"], row["n"], row["bits_per_byte"]) == ("no verdict", 0, None)
    assert row["nats"] == pytest.approx(np.mean(list(BETTER.values())))
    assert row["said"].startswith(
        "no verdict on gpt2: the held-out text does not come back from the tokens of gpt2, so that "
        "their loss is not known in bits per byte; "
    )
    assert row["missing"] == []
    base = lossy("llama")
    assert base.row("gpt2")["said"].startswith("no verdict on gpt2: the held-out text does")
    assert (
        "llama is the baseline: the held-out text does not come back" in base.row("llama")["said"]
    )
    both = lossy("llama", "gpt2")
    assert both.row("gpt2")["edge"] is None
    assert "from the tokens of gpt2 and llama, so" in both.row("gpt2")["said"]
    json.dumps(both.content, allow_nan=False)
    Console(file=io.StringIO()).print(both.table(100))


def test_every_arm_has_the_baseline_that_it_asks_for():
    arms = ["llama", "gpt2", {"name": "third", "variant": "gpt2", "against": "gpt2"}]
    given = recipe(*arms)
    values = {**losses(BASE, BETTER), "third": BETTER}
    found = compare_runs(given, records(given, values))
    assert [one["against"] for one in found.rows] == ["llama", "llama", "gpt2"]
    assert found.row("third")["verdict"] == "identical"
    assert found.row("gpt2")["holm"] == pytest.approx(2 * found.row("gpt2")["p"])


def test_curves_are_paired_at_the_same_tokens():
    found = compare_runs(recipe(), records(recipe(), losses(BASE, BETTER)))
    (paired,) = found.content["paired"]
    assert [point["tokens"] for point in paired["points"]] == [640, 1280, 1920]
    row = found.row("gpt2")
    assert paired["points"][-1]["difference"] == pytest.approx(row["difference"])
    assert paired["points"][-1]["low"] == pytest.approx(row["low"])
    curve = found.content["curves"][0]
    assert curve["evaluation"]["nats"] == [BASE[1] + 2, BASE[1] + 1, BASE[1]]
    assert curve["train"]["seconds"] == [1, 2, 3]


def test_what_matching_left_is_told():
    matched = recipe(match="parameters")
    given = records(matched, losses(BASE, BETTER))
    for one in given:
        if one.arm == "gpt2":
            one.manifest["model"]["parameters"] = 1012
    found = compare_runs(matched, given)
    assert found.row("gpt2")["mismatch"] == pytest.approx(1.2)
    assert any("gpt2 is matched by parameters and still differs" in one for one in remarks(found))
    assert (
        compare_runs(recipe(), records(recipe(), losses(BASE, BETTER))).row("gpt2")["mismatch"]
        is None
    )


def test_seeds_and_arms_that_were_not_planned_are_left_out_and_named():
    more = records(recipe(seeds=[1, 2, 3, 4]), losses({**BASE, 4: 9.0}, {**BETTER, 4: 0.1}))
    found = compare_runs(recipe(), more)
    assert found.row("gpt2")["n"] == 3
    assert sum("none of those fixed in advance" in one for one in remarks(found)) == 2
    other = compare_runs(recipe("llama", "pangu-pi"), records(recipe(), losses(BASE, BETTER)))
    assert other.content["elsewhere"] == {"gpt2": 3} and found.content["elsewhere"] == {}
    assert not any("gpt2" in one for one in remarks(other))
    told = io.StringIO()
    Console(file=told, width=120).print(other.table(120))
    assert "Beside these lie runs of arms that are not compared here: gpt2 (3)" in told.getvalue()


def test_what_is_no_comparison_is_refused():
    given = records(recipe(), losses(BASE, BETTER))
    with pytest.raises(UserError, match=r"are both llama with seed 1 at rate 0.001; delete one"):
        compare_runs(recipe(), [*given, given[0]])
    with pytest.raises(UserError, match="the recipe drawn has no compare section; write"):
        compare_runs(recipe().change({"compare": None}), [])


def test_two_folders_with_one_run_are_both_named(tmp_path):
    """A copy has the name of its original in its manifest: whoever deletes one wants to know it."""
    given = recipe()
    first, *_ = records(given, losses(BASE, BETTER))
    own = write(tmp_path / "runs", first)
    copied = shutil.copytree(own, tmp_path / "runs" / "copy of it")
    with pytest.raises(UserError) as caught:
        compare_runs(given, [own, copied])
    assert f"{own} and {copied} are both llama with seed 1" in str(caught.value)


def test_a_single_arm_is_held_against_none():
    given = recipe("llama")
    found = compare_runs(given, records(given, {"llama": BASE}))
    assert 'llama is the only arm, and held against none; write arms = ["llama", "pangu-pi"]' in (
        remarks(found)
    )


@pytest.mark.full
def test_arms_without_a_difference_rarely_get_a_verdict():
    """100 A/A comparisons of four arms: a false verdict in no more than 5 % of them."""
    draws, names, seeds = 100, ("gpt2", "gpt1", "pangu-pi"), (1, 2, 3)
    given = recipe("llama", *names, seeds=list(seeds))
    # A loss is the seed's share and chance, no more; curves are beside the point.
    blank = [replace(record(run, 3.0), events=()) for run in runs(given)]
    rng, corrected, raw = np.random.default_rng(20), 0, 0
    for _ in range(draws):
        shared = dict(zip(seeds, rng.normal(3, 0.1, len(seeds)).tolist(), strict=True))
        drawn = [
            replace(one, result={"nats": shared[one.seed] + float(rng.normal(0, 0.01))})
            for one in blank
        ]
        rows = compare_runs(given, drawn).rows[1:]
        false = any(row["holm"] < 0.05 for row in rows)
        assert false == any(row["verdict"] in ("better", "worse") for row in rows)
        corrected += false
        raw += sum(row["p"] < 0.05 for row in rows)
    assert corrected <= stats.binom.ppf(0.975, draws, 0.05)
    low, high = stats.binom.ppf([0.001, 0.999], 3 * draws, 0.05)
    assert low <= raw <= high


def test_three_arms_tell_of_each_others_noise_and_one_may_ask_for_its_own():
    values = {"llama": BASE, "gpt2": BETTER, "gpt1": {1: 3.001, 2: 3.3, 3: 3.1}}
    moderated = recipe(*values)
    own = recipe(*values, variance="own")
    rows = [compare_runs(one, records(one, values)).row("gpt2") for one in (moderated, own)]
    assert [row["variance"] for row in rows] == ["moderated", "paired"]
    oracle = stats.ttest_rel(list(BETTER.values()), list(BASE.values()))
    assert rows[1]["p"] == pytest.approx(oracle.pvalue)
    assert rows[0]["difference"] == pytest.approx(rows[1]["difference"])
    assert rows[0]["p"] != rows[1]["p"]
    # A curve of differences ends where the table has them, by the same model.
    for one, row in zip((moderated, own), rows, strict=True):
        paired = compare_runs(one, records(one, values)).content["paired"][0]["points"][-1]
        assert (paired["low"], paired["high"]) == pytest.approx((row["low"], row["high"]))


def test_looks_spend_alpha_and_a_word_that_was_given_stays():
    seeds = list(range(1, 13))
    given = recipe(seeds=seeds, looks=[3, 6, 12])
    rng = np.random.default_rng(3)
    base = {seed: float(rng.normal(3, 0.1)) for seed in seeds}
    arm = {seed: base[seed] - 0.05 + float(rng.normal(0, 0.01)) for seed in seeds}
    table = losses(base, arm)

    def first(count: int) -> Any:
        several = [one for one in records(given, table) if one.seed <= count]
        return compare_runs(given, several).row("gpt2")

    assert first(2)["verdict"] == "no verdict"
    few, more, all_ = first(3), first(6), first(12)
    # A word stands with the numbers of the look that gave it.
    assert (few["n"], more["n"], all_["n"]) == (3, 6, 6) and all_["p"] == more["p"]
    assert "; decided by the look at 6 seeds; over 12 seeds it is -0.04" in all_["said"]
    assert "decided by" not in more["said"] and "doubt" not in all_["said"]
    # The first look has a 560th of alpha.
    assert few["p"] < 0.05 < few["holm"] and few["verdict"] == "not distinguishable"
    assert more["verdict"] == all_["verdict"] == "better"
    # Seeds of a look that is not complete do not count yet.
    assert first(5)["n"] == 3
    # What was decided after six seeds is not undone by the rest.
    table = losses(base, {**arm, **{seed: base[seed] + 0.2 for seed in seeds[6:]}})
    turned = first(12)
    assert turned["verdict"] == "better" and turned["difference"] == more["difference"]
    assert turned["said"].startswith("gpt2 is better than llama by 0.0")
    assert "over 12 seeds it is +0.07" in turned["said"]
    assert ", on the other side of 0: doubt the word" in turned["said"]


def by_arm(given: list[RunRecord]) -> list[RunRecord]:
    return sorted(given, key=lambda one: (one.arm != "llama", one.seed))


def remarks(found: Any) -> list[str]:
    return list(found.content["remarks"])
