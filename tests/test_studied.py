"""The pages of studies: how a verdict's sentence begins."""

import runpy
from pathlib import Path

import pytest

STUDIED = runpy.run_path(str(Path(__file__).resolve().parents[1] / "docs" / "studied.py"))


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
    one = {"word": "holds", "claim": "It is so.", "said": said}
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


def test_verdicts_are_counted_by_source_and_the_counts_lead_there():
    def verdicts(*words):
        return {"verdicts": [{"word": one, "claim": "c", "said": "s"} for one in words]}

    found = {"a": verdicts("holds", "fails"), "b": verdicts("fails"), "c": verdicts("not decided")}
    keys = {"a": "pangu23", "b": "pangu23", "c": "Own"}
    declared = {name: type("Study", (), {"key": key}) for name, key in keys.items()}
    said = STUDIED["holds"](found, {**declared, "d": declared["c"]})
    title = STUDIED["SOURCES"]["pangu23"]
    assert "4 claims in 3 studies:" in said and "Not run yet: `d`." in said
    assert f"| [{title}](#pangu-pi-nonlinearity-compensation) | 1 | 2 | 0 |" in said
    assert "| [What layerlab asked itself](#what-layerlab-asked-itself) | 0 | 0 | 1 |" in said
    assert "| **all** | 1 | 2 | 1 |" in said
