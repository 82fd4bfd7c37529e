"""Pages and results that are written beside files of the user's: only layerlab's own give way."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import layerlab
from layerlab import UserError
from layerlab.evaluation.results.result import EvaluationResult
from layerlab.report.pages.adaptation import check_adaptation_folder, save_adaptation
from layerlab.report.pages.evaluation import PAGE, render
from layerlab.report.results.folder import check_folder
from layerlab.studies.engine import suite
from layerlab.studies.engine.suite import every
from layerlab.system.files import write_file
from layerlab.system.own_page import BRAND, is_own_page, mark_of
from tests.evaluation.results.test_result import content
from tests.hostile.attack import typed
from tests.report.pages.test_evaluation import scored
from tests.report.support.passed import passed
from tests.support.refused import refusal, refuses

__all__ = ["content"]

RECIPE = {"name": "thesis", "base": {"model": "llama"}, "evaluate": {"prompts": ["Hello"]}}


@pytest.mark.parametrize(
    "name", ["report.html", "result.json", "tables/stages.csv", "pictures/domain.svg"]
)
@pytest.mark.parametrize("beside", [False, True])
def test_an_adaptation_replaces_nothing_but_its_own(name, beside, tmp_path):
    out = tmp_path / "thesis"
    if beside:
        save_adaptation(passed(), out)
        save_adaptation(passed(), out)
        if not name.endswith(("html", "json")):
            return
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("mine")
    said = (
        f"{out} holds something other than an adaptation: {name.partition('/')[0]}; move it away, "
        "or name another folder with "
    )
    assert refusal(layerlab.adapt, RECIPE, out=tmp_path, progress=False) == f"{said}out="
    assert refusal(save, out) == f"{said}--out"
    assert (out / name).read_text() == "mine" and not (out / "stages").exists()


def save(out: Path) -> Path:
    return save_adaptation(passed(), out)


@pytest.mark.full
def test_an_adaptation_is_known_wherever_writing_is_cut_off(tmp_path, monkeypatch):
    replace, whole = Path.replace, 0
    for stop in range(1, 20):
        count = 0

        def end(partial: Path, target: Path, last: int = stop) -> Path:
            nonlocal count
            count += 1
            if count > last:
                raise KeyboardInterrupt
            return replace(partial, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", end)
            try:
                save(tmp_path)
                whole = stop
                break
            except KeyboardInterrupt:
                check_adaptation_folder(tmp_path)
    assert whole > 5


@pytest.mark.parametrize("found", ["[]", "3", "{", '{"arms": []}', "[" * 20_000])
def test_a_result_of_something_else_is_left_alone(found, tmp_path):
    (tmp_path / "result.json").write_text(found)
    refuses(r"something other than an adaptation: result\.json", check_adaptation_folder, tmp_path)


def test_a_page_beside_scores_gives_way_only_where_it_is_theirs(content, tmp_path):
    result = EvaluationResult(content)
    result.save(tmp_path)
    page = write_file(tmp_path / PAGE, render(scored()))
    result.save(tmp_path)
    page.write_text("mine")
    refuses(r"other than an evaluation: report\.html; name a new", result.save, tmp_path)
    save_adaptation(passed(), tmp_path / "other")
    (tmp_path / "other" / "report.html").replace(page)
    refuses(r"other than an evaluation: report\.html; name a new", result.save, tmp_path)
    assert is_own_page(page, mark_of("adapt"))


def test_scores_are_not_written_through_a_linked_folder(content, tmp_path):
    result, mine = EvaluationResult(content), tmp_path / "mine"
    result.save(tmp_path / "out")
    (tmp_path / "out" / "tables").rename(mine)
    (mine / "subjects.csv").write_text("mine")
    (tmp_path / "out" / "tables").symlink_to(mine)
    refuses(r"tables is a link to .*; delete the link, or name an", result.save, tmp_path / "out")
    assert (mine / "subjects.csv").read_text() == "mine"


@pytest.mark.parametrize("name", ["tables", "pictures", "pictures/own.svg"])
def test_pages_are_not_written_through_links_in_their_folder(name, tmp_path):
    out, log = tmp_path / "out", tmp_path / "log.csv"
    log.write_text("arm,seed,step,loss\na,1,9,3.0\na,2,9,3.1\nb,1,9,2.9\nb,2,9,3.2\n")
    layerlab.judge(log, out=out)
    save(tmp_path / "thesis")
    writers: dict[Path, Callable[[], object]] = {out: lambda: layerlab.judge(log, out=out)}
    writers[tmp_path / "thesis"] = lambda: save(tmp_path / "thesis")
    for folder, write in writers.items():
        place = folder / name
        (tmp_path / "mine").mkdir(exist_ok=True)
        if place.is_dir():
            place.rename(tmp_path / f"kept {folder.name}")
        place.symlink_to(tmp_path / "mine")
        refuses(rf"{name} is a link to .*; delete the link, or name", write)
        assert not [*(tmp_path / "mine").iterdir()]


@pytest.mark.parametrize("page", ["report.html", "study.html"])
def test_a_page_of_the_users_beside_a_report_or_a_study_stays(page, tmp_path):
    what, data = ("report", "report.json") if page == "report.html" else ("study", "study.json")
    found = {"measures": [], "frames": [], "schema": 1, "pictures": []}
    (tmp_path / data).write_text(json.dumps(found))
    check_folder(tmp_path, what)
    (tmp_path / page).write_text(f"... {BRAND} ...")
    check_folder(tmp_path, what)
    (tmp_path / page).write_text("mine")
    refuses(f"holds something other than a {what}", check_folder, tmp_path, what)


def test_what_holds_is_no_name_for_a_page_of_the_users(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "studies", dict)
    first = every(out=tmp_path, progress=False, lang="zh")
    every(out=tmp_path, progress=False)
    assert first.page.is_file()
    first.page.write_text("mine")
    with pytest.raises(UserError, match=r"holds a what-holds\.html that is no page of layerlab;"):
        every(out=tmp_path, progress=False)
    assert first.page.read_text() == "mine"


def test_no_new_file_is_written_through_a_link(tmp_path):
    home, there = tmp_path / "home", tmp_path / "there"
    home.mkdir()
    there.mkdir()
    for name in ("runs.html", "l.json"):
        (there / name).symlink_to(home / name)
    typed("runs", str(there), "--html", str(there)).refused("runs.html is a link to")
    typed("runs", str(there), "--html", str(there / "runs.html")).refused("where nothing is;")
    typed("bench", "latency", "llama", "--out", str(there / "l.json")).refused("is a link to")
    assert not list(home.iterdir())
    # A link to an earlier index is followed where it is named, and not where it lies in a folder.
    typed("runs", str(there), "--html", str(home / "runs.html"))
    assert typed("runs", str(there), "--html", str(there / "runs.html")).code == 0
    typed("runs", str(there), "--html", str(there)).refused("runs.html is a link to")


@pytest.mark.full
def test_a_page_in_the_folder_of_a_run_gives_way_only_where_it_is_its_own(tmp_path, cache):
    given = {
        "name": "small",
        "model": {"width": 16, "layers": 1, "heads": 2, "context": 16},
        "train": {"max_steps": 2, "batch_size": 2},
        "evaluate": {"max_eval_blocks": 4},
    }
    found = layerlab.train(given, out=tmp_path, progress=False)
    assert layerlab.train(given, out=tmp_path, progress=False).page == found.page
    found.page.write_text("mine")
    with pytest.raises(UserError, match=r"holds a report\.html that is no page of layerlab train;"):
        layerlab.train(given, out=tmp_path, progress=False)
    assert found.page.read_text() == "mine"
