"""Runs that are copies of others, in one call or of what the ledger judged before, are refused."""

from pathlib import Path

import pytest

import layerlab
from layerlab import UserError
from layerlab.ledger.chain import FILE
from tests.ledger.test_campaign import FIRST, FRESH, loss, table
from tests.support.refused import refuses


@pytest.mark.parametrize(("arm", "other"), [("plain", 1), ("plain", 9), ("wide", 1)])
def test_runs_that_are_copies_are_refused(ledger, tmp_path, arm, other):
    """Of a seed of the trial, and of one that the baseline has beside them."""
    text = (ledger / FILE).read_bytes()
    own = {f"{arm}_3": loss(arm, other)}
    logs = table(tmp_path / "a.csv", {"plain": [*FIRST, 9], "wide": FIRST}, **own)
    with pytest.raises(UserError, match=rf"{arm}, seed \d .*has the same readings as {arm}, seed"):
        layerlab.judge_idea(ledger, "wide", logs)
    assert (ledger / FILE).read_bytes() == text


@pytest.mark.parametrize("arm", ["plain", "wide"])
def test_a_run_that_was_judged_before_is_no_fresh_one(ledger, tmp_path, arm):
    """The log of a first run under a fresh seed, where the first logs are not given any more."""
    logs = table(tmp_path / "first.csv", {"plain": FIRST, "wide": FIRST})
    layerlab.judge_idea(ledger, "wide", logs)
    layerlab.add_idea(ledger, "wide", seeds=FRESH, confirm=True)
    text = (ledger / FILE).read_bytes()
    own = {f"{arm}_13": loss(arm, 2)}
    logs = table(tmp_path / "a.csv", {"plain": FRESH, "wide": FRESH}, **own)
    with pytest.raises(UserError, match=rf"{arm}, seed 13 .*same readings as seed 2, which this"):
        layerlab.judge_idea(ledger, "wide", logs)
    assert (ledger / FILE).read_bytes() == text
    logs = table(tmp_path / "a.csv", {"plain": FRESH, "wide": FRESH})
    first, again = (layerlab.judge_idea(ledger, "wide", logs) for _ in range(2))
    assert first.verdict == again.verdict == "adopted"


def cut_off(path: Path, arm: str, seed: int, after: int) -> None:
    """Take the rows of a run off that stand behind a step."""
    kept = [
        one
        for one in path.read_text().splitlines()
        if not one.startswith(f"{arm},{seed},") or int(one.split(",")[2]) <= after
    ]
    path.write_text("\n".join(kept))


@pytest.mark.parametrize("arm", ["plain", "wide"])
def test_copies_that_end_elsewhere_are_refused(tmp_path, arm):
    """Where step 50 is judged, what stands behind it makes no other run."""
    folder = tmp_path / "own"
    layerlab.create_ledger(folder, baseline="plain", at=50)
    layerlab.add_idea(folder, "wide", says="wider", seeds=FIRST)
    logs = table(tmp_path / "a.csv", {"plain": FIRST, "wide": FIRST}, **{f"{arm}_3": loss(arm, 1)})
    cut_off(logs, arm, 3, after=50)
    with pytest.raises(UserError, match=rf"{arm}, seed 3 .*same readings as {arm}, seed 1"):
        layerlab.judge_idea(folder, "wide", logs)


@pytest.mark.parametrize("arm", ["plain", "wide"])
def test_a_run_that_was_judged_before_is_known_though_it_went_on(ledger, tmp_path, arm):
    """The first runs ended at step 50, and one of them was carried on to step 100 since."""
    logs = table(tmp_path / "first.csv", {"plain": FIRST, "wide": FIRST})
    for name, seed in [(name, seed) for name in ("plain", "wide") for seed in FIRST]:
        cut_off(logs, name, seed, after=50)
    assert layerlab.judge_idea(ledger, "wide", logs).step == 50
    layerlab.add_idea(ledger, "wide", seeds=FRESH, confirm=True)
    own = {f"{arm}_13": loss(arm, 2)}
    logs = table(tmp_path / "a.csv", {"plain": FRESH, "wide": FRESH}, **own)
    with pytest.raises(UserError, match=rf"{arm}, seed 13 .*same readings as seed 2, which this"):
        layerlab.judge_idea(ledger, "wide", logs)


def test_a_screened_run_is_no_run_of_the_baseline(ledger, tmp_path):
    """Nor of another seed in the same logs; at its own seed an idea may change nothing."""
    logs = table(tmp_path / "first.csv", {"plain": FIRST, "wide": FIRST})
    layerlab.judge_idea(ledger, "wide", logs)
    layerlab.add_idea(ledger, "wide", seeds=FRESH, confirm=True)
    for own in ({"plain_13": loss("wide", 2)}, {"plain_13": loss("wide", 14)}):
        logs = table(tmp_path / "a.csv", {"plain": FRESH, "wide": FRESH}, **own)
        refuses(r"has the same readings as", layerlab.judge_idea, ledger, "wide", logs)
