"""What a terminal says of a saliency: the prediction, and the tokens that it hangs on."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from layerlab.loading import token_text
from layerlab.records.layer_names import EMBEDDING
from layerlab.report.results.report import Report
from layerlab.report.results.saliency_summary import saliency_answers
from layerlab.report.views import text
from tests.report.support.looked import looked
from tests.report.support.reading import content, frames, measures
from tests.report.support.sample import sample


def printed(report, width=80):
    stream = io.StringIO()
    shown = Console(file=stream, width=width, force_terminal=False)
    shown.print(Report(report).table())
    return stream.getvalue()


def chinese(report):
    """The same with a prompt in Chinese, whose first character is three tokens."""
    words = ["◌", "◌", "我", "爱", "北京", "的", "冬", "天", "很", "冷", "，"]
    for name, picture in report["pictures"]["saliency"].items():
        picture["tokens"] = words
        rows = report["frames"]["saliency"]["data"]
        for row, (model, layer, place) in enumerate(
            zip(rows["model"], rows["layer"], rows["position"], strict=True)
        ):
            if model == name:
                rows["token"][row] = words[place]
                first = {0: 6.0, 3: 3.0, 4: 1.0}
                rows["l1"][row] = first.get(place, 0.0) if layer == EMBEDDING else 9.0
    return report


def test_the_prediction_and_the_largest_tokens_of_each_model_are_told():
    report = looked()
    for number, picture in enumerate(report["pictures"]["saliency"].values()):
        likely = [" King", " a" * (number + 1), ","]
        picture["predictions"] = [
            {"id": 7, "token": word, "probability": 0.5 / 2**rank, "logit": 1.0, "rank": rank + 1}
            for rank, word in enumerate(likely)
        ]
    shown = printed(chinese(report))
    assert "What the next token hangs on" in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "pre-norm ␣King 0.5 ◌我 0 60 %" in lines
    assert "␣a 0.25 爱 3 30 %" in lines and ", 0.125 北京 4 10 %" in lines
    assert "llama ␣King 0.5 ◌我 0 60 %" in lines and "␣a␣a 0.25 爱 3 30 %" in lines
    assert any(line.startswith("pre-norm: logit of") and "rank 2" in line for line in lines)


@pytest.mark.parametrize("width", [80, 60])
def test_nothing_is_wider_than_the_terminal_and_nothing_steers_it(width):
    report = looked(["a" * 60, "llama"])
    (measure,) = [one for one in report["measures"] if one["name"] == "saliency"]
    measure["notes"] = ["llama: the target ' x\x1b[31m' is 2 tokens here: the first, ' ', is asked"]
    shown = printed(report, width)
    assert all(cell_len(line) <= width for line in shown.splitlines())
    assert "\x1b" not in shown and "\u202e" not in shown
    assert "the target ' x" in shown


def test_an_older_report_has_one_prediction_and_one_without_a_picture_none():
    report = looked(["llama"])
    lines = [" ".join(line.split()) for line in printed(report).splitlines()]
    assert any(line.startswith("llama ␣King 0.25") for line in lines)
    assert saliency_answers({**sample(["a"]), "pictures": {}}, None) == []
    for row in range(len(report["frames"]["saliency"]["data"]["l1"])):
        report["frames"]["saliency"]["data"]["l1"][row] = 0.0
    assert " none" in printed(report)


def test_a_question_that_was_not_answered_stands_out():
    reason = "the prompt has 602 tokens, and the context of healthy is 256"
    whole = content(measures=measures(gain="its rows do not sum to 1"))
    gap = {"model": "healthy", "reason": reason}
    whole["measures"] += [{"name": "saliency", "columns": {}, "per": [], "not_applicable": [gap]}]
    stream = io.StringIO()
    shown = Console(file=stream, width=200, force_terminal=True, color_system="standard")
    shown.print(Report(whole, frames()).table())
    (said,) = [line for line in stream.getvalue().splitlines() if reason in line]
    (other,) = [line for line in stream.getvalue().splitlines() if "do not sum to 1" in line]
    assert said.startswith("\x1b[33m") and other.startswith("\x1b[2m")


def test_a_page_knows_the_mark_of_a_part_as_measures_write_it():
    assert text.PART == token_text.PART
