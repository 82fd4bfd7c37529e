"""Readings of an older monitor are read with blocks from 0."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.records.events import renumber
from layerlab.records.layer_names import EMBEDDING

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
KEYS = st.sampled_from(["rows", "readings", "layer", "measure", "text", "kind"])
EVENTS = st.dictionaries(KEYS, VALUES | st.sampled_from(["monitor", "alarm", "growth"]))


def row(measure: str, layer: int | None, head: int | None = None) -> dict[str, Any]:
    return {"layer": layer, "head": head, "measure": measure, "value": 0.5}


def alarm(measure: str, layer: int | None, text: str) -> dict[str, Any]:
    return {"kind": "alarm", "update": 7, "measure": measure, "layer": layer, "text": text}


def test_the_stream_and_gradients_of_an_older_journal_are_shifted_and_attention_is_not():
    rows = [row("score", 0, 1), row("stream_norm", 0), row("growth", 3), row("gradient", None)]
    (event,) = renumber([{"kind": "monitor", "update": 7, "rows": rows}])
    assert "rows" not in event
    assert [(one["measure"], one["layer"]) for one in event["readings"]] == [
        *(("score", 0), ("stream_norm", EMBEDDING), ("growth", 2), ("gradient", None))
    ]


def test_an_alarm_of_an_older_reading_names_the_same_block():
    told = [
        {"kind": "monitor", "update": 7, "rows": []},
        alarm("relative_residual", 3, "after layer 3 only 0.01 of the stream differs"),
        alarm("gradient", 0, "the gradient of layer 0 has norm 3, usual is 1"),
        alarm("score", 1, "the largest score of attention layer 1, head 2 is 120, above 100"),
        alarm("loss", None, "the loss rose to 3, its running median is 2"),
    ]
    assert [(one["layer"], one["text"]) for one in list(renumber(told))[1:]] == [
        (2, "after layer 2 only 0.01 of the stream differs"),
        (EMBEDDING, "the gradient of embedding has norm 3, usual is 1"),
        (1, told[3]["text"]),
        (None, told[4]["text"]),
    ]


def test_a_run_that_was_resumed_by_a_newer_layerlab_is_read_as_one():
    older = {"kind": "monitor", "update": 0, "rows": [row("growth", 1)]}
    newer = {"kind": "monitor", "update": 9, "readings": [row("growth", 0)]}
    told = alarm("growth", 1, "layer 1")
    first, second, third = renumber([older, newer, told])
    assert first["readings"] == second["readings"] == newer["readings"]
    assert third == told


@pytest.mark.full
@settings(max_examples=40)
@given(st.lists(EVENTS))
def test_no_event_is_lost_and_none_that_is_not_a_monitors_is_changed(events):
    found = list(renumber(events))
    assert len(found) == len(events)
    for one, event in zip(found, events, strict=True):
        assert one is event or one == event or event.get("kind") in ("monitor", "alarm")
