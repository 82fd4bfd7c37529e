from layerlab.report.findings.find import find
from tests.report.findings.test_find import SPOT, change
from tests.report.reading import card, content, frames


def test_a_healthy_model_is_told_what_came_nearest():
    tables = change(frames(), "attention", SPOT, logit_max=90.0)
    finding = find(content(), tables)[0]
    assert finding.severity == "info" and finding.value == 90.0
    assert "90 % of the limit 100" in finding.sentence
    assert finding.wanted == ("attention", "healthy", 1, 3, 2)


def test_what_came_nearest_is_not_said_where_a_threshold_is_crossed():
    tables = change(frames("a", "b"), "attention", {"model": "a", "layer": 1}, logit_max=500.0)
    found = find(content(card("a"), card("b")), tables)
    assert [one.id.startswith("nearest") for one in found] == [False, True]
    assert [one.model for one in found] == ["a", "b"]
