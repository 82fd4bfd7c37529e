"""A confirmation is judged where the first runs of its idea were, and by the same loss."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import layerlab
from layerlab.ledger.chain import FILE, append_line, read_chain
from tests.ledger.test_campaign import FIRST, FRESH
from tests.support.refused import refuses

STEPS = 30
DRAW = np.random.default_rng(7).normal(0, 0.01, (2, 20, 400))


def curves(
    path: Path,
    seeds: Sequence[int],
    last: int,
    name: str = "loss",
    gain: float = 0.0,
    arm: str = "wide",
) -> Path:
    """Write runs that go on: a reading every 10 steps, the first of which is at step 10."""
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(("arm", "seed", "step", name))
        for side, (title, better) in enumerate((("plain", 0.0), (arm, gain))):
            for seed in seeds:
                for step in range(10, last + 1, 10):
                    value = 3 + 10 / step - better + DRAW[side, seed, step // 10]
                    rows.writerow((title, seed, step, value))
    return path


@pytest.fixture
def screened(ledger: Path, tmp_path: Path) -> Path:
    """A ledger with an idea that looks better at step 100."""
    found = layerlab.judge_idea(ledger, "wide", curves(tmp_path / "a.csv", FIRST, 100, gain=0.1))
    assert found.next == "confirm" and found.step == 100
    assert found.read == {"loss": "loss", "step": "step"}
    assert "its other runs are judged at this step and by this loss, too" in found.remarks
    layerlab.add_idea(ledger, "wide", seeds=FRESH, confirm=True)
    return ledger


def test_runs_that_go_on_are_judged_where_the_first_ones_ended(screened, tmp_path):
    short = curves(tmp_path / "b.csv", FRESH, 60, gain=0.1)
    refuses(
        "has no reading at step 100, and 10 of 10 runs have none; its nearest is at 60; 'wide' was "
        "first judged at this step, and its other runs are too: go on to it, or begin an idea",
        layerlab.judge_idea,
        screened,
        "wide",
        short,
    )
    assert layerlab.read_ledger(screened).find("wide")[-1].verdict is None
    found = layerlab.judge_idea(screened, "wide", curves(tmp_path / "b.csv", FRESH, 200, gain=0.1))
    rows = {arm: [DRAW[arm, seed, 10] for seed in FRESH] for arm in (0, 1)}
    assert found.step == 100 and found.verdict == "adopted"
    assert found.difference == pytest.approx(np.mean(rows[1]) - np.mean(rows[0]) - 0.1)


def test_runs_that_have_gone_on_since_have_the_same_verdict(screened, tmp_path):
    logs = curves(tmp_path / "b.csv", FRESH, 100, gain=0.1)
    first = layerlab.judge_idea(screened, "wide", logs)
    text = (screened / FILE).read_bytes()
    again = layerlab.judge_idea(screened, "wide", curves(logs, FRESH, 150, gain=0.1))
    assert again == first and (screened / FILE).read_bytes() == text


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("eval_loss", {}, "the loss is 'eval_loss' for these logs, and was 'loss' when 'wide' was"),
        ("loss", {"step": "seed"}, "what counts steps is 'seed' for these logs, and was 'step'"),
        (
            "loss",
            {"line": r"(?P<arm>\w+),(?P<seed>\d+),(?P<step>\d+),(?P<loss>.+)"},
            "line is '.*' for these logs, and was left out when 'wide' was first",
        ),
    ],
)
def test_a_confirmation_by_something_else_is_refused(screened, tmp_path, name, options, said):
    logs = curves(tmp_path / "b.csv", FRESH, 100 if "step" not in options else 10, name, gain=0.1)
    refuses(said, layerlab.judge_idea, screened, "wide", logs, arm="arm", seed="seed", **options)
    assert layerlab.read_ledger(screened).find("wide")[-1].verdict is None


@pytest.mark.full
def test_whoever_judges_as_soon_as_it_looks_good_adopts_no_more(tmp_path):
    """Of ideas that change nothing, with losses that wander: they look good at some step."""
    draw = np.random.default_rng(11)
    looked, adopted = 0, 0
    for number in range(40):
        folder, log = tmp_path / str(number), tmp_path / "log.csv"
        layerlab.create_ledger(folder, baseline="plain")
        layerlab.add_idea(folder, "wide", says="nothing", seeds=FIRST)
        wander(log, FIRST, draw, gain=9)
        layerlab.judge_idea(folder, "wide", log)
        level = layerlab.add_idea(folder, "wide", seeds=FRESH, confirm=True).level
        walks = wander(log, FRESH, draw)
        looked += any(one_sided(walks[:, :, step - 1]) <= level for step in range(1, STEPS + 1))
        adopted += judge_while_it_goes_on(folder, log)
    # More than 5 of 40 at a level of 0.022 have a probability below 1e-3.
    assert adopted <= 5 < looked


def judge_while_it_goes_on(folder: Path, log: Path) -> bool:
    """Judge a log at every fifth step, as far as it has come; return whether that adopts."""
    first, *rows = log.read_text().splitlines()
    for last in range(5, STEPS + 1, 5):
        log.write_text("\n".join([first, *(x for x in rows if int(x.split(",")[2]) <= last)]))
        if last < STEPS:
            refuses("first judged at this step", layerlab.judge_idea, folder, "wide", log)
    return layerlab.judge_idea(folder, "wide", log).verdict == "adopted"


def wander(
    path: Path, seeds: Sequence[int], draw: np.random.Generator, gain: float = 0.0
) -> np.ndarray:
    """Write runs of two arms whose losses are random walks; return them: [2, seeds, steps]."""
    walks = 3 + draw.normal(0, 0.01, (2, len(seeds), STEPS)).cumsum(2)
    walks[1] -= gain
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(("arm", "seed", "step", "loss"))
        for arm, title in enumerate(("plain", "wide")):
            for seed, walk in zip(seeds, walks[arm], strict=True):
                rows.writerows((title, seed, step, x) for step, x in enumerate(walk, start=1))
    return walks


def one_sided(ends: np.ndarray) -> float:
    return float(stats.ttest_rel(ends[1], ends[0], alternative="less").pvalue)


def test_a_verdict_of_an_earlier_version_fixes_nothing(ledger, tmp_path):
    """It does not say where it was made."""
    found = layerlab.judge_idea(ledger, "wide", curves(tmp_path / "a.csv", FIRST, 100, gain=0.1))
    lines = (ledger / FILE).read_bytes().splitlines(keepends=True)
    (ledger / FILE).write_bytes(b"".join(lines[:-1]))
    (ledger / "head.json").unlink()
    told = json.loads(lines[-2])
    (ledger / "head.json").write_text(json.dumps({"lines": 2, "digest": told["digest"]}))
    old = {name: one for name, one in found.to_dict().items() if name not in ("step", "read")}
    append_line(read_chain(ledger), {"kind": "verdict", "verdict": old})
    layerlab.add_idea(ledger, "wide", seeds=FRESH, confirm=True)
    logs = curves(tmp_path / "b.csv", FRESH, 60, "eval_loss", gain=0.1)
    assert layerlab.judge_idea(ledger, "wide", logs).step == 60


def test_a_baseline_without_readings_has_not_diverged(screened, tmp_path):
    """An empty cell says that something is lacking, and not that the idea is better."""
    path = curves(tmp_path / "b.csv", FRESH, 100, gain=-0.1)
    first, *rows = path.read_text().splitlines()
    bare = [one.rpartition(",")[0] + "," if one.startswith("plain") else one for one in rows]
    path.write_text("\n".join([first, *bare]) + "\n")
    refuses(
        r"plain, seed 11 \(.*\) has no reading of 'loss'; write nan where it diverged",
        layerlab.judge_idea,
        screened,
        "wide",
        path,
    )
    assert layerlab.read_ledger(screened).find("wide")[-1].verdict is None


def test_seeds_that_stood_in_the_first_logs_are_no_fresh_ones(ledger, tmp_path):
    """It may be known at which of them the baseline fared badly."""
    text = curves(tmp_path / "a.csv", [*FIRST, *FRESH], 100, gain=0.1).read_text().splitlines()
    fresh = tuple(f"wide,{seed}," for seed in FRESH)
    (tmp_path / "a.csv").write_text("\n".join(one for one in text if not one.startswith(fresh)))
    layerlab.judge_idea(ledger, "wide", tmp_path / "a.csv")
    said = "needs seeds that no run of this campaign had, .* used before: 11 for wide; type others"
    refuses(said, layerlab.add_idea, ledger, "wide", seeds=[11, 21, 22], confirm=True)
    assert layerlab.add_idea(ledger, "wide", seeds=[21, 22, 23], confirm=True).seeds == (21, 22, 23)


def test_a_run_that_was_not_read_at_its_end_has_not_diverged(screened, tmp_path):
    """An evaluation every 30 steps leaves NaN in the rows between, and in the last one."""
    path = curves(tmp_path / "b.csv", FRESH, 100, gain=0.1)
    first, *rows = path.read_text().splitlines()
    cells = [one.split(",") for one in rows]
    bare = [[*one[:3], one[3] if int(one[2]) % 30 == 0 else "nan"] for one in cells]
    path.write_text("\n".join([first, *map(",".join, bare)]) + "\n")
    said = "that is no number at step 10 and one again behind it, so that its end need not have div"
    refuses(said, layerlab.judge_idea, screened, "wide", path)
    assert layerlab.read_ledger(screened).find("wide")[-1].verdict is None


def test_a_loss_that_all_runs_have_from_the_first_step_on_tells_nothing(tmp_path):
    folder = tmp_path / "own"
    layerlab.create_ledger(folder, baseline="plain")
    layerlab.add_idea(folder, "wide", says="wider", seeds=FIRST, measure="steps:50")
    logs = curves(tmp_path / "a.csv", FIRST, 100)
    refuses(
        "when it came to 50 is not known; expected a lower loss",
        layerlab.judge_idea,
        folder,
        "wide",
        logs,
    )


def test_a_mean_is_over_the_steps_of_the_first_one(tmp_path):
    folder = tmp_path / "own"
    layerlab.create_ledger(folder, baseline="plain", last=3)
    layerlab.add_idea(folder, "wide", says="wider", seeds=FIRST)
    found = layerlab.judge_idea(folder, "wide", curves(tmp_path / "a.csv", FIRST, 100, gain=0.1))
    assert found.next == "confirm" and found.read["window"] == "80, 90, 100"
    layerlab.add_idea(folder, "wide", seeds=FRESH, confirm=True)
    path = curves(tmp_path / "b.csv", FRESH, 100, gain=0.1)
    kept = path.read_text()
    path.write_text("\n".join(one for one in kept.splitlines() if ",90," not in one) + "\n")
    said = "of what steps it is the mean is '70, 80, 100' for these logs, and was '80, 90, 100'"
    refuses(said, layerlab.judge_idea, folder, "wide", path)
    path.write_text(kept)
    assert layerlab.judge_idea(folder, "wide", path).verdict == "adopted"


def test_seeds_of_other_ideas_in_the_same_logs_are_no_fresh_ones(ledger, tmp_path):
    """Whoever keeps one table of all runs knows which seeds are kind to an idea to come."""
    big = 2**64 - 1
    rows = [(arm, seed, 3 + seed / 99) for arm in ("plain", "wide") for seed in FIRST]
    rows += [("deep", 11, 3.5), ("deep", big, 3.25)]
    table = "\n".join(
        ["arm,seed,step,loss", *(f"{arm},{seed},10,{x}" for arm, seed, x in rows), ""]
    )
    (tmp_path / "all.csv").write_text(table)
    layerlab.judge_idea(ledger, "wide", tmp_path / "all.csv")
    layerlab.add_idea(ledger, "deep", says="deeper", seeds=FIRST)
    layerlab.judge_idea(
        ledger, "deep", curves(tmp_path / "d.csv", FIRST, 100, arm="deep", gain=0.1)
    )
    for seeds in ([*FRESH], [*FRESH[1:], big]):
        refuses(
            "and these were used before: ",
            layerlab.add_idea,
            ledger,
            "deep",
            seeds=seeds,
            confirm=True,
        )
    layerlab.add_idea(ledger, "deep", seeds=FRESH[1:], confirm=True)


def test_one_difference_at_every_seed_is_told_as_such(ledger, tmp_path):
    rows = [
        f"{arm},{seed},10,{3 - gain}"
        for arm, gain in (("plain", 0), ("wide", 0.25))
        for seed in FIRST
    ]
    (tmp_path / "a.csv").write_text("\n".join(["arm,seed,step,loss", *rows, ""]))
    found = layerlab.judge_idea(ledger, "wide", tmp_path / "a.csv")
    assert found.verdict == "undecided"
    assert (
        "wide is undecided: the same difference at every seed tells nothing of chance" in found.said
    )


def test_a_seed_of_more_than_64_bits_is_refused(tmp_path):
    folder = tmp_path / "own"
    layerlab.create_ledger(folder, baseline="plain")
    said = "has a number of more than 20 digits; expected 64 bits"
    refuses(said, layerlab.add_idea, folder, "wide", says="wider", seeds=[1, 10**20])
