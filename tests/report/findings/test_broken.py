"""What is said of weights that are no numbers."""

from tests.report.findings.test_find import find
from tests.report.support.reading import card, content, frames


def test_of_weights_alone_nothing_is_said_of_a_stream():
    """Where no text was read, nobody knows how far what is broken reaches."""
    faults = [{"kind": "weights", "layer": 2, "name": "w", "what": "1 NaN of 4"}]
    first = find(content(card(faults=faults, loss_nats=None, tokens=[])), frames())[0]
    assert first.advice.startswith("Load the checkpoint again")
