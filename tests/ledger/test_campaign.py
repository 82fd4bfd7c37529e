"""A campaign from the first line to an adoption: what is written down, judged and refused."""

import csv
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import layerlab
from layerlab import UserError
from layerlab.experiments.statistics.online_levels import fallback_level, lord_level
from layerlab.ledger.chain import FILE
from tests.support.refused import refuses

NOISE = np.random.default_rng(5).normal(0, 0.01, (4, 60))
GAIN = {"plain": 0.0, "wide": -0.04, "same": 0.0, "worse": 0.04}


def loss(arm: str, seed: int) -> float:
    return 3 + 0.1 * (seed % 3) + GAIN[arm] + float(NOISE[list(GAIN).index(arm), seed])


def table(path: Path, arms: Mapping[str, Sequence[int]], **more: Any) -> Path:
    """Write the logs of arms with these seeds."""
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(("arm", "seed", "step", "loss"))
        for arm, seeds in arms.items():
            for seed in seeds:
                value = more.get(f"{arm}_{seed}", loss(arm, seed))
                rows.writerow((arm, seed, 50, value + 1))
                rows.writerow((arm, seed, 100, value))
    return path


FIRST, FRESH = [1, 2, 3, 4], [11, 12, 13, 14, 15]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    layerlab.create_ledger(tmp_path / "own", baseline="plain")
    return tmp_path / "own"


@pytest.fixture
def screened(folder: Path, tmp_path: Path) -> Path:
    """A ledger with an idea that looks better."""
    layerlab.add_idea(folder, "wide", says="twice as wide", seeds=FIRST)
    logs = table(tmp_path / "first.csv", {"plain": FIRST, "wide": FIRST})
    layerlab.judge_idea(folder, "wide", logs)
    return folder


def test_seeds_of_other_arms_may_be_any_words(folder, tmp_path):
    layerlab.add_idea(folder, "wide", says="twice as wide", seeds=FIRST)
    logs = table(tmp_path / "first.csv", {"plain": FIRST, "wide": FIRST})
    with logs.open("a", encoding="utf-8") as stream:
        stream.write("".join(f"same,{seed},100,3\n" for seed in ("²", "٢", "b", "9" * 21, "12")))
    layerlab.judge_idea(folder, "wide", logs)
    assert set(layerlab.read_ledger(folder).used_seeds) == {*FIRST, 12}


def test_an_idea_is_written_down_judged_confirmed_and_adopted(folder, tmp_path):
    trial = layerlab.add_idea(folder, "wide", says="twice as  wide", seeds=FIRST)
    assert trial.stage == "screening" and trial.says == "twice as wide"
    # Other arms and later seeds of the baseline may stand in the same table.
    logs = table(tmp_path / "a.csv", {"same": FIRST, "plain": range(1, 9), "wide": FIRST})
    found = layerlab.judge_idea(folder, "wide", logs)
    assert found.verdict == "undecided" and found.next == "confirm"
    pairs = [[loss(arm, seed) for seed in FIRST] for arm in ("wide", "plain")]
    expected = stats.ttest_rel(*pairs, alternative="less")
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6)
    assert found.difference == pytest.approx(np.mean(pairs[0]) - np.mean(pairs[1]))

    fresh = layerlab.add_idea(folder, "wide", seeds=FRESH, confirm=True)
    assert fresh.level == lord_level(1, [], rate=0.1, first=0.05)
    logs = table(tmp_path / "b.csv", {"plain": FRESH, "wide": [*FIRST, *FRESH]})
    adopted = layerlab.judge_idea(folder, "wide", logs)
    assert adopted.verdict == "adopted" and adopted.p <= fresh.level and adopted.seeds == (*FRESH,)
    state = layerlab.read_ledger(folder)
    assert state.count() == {"adopted": 1, "refuted": 0, "undecided": 0}
    assert state.next_level == lord_level(2, [1], rate=0.1, first=0.05)
    assert state.wealth == pytest.approx(0.1 - fresh.level)
    lines = [json.loads(one) for one in (folder / FILE).read_text().splitlines()]
    assert len(lines) == 5 and lines[-1]["logs"] == [str(logs)] and lines[-1]["read"] == {}


