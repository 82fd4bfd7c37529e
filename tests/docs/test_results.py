"""The folder of results: what of a comparison is kept, that it goes on from there, and its page."""

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pathspec
import pytest

import layerlab
from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.judging import find_stored, judge
from layerlab.recipes.training import TrainingRecipe, list_packaged, load_recipe
from layerlab.records.parquet.folded_runs import CURVES, MANIFESTS, fold_runs, unfold_runs
from layerlab.report.pages.comparison import save_comparison
from tests.api.test_train import SMALL
from tests.training.support.drawn import recipe, records, write

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
PAGE = runpy.run_path(str(ROOT / "docs" / "digest.py"))
digest, declared = PAGE["digest"], PAGE["declared"]
LOSSES = {"llama": {1: 3.0, 2: 3.3, 3: 3.1}, "gpt2": {1: 2.99, 2: 3.2895, 3: 3.0905}}
CLAIMS = [
    {
        "source": "pangu23, Table 2",
        "statement": "It is better.",
        "relation": "better",
        "arm": "gpt2",
    },
    {"source": "pangu23, Table 4", "statement": "It is worse.", "relation": "worse", "arm": "gpt2"},
]


def kept(folder: Path) -> list[Path]:
    """The files below a folder of results that git would keep."""
    rules = (RESULTS / ".gitignore").read_text("utf-8").splitlines()
    ignored = pathspec.GitIgnoreSpec.from_lines(rules)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [path for path in files if not ignored.match_file(path.as_posix())]


def saved(folder: Path, losses: dict[str, Any] = LOSSES) -> TrainingRecipe:
    """A comparison with its runs, as the command leaves it in the folder of results."""
    given = recipe(claims=CLAIMS)
    found = records(given, losses)
    place = folder / given.name
    for one in found:
        write(place / "runs", one)
    save_comparison(compare_runs(given, found).content, place)
    return given


def manifests(folder: Path) -> None:
    """What real manifests have beside."""
    for file in folder.glob("*/runs/*/manifest.json"):
        content = json.loads(file.read_text("utf-8"))
        content["versions"] |= {"transformers": "5.23.0", "layerlab": "0.1.0"}
        file.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.full
def test_a_finished_run_is_skipped_from_what_is_kept_alone(tmp_path, cache):
    small: dict[str, Any] = {
        **SMALL,
        "train": {"max_steps": 4, "batch_size": 2},
        "compare": {"arms": ["llama", "gpt2"], "seeds": [1, 2], "claims": CLAIMS},
    }
    # In one process, which is quicker; how runs are carried out is no part of what they are.
    lockstep = {**small, "compare": {**small["compare"], "lockstep": True}}
    first = layerlab.compare(lockstep, out=tmp_path / "first", progress=False)
    assert (tmp_path / "first" / "small" / "report.html").is_file()
    runs = list((tmp_path / "first" / "small" / "runs").iterdir())
    assert len(runs) == 4 and all((run / "model").is_dir() for run in runs)
    (runs[0] / "checkpoints" / "step-00000002").mkdir(parents=True)
    (runs[0] / "checkpoints" / "step-00000002" / "state.json").write_text("{}")

    assert fold_runs(tmp_path / "first" / "small") == 4
    there = kept(tmp_path / "first")
    assert {path.name for path in there} == {
        *(MANIFESTS, CURVES),
        *("comparison.json", "forest.svg", "curves.svg"),
    }
    for path in there:
        (tmp_path / "again" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "first" / path, tmp_path / "again" / path)
    (tmp_path / "again" / "small" / "comparison.json").unlink()
    shutil.rmtree(tmp_path / "again" / "small" / "pictures")  # of no comparison, it is a user's
    unfold_runs(tmp_path / "again" / "small")
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in (tmp_path / "again").glob("small/runs/*/*")
    }
    again = layerlab.compare(small, out=tmp_path / "again", progress=False)
    # Nothing ran: no log of a process, no file touched, no model made.
    assert {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in (tmp_path / "again").glob("small/runs/*/*")
    } == before
    assert again.rows == first.rows
    assert again.content["claims"] == first.content["claims"]
    for given, settings in (
        (tmp_path / "again" / "small", {}),
        (small, {"out": tmp_path / "again"}),
    ):
        shutil.rmtree(tmp_path / "again" / "small" / "runs")
        judged = layerlab.compare(given, judge=True, progress=False, **settings)
        assert judged.rows == first.rows
    shutil.rmtree(tmp_path / "again" / "small" / "runs")
    resumed = layerlab.compare(small, out=tmp_path / "again", progress=False)
    assert resumed.rows == first.rows
    assert not list((tmp_path / "again").glob("small/runs/*/model"))


