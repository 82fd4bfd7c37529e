from tests.report.findings.test_find import change, find
from tests.report.support.reading import card, content, frames


def test_a_model_that_has_seen_the_next_token_loses_nothing_by_a_format():
    """It has no loss of predictions; how its answers move is told."""
    answers = {"format": "bf16", "mode": "as-run"}
    tables = change(frames(), "logits", answers, changed=0.3, kl=0.01, loss_change=0.2)
    (usual,) = find(content(), tables)
    (ahead,) = find(content({**card(), "reads_ahead": True}), tables)
    assert usual.sentence.endswith("positions (beside it fp16 0 %); KL 0.01 nats, loss +0.2 nats")
    assert ahead.sentence.endswith("positions (beside it fp16 0 %); KL 0.01 nats")
