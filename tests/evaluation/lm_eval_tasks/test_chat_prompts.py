"""Prompts as chat templates write them: whole, or refused."""

import copy
from datetime import date
from typing import Any

import pytest

import layerlab
from tests.evaluation.candidate import candidate, tokenizer
from tests.support.refused import refuses

pytest.importorskip("lm_eval")

from layerlab.evaluation.harness import run
from layerlab.evaluation.lm_eval_tasks import chat_prompts
from layerlab.evaluation.lm_eval_tasks.chat_prompts import find_day, keeps_instruction, render_chat
from tests.evaluation.lm_eval_tasks.own_tasks import CHOICE, write

TURNS = [
    {"role": "system", "content": "Choose one."},
    {"role": "user", "content": "one  or\ntwo?"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three or four?"},
]
PLAIN = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"
NO_SYSTEM = "{% for one in messages if one.role != 'system' %}{{ one.content }}\n{% endfor %}"
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + PLAIN
LAST = "{{ messages[-1].content }}"


def render(text: str, turns: Any = TURNS) -> str:
    return render_chat(lambda: text, turns, first=True)


def test_a_prompt_holds_its_question_and_examples():
    text = "Choose one. one or two? two three or four?"  # other blanks
    assert render(text) == text
    assert render("one or two? two three or four?")  # what tasks say of themselves may lack
    refuses("does not write the question as it is given", render, "one or two? two three or")
    refuses("does not write the question as it is given", render, "")
    refuses("leaves out examples before the question", render, "three or four?")
    begun = [*TURNS, {"role": "assistant", "content": "I say"}]
    assert render("one or two? two three or four? I say", begun)
    refuses("does not write the question", render, "one or two? two three or four?", begun)


@pytest.mark.parametrize(
    ("template", "kept"), [(PLAIN, True), (NO_SYSTEM, False), (REFUSING, False), (LAST, False)]
)
def test_a_template_without_a_system_turn_is_known(template, kept):
    words = copy.deepcopy(tokenizer())
    words.chat_template = template
    assert keeps_instruction(words) is kept


def test_a_template_that_writes_the_date_is_another_each_day(monkeypatch):
    class Clock(date):
        @classmethod
        def today(cls) -> date:
            return date(2026, 11, 3)

    words = copy.deepcopy(tokenizer())
    words.chat_template = PLAIN
    assert find_day(words) == ""
    words.chat_template = "{{ strftime_now('%d %b %Y') }}" + PLAIN
    now = find_day(words)
    monkeypatch.setattr(chat_prompts, "date", Clock)
    assert now != find_day(words) == "2026-11-03"


@pytest.mark.full
def test_what_a_template_leaves_out_is_told(tmp_path, monkeypatch):
    task = write(tmp_path, "own_choice", CHOICE + 'description: "Count."\n', 12)

    def ask(template: str, **options: Any) -> dict[str, Any]:
        words = copy.deepcopy(tokenizer())
        words.chat_template = template
        given = {"tasks": str(task), "tokenizer": words, "chat": True, "progress": False}
        return layerlab.evaluate(candidate(512).model, **given, **options).content

    said = "its chat template does not write the system turn, where tasks have their instructions"
    for template, told in ((PLAIN, False), (NO_SYSTEM, True), (REFUSING, True)):
        assert (said in " ".join(ask(template, shots=1)["remarks"])) is told
    refuses("leaves out examples before the question", ask, LAST, shots=1)
    assert ask(LAST, shots=0)["tasks"][0]["scores"]
    refuses("does not write the question as it is given", ask, "hello")

    dated, out = "{{ strftime_now('%d %b %Y') }}" + PLAIN, tmp_path / "out"
    first = ask(dated, out=out)
    monkeypatch.setattr(run, "find_day", lambda words: "another day")
    later = ask(dated, against=out / "results.json")
    assert first["tasks"][0]["asked"]["template"] != later["tasks"][0]["asked"]["template"]
    assert any("asked differently: own_choice" in one for one in later["remarks"])