def test_what_is_written_down_may_come_from_any_program(folder):
    """Numbers of numpy, and text that no file can hold."""
    layerlab.add_idea(folder, "wide", says="half of a \ud83d pair", seeds=np.arange(1, 4).tolist())
    layerlab.add_idea(folder, "deep", says="deeper", seeds=list(np.arange(1, 4)))
    found = layerlab.read_ledger(folder)
    assert found.find("wide")[0].says == r"half of a \ud83d pair"
    assert found.find("deep")[0].seeds == (1, 2, 3)


def test_what_is_worse_is_refuted_and_what_shows_nothing_is_undecided(folder, tmp_path):
    logs = table(tmp_path / "a.csv", dict.fromkeys(GAIN, FIRST))
    for idea, word in (("worse", "refuted"), ("same", "undecided")):
        layerlab.add_idea(folder, idea, says="an idea", seeds=FIRST)
        found = layerlab.judge_idea(folder, idea, logs)
        assert (found.verdict, found.next) == (word, "nothing"), found.said
        assert f"{idea} is {word}: " in found.said
    with pytest.raises(UserError, match="is refuted already, which stays; there is nothing to"):
        layerlab.add_idea(folder, "worse", seeds=FRESH, confirm=True)


def test_an_idea_that_is_the_baseline_is_refuted(folder, tmp_path):
    layerlab.add_idea(folder, "same", says="a comment", seeds=FIRST)
    own = {f"same_{seed}": loss("plain", seed) for seed in FIRST}
    found = layerlab.judge_idea(
        folder, "same", table(tmp_path / "a.csv", {"plain": FIRST, "same": FIRST}, **own)
    )
    assert found.verdict == "refuted" and "the same at every seed" in found.said


def test_runs_that_diverge_speak_against_an_idea(folder, tmp_path):
    layerlab.add_idea(folder, "wide", says="wider", seeds=FIRST)
    own = {f"wide_{seed}": float("nan") for seed in FIRST}
    logs = table(tmp_path / "a.csv", {"plain": FIRST, "wide": FIRST}, **own)
    found = layerlab.judge_idea(folder, "wide", logs)
    assert found.verdict == "refuted" and "4 of 4 runs without a number" in found.said
    assert found.difference is None


def test_steps_to_a_loss_can_be_the_measure(folder, tmp_path):
    layerlab.add_idea(folder, "wide", says="wider", seeds=FIRST, measure="steps:3.5")
    own = {f"wide_{seed}": 2.6 - 0.01 * seed for seed in FIRST}
    logs = table(tmp_path / "a.csv", {"plain": FIRST, "wide": FIRST}, **own)
    found = layerlab.judge_idea(folder, "wide", logs)
    assert found.next == "confirm" and found.difference is not None and found.difference < -10
    with pytest.raises(UserError, match=r"to be judged by steps:3\.5, and stays so; leave out"):
        layerlab.add_idea(folder, "wide", seeds=FRESH, confirm=True, measure="loss")
    assert layerlab.add_idea(folder, "wide", seeds=FRESH, confirm=True).measure == "steps:3.5"


def test_the_level_is_that_of_the_time_when_a_confirmation_was_written_down(screened, tmp_path):
    layerlab.add_idea(screened, "deep", says="deeper", seeds=FIRST)
    own = {f"wide_{seed}": loss("wide", seed) for seed in FIRST}
    text = table(tmp_path / "w.csv", {"plain": FIRST, "wide": FIRST}, **own).read_text()
    (tmp_path / "d.csv").write_text(text.replace("wide", "deep"))
    layerlab.judge_idea(screened, "deep", tmp_path / "d.csv")
    first = layerlab.add_idea(screened, "wide", seeds=FRESH, confirm=True)
    second = layerlab.add_idea(screened, "deep", seeds=[21, 22, 23], confirm=True)
    assert second.level == lord_level(2, [], rate=0.1, first=0.05) < first.level
    logs = table(tmp_path / "f.csv", {"plain": FRESH, "wide": FRESH})
    assert layerlab.judge_idea(screened, "wide", logs).verdict == "adopted"
    # Two had begun when it was known.
    assert layerlab.read_ledger(screened).next_level == lord_level(3, [2], rate=0.1, first=0.05)


