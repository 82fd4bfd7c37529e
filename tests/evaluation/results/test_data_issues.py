"""What is odd in files is said below the scores."""

import pytest

import layerlab
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS, find_benchmark
from layerlab.evaluation.benchmarks.files import is_here
from layerlab.evaluation.results.data_issues import remarks
from tests.evaluation.candidate import candidate, tokenizer
from tests.evaluation.written import lines


@pytest.fixture
def piqa(tmp_path, monkeypatch):
    """Four questions, of which two have one option twice."""

    def written(*options: tuple[str, str]):
        rows = [
            {"goal": f"How? {place}", "sol1": one, "sol2": other}
            for place, (one, other) in enumerate(options)
        ]
        lines(tmp_path / "piqa" / "valid.jsonl", *rows)
        (tmp_path / "piqa" / "valid-labels.lst").write_text("0\n" * len(rows), "utf-8")
        return tmp_path

    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    return written


def test_files_without_anything_odd_have_no_remark(piqa):
    piqa(("So", "Not so"), ("So", "not so"))
    assert remarks([find_benchmark("piqa")], complete=False) == []


@pytest.mark.full
def test_a_file_that_lacks_rows_is_told_unless_a_limit_asks_for_fewer(piqa):
    folder = piqa(*[("So", "Not so")] * 40)
    line = (
        "PIQA: its split valid has 40 questions here, and 1,838 as published; the score is of "
        "those here: copy its files anew"
    )
    assert remarks([find_benchmark("piqa")]) == [line]
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    for limit, said in ((None, [line]), (3, [])):
        found = layerlab.evaluate(
            candidate(256).model,
            "piqa",
            data=folder,
            tokenizer=tokenizer(),
            limit=limit,
            progress=False,
        )
        assert [one for one in found.content["remarks"] if "as published" in one] == said


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name, one in BENCHMARKS.items() if one.rows])
def test_the_published_files_have_as_many_rows_as_are_declared(name):
    one = BENCHMARKS[name]
    if not is_here(one):
        pytest.skip(f"{one.title} is not here")
    assert not [line for line in remarks([one]) if "as published; the score" in line]


@pytest.mark.parametrize(
    ("count", "more"), [(1, ""), (2, "; so is 1 more"), (3, "; so are 2 more")]
)
def test_the_first_is_named_and_the_others_counted(piqa, count, more):
    piqa(("So", "Not so"), *[("So", "So")] * count)
    (said,) = remarks([find_benchmark("piqa")], complete=False)
    assert said == (
        f"PIQA: valid.jsonl, line 2: the option 'So' stands there twice; it is scored as "
        f"published{more}"
    )


def test_an_empty_option_has_a_line_of_its_own(piqa):
    piqa(("So", ""), ("So", "So"), (" ", "So"))
    assert remarks([find_benchmark("piqa")], complete=False) == [
        "PIQA: valid.jsonl, line 2: the option 'So' stands there twice; it is scored as published",
        "PIQA: valid.jsonl, line 1: the option B is empty; it is scored so, as published; "
        "so is 1 more",
    ]


def test_questions_that_stand_there_twice_are_counted(piqa, tmp_path):
    lines(
        tmp_path / "piqa" / "valid.jsonl",
        *[{"goal": goal, "sol1": "So", "sol2": "Not so"} for goal in ("How?", "Why?", "How?")],
    )
    (tmp_path / "piqa" / "valid-labels.lst").write_text("0\n" * 3, "utf-8")
    assert remarks([find_benchmark("piqa")], complete=False) == []
    assert remarks([find_benchmark("piqa")])[1:] == [
        "PIQA: 2 of 3 questions stand there more than once; its interval takes them for different "
        "ones, and is too narrow"
    ]


def test_an_evaluation_repeats_it_below_its_scores(piqa):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    folder = piqa(("So", "Not so"), ("So", "So"))
    found = layerlab.evaluate(
        candidate(256).model, "piqa", data=folder, tokenizer=tokenizer(), progress=False
    )
    assert found.content["benchmarks"][0]["n"] == 2
    tied, normalized, counted, said = found.content["remarks"]
    assert "PIQA: the likeliest options tie at 1 of 2 questions" in tied
    assert "PIQA (acc_norm): the likeliest options tie at 1 of 2 questions" in normalized
    assert "has 2 questions here, and 1,838 as published" in counted
    assert "the option 'So' stands there twice" in said
    assert "the option 'So' stands there twice" in " ".join(found.summary().split())
