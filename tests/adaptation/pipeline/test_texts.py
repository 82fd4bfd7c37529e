"""The texts of an adaptation: what is cleaned, split and searched."""

import json

from layerlab.adaptation.pipeline.plan import describe_base
from layerlab.adaptation.pipeline.texts import (
    clean_texts,
    contamination_of,
    materials,
    read_held_out,
    rows_of,
)
from layerlab.recipes.adaptation import load_adaptation, make_recipe
from layerlab.recipes.adaptation_sections import RowsSection


def test_what_the_base_does_not_read_of_a_text_is_not_searched(tmp_path):
    asked = [" ".join(f"{name}{number}" for number in range(30)) for name in ("first", "second")]
    rows = [json.dumps({"question": one}) for one in asked]
    (tmp_path / "exam.jsonl").write_text("\n".join(rows))
    (tmp_path / "base.txt").write_text("\n".join(asked))
    (tmp_path / "domain.txt").write_text("Another text of the domain, line by line.\n" * 20)
    source = {"text": str(tmp_path / "base.txt"), "limit": len(asked[0]) + 20}
    recipe = make_recipe(
        {
            "base": {"recipe": {"data": {"sources": [source]}, "train": {"max_steps": 1}}},
            "data": {"domain": [{"text": str(tmp_path / "domain.txt")}]},
            "clean": {"repetition": False, "max_repeated_ratio": 1.0}
            | {"near_duplicate_threshold": 0, "benchmarks": [str(tmp_path / "exam.jsonl")]},
        }
    )
    clean_texts(recipe, tmp_path / "texts", lambda what, share: None)
    found = contamination_of(recipe, tmp_path / "texts")
    assert [(one["id"], one["covered"]) for one in found["matches"]] == [("1", 1.0)]


def test_a_cleaned_text_is_read_with_the_settings_of_the_one_that_it_comes_from(tmp_path):
    given = [
        {"text": "one.txt", "special_tokens": True, "weight": 2.0},
        {"text": "two.txt"},
    ]
    recipe = make_recipe({"base": {"model": "llama"}, "data": {"domain": given}})
    first, second = materials(recipe, tmp_path, "domain")
    assert (first.special_tokens, first.weight) == (True, 2.0)
    assert (second.special_tokens, second.weight) == (False, 1.0)


def test_a_base_that_learned_what_is_held_out_is_told(tmp_path):
    """At another share the general held-out text is half of it a text that the base was taught."""
    (tmp_path / "general.txt").write_text("A text of many words, line by line.\n" * 200)
    texts = [{"text": str(tmp_path / "general.txt")}]
    content = {
        "base": {"recipe": {"data": {"sources": texts}, "train": {"max_steps": 1}}},
        "data": {"general": texts},
    }
    same = make_recipe(content)
    other = same.change({"data.validation_fraction": 0.1})
    notes = []
    for number, recipe in enumerate((same, other)):
        folder = tmp_path / str(number)
        notes.append(clean_texts(recipe, folder, lambda what, share: None)["sources"][-1]["notes"])
    assert len(notes[1]) == len(notes[0]) + 1
    assert "the base may have learned what is held out of" in notes[1][-1]
    assert not describe_base(load_adaptation("yunshan-mini"))


def test_of_held_out_text_so_many_bytes_are_read_and_no_half_of_a_character(tmp_path):
    lines = [json.dumps({"text": f"案{number}：" + "被告人不服。" * 5}) for number in range(40)]
    (tmp_path / "law.jsonl").write_text("\n".join(lines))
    recipe = make_recipe(
        {
            "base": {"model": "llama"},
            "data": {"domain": [{"text": str(tmp_path / "law.jsonl")}], "validation_fraction": 0.5},
        }
    )
    clean_texts(recipe, tmp_path / "texts", lambda what, share: None)
    every = read_held_out(recipe, tmp_path / "texts", "domain", 10**6)
    sizes = [len(text.encode()) for text in every]
    assert len(every) > 10
    # Ten bytes of the third document are three characters and a byte of the next.
    found = read_held_out(recipe, tmp_path / "texts", "domain", sum(sizes[:2]) + 10)
    assert found[:2] == every[:2] and len(found) == 3
    assert every[2].startswith(found[2]) and 10 - 3 < len(found[2].encode()) <= 10


def test_no_more_rows_are_read_than_are_asked_for(tmp_path):
    rows = [{"instruction": f"{n}?", "output": str(n), "grade": n} for n in range(6)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    told = {"name": "rows", "path": str(tmp_path / "rows.json"), "ignore": ("grade",)}
    assert len(rows_of(RowsSection(**told))) == 6
    (first, second) = rows_of(RowsSection(**told, limit=2))
    assert [one.turns[1].text for one in (first, second)] == ["0", "1"]
