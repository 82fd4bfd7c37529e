import pytest

from layerlab.evaluation.paired.answers import SAID, SHOWN, parse_answer
from tests.evaluation.paired.written_samples import sample


@pytest.mark.parametrize(
    ("target", "right"), [("0", "yes"), (1, "no"), ("2", "2"), ("-1", "-1"), ("x", "x")]
)
def test_a_right_answer_is_that_of_its_number_where_there_is_one(target, right):
    assert parse_answer(sample(0, 1, target=target), ()).right == right


def test_an_answer_that_was_written_is_said_as_it_is():
    row = {"doc_id": 0, "doc": {}, "prompt": "2 + 2 =", "target": "4", "responses": ["four"]}
    found = parse_answer(row, ())
    assert (found.said, found.right, found.text, found.sound) == ("four", "4", "2 + 2 =", True)
    other = parse_answer({**row, "options": [" a", " b"], "responses": [[-2], [-1]]}, ())
    assert other.said == "b" and other.asked[2] != found.asked[2]


def test_the_order_of_fields_makes_no_other_question():
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    rows = [{**sample(0, 1), "doc": doc} for doc in (one, other, {"a": 2, "b": 2})]
    first, second, third = (parse_answer(row, ()).asked for row in rows)
    assert first == second and first[0] != third[0] and first[1:] == third[1:]


@pytest.mark.parametrize("more", [0, 1])
def test_what_is_longer_than_is_shown_is_cut_and_marked(more):
    prompt, answer = "p" * (SHOWN + more), "a" * (SAID + more)
    found = parse_answer(sample(0, 1, prompt=prompt, target=answer), ())
    assert found.text == ("..." if more else "") + "p" * SHOWN
    assert found.right == "a" * SAID + ("..." if more else "")
    blank = parse_answer(sample(0, 1, prompt="p" + " " * (2 * SHOWN - 1 + more)), ())
    assert blank.text == ("..." if more else "p")
