"""A campaign of scores: which way is better stands in its first line, and judging holds to it."""

from dataclasses import asdict
from pathlib import Path

import pytest
from scipy import stats

import layerlab
from layerlab import UserError
from layerlab.ledger.campaign import CampaignTerms
from layerlab.ledger.chain import begin_chain, read_chain
from layerlab.records.parse import read_json
from layerlab.report.pages.campaign import render
from tests.ledger.test_campaign import FIRST, FRESH, loss, table
from tests.support.refused import refuses


def scores(path: Path, seeds: list[int], column: str) -> Path:
    """Write the runs of a campaign with another name for what they come to."""
    written = table(path, dict.fromkeys(("plain", "wide", "worse"), seeds))
    written.write_text(written.read_text().replace("loss", column))
    return written


def test_more_is_better_where_the_ledger_says_so(tmp_path):
    """The idea with lower losses has lower scores, and that with higher ones is adopted."""
    folder, p = tmp_path / "own", {}
    layerlab.create_ledger(folder, baseline="plain", loss="eval_rougeL")
    (first, *_) = read_chain(folder).lines
    assert (first["terms"]["loss"], first["terms"]["better"]) == ("eval_rougeL", "higher")
    logs = scores(tmp_path / "a.csv", FIRST, "eval_rougeL")
    for idea in ("wide", "worse"):
        layerlab.add_idea(folder, idea, says="other", seeds=FIRST)
        found = layerlab.judge_idea(folder, idea, logs)
        p[idea] = found.p
        pairs = [[loss(arm, seed) for seed in FIRST] for arm in (idea, "plain")]
        expected = stats.ttest_rel(*pairs, alternative="greater")
        assert found.p == pytest.approx(expected.pvalue, rel=1e-6)
        assert "the score is eval_rougeL, of which more is better, " in found.remarks[0]
        assert "(eval_rougeL " in found.said
    assert p["wide"] > 0.9 > 0.1 > p["worse"]
    layerlab.add_idea(folder, "worse", seeds=FRESH, confirm=True)
    logs = scores(tmp_path / "b.csv", FRESH, "eval_rougeL")
    assert layerlab.judge_idea(folder, "worse", logs).verdict == "adopted"
    layerlab.read_ledger(folder, out=tmp_path / "out")
    content = read_json(tmp_path / "out" / "campaign.json")
    assert content["better"] == "higher" and "above 0 is better" in render(content)
    assert "below 0 is better" in render({**content, "better": None})
    with pytest.raises(UserError, match=r"measure='steps:2' is for what is better the lower it is"):
        layerlab.add_idea(folder, "deep", says="deeper", seeds=FIRST, measure="steps:2")


def test_runs_without_a_number_speak_against_an_idea_of_scores(tmp_path):
    folder = tmp_path / "own"
    layerlab.create_ledger(folder, baseline="plain", loss="f1")
    layerlab.add_idea(folder, "wide", says="other", seeds=FIRST)
    written = table(
        tmp_path / "a.csv",
        {"plain": FIRST, "wide": FIRST},
        **{f"wide_{seed}": float("nan") for seed in FIRST},
    )
    written.write_text(written.read_text().replace("loss", "f1"))
    assert layerlab.judge_idea(folder, "wide", written).verdict == "refuted"


def test_what_no_word_tells_is_asked_for_before_there_are_runs(tmp_path):
    with pytest.raises(UserError, match=r"more of 'own' .* type loss='own=lower' or loss='own=h"):
        layerlab.create_ledger(tmp_path / "own", baseline="plain", loss="own")
    assert not (tmp_path / "own").exists()
    logs = scores(tmp_path / "a.csv", FIRST, "own")
    for direction, word in (("lower", "undecided"), ("higher", "refuted")):
        folder = tmp_path / direction
        layerlab.create_ledger(folder, baseline="plain", loss=f"own={direction}")
        layerlab.add_idea(folder, "wide", says="other", seeds=FIRST)
        assert layerlab.judge_idea(folder, "wide", logs).verdict == word


@pytest.mark.parametrize("column", [None, "own", "accuracy"])
def test_a_ledger_that_says_no_direction_is_of_losses(tmp_path, column):
    """As those of earlier versions are; what is called a score is not judged as a loss."""
    terms = asdict(CampaignTerms(baseline="plain", loss=column))
    del terms["better"]
    content = {"kind": "campaign", "layerlab": "0.1", "terms": terms}
    folder = tmp_path / "old"
    begin_chain(folder, content)
    layerlab.add_idea(folder, "wide", says="other", seeds=FIRST)
    logs = scores(tmp_path / "a.csv", FIRST, column or "loss")
    if column != "accuracy":
        assert layerlab.judge_idea(folder, "wide", logs).next == "confirm"
        logs = scores(tmp_path / "b.csv", FIRST, "accuracy")
    if column != "own":
        said = r"'accuracy' .* is better the higher it is, .* type --loss accuracy=higher; --loss"
        refuses(said, layerlab.judge_idea, folder, "wide", logs)
