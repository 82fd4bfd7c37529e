"""What is said of weights that are no numbers."""

import pytest

from layerlab.report.i18n.language import language
from tests.report.findings.test_find import find
from tests.report.support.reading import card, content, frames


def test_of_weights_alone_nothing_is_said_of_a_stream():
    """Where no text was read, nobody knows how far what is broken reaches."""
    faults = [{"kind": "weights", "layer": 2, "name": "w", "what": "1 NaN of 4"}]
    first = find(content(card(faults=faults, loss_nats=None, tokens=[])), frames())[0]
    assert first.advice.startswith("Load the checkpoint again")


@pytest.mark.parametrize(
    ("kind", "name", "what", "chinese"),
    [
        ("weights", "h.1.weight", "3 of 9 weights not finite", "h.1.weight 的 9 个权重中有 3 个"),
        (
            "stream",
            "output of layer 2",
            "5 of 8 features not finite",
            "第 2 层的输出的 8 个特征中有 5 个",
        ),
    ],
)
def test_in_chinese_counts_stay_with_what_they_count(kind, name, what, chinese):
    faults = [{"kind": kind, "layer": 2, "name": name, "what": what}]
    first = find(content(card(faults=faults, loss_nats=None)), frames())[0]
    assert first.sentence == f"Layer 2: {name} holds {what}"
    assert language("zh").translate(first.sentence) == f"第 2 层：{chinese}非有限"
