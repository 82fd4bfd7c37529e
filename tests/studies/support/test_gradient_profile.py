"""Gradients by block: as means of logarithms over seeds, each arm as deep as it is."""

import pytest

from layerlab.studies.support.gradient_profile import frames, pictures

READ = [
    {"arm": "a", "seed": 1, "start": [1.0, -1.0], "mean": [0.0, -1.0]},
    {"arm": "a", "seed": 2, "start": [2.0, -2.0], "mean": [0.0, -3.0]},
    {"arm": "deep", "seed": 1, "start": [0.0, 0.0, 0.0], "mean": [-1.0, 0.0, 1.0]},
]


def test_each_arm_has_a_line_as_long_as_it_is_deep_at_both_times():
    start, mean = pictures(READ)
    assert (start.name, mean.name) == ("gradient-start", "gradient-mean")
    assert "before the first update" in start.title
    lines = {one["name"]: one for one in mean.data if "name" in one}
    assert lines["a"]["x"] == [1, 2] and lines["deep"]["x"] == [1, 2, 3]
    assert lines["a"]["y"] == pytest.approx([1.0, 0.01])
    assert lines["deep"]["y"] == pytest.approx([0.1, 1.0, 10.0])
    assert pictures([]) == ()


def test_ratios_are_of_first_to_last_with_the_range_of_the_seeds():
    found = frames(READ)
    short, deep = found["gradients"].to_dict("records")
    assert (short["arm"], short["blocks"], short["seeds"]) == ("a", 2, 2)
    assert [short[f"start_{one}"] for one in ("ratio", "least", "most")] == [3.0, 2.0, 4.0]
    assert [short[f"mean_{one}"] for one in ("ratio", "least", "most")] == [2.0, 1.0, 3.0]
    assert deep["mean_ratio"] == -2.0 and deep["start_ratio"] == 0.0
    blocks = found["gradient_blocks"]
    assert list(blocks["block"]) == [1, 2, 1, 2, 3]
    assert list(blocks["mean"])[:2] == pytest.approx([1.0, 0.01])
    assert frames([]) == {}
