"""The pages of studies: how a verdict's sentence begins."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

STUDIED = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "studied.py"))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("the worst of 5 draws", "The worst of 5 draws"),
        ("a square matrix has 16 times", "A square matrix has 16 times"),
        ("printed: 0.9 of the time", "Printed: 0.9 of the time"),
        ("d(0.8) is 1.41 times that", "d(0.8) is 1.41 times that"),
        ("x + N(A(x)) has 34.1 times", "x + N(A(x)) has 34.1 times"),
        ("x 1.23 per layer", "x 1.23 per layer"),
        ("pangu-pi has 1.1 times", "pangu-pi has 1.1 times"),
        ("llama against history-3: -0.3", "llama against history-3: -0.3"),
        ("relu at z = 5", "relu at z = 5"),
        ("bf16 against fp32: 0", "bf16 against fp32: 0"),
        ("37.9 against 35 %", "37.9 against 35 %"),
    ],
)
def test_a_sentence_begins_with_a_capital_and_a_symbol_or_name_keeps_its_own(said, shown):
    one = {"word": "holds", "claim": "It is so.", "said": said, "scale": "x", "unit": "4 draws"}
    parts = STUDIED["_parts"]
    study = type("Study", (), {"name": "none", "cost": "0 s"})
    content = {
        "title": "T",
        "source": "Own",
        "verdicts": [one],
        "pictures": [],
        "settings": {"draws": 4},
        "fast": False,
        "unit": "draws",
        "time": {"processor seconds": 1.0},
        "machine": {"threads": 1, "system": "Linux"},
        "versions": {},
        "layerlab": "0",
        "created": "2026-01-01",
        "remarks": [],
        "frames": {},
    }
    page = list(parts(study, content, Path("nowhere")))
    assert f"> {shown}" in page[2]


def test_a_page_says_on_what_each_verdict_was_judged_and_what_was_set_after_a_look():
    told = STUDIED["_judged"]
    verdict = {"scale": "constructed cases", "unit": "3 seeds"}
    assert told(verdict) == "Judged on: constructed cases. Unit of replication: 3 seeds."
    marked = told({**verdict, "looked": True})
    assert marked.endswith(" Its threshold or number of draws was set after a first result.")


def test_a_result_of_an_earlier_version_has_the_scale_and_unit_that_are_declared_now(tmp_path):
    verdict = {"claim": "c", "word": "fails", "number": 1.0, "said": "s", "source": ""}
    content = {"verdicts": [verdict], "settings": {"draws": 60}, "unit": "texts"}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "study.json").write_text(json.dumps(content))
    declared = SimpleNamespace(
        name="old", scale="networks of {layers} layers", options={"layers": 7}
    )
    (found,) = STUDIED["stored"](tmp_path, [declared]).values()
    assert found["verdicts"] == [{**verdict, "scale": "networks of 7 layers", "unit": "60 texts"}]
