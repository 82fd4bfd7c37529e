"""Arms are held against each other where they were measured on the same text, and not elsewhere."""

from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_rel

from layerlab.adaptation.pipeline.plan import plan_stages
from layerlab.adaptation.pipeline.stage import StageStore
from layerlab.adaptation.pipeline.summary import Tally
from layerlab.recipes.adaptation import make_recipe
from tests.adaptation.lessons import recipe

ARMS = [{"name": "few"}, {"name": "many", "set": {"vocabulary.size": "+30"}}]


def told(
    folder: Path, held: list[dict[str, Any] | None], arms: list[dict[str, Any]] = ARMS
) -> dict[str, Any]:
    """The summary of two arms whose continued pretraining alone is finished."""
    read = make_recipe(recipe(folder, arm=arms, sft=None))
    stages, shelf = plan_stages(read), StageStore(folder / "stages")
    change = {"value": -0.5, "low": -0.6, "high": -0.4, "units": 9, "per": "document"}
    done = [stage for stage in stages if stage.kind == "pretrain"]
    assert [stage.arms for stage in done] == [("few",), ("many",)]
    for number, (stage, own) in enumerate(zip(done, held, strict=True)):
        result: dict[str, Any] = {"before": {"domain": 3.0}, "after": {"domain": 2.5 - number}}
        result |= {"change": {"domain": change}, "sources": [], "notes": []}
        result |= {} if own is None else {"held": {"domain": own}}
        shelf.of(stage.key).mkdir(parents=True)
        shelf.finish(stage, {"result": result, "events": []}, 1.0)
    content: dict[str, Any] = Tally(read, stages, shelf).content()
    return content


@pytest.mark.parametrize(
    ("held", "alike"),
    [
        ([{"digest": "a", "whole": False}, {"digest": "b", "whole": False}], False),
        ([{"digest": "a", "whole": True}, {"digest": "b", "whole": False}], False),
        ([{"digest": "a", "whole": True}, {"digest": "b", "whole": True}], True),
        ([{"digest": "a", "whole": False}, {"digest": "a", "whole": False}], True),
        ([None, None], True),
    ],
)
def test_arms_that_read_other_parts_are_not_held_against_each_other(tmp_path, held, alike):
    content = told(tmp_path, held)
    against = [one for one in content["changes"] if one["against"] == "few"]
    assert [one["value"] for one in against] == ([-1.0] if alike else [])
    said = [one for one in content["remarks"] if "is not held against" in one]
    assert (said == []) == alike
    moved = [one for one in content["changes"] if one["against"] == "before"]
    assert [(one["arm"], one["value"]) for one in moved] == [("few", -0.5), ("many", -1.5)]
    for one in moved:  # of one seed, over held-out text
        assert (one["low"], one["high"], one["n"], one["over"]) == (-0.6, -0.4, 9, "documents")


def test_arms_with_other_held_out_text_are_not_held_against_each_other(tmp_path):
    whole = [{"digest": name, "whole": True} for name in ("a", "b")]
    arms = [{"name": "few"}, {"name": "many", "set": {"data.validation_fraction": 0.3}}]
    content = told(tmp_path, list(whole), arms)
    assert {one["against"] for one in content["changes"]} == {"before"}


def test_over_several_seeds_a_change_is_their_mean_with_students_interval(tmp_path):
    content = recipe(tmp_path, sft=None)
    content["pretrain"]["seeds"] = [1, 2, 3]
    read = make_recipe(content)
    stages, shelf = plan_stages(read), StageStore(tmp_path / "stages")
    before, after = (3.0, 3.2, 3.1), (2.5, 2.3, 2.9)
    done = [stage for stage in stages if stage.kind == "pretrain"]
    for stage, first, last in zip(done, before, after, strict=True):
        ends = {"before": {"domain": first}, "after": {"domain": last}, "sources": [], "notes": []}
        shelf.of(stage.key).mkdir(parents=True)
        shelf.finish(stage, {"result": {**ends, "change": {"domain": {}}}, "events": []}, 1.0)
    (one,) = Tally(read, stages, shelf).content()["changes"]
    test = ttest_rel(after, before)
    interval = test.confidence_interval(0.95)
    assert (one["n"], one["over"], one["against"]) == (3, "seeds", "before")
    assert one["value"] == pytest.approx(sum(after) / 3 - sum(before) / 3)
    assert (one["low"], one["high"]) == pytest.approx((interval.low, interval.high))
    assert (one["before"], one["after"]) == pytest.approx((3.1, sum(after) / 3))


def test_a_base_without_a_recipe_may_have_learned_anything(tmp_path):
    """One that is trained here tells what it learned; a folder does not."""
    shelf = StageStore(tmp_path / "stages")
    remarks = {
        name: Tally(make_recipe(content), (), shelf).content()["remarks"]
        for name, content in (
            ("trained", recipe(tmp_path)),
            ("folder", recipe(tmp_path, base={"model": "some/folder"})),
        )
    }
    (line,) = (one for one in remarks["folder"] if one not in remarks["trained"])
    assert line.startswith("what the base some/folder was trained on is not known here")
