"""Work that takes too much is ended, and leaves nothing behind."""

import sys
import time
from itertools import count
from typing import Any

import pytest
from tokenizers import normalizers

from layerlab import builtin
from layerlab.system.untrusted import limits
from layerlab.system.untrusted.limits import check_tokenizer, check_work, overrun
from layerlab.tokenization.load import load_tokenizer
from tests.support.refused import refusal, refuses

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process so")


@pytest.mark.full
@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda: sum(count()), "over 1 s"),
        (lambda: bytearray(2**31), "over 1 GiB"),
        (lambda: time.sleep(99), "over 1 s"),
    ],
)
def test_what_takes_too_much_is_ended(work, why):
    start = time.monotonic()
    assert overrun(work, seconds=1) == why
    assert time.monotonic() - start < 9


@pytest.mark.parametrize("work", [lambda: None, lambda: 1 / 0, lambda: sys.exit(3), lambda: 2**99])
def test_what_ends_is_let_through_however_it_ends(work):
    assert overrun(work, seconds=9) == ""


def test_what_it_does_is_done_elsewhere():
    seen: list[int] = []
    assert overrun(lambda: seen.append(1), seconds=9) == "" and seen == []


def test_it_is_refused_in_one_line():
    caught = refusal(check_work, lambda: bytearray(2**31), "the chat template", "one question")
    said = "the chat template takes over 1 GiB for one question; use another"
    assert caught == said


def test_what_passed_is_known_by_all_of_its_content(monkeypatch):
    """Once in a process: what differs, by a limit too, is tried, and so is what was refused."""
    tried: list[str] = []
    answers = {"slow": "over 20 s"}

    def ask(content: str, given: str = "one question") -> None:
        def answer(*limits: Any) -> str:
            tried.append(content)
            return answers.get(content, "")

        monkeypatch.setattr(limits, "overrun", answer)
        check_work(lambda: None, "the chat template", given, content=content)

    for content in ("known", "known", "another", "known", "", ""):
        ask(content)
    ask("known", "two turns")
    for _ in range(2):
        refuses("takes over 20 s", ask, "slow")
    monkeypatch.setattr(limits, "SECONDS", 3)
    ask("known")
    assert tried == ["known", "another", "", "", "known", "slow", "slow", "known"]


def test_a_tokenizer_is_tried_again_once_anything_of_it_has_changed(monkeypatch):
    """A rule, its length, its class; and one of foreign Python always."""
    tried: list[int] = []
    monkeypatch.setattr(limits, "_PASSED", set())
    monkeypatch.setattr(limits, "overrun", lambda *given: tried.append(1) or "")
    words = load_tokenizer(str(builtin.path("llama")))
    tried.clear()
    check_tokenizer(words, "llama")
    assert tried == []
    words.backend_tokenizer.normalizer = normalizers.Replace("a", "aa")
    check_tokenizer(words, "llama")
    words.backend_tokenizer.enable_truncation(9)
    check_tokenizer(words, "llama")
    assert len(tried) == 2
    words.__class__ = type("Own", (type(words),), {"__module__": "transformers_modules.own"})
    for _ in range(2):
        check_tokenizer(words, "llama")
    assert len(tried) == 4


def test_a_tokenizer_that_numbers_without_measure_is_refused():
    words = load_tokenizer(str(builtin.path("llama")))
    check_tokenizer(words, "llama")

    class Odd:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0, "b": 999_999_999}

    assert refusal(check_tokenizer, Odd(), "odd") == (
        "the tokenizer odd has 2 entries and one with the number 999,999,999; mend its vocabulary"
    )


def test_a_chat_template_that_is_called_as_no_file_can_be():
    words = load_tokenizer(str(builtin.path("llama")))
    words.chat_template = {"default": "{{ messages }}", "tool use": "{{ messages }}"}
    check_tokenizer(words, "mine")
    words.chat_template["../../notes"] = "whatever"
    said = r"the tokenizer mine has a chat template called '\.\./\.\./notes', which is no name of a"
    refuses(said, check_tokenizer, words, "mine")
