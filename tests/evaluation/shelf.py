"""A few questions of four benchmarks, of the tests' own making, and a model that is asked them."""

from pathlib import Path
from typing import Any

import pytest

import layerlab
from layerlab.evaluation.benchmarks.catalog import find_benchmark
from layerlab.evaluation.results.result import EvaluationResult
from tests.evaluation.candidate import candidate, tokenizer
from tests.evaluation.written import boolq, exam, financeiq, lines


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BoolQ, AX-b, FinanceIQ and FinEval with a few questions each."""
    folder = tmp_path_factory.mktemp("data")
    boolq(folder, *[True, False] * 5)
    rows = [
        {"sentence1": f"{place} is one.", "sentence2": "One is.", "label": label, "idx": place}
        for place, label in enumerate(["entailment", "not_entailment"] * 3)
    ]
    lines(folder / "superglue" / "AX-b" / "AX-b.jsonl", *rows)
    for subject in find_benchmark("financeiq").subjects:
        financeiq(folder, subject.file, "ABC")
    for place, subject in enumerate(find_benchmark("fineval").subjects):
        exam(folder, "fineval", subject.file, "ABCD"[: 2 + place % 3])
    return folder


def run(shelf: Path, suite: str = "boolq,financeiq", **options: Any) -> EvaluationResult:
    subject = candidate(512)
    return layerlab.evaluate(
        options.pop("model", subject.model),
        suite,
        data=shelf,
        tokenizer=options.pop("tokenizer", None) or tokenizer(),
        progress=False,
        **options,
    )


@pytest.fixture(scope="module")
def whole(shelf: Path) -> EvaluationResult:
    return run(shelf, "knowledge,reasoning,finance", compare=True)


def row(result: EvaluationResult, benchmark: str) -> dict[str, Any]:
    return next(one for one in result.content["benchmarks"] if one["benchmark"] == benchmark)
