"""A recipe that is small enough to be carried out in a test, with the files that it reads."""

import json
from pathlib import Path
from typing import Any

from tests.adaptation.small import LAW, NATURE, written


def recipe(folder: Path, **changes: Any) -> dict[str, Any]:
    """Every stage, on a model of one layer; the files lie in a folder."""
    written(folder / "law.jsonl", LAW, 60, 1)
    written(folder / "nature.jsonl", NATURE, 90, 2)
    rows = [
        {"instruction": f"Is case {number} void?", "output": f"Case {number} is void."}
        for number in range(12)
    ]
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    general = [{"text": str(folder / "nature.jsonl")}]
    step = {"batch": 4, "block": 16, "checkpoint": 2}
    content = {
        "name": "lessons",
        "about": "A recipe for tests.",
        "base": {
            "recipe": {
                "name": "small",
                "model": {"width": 16, "layers": 1, "heads": 2, "context": 64},
                "data": {"sources": general, "vocab": 280, "block": 16},
                "train": {"updates": 6, "batch": 4},
                "evaluate": {"blocks": 4},
                "run": {"checkpoint": 2},
            }
        },
        "data": {
            "domain": [{"text": str(folder / "law.jsonl")}],
            "general": general,
            "validation": 0.2,
        },
        "clean": {"shortest": 10, "repetition": False, "near": 0},
        "vocabulary": {"size": "+8"},
        "embedding": {"input": "mean"},
        "pretrain": {"tokens": 512, "rate": 1e-2, **step},
        "tune": {
            "sources": [{"name": "questions", "rows": str(folder / "rows.json")}],
            "rate": 1e-2,
            "epochs": 2,
            **step,
            "block": 64,
        },
        "evaluate": {"text": 2000, "prompts": ["Is it void?"], "length": 4},
    }
    return {**content, **changes}