def test_never_a_false_adoption_spends_alpha(tmp_path):
    place = tmp_path / "own"
    layerlab.create_ledger(place, baseline="plain", alpha=0.05, never=True)
    layerlab.add_idea(place, "wide", says="wider", seeds=FIRST)
    layerlab.judge_idea(place, "wide", table(tmp_path / "a.csv", {"plain": FIRST, "wide": FIRST}))
    one = layerlab.add_idea(place, "wide", seeds=FRESH, confirm=True)
    assert one.level == fallback_level(1, 0.0, alpha=0.05)
    assert layerlab.read_ledger(place).wealth == pytest.approx(0.05 - one.level)
    layerlab.judge_idea(place, "wide", table(tmp_path / "b.csv", {"plain": FRESH, "wide": FRESH}))
    state = layerlab.read_ledger(place)
    assert state.next_level == fallback_level(2, one.level, alpha=0.05)
    assert state.wealth == pytest.approx(0.05)


@pytest.mark.full
@pytest.mark.parametrize("never", [False, True])
def test_a_long_campaign_has_the_levels_that_are_simulated(tmp_path, never, monkeypatch):
    """What bench/judging/ledger.py simulates is what a ledger does, from the logs on."""
    place, draw = tmp_path / "own", np.random.default_rng(1)
    layerlab.create_ledger(place, baseline="plain", never=never)
    bench = Path(__file__).parents[2] / "bench"
    monkeypatch.setattr(sys, "path", [str(bench), *sys.path])  # of which it takes its folder off
    made = runpy.run_path(str(bench / "judging" / "ledger.py"))
    p, adopted = [], []
    for number in range(25):
        gain = 0.02 if number % 3 else 0.0
        for stage, seeds in enumerate(([1, 2], range(100 + 6 * number, 106 + 6 * number))):
            chosen = [int(one) for one in seeds]
            rows = ["arm,seed,step,loss"]
            for seed in chosen:
                rows.append(f"plain,{seed},1,{3 + draw.normal(0, 0.01)}")
                better = gain + 10 * (not stage) + 0.1 * seed * (not stage)
                rows.append(f"i{number},{seed},1,{3 - better + draw.normal(0, 0.01)}")
            (tmp_path / "log.csv").write_text("\n".join(rows))
            says = None if stage else "an idea"
            layerlab.add_idea(place, f"i{number}", seeds=chosen, says=says, confirm=bool(stage))
            found = layerlab.judge_idea(place, f"i{number}", tmp_path / "log.csv")
        p.append(found.p)
        adopted.append(found.verdict == "adopted")
    terms = made["CampaignTerms"](baseline="plain", never=never)
    assert made["confirm"](np.array(p), terms).tolist() == adopted
    assert 1 < sum(adopted) < 25


def test_the_same_runs_again_give_what_was_written_and_others_are_refused(screened, tmp_path):
    text = (screened / FILE).read_bytes()
    first = layerlab.read_ledger(screened).find("wide")[-1].verdict
    again = layerlab.judge_idea(screened, "wide", tmp_path / "first.csv")
    assert again == first and (screened / FILE).read_bytes() == text
    other = table(tmp_path / "o.csv", {"plain": FIRST, "wide": FIRST}, wide_2=2.5)
    with pytest.raises(UserError, match="was judged with other runs, and is undecided, which sta"):
        layerlab.judge_idea(screened, "wide", other)
    assert (screened / FILE).read_bytes() == text


def test_ideas_are_judged_in_any_order(folder, tmp_path):
    for idea in ("worse", "wide"):
        layerlab.add_idea(folder, idea, says="other", seeds=range(4))
    logs = table(tmp_path / "log.csv", dict.fromkeys(("plain", "worse", "wide"), range(4)))
    for idea in ("worse", "wide"):
        layerlab.judge_idea(folder, idea, logs)
    found = [one.verdict for one in layerlab.read_ledger(folder).trials]
    assert [(one.idea, one.verdict) for one in found] == [
        ("worse", "refuted"),
        ("wide", "undecided"),
    ]


