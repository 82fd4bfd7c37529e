"""Work that takes too much is ended, and leaves nothing behind."""

import sys
import time
from itertools import count

import pytest

from layerlab import UserError, builtin
from layerlab.system.limits import check_tokenizer, check_work, overrun
from layerlab.tokenization.load import load_tokenizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process so")


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda: sum(count()), "over 1 s"),
        (lambda: bytearray(2**31), "over 1 GiB"),
        (lambda: time.sleep(99), "over 1 s"),
    ],
)
def test_what_takes_too_much_is_ended(work, why: str) -> None:
    start = time.monotonic()
    assert overrun(work, seconds=1) == why
    assert time.monotonic() - start < 9


@pytest.mark.parametrize("work", [lambda: None, lambda: 1 / 0, lambda: sys.exit(3), lambda: 2**99])
def test_what_ends_is_let_through_however_it_ends(work) -> None:
    assert overrun(work, seconds=9) == ""


def test_what_it_does_is_done_elsewhere() -> None:
    seen: list[int] = []
    assert overrun(lambda: seen.append(1), seconds=9) == "" and seen == []


def test_it_is_refused_in_one_line() -> None:
    with pytest.raises(UserError) as caught:
        check_work(lambda: bytearray(2**31), "the chat template", "one question")
    said = "the chat template takes over 1 GiB for one question; use another"
    assert str(caught.value) == said


def test_a_tokenizer_that_numbers_without_measure_is_refused() -> None:
    words = load_tokenizer(str(builtin.path("llama")))
    check_tokenizer(words, "llama")

    class Odd:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0, "b": 999_999_999}

    with pytest.raises(UserError) as caught:
        check_tokenizer(Odd(), "odd")
    assert str(caught.value) == (
        "the tokenizer odd has 2 entries and one with the number 999,999,999; mend its vocabulary"
    )
