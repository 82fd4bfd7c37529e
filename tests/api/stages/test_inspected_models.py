from dataclasses import replace
from typing import Any

import pytest

from layerlab.api.stages.inspected_models import InspectedModel, InspectionRequest, make_report
from layerlab.loading.text_input import TextInput
from layerlab.measures.readings import Readings
from layerlab.plugins import resolve
from layerlab.report.views.command import inspect
from layerlab.system.untrusted.trust import trust
from tests.report.support.reading import card

(STREAM,) = resolve(["stream"])
JOB = InspectionRequest(
    models=["a", "b"],
    passage=TextInput(source="law.txt", texts=("Void.",), samples=2, context=12),
    measures=[STREAM],
    device="cpu",
    dtype="bfloat16",
    load=["mine.py"],
)


def part(name: str, *, loss: float | None = 2.5, tokens: str = "t", **found: Any) -> InspectedModel:
    """A model with one row of the stream, where it is not told otherwise."""
    row = {"sequence": 0, "layer": 0, **dict.fromkeys(STREAM.columns, 1.0)}
    found = {"rows": {"stream": [row]}, **found}
    described = card(name, source=f"models/{name}", loss_nats=loss)
    text = [{"index": index, "tokens": 12, "excerpt": "Void."} for index in range(2)]
    return InspectedModel(described, Readings(**found), text, tokens)


def test_the_command_of_a_report_is_what_was_asked_for():
    job = replace(JOB, measures=resolve(["dimension(epsilon=0.8)"]))
    with trust(True, allow_unused=True):
        report = make_report([part("a", rows={}), part("b", rows={})], job)
    assert inspect(report.to_dict()) == (
        "layerlab inspect models/a models/b --text law.txt --samples 2 --context 12 "
        "--measures 'dimension(epsilon=0.8)' --device cpu --dtype bfloat16 --load mine.py "
        "--trust-remote-code --allow-unused"
    )


def test_of_every_model_rows_reasons_notes_and_pictures_are_kept():
    parts = [
        part("a", notes={"stream": ["a: rounded"]}, pictures={"stream": {"of": "a"}}),
        part("b", notes={"stream": ["rounded"]}, pictures={"stream": {"of": "b"}}),
        part("c", rows={}, refused={"stream": "it has none"}),
    ]
    report = make_report(parts, JOB)
    (declared,) = report.to_dict()["measures"]
    assert report.frame("stream")["model"].tolist() == ["a", "b"]
    assert declared["notes"] == ["a: rounded", "b: rounded"]
    assert declared["not_applicable"] == [{"model": "c", "reason": "it has none"}]
    assert report.to_dict()["pictures"] == {"stream": {"a": {"of": "a"}, "b": {"of": "b"}}}


@pytest.mark.parametrize(
    ("refused", "named", "there"),
    [("ab", False, False), ("a", False, True), ("ab", True, True)],
)
def test_a_rare_measure_that_no_model_has_is_left_out_unless_it_is_named(refused, named, there):
    job = replace(JOB, measures=[replace(STREAM, rare=True)], named=named)
    why = {"stream": "it has none"}
    parts = [part(one, rows={}, refused=why) if one in refused else part(one) for one in "ab"]
    assert bool(make_report(parts, job).to_dict()["measures"]) is there


def test_what_models_without_a_loss_have_read_is_not_remarked_on():
    parts = [part("a"), part("b", loss=None, tokens="others")]
    assert make_report(parts, JOB).to_dict()["text"]["remarks"] == []
    parts[0].text.pop()
    (said,) = make_report(parts, JOB).to_dict()["text"]["remarks"]
    assert "it has 1 of 2 samples" in said
