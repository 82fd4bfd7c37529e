"""Records in every form that is known, and what is wrong with one told in a line."""

import json
from typing import Any

import pytest

import layerlab
from layerlab import UserError
from layerlab.numerics.recorded.explain import TEXTS
from layerlab.numerics.recorded.read_records import read_records
from layerlab.numerics.recorded.record import TokenRecord, check_lengths, check_tokens
from tests.numerics.recorded.recording import write
from tests.support.refused import refusal, refuses

VOCABULARY = 500
WANTED = TokenRecord(token_ids=(5, 7, 9), logprobs=(None, -0.5, -2.0))
PLAIN = {"token_ids": [5, 7, 9], "logprobs": [None, -0.5, -2.0]}
PLACES = [
    None,
    {
        "7": {"logprob": -0.5, "rank": 2, "decoded_token": "b"},
        "3": {"logprob": -0.4, "rank": 1, "decoded_token": "c"},
    },
    {"9": {"logprob": -2.0, "rank": 1, "decoded_token": "d"}},
]
NAMED = {"tokens": ["token_id:5", "token_id:7", "token_id:9"], "token_logprobs": [None, -0.5, -2.0]}
FORMS: dict[str, Any] = {
    "plain": PLAIN,
    "vllm": {"prompt_token_ids": [5, 7, 9], "prompt_logprobs": PLACES},
    "vllm of old": {
        "prompt_token_ids": [5, 7, 9],
        "prompt_logprobs": [None, {"7": -0.5}, {"9": -2}],
    },
    "vllm as a server": {"choices": [{"prompt_token_ids": [5, 7, 9], "prompt_logprobs": PLACES}]},
    "vllm with an answer": {
        "prompt_token_ids": [5, 7],
        "prompt_logprobs": PLACES[:2],
        "outputs": [{"token_ids": [9], "logprobs": PLACES[2:]}],
    },
    "sglang": {
        "text": "",
        "meta_info": {
            "prompt_tokens": 3,
            "input_token_logprobs": [[None, 5, None], [-0.5, 7, "b"], [-2.0, 9, "d"]],
            "output_token_logprobs": [],
        },
    },
    "sglang with an answer": {
        "meta_info": {
            "prompt_tokens": 2,
            "input_token_logprobs": [[None, 5], [-0.5, 7]],
            "output_token_logprobs": [[-2.0, 9, None]],
        },
    },
    "sglang beside its ids": {
        "prompt_token_ids": [5, 7, 9],
        "meta_info": {
            "prompt_tokens": 3,
            "input_token_logprobs": [[None, 5], [-0.5, 7], [-2.0, 9]],
        },
    },
    "a prompt of its own beside that of another": {
        "prompt_token_ids": [1, 2],
        "prompt_logprobs": [None, {"2": -1.0}],
        "choices": [{"prompt_token_ids": [5, 7, 9], "prompt_logprobs": PLACES}],
    },
    "a completion": {"choices": [{"text": "bcd", "logprobs": NAMED}]},
    "a choice": {"logprobs": NAMED},
    "an echo beside its prompt": {"choices": [{"prompt_token_ids": [5, 7], "logprobs": NAMED}]},
    "a chat with its prompt": {
        "prompt_token_ids": [5, 7],
        "prompt_logprobs": PLACES[:2],
        "choices": [{"logprobs": {"content": [{"token": "token_id:9", "logprob": -2.0}]}}],
    },
    "vllm with return_token_ids": {
        "choices": [
            {
                "prompt_token_ids": [5, 7],
                "token_ids": [9],
                "logprobs": {"tokens": ["cut otherwise"], "token_logprobs": [-2.0]},
                "prompt_logprobs": PLACES[:2],
            }
        ]
    },
    "an echo with return_token_ids": {
        "choices": [
            {
                "prompt_token_ids": [5, 7],
                "token_ids": [9],
                "logprobs": {**NAMED, "tokens": [*"bcd"]},
            }
        ]
    },
    "a choice with its ids": {
        "prompt_token_ids": [5],
        "token_ids": [7, 9],
        "prompt_logprobs": None,
        "logprobs": {"tokens": ["token_id:7", "token_id:9"], "token_logprobs": [-0.5, -2.0]},
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form, tmp_path):
    assert read_records(write(tmp_path, FORMS[form]), VOCABULARY) == [WANTED]


def test_the_ids_of_places_with_one_token_each_are_those_tokens(tmp_path):
    places = [{"5": -1.0}, {"7": -0.5}, {"9": -2.0}]
    (found,) = read_records(write(tmp_path, {"prompt_logprobs": places}), VOCABULARY)
    assert found.token_ids == (5, 7, 9) and found.start == 1


def test_every_answer_of_several_is_a_text(tmp_path):
    """As with n=2, and with several prompts in one request."""
    other = {**NAMED, "token_logprobs": [None, -0.5, -3.0]}
    chat = [{"token": "token_id:9", "logprob": -3.0}]
    rows: list[Any] = [
        {"choices": [{"logprobs": NAMED}, {"logprobs": other}]},
        {
            "choices": [
                {"prompt_token_ids": [5, 7, 9], "prompt_logprobs": PLACES},
                {"prompt_token_ids": [5, 7], "logprobs": {"content": chat}},
            ]
        },
        {
            "prompt_token_ids": [5, 7],
            "outputs": [
                {"token_ids": [9], "logprobs": [{"9": -2.0}]},
                {"token_ids": [9], "logprobs": [{"9": -3.0}]},
            ],
        },
    ]
    found = read_records(write(tmp_path, *rows), VOCABULARY)
    assert [one.logprobs[2] for one in found] == [-2.0, -3.0] * 3
    assert {one.token_ids for one in found} == {(5, 7, 9)}


def test_texts_stand_a_line_each_or_in_one_list(tmp_path):
    lines = read_records(write(tmp_path, PLAIN, *FORMS.values()), VOCABULARY)
    assert lines == [WANTED] * (1 + len(FORMS))
    path = tmp_path / "list.json"
    path.write_text(json.dumps([PLAIN, PLAIN], indent=1))
    assert read_records(path, VOCABULARY) == [WANTED] * 2


def test_answers_to_one_question_in_a_list_are_a_text_each(tmp_path):
    """As SGLang gives them with n=2, a list a line."""
    batch = [FORMS["sglang"], FORMS["sglang with an answer"]]
    assert read_records(write(tmp_path, batch, batch), VOCABULARY) == [WANTED] * 4


def test_tokens_that_no_model_wrote_have_none(tmp_path):
    """As what a tool has answered, and a place that an engine gave no number."""
    (found,) = read_records(write(tmp_path, change(logprobs=[None, -0.5, None])), VOCABULARY)
    assert found.logprobs == (None, -0.5, None) and found.start == 1


def test_a_last_digit_above_zero_is_a_rounded_sum(tmp_path):
    last = 512 * 2.0**-23  # of logits near a thousand, in float32
    (found,) = read_records(write(tmp_path, change(logprobs=[None, last, -2.0])), VOCABULARY)
    assert found.logprobs[1] == last


def test_the_prompt_beside_an_answer_of_sglang_is_read(tmp_path):
    row = sglang(None, output_token_logprobs=[[-2.0, 9, None]])
    (found,) = read_records(write(tmp_path, {**row, "prompt_token_ids": [5, 7]}), VOCABULARY)
    assert found == TokenRecord(token_ids=(5, 7, 9), logprobs=(None, None, -2.0))


def test_what_separates_lines_in_texts_alone_separates_none(tmp_path):
    path = tmp_path / "record.jsonl"
    row = json.dumps({**PLAIN, "text": "a\u2028b\x85c"}, ensure_ascii=False)
    path.write_text(f"{row}\n{row}\n", "utf-8-sig")  # and the mark at the head is no part of it
    assert read_records(path, VOCABULARY) == [WANTED] * 2


def test_an_answer_alone_is_compared_from_its_first_token(tmp_path):
    row = {"prompt_token_ids": [5, 7], "outputs": [{"token_ids": [9], "logprobs": PLACES[2:]}]}
    (found,) = read_records(write(tmp_path, row), VOCABULARY)
    assert (
        found == TokenRecord(token_ids=(5, 7, 9), logprobs=(None, None, -2.0)) and found.start == 2
    )


def answer(*content: Any, **given: Any) -> dict[str, Any]:
    return {
        "prompt_token_ids": [5],
        "choices": [{"logprobs": {"content": list(content)}}],
        **given,
    }


SEVEN = {"token": "token_id:7", "logprob": -1.0}


def change(**given: Any) -> dict[str, Any]:
    return {**PLAIN, **given}


def places(second: Any) -> dict[str, Any]:
    return {"prompt_token_ids": [5, 7], "prompt_logprobs": [None, second]}


def sglang(prompt: Any, length: Any = 2, **given: Any) -> dict[str, Any]:
    return {"meta_info": {"prompt_tokens": length, "input_token_logprobs": prompt, **given}}


WRONG: list[tuple[Any, str]] = [
    (sglang([[None, 5], [-0.5, 7]], 7), "has 2 input_token_logprobs, and its prompt_tokens are 7;"),
    (
        sglang(None, output_token_logprobs=[[-0.5, 7]]),
        'ask SGLang with "logprob_start_len": 0, or put prompt_token_ids beside meta_info',
    ),
    (sglang([[None, 5], [-0.5, 7]], None), "its prompt_tokens are None; ask SGLang with"),
    (sglang([[None, 5], -0.5]), "has the place -0.5; expected [LOGPROB, ID, TEXT]"),
    (sglang([[None, 5], [-0.5]]), "has the place [-0.5]; expected [LOGPROB, ID, TEXT]"),
    (sglang([[None, 5], [-0.5, 7, "b", 1]]), "expected [LOGPROB, ID, TEXT]"),
    (sglang("no"), "are 'no'; expected a list"),
    (change(logprobs=[None, 0.5, -2.0]), "is 0.5, above 0: expected natural logarithms"),
    (change(logprobs=[None, 1e-3, -2.0]), "is 0.001, above 0: expected natural logarithms"),
    (change(logprobs=[None, False, -2.0]), "is False; expected a number"),
    (change(logprobs=[None, float("nan"), -2.0]), "log-probability 1 of text 1"),
    (change(logprobs=[None, float("-inf"), -2.0]), "is -inf: servers write -9999 where"),
    (change(logprobs=[None, 10**400, -2.0]), "above 0: expected natural logarithms"),
    (change(logprobs=[None, -(10**400), -2.0]), "servers write -9999 where they know none"),
    (change(logprobs=[None, -1e308, -2.0]), "is -1e+308: servers write -9999 where"),
    (change(logprobs=[None, -9999.0, -2.0]), "write null there, or record it again"),
    (change(logprobs=[None, "-1.0", None]), "is '-1.0'; expected a number"),
    (change(logprobs=[-1.0, None, None]), "has no log-probability of a token that follows another"),
    (change(logprobs=[None, -1.0]), "has 3 tokens and 2 log-probabilities; expected one log-prob"),
    (change(logprobs=[None, -1.0, -1.0, -1.0]), "has 3 tokens and 4 log-probabilities; expected"),
    (change(logprobs=[None, None, None]), "has no log-probability of a token that follows another"),
    (change(logprobs="no"), "are 'no'; expected a list"),
    (change(token_ids=[5, 7, 500]), "has token 500, the model knows 500 from 0"),
    (change(token_ids=[5, -1, 9]), "has token -1, the model knows 500 from 0"),
    (change(token_ids=[5, 10**400, 9]), "000...000"),
    (change(token_ids=[5, True, 9]), "has the token id True; expected whole numbers"),
    (change(token_ids=[5, "7", 9]), "has the token id '7'; expected whole numbers"),
    ([[1]], 'is [1]; expected {"token_ids"'),
    ({}, "has no keys; expected"),
    ({"text": "a"}, "has the keys text; expected"),
    ({"choices": []}, "has the keys choices; expected"),
    ({"choices": [5]}, "has the keys choices; expected"),
    (places({"8": -1.0}), "has no log-probability of its own token 7 in"),
    ({"prompt_logprobs": [None, {"7": -1.0}]}, "does not say which token stands at 0; ask the"),
    ({"prompt_logprobs": [{"5": -1.0}, {"7": -1.0, "3": -2.0}]}, "which token stands at 1; ask"),
    ({"prompt_token_ids": [5, 7, 9], "prompt_logprobs": PLACES[:2]}, "3 tokens and 2 log-prob"),
    ({"prompt_logprobs": [{"abc": -1.0}]}, "does not say which token stands at 0; ask the"),
    ({"prompt_logprobs": [{"7" * 5000: -1.0}]}, "does not say which token stands at 0; ask the"),
    (answer(SEVEN, None), 'has the token None; expected {"token": TEXT, "logprob": NUMBER}'),
    (answer({"logprob": -1.0}), "with bytes from 0 to 255 where there are any"),
    (answer({**SEVEN, "bytes": [300, -1]}), "with bytes from 0 to 255 where there are any"),
    (answer({**SEVEN, "bytes": [1.0]}), "with bytes from 0 to 255 where there are any"),
    (answer(SEVEN, prompt_token_ids=7), "the prompt_token_ids of text 1 of"),
    ({"prompt_token_ids": 7, "prompt_logprobs": PLACES}, "are 7; expected a list"),
    ({"prompt_token_ids": [[5], 7], "prompt_logprobs": PLACES[:2]}, "the token id [5]; expected"),
    (
        {"prompt_token_ids": [5, 7], "outputs": [{"token_ids": 7, "logprobs": [{}]}]},
        "the token_ids of the output of text 1 of",
    ),
    ({"outputs": [{"token_ids": [9], "logprobs": PLACES[2:]}]}, "without those of its prompt"),
    (
        {"choices": [{"logprobs": NAMED}, {"logprobs": None}]},
        "choices[1] of text 1 of",
    ),
    (
        {"choices": [{"prompt_token_ids": [6, 7], "logprobs": NAMED}]},
        "echoes other tokens than those of prompt_token_ids",
    ),
    (
        {"choices": [{"prompt_token_ids": [5, 6], "logprobs": NAMED}]},
        "echoes other tokens than those of prompt_token_ids",
    ),
    (change(choices=[{}]), "and choices beside them; expected either"),
    (change(outputs=[{}]), "and outputs beside them; expected either"),
    (change(prompt_logprobs=[None]), "and prompt_logprobs beside them; expected either"),
    (change(prompt_token_ids=[1]), "and prompt_token_ids beside them; expected either"),
    (
        {"logprobs": {"tokens": ["token_id:5"], "token_logprobs": [-1.0]}},
        "without those of its prompt",
    ),
    (
        {"logprobs": {"tokens": ["a", "b"], "token_logprobs": [None, -1.0]}},
        "and the model no tokenizer",
    ),
]


@pytest.mark.parametrize(("row", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_told_in_a_line(row, said, tmp_path):
    assert said in refusal(read_records, write(tmp_path, row), VOCABULARY)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty; expected"),
        (b"\n \n", "is empty; expected"),
        (b'{"token_ids": [5, 7], "logprobs": [null, -1]}\nno\n', "line 2 of the record"),
        (b"\xff\xfe", "is no text in UTF-8; expected JSON"),
    ],
)
def test_what_is_no_record_at_all(content, said, tmp_path):
    path = tmp_path / "record.jsonl"
    path.write_bytes(content)
    refuses(said, read_records, path, VOCABULARY)
    refuses("cannot be read: No such file", read_records, tmp_path / "none", VOCABULARY)


def test_records_of_other_tokens_than_the_text_are_refused():
    check_tokens([WANTED], [[5, 7, 9]], "it")
    with pytest.raises(
        UserError, match="text 1 of it has token 7 at 1, the text that was given has 8"
    ):
        check_tokens([WANTED], [[5, 8, 9]], "it")
    refuses("has 3 tokens, the text that was given has 2", check_tokens, [WANTED], [[5, 7]], "it")
    refuses("text that was given has 4;", check_tokens, [WANTED], [[5, 7, 9, 1]], "it")
    refuses("records 2 texts, and 1 were", check_tokens, [WANTED] * 2, [[5, 7, 9]], "it")
    with pytest.raises(
        UserError, match="records 1 texts, and 2 were given; give the texts that were recorded"
    ):
        check_tokens([WANTED], [[5], [6]], "it")


def test_a_record_longer_than_the_context_is_told_without_advice_to_cut_it(tmp_path):
    ids = [index % 100 for index in range(300)]
    path = write(tmp_path, {"token_ids": ids, "logprobs": [None, *[-1.0] * 299]})
    said = refusal(layerlab.gap, "llama", logprobs=path, progress=False)
    assert said.endswith(
        "300 tokens, the context of llama is 256; record texts of 256 tokens at the most"
    )
    assert said.startswith(f"text 1 of {path}")
    for most in (3, None):
        check_lengths([WANTED], most, "it", "its model")


def test_lines_are_read_one_after_another(tmp_path):
    # A million of them at once took 1 GB more.
    path = write(tmp_path, PLAIN, {"token_ids": [1]})
    path.write_text(f"{path.read_text()}\nno JSON")
    refuses("text 2 of", read_records, path, VOCABULARY)
    path.write_text(f"\n{json.dumps(PLAIN)}\n\nno JSON")
    refuses("line 4 of the record .* is not JSON", read_records, path, VOCABULARY)


def test_no_text_is_prepared_that_is_not_read(tmp_path, monkeypatch):
    seen = []

    def look(text, subject):
        seen.extend(text.ids)
        raise UserError("seen")

    monkeypatch.setattr("layerlab.api.gap.sequences", look)
    path = write(tmp_path, *[PLAIN] * (TEXTS + 1))
    refuses("seen", layerlab.gap, "llama", logprobs=path, progress=False)
    assert len(seen) == TEXTS
