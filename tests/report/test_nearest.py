import pytest

from layerlab.report.findings.find import find
from tests.report.findings.test_find import SPOT, change
from tests.report.support.reading import LAYERS, card, content, frames


def test_a_healthy_model_is_told_what_came_nearest():
    tables = change(frames(), "attention", SPOT, logit_max=90.0)
    finding = find(content(), tables)[0]
    assert finding.severity == "info" and finding.value == 90.0
    assert finding.sentence == (
        "Nothing crosses a threshold. Nearest: the largest attention score, 90 of 100 "
        "(layer 3 head 2)"
    )
    assert finding.wanted == ("attention", "healthy", 1, 3, 2)


@pytest.mark.parametrize(("ratio", "measure"), [(2.6, "attention"), (2.8, "spectrum")])
def test_nearest_is_what_has_the_most_of_its_own_threshold(ratio, measure):
    """90 of 100 is less than 2.8 of 3, and more than 2.6 of 3."""
    tables = change(frames(), "attention", SPOT, logit_max=90.0)
    tables = change(tables, "spectrum", SPOT, uniform_ratio=ratio)
    (finding,) = find(content(), tables)
    assert finding.measure == measure
    assert (finding.value, finding.threshold) == {
        "attention": (90.0, 100.0),
        "spectrum": (2.8, 3.0),
    }[measure]


@pytest.mark.full
def test_what_came_nearest_is_not_said_where_a_threshold_is_crossed():
    tables = change(frames("a", "b"), "attention", {"model": "a", "layer": 1}, logit_max=500.0)
    found = find(content(card("a"), card("b")), tables)
    assert [one.id.startswith("nearest") for one in found] == [False, True]
    assert [one.model for one in found] == ["a", "b"]


@pytest.mark.full
def test_a_stream_that_is_long_within_and_short_at_its_end_crosses_nothing():
    stream = frames()["stream"].assign(growth=2.0)
    healthy = {**frames(), "stream": stream}
    tables = change(healthy, "stream", {"layer": 2}, growth=150.0)
    finding = find(content(), tables)[0]
    assert finding.column != "growth" and "150" not in finding.sentence
    last = {"layer": LAYERS - 1}
    tables = change(healthy, "stream", last, growth=97.0)
    tables = change(tables, "stream", {**last, "sequence": 1}, growth=99.0)
    finding = find(content(), tables)[0]
    assert ", 98 of 100 (" in finding.sentence and finding.layer == LAYERS - 1
