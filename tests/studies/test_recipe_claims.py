"""Claims about training as studies: runs that lie there are judged, none is made in secret."""

import json
import re
import shutil
from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.recipes.paths import KEPT
from layerlab.recipes.training import load_recipe, make_recipe
from layerlab.records.result import LOSSES
from layerlab.report.pages.study import list_settings, render
from layerlab.studies import recipe_claims
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.runner import study
from layerlab.studies.support.training_facts import runs_in, settings_of
from layerlab.training.checkpoints.result import write_result

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
NAME = "norm-placement"
QUIET = {"progress": False, "fast": True}


def small(**changes):
    """A comparison of a second, in this process: two arms, three seeds, and what is claimed."""
    sizes = {"width": 16, "layers": 1, "heads": 2, "context": 16, "variant": "llama"}
    arms = [{"name": "llama"}, {"name": "short", "variant": "llama", "set": {"train.max_steps": 1}}]
    claims = [
        {
            "source": "Own",
            "statement": "One update is worse.",
            "relation": "worse",
            "arms": ["short"],
        },
        {"source": "Own", "statement": "It is better.", "relation": "better", "arms": ["short"]},
    ]
    return make_recipe(
        {
            "name": "tiny",
            "about": "Too few updates.",
            "model": sizes,
            "train": {"max_steps": 20, "batch_size": 4, "learning_rate": 0.01},
            "evaluate": {"max_eval_blocks": 8},
            "compare": {
                "arms": arms,
                "seeds": [1, 2, 3],
                "lockstep": True,
                "claims": claims,
                "allowed_differences": ["train.*", "evaluate.*"],
            },
            **changes,
        }
    )


def test_a_study_of_other_claims_is_not_the_one_that_was_kept(tmp_path):
    one, same = (recipe_claims.make_study(small()).inputs(tmp_path) for _ in range(2))
    claims = [{**vars(claim), "margin": 0.5} for claim in small().compare.claims]
    changed = small().change({"compare.claims": claims})
    assert one == same != recipe_claims.make_study(changed).inputs(tmp_path)


def test_a_study_of_a_text_that_came_later_is_not_the_one_that_was_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    one = studies()["eight-residuals-twin"]
    before, place = one.inputs(tmp_path), tmp_path / KEPT["brown"]
    place.parent.mkdir(parents=True)
    place.write_text("A text.")
    assert one.inputs(tmp_path) != before


def test_every_recipe_with_claims_is_a_study_unless_it_needs_a_gpu():
    names = set(studies())
    assert {"eight-residuals-twin", "batch-confound", "norm-placement"} <= names
    assert not {"eight-residuals", "pangu-ablation", "pangu-h100", "peers", "smoke"} & names
    one = studies()["eight-residuals-twin"]
    claims = load_recipe("eight-residuals-twin").compare.claims
    assert one.claim == claims[0].statement and one.draws == 3 and one.unit == "seeds"
    assert all(claim.source in one.source for claim in claims)


@pytest.mark.full
def test_stored_runs_are_judged_as_the_comparison_did():
    found = study(NAME, runs=RESULTS, **QUIET)
    stored = json.loads((RESULTS / NAME / "comparison.json").read_text())["claims"]
    assert [one["word"] for one in found.verdicts] == [one["verdict"] for one in stored]
    for verdict, claim in zip(found.verdicts, stored, strict=True):
        assert claim["said"].endswith(verdict["said"]) and verdict["source"] == claim["source"]
        # Their last digits are a library's of linear algebra.
        pairs = [pair["difference"] for pair in claim["pairs"]]
        assert any(verdict["number"] == pytest.approx(one, rel=1e-9) for one in pairs)
    gap, curve, start, mean = found.to_dict()["pictures"]
    assert (start["name"], mean["name"]) == ("gradient-start", "gradient-mean")
    arms = found.frame("arms")
    assert list(found.frame("gradients")["arm"]) == list(arms["arm"])
    assert len(gap["data"][0]["y"]) == arms["difference"].notna().sum()
    assert len({one["name"] for one in curve["data"] if "name" in one}) == len(arms)


