"""The gap of two engines as a measure: the rows of its own attribution, and what it refuses."""

import re

import pytest

import layerlab
from layerlab import UserError
from layerlab.numerics.profiles.gap_result import advise
from layerlab.numerics.profiles.operations import OPERATIONS
from layerlab.report.pages.inspection import render

MEASURE = "gap(a='torch-eager',b='autocast-bf16',tokens=24)"
SIZES = {"width": 16, "layers": 2, "heads": 2, "vocab": 64, "context": 32}
IDS = [list(range(24))]


@pytest.fixture(scope="module")
def both():
    """A report with the gap of a model, and what the function says of it."""
    model = layerlab.build("llama", **SIZES, seed=0)
    report = layerlab.inspect(model, measures=[MEASURE], input_ids=IDS, progress=False)
    found = layerlab.gap(model, "torch-eager", "autocast-bf16", input_ids=IDS, progress=False)
    return report, found


@pytest.mark.full
def test_rows_are_those_of_the_function(both):
    report, found = both
    rows = report.frame("gap")
    operations = rows[rows["by"] == "operation"].set_index("part")
    assert set(operations.index) == {one.name for one in found.operations}
    for one in found.operations:
        assert operations["share"][one.name] == pytest.approx(one.share, rel=1e-6, abs=1e-9)
        assert bool(operations["differs"][one.name]) == one.differs
    assert operations["share"].sum() == pytest.approx(found.closure)
    components = rows[rows["by"] == "component"].set_index("part")
    assert list(components.index) == [one.name for one in found.components]
    assert components["share"].sum() == pytest.approx(found.closure)
    assert set(rows["by"]) == {"token", "operation", "component", "layer", "remedy"}


@pytest.mark.full
def test_a_report_has_what_the_command_prints(both):
    report, found = both
    rows = report.frame("gap")
    tokens = rows[rows["by"] == "token"]
    told = [(one.name, pytest.approx(one.value), one.unit) for one in found.difference.values]
    assert list(zip(tokens["part"], tokens["value"], tokens["unit"], strict=True)) == told
    for name, _, _ in told:
        assert name in str(found)
    settings = rows[rows["by"] == "operation"].set_index("part")
    for one in found.operations:
        both = (found.a.tell(one.name), found.b.tell(one.name)) if one.differs else ("", "")
        assert (settings["in_a"][one.name], settings["in_b"][one.name]) == both
        assert settings["meaning"][one.name] == OPERATIONS[one.name]
    (measure,) = (one for one in report.to_dict()["measures"] if one["name"] == "gap")
    assert any(note.endswith(advise(found)) for note in measure["notes"])
    assert all(any(one.summary in note for note in measure["notes"]) for one in (found.a, found.b))


@pytest.mark.full
def test_what_a_remedy_leaves_is_named_so(both):
    report, found = both
    rows = report.frame("gap")
    left = rows[rows["by"] == "remedy"]
    assert left["share"].isna().all() and rows[rows["by"] != "remedy"]["left"].isna().all()
    remedies = [*found.remedies, *found.alone[1:]]
    assert list(left["left_rms"]) == pytest.approx([one.rms for one in remedies])
    assert list(left["left_mean"]) == pytest.approx([one.mean for one in remedies])
    shares = [(one.rms / found.difference.rms) ** 2 for one in remedies]
    assert list(left["left"]) == pytest.approx(shares)
    count = len(found.remedies[-1].operations)
    assert f"all {count} that differ" in set(left["part"])
    assert ", ".join(found.remedies[1].operations) in set(left["part"])


@pytest.mark.full
def test_keys_on_a_chinese_page_stay_as_they_are_typed_with_what_they_mean(both):
    report, _ = both
    page = render(report.to_dict(), "zh")
    (section,) = re.findall(r'<section class="listing" id="gap".*?</section>', page, re.DOTALL)
    for key, meaning in (("context", "以注意力加权的值之和"), ("head", "logits（输出层的结果）")):
        # What is saved as CSV is the key alone.
        cell = f'<th scope="row" data-value="{key}"><code>{key}</code><small>{meaning}</small></th>'
        assert cell in section
    assert '<th scope="row">输出层</th>' in section and '<th scope="row">头</th>' not in section
    assert "上下文长度" not in section and ">按层</summary>" in section
    first = found[0] if (found := re.findall(r"首先要改的：(.*?)</p>", section)) else ""
    assert "<code>" in first and ", " not in first and " and " not in first
    assert "<td>是</td>" in section and "<td>否</td>" in section


@pytest.mark.full
def test_of_one_profile_twice_a_report_says_that_nothing_differs():
    model = layerlab.build("llama", **SIZES, seed=0)
    same = "gap(a='torch-eager',b='torch-eager',tokens=24)"
    report = layerlab.inspect(model, measures=[same], input_ids=IDS, progress=False)
    assert set(report.frame("gap")["by"]) == {"token"}
    (measure,) = (one for one in report.to_dict()["measures"] if one["name"] == "gap")
    assert any("the same to the bit" in note for note in measure["notes"])
    assert not any("closure" in note for note in measure["notes"])


def test_a_profile_that_there_is_not_is_refused_before_a_model_is_loaded():
    with pytest.raises(UserError, match="no profile is called 'vlm'"):
        layerlab.inspect("no-such-model", measures=["gap(b='vlm')"], progress=False)
