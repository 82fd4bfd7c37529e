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
    step = {"batch_size": 4, "block_size": 16, "save_steps": 2}
    content = {
        "name": "lessons",
        "about": "A recipe for tests.",
        "base": {
            "recipe": {
                "name": "small",
                "model": {"width": 16, "layers": 1, "heads": 2, "context": 64},
                "data": {"sources": general, "vocab_size": 280, "block_size": 16},
                "train": {"max_steps": 6, "batch_size": 4},
                "evaluate": {"max_eval_blocks": 4},
                "run": {"save_steps": 2},
            }
        },
        "data": {
            "domain": [{"text": str(folder / "law.jsonl")}],
            "general": general,
            "validation_fraction": 0.2,
        },
        "clean": {"min_chars": 10, "repetition": False, "near_duplicate_threshold": 0},
        "vocabulary": {"size": "+8"},
        "embedding": {"input": "mean"},
        "pretrain": {"tokens": 512, "learning_rate": 1e-2, **step},
        "sft": {
            "sources": [{"name": "questions", "path": str(folder / "rows.json")}],
            "learning_rate": 1e-2,
            "num_train_epochs": 2,
            **step,
            "block_size": 64,
        },
        "evaluate": {"text_bytes": 2000, "prompts": ["Is it void?"], "max_new_tokens": 4},
    }
    return {**content, **changes}
