"""Arms are held against each other where they were measured on the same text, and not elsewhere."""

from pathlib import Path
from typing import Any

import pytest

from layerlab.adaptation.pipeline.plan import plan_stages
from layerlab.adaptation.pipeline.stage import StageStore
from layerlab.adaptation.pipeline.summary import Tally
from layerlab.recipes.adaptation import make_recipe
from tests.adaptation.lessons import recipe

ARMS = [{"name": "few"}, {"name": "many", "set": {"vocabulary.size": "+30"}}]


def told(folder: Path, held: list[dict[str, Any] | None]) -> dict[str, Any]:
    """The summary of two arms whose continued pretraining alone is finished."""
    read = make_recipe(recipe(folder, arm=ARMS, sft=None))
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
    assert len([one for one in content["changes"] if one["against"] == "before"]) == 2


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