def test_logs_from_before_are_remarked_on(folder, tmp_path):
    logs = table(tmp_path / "old.csv", {"plain": FIRST, "wide": FIRST})
    os.utime(logs, (1e9, 1e9))
    layerlab.add_idea(folder, "wide", says="wider", seeds=FIRST)
    found = layerlab.judge_idea(folder, "wide", logs)
    assert "last changed before the trial was written down" in found.remarks[-1]
    layerlab.add_idea(folder, "same", says="no change", seeds=FIRST)
    logs = table(tmp_path / "new.csv", {"plain": FIRST, "same": FIRST})
    found = layerlab.judge_idea(folder, "same", logs)
    assert not any("last changed" in one for one in found.remarks)


@pytest.mark.parametrize(
    ("idea", "given", "message"),
    [
        ("wide", {"says": "x", "seeds": FIRST}, "was written down on .*, and stays as it is; give"),
        ("new", {"seeds": FIRST}, "nothing is said of 'new'; type says= with what is changed"),
        ("new", {"says": "x", "seeds": [1]}, "seeds is '1'; expected two or more, as 1,2,3"),
        ("new", {"says": "x", "seeds": [1, 2, 1]}, "seeds has 1 twice; leave one out"),
        (
            "new",
            {"says": "x", "seeds": FIRST, "measure": "accuracy"},
            "measure is 'accuracy'",
        ),
        (
            "new",
            {"says": "x", "seeds": FIRST, "measure": "peak:score"},
            "measure is 'peak:score'",
        ),
        ("plain", {"says": "x", "seeds": FIRST}, "'plain' is the baseline of this campaign; name"),
        ("", {"says": "x", "seeds": FIRST}, "IDEA is ''; expected a name, as the logs have it"),
        (" new ", {"says": "x", "seeds": FIRST}, "IDEA is ' new '; expected a name, as the logs"),
        ("wid", {"seeds": FRESH, "confirm": True}, "no idea 'wid' is written down in .*'wide'"),
        (
            "wide",
            {"seeds": [4, 5, 6], "confirm": True},
            "needs seeds that no run of this campaign had, .* used before: 4 for wide; type others",
        ),
    ],
)
def test_what_cannot_be_written_down_is_named(screened, idea, given, message):
    text = (screened / FILE).read_bytes()
    refuses(message, layerlab.add_idea, screened, idea, **given)
    assert (screened / FILE).read_bytes() == text


def test_a_confirmation_waits_for_the_runs_before_it(folder):
    layerlab.add_idea(folder, "wide", says="wider", seeds=FIRST)
    with pytest.raises(UserError, match="with seeds 1,2,3,4 are not judged yet; type layerlab led"):
        layerlab.add_idea(folder, "wide", seeds=FRESH, confirm=True)


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({"wide": FIRST}, "the baseline 'plain' has no run in these logs, which have 'wide'; give"),
        ({"plain": FIRST}, "^'wide' has no run in these logs, which have 'plain'"),
        (
            {"plain": FIRST, "wide": [1, 2, 4]},
            "'wide' has no run with seed 3 in these logs; the trial of 'wide' has seeds 1,2,3",
        ),
        ({"plain": [2, 3, 4], "wide": FIRST}, "'plain' has no run with seed 1 in these logs"),
        (
            {"plain": FIRST, "wide": [*FIRST, 7, 9]},
            "runs with seeds that were not written down before: 7, 9 ",
        ),
    ],
)
def test_other_runs_than_were_written_down_are_named(folder, tmp_path, arms, message):
    layerlab.add_idea(folder, "wide", says="wider", seeds=FIRST)
    refuses(message, layerlab.judge_idea, folder, "wide", table(tmp_path / "a.csv", arms))
    assert layerlab.read_ledger(folder).find("wide")[-1].verdict is None


