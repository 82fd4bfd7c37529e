"""Samples as lm-eval writes them, for tests that need many, damaged or chosen ones."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import layerlab

DATE = "2026-01-02T03-04-05.678901"


def sample(
    number: int, score: Any, metric: str = "acc", doc: Any = None, **more: Any
) -> dict[str, Any]:
    """One line of a file: a question of two options."""
    prompt = more.pop("prompt", f"Question {number}. Answer:")
    likely = score == 1
    return {
        "doc_id": number,
        "doc": {"question": f"Question {number}", **(doc or {})},
        "target": "0",
        "arguments": {
            f"gen_args_{at}": {"arg_0": prompt, "arg_1": option}
            for at, option in enumerate((" yes", " no"))
        },
        "resps": [[["-1.0", "False"]], [["-2.0", "False"]]],
        "filtered_resps": [["-1.0", "False"], ["-0.5" if not likely else "-2.0", "False"]],
        "filter": "none",
        "metrics": [metric],
        metric: score,
        **more,
    }


def write(
    folder: Path, rows: Sequence[dict[str, Any]], task: str = "own", date: str = DATE
) -> Path:
    """Write a file of a task into the folder of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{task}_{date}.jsonl"
    # Of each task the questions are others.
    own = [
        {**one, "doc": {**one["doc"], "of": task}} if isinstance(one.get("doc"), dict) else one
        for one in rows
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in own), encoding="utf-8")
    return path


def write_scores(folder: Path, scores: Sequence[Any], task: str = "own", **more: Any) -> Path:
    """Write a file with these scores, a question for each."""
    return write(folder, [sample(at, one, **more) for at, one in enumerate(scores)], task)


def write_both(
    folder: Path, first: Sequence[Any], second: Sequence[Any], task: str = "own", **more: Any
) -> list[Path]:
    """Write files with these scores of two models, a and b."""
    places = [folder / "a", folder / "b"]
    for place, scores in zip(places, (first, second), strict=True):
        write_scores(place, scores, task, **more)
    return places


def judged_sample() -> dict[str, Any]:
    """What paired.json holds of three models and three tasks: shares, documents, other scores."""
    with tempfile.TemporaryDirectory() as name:
        for at, model in enumerate(("base", "tuned", "other")):
            place = Path(name, model)
            write_scores(place, [int(n % 7 > 3 - at) for n in range(40)], "law")
            write_scores(place, [n + at / (n + 2) for n in range(9)], "length")
            rows = [sample(n, (n // 4 + at) % 2, doc={"passage": n // 4}) for n in range(20)]
            write(place, rows, "passages")
        places = [Path(name, one) for one in ("base", "tuned", "other")]
        found = layerlab.judge(places)
    return {**found.content, "command": "layerlab judge base tuned other"}
