"""The recipe that docs/adaptation.md shows is one, and its table explains every setting."""

import re
import tomllib
from pathlib import Path

from layerlab.recipes.adaptation import make_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "adaptation.md").read_text("utf-8")


def test_the_recipe_that_is_shown_can_be_read():
    (shown,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    arms = make_recipe(tomllib.loads(shown)).arms()
    ratios = {name: arm.pretrain.ratio for name, arm in arms.items() if arm.pretrain}
    assert ratios == {"replay": (1, 1), "no replay": (1, 0)}


def test_every_setting_is_explained():
    table = PAGE.partition("<!-- settings:")[2]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*?) ?\|$", table, re.MULTILINE)
    assert len(rows) > 60
    assert [name for name, meaning in rows if not meaning.strip()] == []
