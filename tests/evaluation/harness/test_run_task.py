"""What a task comes to where its text does not come back from its tokens."""

import copy
import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import layerlab
from layerlab.adaptation.trainer.bits_per_byte import bits_per_byte
from tests.evaluation.candidate import candidate, tokenizer, with_begin

pytest.importorskip("lm_eval")

from tests.evaluation.lm_eval_tasks.own_tasks import READ, folder, rows, run, write
from tests.evaluation.shelf import run as ask
from tests.evaluation.shelf import shelf

pytestmark = pytest.mark.full

__all__ = ["folder", "shelf"]


def few_words() -> PreTrainedTokenizerFast:
    known = {"w": 0, "number": 1, "one": 2, "comes": 3, "</s>": 4}
    machine = Tokenizer(models.WordLevel(known, unk_token="w"))
    machine.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=machine, eos_token="</s>", unk_token="w")


def test_there_is_nothing_by_word_or_byte_where_text_is_lost(folder, tmp_path):
    task = folder / "own_read.yaml"
    whole = run(task).content
    assert all(row["value"] > 0 for row in whole["tasks"][0]["measured"])
    assert not any("not given" in one for one in whole["remarks"])
    asked = {
        "tasks": str(task),
        "tokenizer": few_words(),
        "progress": False,
        "out": tmp_path / "out",
    }
    first, kept = (layerlab.evaluate(candidate(512).model, **asked) for _ in range(2))
    assert [row["value"] for row in first.content["tasks"][0]["measured"]] == [None, None]
    (said,) = [one for one in first.content["remarks"] if "not given" in one]
    assert said.startswith("own_read: word_perplexity, bits_per_byte not given for ")
    assert said.endswith("tokens do not say which words and bytes they stand for")
    assert said in kept.content["remarks"] and said in " ".join(kept.summary(200).split())


@pytest.mark.parametrize("name", ["own_choice", "own_written", "own_last"])
@pytest.mark.parametrize("template", ["$A {name}", "{name} $A {name}"])
def test_what_a_tokenizer_puts_behind_a_text_does_not_end_a_question(folder, name, template):
    before = None if template.startswith("$A") else with_begin()
    plain, ended = (
        run(folder / f"{name}.yaml", words=words).content
        for words in (before, with_begin(template))
    )
    for one, other in zip(plain["tasks"], ended["tasks"], strict=True):
        for key in ("scores", "metrics", "shots", "ties"):
            assert one[key] == other[key]
    said = "its tokenizer puts <|endoftext|> behind every text, which is left off here"
    assert [said in " ".join(found["remarks"]) for found in (plain, ended)] == [False, True]


def test_bits_per_byte_are_of_the_text_alone(folder):
    """Not of the token that a tokenizer puts before it, which lm-eval counts too."""
    plain, begun = (
        run(folder / "own_read.yaml", words=words).content for words in (None, with_begin())
    )
    texts = [
        f"Which number comes after {row['number']}? Answer: {row['options'][0]}" for row in rows(12)
    ]
    told = bits_per_byte(candidate(512).model, with_begin(), texts).bits_per_byte
    for found in (plain, begun):
        values = {row["metric"]: row["value"] for row in found["tasks"][0]["measured"]}
        assert values["bits_per_byte"] == pytest.approx(told, rel=1e-5)
    said = (
        "perplexities are of the tokens of a text alone; lm-eval also counts <|endoftext|>, which"
    )
    assert [said in " ".join(found["remarks"]) for found in (plain, begun)] == [False, True]


def test_an_answer_that_is_a_turn_of_its_own_begins_with_no_blank(shelf, tmp_path):
    """As lm-eval leaves its delimiter out, and as templates trim the answers of examples."""
    words = copy.deepcopy(tokenizer())
    words.chat_template = "{% for one in messages %}{{ one.content }} A:{% endfor %}"
    found = {
        chat: ask(shelf, "boolq", chat=chat, tokenizer=words, out=tmp_path / str(chat))
        for chat in (False, True)
    }
    for chat, options in ((False, [" No", " Yes"]), (True, ["No", "Yes"])):
        (record,) = found[chat].content["subjects"]
        lines = (tmp_path / str(chat) / record["samples"]).read_text("utf-8").splitlines()
        for sample in map(json.loads, lines):
            assert sample["options"] == options and sample["target"] in options
            assert sample["prompt"].endswith("Answer: A:" if chat else "Answer:")


@pytest.mark.parametrize(("text", "given"), [("A" * 60, True), ("A" * 900, False)])
def test_perplexities_of_any_size_are_kept_and_those_beyond_all_numbers_are_said(
    text, given, tmp_path
):
    body = READ.replace("Which number comes after {{number}}? Answer: {{options[0]}}", text)
    task, out = write(tmp_path, "own_read", body), tmp_path / "out"
    first = run(task, out=out).content
    values = {one["metric"]: one["value"] for one in first["tasks"][0]["measured"]}
    assert values["bits_per_byte"] > 0
    assert (values["word_perplexity"] or 0) > 1e12 if given else values["word_perplexity"] is None
    said = "own_read: word_perplexity not given for "
    why = ": more than 1.8e308, as perplexities by word are of texts without spaces between words"
    for found in (first, run(task, out=out).content, run(task, against=out).content):
        assert found["tasks"][0]["measured"] == first["tasks"][0]["measured"]
        told = [one for one in found["remarks"] if "not given" in one]
        assert len(told) == (not given) and all(one.startswith(said) for one in told)
        assert all(one.endswith(why) for one in told)