def change_rates(runs):
    """Give runs a learning rate that the recipe does not have."""
    for run in runs:
        manifest = json.loads((run / "manifest.json").read_text("utf-8"))
        manifest["recipe"]["train"]["rate"] = 5e-4
        (run / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.full
def test_the_fast_mode_judges_no_run_of_another_recipe(tmp_path):
    shutil.copytree(RESULTS / NAME, tmp_path / NAME)
    runs = recipe_claims.finished_runs(tmp_path / NAME)
    change_rates(runs[:1])
    found = study(NAME, runs=tmp_path, **QUIET).to_dict()
    assert found["trainings"]["runs"] == len(runs) - 1
    why = "left out, because train.learning_rate is 0.0005 there and 0.003 in the recipe"
    assert f"{why}: {runs[0].name}" in found["remarks"]
    change_rates(runs)
    with pytest.raises(UserError, match=f"no run in .* is of the recipe '{NAME}': {why}"):
        study(NAME, runs=tmp_path, **QUIET)


@pytest.mark.full
def test_a_claim_has_the_seeds_that_its_own_runs_have(tmp_path):
    shutil.copytree(RESULTS / NAME, tmp_path / NAME)
    runs = recipe_claims.finished_runs(tmp_path / NAME)
    change_rates([next(run for run in runs if run.name.startswith("pre-norm-36"))])
    found = study(NAME, runs=tmp_path, **QUIET)
    assert [one["unit"] for one in found.verdicts][:3] == ["5 seeds", "4 seeds", "4 to 5 seeds"]


def test_settings_are_told_under_their_names_of_today_and_of_0_1(tmp_path):
    for name, train in (("new", {"batch_size": 8, "learning_rate": 0.1}), ("old", {"batch": 8})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps({"recipe": {"train": train}}))
    told = settings_of([tmp_path / "new", tmp_path / "old"])
    assert (told["sequences per update"], told["learning rate"]) == ("8", "0.1")


def test_where_nothing_has_run_nothing_is_decided(tmp_path):
    found = study(NAME, runs=tmp_path, **QUIET)
    assert found.verdict == "not decided" and found.number == 0 and found.frames == {}
    assert {one["unit"] for one in found.verdicts} == {"0 seeds"}
    assert f"type layerlab compare {NAME} --out {tmp_path}" in found.verdicts[0]["said"]
    assert [*tmp_path.iterdir()] == []
    # What to type is said once, and a page has no tables without a table.
    page = render(found.to_dict())
    assert page.count("type layerlab compare") == 1 and 'id="tables"' not in page
    assert f"layerlab study {NAME} --fast --runs {tmp_path}" in re.sub("</?span>", "", page)


def test_time_machine_and_recipe_are_those_of_the_runs():
    found = study("batch-confound", runs=RESULTS, **QUIET).to_dict()
    runs = [*(RESULTS / "batch-confound" / "runs").iterdir()]
    hours = sum(json.loads((run / "result.json").read_text())["seconds"] for run in runs) / 3600
    assert found["trainings"]["hours"] == pytest.approx(hours, abs=0.01) and hours > 0.5
    assert found["trainings"]["runs"] == len(runs) == 12
    assert found["trainings"]["processor"] == "AMD EPYC" and found["trainings"]["threads"] == "1"
    assert load_recipe("batch-confound").about in found["remarks"]
    assert found["recipe"]["text"] == "brown" and found["recipe"]["updates"] == "150, 300"
    assert found["recipe"]["parameters"] == "1,410,688" and found["recipe"]["width"] == "128"
    said = dict(list_settings(found))
    assert said["runs judged"] == 12 and said["seeds"] == 3 and "draws" not in said
    assert said["wall seconds of judging"] == found["time"]["wall seconds"]
    assert "wall seconds" not in said and "all" not in said


def test_the_pictures_of_a_comparison_are_of_its_rows_and_of_the_runs_of_each_arm():
    found = study("batch-confound", runs=RESULTS, **QUIET)
    gap, curve = found.to_dict()["pictures"][:2]
    rows = found.frame("arms").dropna(subset="difference").sort_values("difference")
    (drawn,) = gap["data"]
    assert (drawn["y"], drawn["x"]) == (list(rows["arm"]), list(rows["difference"]))
    spans = drawn["error_x"]
    assert spans["array"] == pytest.approx(list(rows["high"] - rows["difference"]))
    assert spans["arrayminus"] == pytest.approx(list(rows["difference"] - rows["low"]))
    lines = {one["name"]: one for one in curve["data"] if "name" in one}
    assert len({one["line"]["color"] for one in lines.values()}) == len(lines) == 4
    for row in rows.itertuples():  # every other batch is half as large, and evaluated as often
        assert len(lines[row.arm]["x"]) == (6 if "half" in row.arm else 3)


def test_a_curve_is_the_mean_and_range_of_chosen_runs_where_all_were_evaluated():
    def run(tokens, *nats, chosen=True):
        return {"chosen": chosen, "evaluation": {"tokens": tokens, "nats": nats}}

    whole, longer = run([0, 10, 20], 9.0, 2.0, 3.0), run([0, 10, 20, 30], 9.0, 4.0, 1.5, 1.0)
    left = [run([10, 20], 8.0, 8.0, chosen=False), {"chosen": True, "evaluation": {}}]
    found = recipe_claims.mean_and_range([whole, longer, *left], {"metric": "nats"})
    assert found == {"x": [10, 20], "y": [3.0, 2.25], "low": [2.0, 1.5], "high": [4.0, 3.0]}
    assert recipe_claims.mean_and_range(left, {"metric": "nats"}) is None


def test_what_a_run_did_not_leave_is_not_known(tmp_path):
    (tmp_path / "result.json").write_text("[]")
    assert runs_in([tmp_path])["hours"] == 0 and settings_of([tmp_path])["width"] == "–"


@pytest.mark.full
def test_the_full_mode_trains_what_is_missing_and_the_fast_one_then_agrees(tmp_path, monkeypatch):
    recipe = small()
    monkeypatch.setattr(recipe_claims, "load_recipe", lambda name: recipe)
    one = recipe_claims.make_study(recipe)
    monkeypatch.setattr("layerlab.studies.engine.runner.studies", lambda: {"tiny": one})
    # What was said before anything had run keeps nobody from running it.
    early = study("tiny", runs=tmp_path / "runs", out=tmp_path / "out", **QUIET)
    assert early.verdict == "not decided"
    full = study("tiny", runs=tmp_path / "runs", out=tmp_path / "out", progress=False)
    assert [verdict["word"] for verdict in full.verdicts] == ["holds", "fails"]
    assert (tmp_path / "runs" / "tiny" / "comparison.json").is_file()
    assert full.number > 0 and full.to_dict()["settings"]["draws"] == 3
    fast = study("tiny", runs=tmp_path / "runs", **QUIET)
    assert fast.verdicts == full.verdicts
    # The result stands while the runs do, and is judged anew when one of them changes.
    again = study("tiny", runs=tmp_path / "runs", out=tmp_path / "out", progress=False)
    assert again.to_dict() == full.to_dict()
    result = next((tmp_path / "runs" / "tiny" / "runs").glob("short*/result.json"))
    content = json.loads(result.read_text())
    worse = {name: content[name] for name in LOSSES} | {"nats": content["nats"] + 1}
    result.write_text(json.dumps({**content, **worse}))
    with pytest.raises(UserError, match=r"result\.json is not believed: its digest is not that of"):
        study("tiny", runs=tmp_path / "runs", out=tmp_path / "out", progress=False)
    with (result.parent / "events.jsonl").open("a") as file:
        line = {"kind": "evaluation", "update": content["updates"], **worse}
        file.write(json.dumps(line) + "\n")
    write_result(result.parent, {**content, **worse})
    changed = study("tiny", runs=tmp_path / "runs", out=tmp_path / "out", progress=False)
    assert changed.number > full.number


def test_seeds_are_those_of_the_recipe():
    with pytest.raises(UserError, match=f"study {NAME} has 5 seeds, and draws is 9; leave draws"):
        study(NAME, draws=9, runs=RESULTS, **QUIET)
