"""The gap of two engines as a measure: the rows of its own attribution, and what it refuses."""

import pytest

import layerlab
from layerlab import UserError

PAIR = {"a": "torch-eager", "b": "autocast-bf16", "tokens": 24}
MEASURE = "gap(a='torch-eager',b='autocast-bf16',tokens=24)"
SIZES = {"width": 16, "layers": 2, "heads": 2, "vocab": 64, "context": 32}
IDS = [list(range(24))]


def test_rows_are_those_of_the_function() -> None:
    model = layerlab.build("llama", **SIZES, seed=0)
    report = layerlab.inspect(model, measures=[MEASURE], input_ids=IDS, progress=False)
    rows = report.frame("gap")
    found = layerlab.gap(model, PAIR["a"], PAIR["b"], input_ids=IDS, progress=False)
    operations = rows[rows["by"] == "operation"].set_index("part")
    assert set(operations.index) == {one.name for one in found.operations}
    for one in found.operations:
        assert operations["share"][one.name] == pytest.approx(one.share, rel=1e-6, abs=1e-9)
        assert bool(operations["differs"][one.name]) == one.differs
    assert operations["share"].sum() == pytest.approx(found.closure)
    components = rows[rows["by"] == "component"].set_index("part")
    assert list(components.index) == [one.name for one in found.components]
    assert components["share"].sum() == pytest.approx(found.closure)
    left = rows[rows["by"] == "remedy"]
    assert list(left["part"])[-1] == f"and {len(found.remedies[-1].operations) - 3} more as in a"
    assert list(left["rms"])[-1] == 0
    (measure,) = (one for one in report.to_dict()["measures"] if one["name"] == "gap")
    assert any("nats in the mean" in note for note in measure["notes"])


def test_a_profile_that_there_is_not_is_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(UserError, match="no profile is called 'vlm'"):
        layerlab.inspect("no-such-model", measures=["gap(b='vlm')"], progress=False)
