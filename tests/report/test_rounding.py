"""What is said of a number format: no verdict that was not tried, and no infinite multiple."""

import re

import numpy as np
import pytest

from layerlab.report.results.report import Report
from tests.report.findings.test_find import change, find, sick
from tests.report.support.reading import content, frames
from tests.report.views.inspection.test_frames import view


def test_of_a_format_of_few_digits_the_finding_is_no_verdict_on_its_inference():
    assert "no verdict" not in sick("answers").advice
    for name, told in {"fp8_e4m3": True, "fp8_e4m3:channel": False}.items():
        tables = frames()
        tables["logits"] = tables["logits"].replace({"format": {"bf16": name}})
        found = find(content(), change(tables, "logits", {"format": name}, changed=0.3))
        advice = next(one for one in found if one.id.startswith("answers")).advice
        assert ("residual stream too" in advice) == told
        assert ("--formats fp8_e4m3:channel" in advice) == told


def test_of_texts_of_unequal_length_every_position_counts_alike():
    """Of 90 + 10 positions 9 + 8 change: 17 %, where the mean of the texts is 45 %."""
    given, tables = content(), frames()
    rows = tables["logits"]
    two = rows[rows["sequence"] < 2].copy()
    assert set(two["sequence"]) == {0, 1}
    two["changed"] = np.where(two["sequence"] == 0, 0.1, 0.8)
    two["kl"], two["loss_change"] = two["changed"], 0.0
    for card in given["models"]:
        card["tokens"] = [90, 10]
    found = find(given, {**tables, "logits": two})
    sentence = next(one for one in found if one.id.startswith("answers")).sentence
    assert "17 % of the positions" in sentence and "KL 0.17 nats" in sentence
    # The table of the page has the same number.
    (group,) = view(Report(given, {**tables, "logits": two}).to_dict(), "logits")["table"]["groups"]
    at = group["heads"].index("changed") - group["axes"]
    assert {row["cells"][at] for row in group["rows"]} == {0.17}


def test_a_part_in_float32_is_judged_by_all_positions_too():
    """Of 90 + 10 positions the error is twice as large with flat rounding, at 10 fifty times."""
    given, tables = content(), frames()
    tables = change(tables, "logits", {}, error=1.0)
    tables = change(tables, "logits", {"sequence": 0, "mode": "flat"}, error=2.0)
    tables = change(tables, "logits", {"sequence": 1, "mode": "flat"}, error=50.0)
    tables["logits"] = tables["logits"][tables["logits"]["sequence"] < 2]
    for card in given["models"]:
        card["tokens"] = [90, 10]
    found = next(one for one in find(given, tables) if one.id.startswith("islands"))
    assert found.value == pytest.approx(0.9 * 2 + 0.1 * 50)


def test_samples_that_overflow_are_what_is_said_of_a_format():
    """Their divergence is no number; of the rest bf16 would seem to be the worse one."""
    given, tables = content(), frames()
    broken = {"format": "fp16", "mode": "as-run", "sequence": 0}
    tables = change(tables, "logits", {"mode": "as-run"}, changed=0.02)
    tables = change(tables, "logits", broken, changed=0.06, kl=np.nan, loss_change=np.nan)
    for card in given["models"]:
        card["tokens"] = [10] * 9
    found = next(one for one in find(given, tables) if one.id.startswith("answers"))
    assert found.severity == "warning" and found.sentence.startswith("In fp16 another token")
    assert "bf16 2 %" in found.sentence
    assert found.sentence.endswith("KL and loss are not finite")


@pytest.mark.parametrize("small", [0.0, np.inf, np.nan])
def test_nothing_is_an_infinite_multiple(small):
    """Errors of 0 (an all-zero model) or none at all give no factor to speak of."""
    tables = change(frames(), "logits", {"mode": "as-run"}, error=small, kl=small)
    tables = change(tables, "rounding", {"layer": 2}, mean=small, predicted=small)
    tables = change(tables, "attribution", {"by": "component"}, share=small)
    tables = change(tables, "logits", {"mode": "as-run"}, changed=0.3)
    for finding in find(content(), tables):
        assert not re.search(r"\b(inf|nan)\b", finding.sentence), finding.sentence
