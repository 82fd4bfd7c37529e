"""A comparison is kept as JSON and CSV, and comes back the same."""

import json
from pathlib import Path

import pandas as pd
import pytest

from layerlab import UserError
from layerlab.training.compare import compared
from layerlab.training.comparison import Comparison, load_comparison
from tests.training.drawn import recipe, records

LOSSES = {"llama": {1: 3.0, 2: 3.3, 3: 3.1}, "gpt2": {1: 2.99, 2: 3.2895, 3: 3.0905}}


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compared(recipe(), records(recipe(), LOSSES))


def test_it_is_written_and_read_back(found: Comparison, tmp_path: Path) -> None:
    written = found.write(tmp_path / "new")
    assert [path.name for path in written] == [
        "comparison.json",
        "rows.csv",
        "curves.csv",
        "paired.csv",
    ]
    assert load_comparison(tmp_path / "new").content == found.content
    rows = pd.read_csv(written[1])
    assert rows["verdict"].tolist() == ["baseline", "better"]
    assert rows["holm"][1] == pytest.approx(found.row("gpt2")["holm"])


def test_every_point_of_a_curve_is_a_row(found: Comparison) -> None:
    points = found.frame("curves")
    assert len(points) == 6 * (3 + 3)
    last = points[(points["kind"] == "evaluation") & (points["update"] == 30)]
    assert last.set_index(["arm", "seed"])["nats"].to_dict() == {
        (arm, seed): nats for arm, seeds in LOSSES.items() for seed, nats in seeds.items()
    }
    assert found.frame("paired")["difference"].iloc[-1] == pytest.approx(-0.01, rel=0.01)
    assert len(found.frame("runs")) == 6


def test_an_arm_that_is_not_there_is_named(found: Comparison) -> None:
    with pytest.raises(UserError, match="has no arm 'gpt3'; expected one of llama, gpt2"):
        found.row("gpt3")


def test_what_is_no_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the comparison"):
        load_comparison(tmp_path)
    (tmp_path / "comparison.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(UserError, match="is no comparison of schema 1"):
        load_comparison(tmp_path)
