import numpy as np
import pytest

from tests.report.findings.test_find import change, find, names
from tests.report.support.reading import card, content, frames


def test_a_model_that_has_seen_the_next_token_loses_nothing_by_a_format():
    """It has no loss of predictions; how its answers move is told."""
    answers = {"format": "bf16", "mode": "as-run"}
    tables = change(frames(), "logits", answers, changed=0.3, kl=0.01, loss_change=0.2)
    (usual,) = find(content(), tables)
    (ahead,) = find(content({**card(), "reads_ahead": True}), tables)
    assert usual.sentence.endswith("positions (beside it fp16 0 %); KL 0.01 nats, loss +0.2 nats")
    assert ahead.sentence.endswith("positions (beside it fp16 0 %); KL 0.01 nats")


def test_answers_are_judged_as_the_model_runs():
    flat = change(frames(), "logits", {"format": "bf16", "mode": "flat"}, changed=0.3)
    assert "answers" not in names(find(content(), flat))


def test_without_results_that_are_all_rounded_nothing_is_said_of_islands():
    tables = change(frames(), "logits", {"format": "fp16", "mode": "flat"}, error=2e-3)
    assert "islands" in names(find(content(), tables))
    for mode in ("flat", "as-run"):
        left = tables["logits"]
        kept = {**tables, "logits": left[left["mode"] == mode]}
        assert "islands" not in names(find(content(), kept))


def test_only_components_are_a_cause_and_only_shares_that_are_numbers():
    part = {"part": "mlp.act", "format": "bf16"}
    tables = change(frames(), "attribution", part, share=0.6)
    assert "cause" in names(find(content(), tables))
    tables["attribution"].loc[tables["attribution"]["part"] == "mlp.act", "by"] = "layer"
    assert "cause" not in names(find(content(), tables))
    assert "cause" not in names(
        find(content(), change(frames(), "attribution", part, share=np.inf))
    )


def test_an_error_or_a_prediction_of_0_is_no_multiple():
    for column in ("mean", "predicted"):
        tables = change(frames(), "rounding", {"layer": 3, "format": "bf16"}, **{column: 0.0})
        assert "predictor" not in names(find(content(), tables))


def test_the_first_layer_that_overflows_is_named_and_what_share_of_the_readings_does():
    tables = frames()
    for layer, name in ((4, "bf16"), (3, "fp16"), (5, "fp16")):
        tables = change(
            tables, "rounding", {"layer": layer, "format": name, "sequence": 1}, mean=np.inf
        )
    (found,) = [one for one in find(content(), tables) if one.id.startswith("unfinite")]
    assert (found.layer, found.kind) == (3, "fp16")
    rows = tables["rounding"]["mean"]
    assert found.value == pytest.approx(float(np.isinf(rows).mean())) and found.threshold == 0
