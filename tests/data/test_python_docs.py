"""Python's documentation as documents: nothing of it is told twice."""

from layerlab.data.python_docs import HEADING, topics


def test_a_paragraph_stands_in_one_topic_and_a_heading_in_several():
    found = topics()
    paragraphs = [" ".join(one.split()) for text in found for one in text.split("\n\n")]
    long = [one for one in paragraphs if len(one) > HEADING]
    assert len(set(long)) == len(long) > 1000
    assert len(set(paragraphs)) < len(paragraphs)
    assert all(any(len(one) > HEADING for one in text.split("\n\n")) for text in found)
