"""What is odd in files is said below the scores."""

import pytest

import layerlab
from layerlab.evaluation.benchmarks.catalog import find_benchmark
from layerlab.evaluation.results.data_issues import remarks
from tests.evaluation.candidate import candidate, tokenizer
from tests.evaluation.written import lines


@pytest.fixture
def piqa(tmp_path, monkeypatch):
    """Four questions, of which two have one option twice."""

    def written(*options: tuple[str, str]):
        rows = [{"goal": "How?", "sol1": one, "sol2": other} for one, other in options]
        lines(tmp_path / "piqa" / "valid.jsonl", *rows)
        (tmp_path / "piqa" / "valid-labels.lst").write_text("0\n" * len(rows), "utf-8")
        return tmp_path

    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    return written


def test_files_without_anything_odd_have_no_remark(piqa) -> None:
    piqa(("So", "Not so"), ("So", "not so"))
    assert remarks([find_benchmark("piqa")]) == []


@pytest.mark.parametrize(
    ("count", "more"), [(1, ""), (2, "; so is 1 more"), (3, "; so are 2 more")]
)
def test_the_first_is_named_and_the_others_counted(piqa, count: int, more: str) -> None:
    piqa(("So", "Not so"), *[("So", "So")] * count)
    (said,) = remarks([find_benchmark("piqa")])
    assert said == (
        f"PIQA: valid.jsonl, line 2: the option 'So' stands there twice; it is scored as "
        f"published{more}"
    )


def test_an_empty_option_has_a_line_of_its_own(piqa) -> None:
    piqa(("So", ""), ("So", "So"), (" ", "So"))
    assert remarks([find_benchmark("piqa")]) == [
        "PIQA: valid.jsonl, line 2: the option 'So' stands there twice; it is scored as published",
        "PIQA: valid.jsonl, line 1: the option B is empty; it is scored so, as published; "
        "so is 1 more",
    ]


def test_an_evaluation_repeats_it_below_its_scores(piqa) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    folder = piqa(("So", "Not so"), ("So", "So"))
    found = layerlab.evaluate(
        candidate(256).model, "piqa", data=folder, tokenizer=tokenizer(), progress=False
    )
    assert found.content["benchmarks"][0]["n"] == 2
    tied, normalized, said = found.content["remarks"]
    assert "PIQA: the likeliest options tie at 1 of 2 questions" in tied
    assert "PIQA (acc_norm): the likeliest options tie at 1 of 2 questions" in normalized
    assert "the option 'So' stands there twice" in said
    assert "the option 'So' stands there twice" in " ".join(found.summary().split())
