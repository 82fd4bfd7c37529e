"""The page of results tells what adaptations came to, and keeps of them what it shows."""

import json
import runpy
from pathlib import Path

import pathspec

from layerlab.recipes.adaptation import load_adaptation
from layerlab.report.pages.adaptation import save_adaptation
from tests.report.support.passed import passed

ROOT = Path(__file__).resolve().parents[2]
adapted = runpy.run_path(str(ROOT / "docs" / "adapted.py"))["adapted"]
RECIPE = load_adaptation("yunshan-mini")


def test_a_recipe_that_has_not_run_says_so(tmp_path):
    page = adapted(tmp_path, [RECIPE])
    assert page.startswith("## yunshan-mini\n")
    assert "**Not run yet.** `layerlab adapt yunshan-mini --out docs/results`" in page
    assert "for another device (cuda)" in adapted(tmp_path, [load_adaptation("yunshan")])


def test_a_result_is_told_with_its_scores_and_what_was_forgotten(tmp_path):
    save_adaptation({**passed(), "name": RECIPE.name}, tmp_path / RECIPE.name)
    page = adapted(tmp_path, [RECIPE])
    for said in (
        "4 of 4 stages are finished",
        "|  | unit | base | tune (replay) | chance |",
        "| LawBench (domain) | % | 25.0 ± 2.0 | - | - |",
        "The scores are of 100 of LawBench, 75 of C-Eval questions.",
        "- replay, forgetting: +0.1000 bits per byte (95 % interval +0.0500 to +0.1500, over 2",
        "![General text: yunshan-mini](yunshan-mini/pictures/general.svg)",
        "- FinEval: it is not here",
        "layerlab adapt yunshan-mini --out docs/results",
    ):
        assert said in page, said


def test_scores_are_held_against_chance(tmp_path):
    content = {**passed(), "name": RECIPE.name}
    content["recipe"] = {"evaluate": {"limit": 5}}
    row = content["table"]["rows"][1]
    for score, said in ((0.4, "1 lies"), (0.3, "0 lie"), (0.0, "1 lies")):
        row["cells"] = [{"score": score, "error": 0.07, "n": 50}]
        save_adaptation(content, tmp_path / RECIPE.name)
        page = adapted(tmp_path, [RECIPE])
        assert "At most 5 questions of each subject are asked." in page
        assert f"A guess scores 25 on C-Eval; of 1 scores there {said} further from that" in page
        assert "0.1 would by chance alone: nothing is decided." in page


def test_of_an_adaptation_its_result_and_its_pictures_are_kept(tmp_path):
    place = tmp_path / RECIPE.name
    save_adaptation(passed(), place)
    (place / "stages" / "base-1").mkdir(parents=True)
    (place / "stages" / "base-1" / "stage.json").write_text(json.dumps({}))
    rules = (ROOT / "docs" / "results" / ".gitignore").read_text("utf-8").splitlines()
    ignored = pathspec.GitIgnoreSpec.from_lines(rules)
    files = (path.relative_to(tmp_path).as_posix() for path in place.rglob("*") if path.is_file())
    kept = {Path(path).name for path in files if not ignored.match_file(path)}
    assert kept == {"result.json", "domain.svg", "general.svg"}
