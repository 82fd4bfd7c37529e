"""Benchmark files of the tests' own making, in the published formats."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HEAD = "id,question,A,B,C,D,answer,explanation"
# What a library that guesses types would turn into numbers and missing values.
TRAPS = ("01", "1.50", "NA", "None")


def table(path: Path, *lines: str, head: str = HEAD) -> Path:
    """A file of comma-separated cells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*([head] if head else []), *lines]) + "\n", "utf-8")
    return path


def lines(path: Path, *rows: Mapping[str, Any]) -> Path:
    """A file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def exam(folder: Path, benchmark: str, subject: str, answers: Sequence[str] = "ABCD") -> None:
    """A subject of C-Eval or FinEval: five examples, and a question for each answer."""
    shots = [f"{place},例{place},甲,乙,丙,丁,B,1. 因为{place}" for place in range(5)]
    table(folder / benchmark / "dev" / f"{subject}_dev.csv", *shots)
    asked = [
        f"{place},问{place},{','.join(TRAPS)},{letter}" for place, letter in enumerate(answers)
    ]
    table(
        folder / benchmark / "val" / f"{subject}_val.csv", *asked, head="id,question,A,B,C,D,answer"
    )


def financeiq(folder: Path, name: str, answers: Sequence[str]) -> None:
    """A subject of FinanceIQ, by the name of its file."""
    head = ",Question,A,B,C,D,Answer"
    shots = [f"{place},例{place},甲,乙,丙,丁,C" for place in range(5)]
    table(folder / "financeiq" / "dev" / f"{name}.csv", *shots, head=head)
    asked = [
        f"{place},问{place},{','.join(TRAPS)},{letter}" for place, letter in enumerate(answers)
    ]
    table(folder / "financeiq" / "test" / f"{name}.csv", *asked, head=head)


def boolq(folder: Path, *labels: str) -> None:
    """BoolQ's validation questions."""
    rows = [
        {"question": f"is {place} even", "passage": f"The number {place}.", "label": label}
        for place, label in enumerate(labels)
    ]
    lines(folder / "superglue" / "BoolQ" / "val.jsonl", *rows)
