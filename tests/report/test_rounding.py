"""What is said of a number format: no verdict that was not tried, and no infinite multiple."""

import re

import numpy as np
import pytest

from tests.report.findings.test_find import change, find, sick
from tests.report.reading import content, frames


def test_of_a_format_of_few_digits_the_finding_is_no_verdict_on_its_inference():
    assert "no verdict" not in sick("answers").advice
    tables = frames()
    tables["logits"] = tables["logits"].replace({"format": {"bf16": "fp8_e4m3"}})
    found = find(content(), change(tables, "logits", {"format": "fp8_e4m3"}, changed=0.3))
    advice = next(one for one in found if one.id.startswith("answers")).advice
    assert "residual stream too" in advice and "--formats mxfp8_e4m3" in advice


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
def test_nothing_is_an_infinite_multiple(small: float):
    """Errors of 0 (an all-zero model) or none at all give no factor to speak of."""
    tables = change(frames(), "logits", {"mode": "as-run"}, error=small, kl=small)
    tables = change(tables, "rounding", {"layer": 2}, mean=small, predicted=small)
    tables = change(tables, "attribution", {"by": "component"}, share=small)
    tables = change(tables, "logits", {"mode": "as-run"}, changed=0.3)
    for finding in find(content(), tables):
        assert not re.search(r"\b(inf|nan)\b", finding.sentence), finding.sentence
