"""Every example runs, as its own process, in an empty folder, and says what it promises."""

from pathlib import Path

import pytest

from tests.support.forked import python

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROMISED = {
    "findings.py": "mean attention norm per layer",
    "pair.py": "relative residual",
    "variant.py": "relative residual before training",
    "own_measure.py": "focus on the loudest channel, per layer",
    "monitor.py": "first alarm: update",
    "train.py": "bits_per_byte",
    "compare.py": "pangu-pi is not distinguishable from llama",
    "suite.py": "suite:forwards.yaml of briefly is worse than that of llama",
    "ladder.py": "pangu-pi against llama: ",
}


def run(folder: Path, *command: str) -> str:
    done = python(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_listed():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PROMISED)


@pytest.mark.full
@pytest.mark.parametrize("name", PROMISED)
def test_example_runs_and_prints_what_it_is_about(name, tmp_path):
    assert PROMISED[name] in run(tmp_path, str(EXAMPLES / name))


@pytest.mark.full
def test_an_own_measure_is_read_through_load(tmp_path):
    file = str(EXAMPLES / "own_measure.py")
    command = ["-m", "layerlab", "inspect", "pre-norm", "--load", file, "--out", "own"]
    run(tmp_path, *command, "--measures", "focus(channels=2)", "--context", "32")
    rows = (tmp_path / "own" / "tables" / "focus.csv").read_text().splitlines()
    assert rows[0] == "model,sequence,layer,focus"
    shares = [float(row.split(",")[-1]) for row in rows[1:]]
    assert shares and all(0 < share <= 1 for share in shares)