@pytest.mark.parametrize(
    ("given", "name", "message"),
    [
        (
            {"at": 70},
            "at",
            "has no reading at step 70, .* nearest is at 50; name another with --at",
        ),
        ({"last": 3}, "last", "has 2 readings up to step 100; expected 3 or more: type --last 2"),
        ({"loss": "nats"}, "loss", "has no column 'nats', which --loss names"),
    ],
)
def test_what_the_campaign_decided_is_told_to_be_of_the_campaign(tmp_path, given, name, message):
    """Judging has no such option: nobody may choose what is judged once there are runs."""
    layerlab.create_ledger(tmp_path / "own", baseline="plain", **given)
    layerlab.add_idea(tmp_path / "own", "wide", says="wider", seeds=FIRST)
    logs = table(tmp_path / "a.csv", {"plain": FIRST, "wide": FIRST})
    with pytest.raises(UserError, match=f"{message}.*; --{name} is given to layerlab ledger new"):
        layerlab.judge_idea(tmp_path / "own", "wide", logs)


def test_runs_without_a_seed_are_named(folder, tmp_path):
    layerlab.add_idea(folder, "wide", says="wider", seeds=FIRST)
    for name in ("plain", "wide"):
        (tmp_path / f"{name}.csv").write_text("step,loss\n1,2.0\n")
    with pytest.raises(UserError, match="nothing tells the seed of the run of 'plain' in"):
        layerlab.judge_idea(folder, "wide", [tmp_path / "plain.csv", tmp_path / "wide.csv"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fdr": 1.5}, "fdr is 1.5; expected a number between 0 and 1"),
        ({"alpha": 0.0}, "alpha is 0; expected a number between 0 and 1"),
        ({"alpha": 0.2}, "alpha is 0.2, above fdr=, which is 0.1; expected at most that"),
        ({"at": float("nan")}, "at is nan; expected a step, or leave it out"),
        ({"last": 0}, "last is 0; expected 1 or more readings"),
        ({"baseline": " "}, "baseline is ' '; expected a name"),
    ],
)
def test_a_campaign_that_means_nothing_is_refused(tmp_path, given, message):
    refuses(message, layerlab.create_ledger, tmp_path / "own", **{"baseline": "plain", **given})
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc, whose folders take no file")
def test_where_nothing_can_be_written_is_told_at_once():
    refuses("cannot write /proc/nowhere", layerlab.create_ledger, "/proc/nowhere", baseline="plain")


def test_a_ledger_of_a_later_version_is_named(tmp_path):
    from layerlab.ledger.chain import append_line, begin_chain

    chain = begin_chain(tmp_path / "own", {"kind": "campaign", "terms": {"baseline": "a"}})
    append_line(chain, {"kind": "rumour"})
    with pytest.raises(UserError, match="has lines that this version of layerlab does not know"):
        layerlab.read_ledger(tmp_path / "own")


def test_a_confirmation_that_was_added_meanwhile_is_told(screened, tmp_path, monkeypatch):
    from layerlab.ledger import judge

    weigh = judge.weigh_pair

    def meanwhile(*given: Any) -> Any:
        layerlab.add_idea(screened, "wide", seeds=FRESH, confirm=True)
        return weigh(*given)

    monkeypatch.setattr(judge, "weigh_pair", meanwhile)
    with pytest.raises(UserError, match="was written down while this ran; judge again"):
        layerlab.judge_idea(screened, "wide", tmp_path / "first.csv")


def test_a_cut_off_line_is_told_and_gone_on_from(screened, tmp_path):
    whole = (screened / FILE).read_bytes()
    (screened / FILE).write_bytes(whole[:-30])
    with pytest.raises(UserError, match=r"was removed from the end of .* or cut off after it was"):
        layerlab.read_ledger(screened)
    *_, last, _ = whole.splitlines()  # the head of a process that is killed within the next line
    told = json.loads(last)
    head = {"lines": told["line"], "digest": told["digest"]}
    (screened / "head.json").write_text(json.dumps(head))
    state = layerlab.read_ledger(screened)
    assert "the last line was cut off while it was written" in state.remark
    assert state.find("wide")[-1].verdict is None
    layerlab.judge_idea(screened, "wide", tmp_path / "first.csv")
    assert not layerlab.read_ledger(screened).remark
    assert json.loads((screened / FILE).read_text().splitlines()[-1])["cut"]