def test_what_is_kept_is_small():
    """A bound for what is committed, and a reason to look at what broke it."""
    for path in kept(RESULTS):
        size = (RESULTS / path).stat().st_size
        # A spike is a matter of single updates, so that all of those runs' are kept.
        most = 5_000_000 if path.parts[0].startswith("spikes") else 1_000_000
        assert size < most, f"{path} has {size:,} bytes"


def test_what_is_kept_is_few_files():
    """A study draws the pictures of its comparison, which then keeps none of its own."""
    assert len(kept(RESULTS)) <= 250


def told(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row says; its last digits may be those of another library."""
    parts = [row.get(key) for key in ("arm", "source", "says", "relation", "n", "verdict")]
    return (*parts, None if row.get("difference") is None else f"{row['difference']:.6g}")


def test_every_stored_verdict_of_a_study_has_its_unit_and_its_scale():
    for file in sorted((RESULTS / "studies").glob("*/study.json")):
        for verdict in json.loads(file.read_text("utf-8"))["verdicts"]:
            assert verdict["unit"] and verdict["scale"], (file.parent.name, verdict["claim"])


def test_a_stored_study_is_repeated_from_the_folder_of_the_project():
    """A command names no folder of the machine that it was typed on."""
    stored = sorted((RESULTS / "studies").glob("*/study.json"))
    commands = [json.loads(file.read_text("utf-8")).get("command", "") for file in stored]
    assert any(commands)
    assert [one for one in commands if any(word.startswith("/") for word in one.split())] == []


@pytest.mark.full
def test_what_is_kept_was_judged_by_this_version_of_recipe_and_rules():
    """Every kept comparison follows from the kept runs: verdicts cannot be older than claims."""
    known = {one.name: one for one in declared(RESULTS)}
    for file in sorted(RESULTS.glob("*/comparison.json")):
        content = json.loads(file.read_text("utf-8"))
        beside = file.with_name("recipe.toml")
        given = beside.relative_to(ROOT) if beside.is_file() else content["name"]
        again = f"type: layerlab compare {given} --out docs/results --judge"
        unfold_runs(file.parent)
        found = judge(find_stored(known[content["name"]], RESULTS)).content
        for part in ("rows", "claims"):
            assert [told(one) for one in content.get(part, ())] == [
                told(one) for one in found[part]
            ], again


def test_the_page_says_every_verdict_with_its_number(tmp_path):
    given = saved(tmp_path)
    manifests(tmp_path)
    said = digest(tmp_path, [given])
    counted = "holds 1, smaller than asked 0, fails 1, not decided 0"
    assert f"- claims of the sources: {counted}\n- claims of our own: holds 0" in said
    assert "Nothing is corrected across recipes" in said
    summary, _, part = said.partition("\n## drawn\n")
    first = next(line for line in summary.splitlines() if line.startswith("| pangu23, Table 2 |"))
    _, says, word, rate, number, _ = first.strip("| ").split(" | ")
    assert (says, word) == ("It is better.", "**holds** at 1 k parameters, 1.9 k tokens")
    assert 0 < float(rate) < 0.05
    assert number.startswith("gpt2 against llama: -0.01")
    assert "- It is worse. (pangu23, Table 4) **Fails**: gpt2 against llama: -0.0100" in part
    row = "| `gpt2` | `llama` | norm, attention, ffn, stack | 3 | 3.1233 | -0.0100 |"
    assert row in part
    assert "6 of 6 runs are finished" in part
    assert "one (cpu, 1 thread a run); torch 2.13.0, transformers 5.23.0, layerlab 0.1.0." in part
    assert "](drawn/pictures/forest.svg)" in part and "](drawn/pictures/curves.svg)" in part
    assert "`layerlab compare drawn --out docs/results`" in part
    assert "not final" not in said


def test_a_recipe_beside_its_results_has_its_part_and_only_times_that_count(tmp_path):
    given = saved(tmp_path)
    manifests(tmp_path)
    timed = ["llama-s1", "gpt2-s1"]
    (tmp_path / "drawn" / "recipe.toml").write_text(
        'extends = "smoke"\nname = "drawn"\n[compare]\narms = ["llama", "gpt2"]\n'
    )
    assert [one.name for one in declared(tmp_path)] == [*list_packaged(), "drawn"]
    folders = sorted((tmp_path / "drawn" / "runs").iterdir())
    content = compare_runs(given.change({"compare.timed": timed}), folders).content
    save_comparison(content, tmp_path / "drawn")
    said = digest(tmp_path, [given])
    assert "; 10 seconds of training in each of 2 runs whose time counts." in said
    assert "hours of training" not in said
    assert "- of speeds only those of llama-s1, gpt2-s1 count: the other runs shared" in said
    assert "To judge it again: `layerlab compare docs/results/drawn --judge`" in said


def test_the_runs_at_the_sources_size_say_whose_speed_counts_and_that_their_text_is_not_public():
    content = json.loads((RESULTS / "eight-residuals-h100" / "comparison.json").read_text("utf-8"))
    timed = {f"{run['arm']}-s{run['seed']}" for run in content["runs"] if run.get("seconds")}
    assert timed == {"llama-s1", *(f"history-{number}-s1" for number in range(1, 6))}
    assert len(content["runs"]) == 24 and all(run["finished"] for run in content["runs"])
    assert (
        "not published" in content["inferred"] and "sha256 65c72b88bbb9e79e" in content["inferred"]
    )


LADDERS = {
    "ladder-pangu": (96, "llama: the best rate drifts by -0.37"),
    "ladder-residuals": (144, "at 1.16 M a gain of -0.0380 (-1.0641 to +0.9881) nats"),
}


@pytest.mark.parametrize("name", list(LADDERS))
def test_a_ladder_has_its_sizes_and_what_they_say_together(name):
    content = json.loads((RESULTS / name / "comparison.json").read_text("utf-8"))
    part = (RESULTS / "README.md").read_text("utf-8").partition(f"\n## {name}\n")[2]
    part = part.partition("\n## ")[0]
    runs, sentence = LADDERS[name]
    assert f"{runs} runs of 3 sizes." in part and sentence in part
    for size in content["ladder"]["sizes"]:
        for row in size["rows"][1:]:
            assert f"| {row['nats']:.4f} | {-row['difference']:+.4f} |" in part
    assert "not distinguishable at 121 k, 242 k and 529 k parameters" in part


def test_a_partial_comparison_says_how_far_it_is(tmp_path):
    given = saved(tmp_path, {"llama": LOSSES["llama"], "gpt2": {1: 2.9}})
    manifests(tmp_path)
    said = digest(tmp_path, [given])
    assert "4 of 6 runs are finished" in said
    assert "claims of the sources: holds 0, smaller than asked 0, fails 0, not decided 2" in said
    assert "**Not decided** at this budget: gpt2 against llama: -0.1000 nats" in said
    assert "planned seeds are missing: this verdict is not final." in said


def test_recipes_without_runs_say_so_and_what_they_would_judge(tmp_path):
    found = [load_recipe(name) for name in list_packaged()]
    said = digest(tmp_path, found)
    many = [one for one in found if one.compare is not None]
    assert said.count("**Not run yet.**") == len(many)
    assert "**Not run yet.** It is for another device (cuda). `layerlab compare pangu-abl" in said
    for one in many:
        for claim in one.compare.claims if one.compare else ():
            assert f"- {claim.statement} ({claim.source})" in said
    first = next(one for one in many if one.compare and one.compare.claims)
    count = len(first.compare.claims) if first.compare else 0
    assert f"Claims that wait for runs: [`{first.name}`](#{first.name}) {count}" in said
    assert "smoke" not in said  # a single run compares nothing


def test_what_has_to_be_known_beside_is_told(tmp_path):
    """A remark, as of what a source printed, of rates, or of seeds that are missing."""
    twin = load_recipe("eight-residuals-twin")
    content = compare_runs(twin, []).content
    assert content["remarks"]
    save_comparison(content, tmp_path / twin.name)
    said = digest(tmp_path, [twin])
    assert all(f"\n- {remark}" in said for remark in content["remarks"])
    assert "0 of 24 runs are finished" in said
