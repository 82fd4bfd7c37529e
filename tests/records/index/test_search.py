"""The index of a folder: every kind of entry in every state, and nothing that is not one."""

import errno
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import layerlab
from layerlab.records.index import search
from layerlab.records.index.entry import LONGEST, Entry
from layerlab.records.index.search import find_entries
from layerlab.records.parse import seal
from layerlab.system.locks import lock_folder
from tests.ledger.written_campaign import write_campaign
from tests.report.pages.test_evaluation import scored
from tests.report.support.passed import passed
from tests.report.support.race import race
from tests.support.refused import refuses
from tests.training.support.drawn import recipe, record, runs, write

ROOT = Path(__file__).resolve().parents[3]
RUN = runs(recipe())[0]
FINDINGS = [{"severity": rank} for rank in ("error", "warning", "warning", "info")]
REPORT = {"models": [{"source": "a", "name": "one"}, {"source": "two"}], "findings": FINDINGS}
STUDY = {"study": "gain", "verdicts": [{"word": "holds"}, {"word": "fails"}, {"word": "holds"}]}


def put(folder: Path, name: str, content: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return file


def only(folder: Path) -> Entry:
    """The one entry of a folder, in which nothing was passed over."""
    (found,), remarks = find_entries(folder)
    assert remarks == []
    return found


def test_a_finished_run_has_its_loss(tmp_path):
    place = write(tmp_path / "drawn" / "runs", record(RUN, 3.5))
    put(place, "report.html", "a page")
    found = only(tmp_path)
    assert (found.kind, found.name, found.state) == ("run", RUN.name, "finished")
    assert found.headline == "3.5000 nats per token, 1.7500 bits per byte"
    assert found.folder == f"drawn/runs/{RUN.name}"
    assert found.page == f"{found.folder}/report.html"


def test_a_run_that_diverged_says_why(tmp_path):
    write(tmp_path, record(RUN, 3.5, diverged="the loss is nan at update 3"))
    found = only(tmp_path)
    assert (found.state, found.headline) == ("diverged", "the loss is nan at update 3")
    assert found.page is None


def test_an_unfinished_run_is_running_while_a_process_holds_it(tmp_path):
    place = write(tmp_path, record(RUN, 3.5))
    (place / "result.json").unlink()
    with lock_folder(place):
        assert only(tmp_path).state == "running"
        before = {one.name for one in tmp_path.iterdir()}
    assert before == {place.name, f".{place.name}.lock"}, "the index writes nothing"
    found = only(tmp_path)
    assert (found.state, found.headline) == ("interrupted", "update 30 of 20, loss 3.5")


def test_a_run_without_a_journal_has_no_update_yet(tmp_path):
    place = write(tmp_path, record(RUN, None))
    (place / "events.jsonl").unlink()
    put(place, "run.json", {})
    assert only(tmp_path).headline == "no update yet"


def test_a_loss_beyond_any_float_is_left_out(tmp_path):
    place = write(tmp_path, record(RUN, 3.5))
    (place / "result.json").unlink()
    put(place, "events.jsonl", f'{{"kind": "train", "update": 3, "loss": {10**400}}}\n')
    assert only(tmp_path).headline.startswith("update 3 of ")


def test_a_report_counts_its_findings(tmp_path):
    file = put(tmp_path / "out", "report.json", REPORT)
    found = only(tmp_path)
    assert (found.kind, found.name) == ("report", "one, two")
    assert found.headline == "1 error, 2 warnings, 1 remark"
    file.write_text(json.dumps({**REPORT, "findings": []}))
    assert only(tmp_path).headline == "no findings"


def test_a_report_of_cleaned_text_is_no_report_of_a_model(tmp_path):
    put(tmp_path, "report.json", {"documents": 3})
    put(tmp_path, "text.jsonl", "{}\n")
    assert find_entries(tmp_path) == ([], [])


def test_a_campaign_counts_its_ideas(tmp_path):
    folder = write_campaign(tmp_path)
    (tmp_path / "log.csv").unlink()
    found = only(tmp_path)
    assert (found.kind, found.name, found.page) == ("campaign", "own", None)
    count = layerlab.read_ledger(folder, out=tmp_path / "page").count()
    told = f"5 ideas against plain: {count['adopted']} adopted, {count['refuted']} refuted, "
    assert found.headline == f"{told}{count['undecided']} undecided"
    (page,) = [one for one in find_entries(tmp_path)[0] if one.folder == "page"]
    assert (page.headline, page.page) == (found.headline, "page/report.html")
    with (folder / "ledger.jsonl").open("a") as stream:
        stream.write('{"line": 9, "kin')
    cut = next(one for one in find_entries(tmp_path)[0] if one.folder == "own")
    assert (cut.state, cut.headline) == ("finished", found.headline)


@pytest.mark.parametrize(
    ("content", "told"), [("[]", "it holds no table"), ("", "it is not JSON: Expecting value")]
)
def test_a_comparison_that_is_none_is_damaged(tmp_path, content, told):
    put(tmp_path, "comparison.json", content)
    found = only(tmp_path)
    assert (found.name, found.state) == (tmp_path.name, "damaged")
    assert found.headline.startswith(told)


def test_an_evaluation_has_its_averages_and_says_what_is_missing(tmp_path):
    content = scored()
    content["arms"], content["groups"] = content["arms"][:1], content["groups"][:1]
    part = {"arm": "before", "group": "general", "score": None, "complete": False}
    content["groups"].append({**part, "parts": 1, "whole": 11})
    put(tmp_path, "results.json", content)
    found = only(tmp_path)
    assert (found.kind, found.name, found.state) == ("evaluation", "before", "finished")
    assert found.headline == "knowledge: 25.0%; general: incomplete (1 of 11)"


def test_averages_of_several_models_have_their_names_and_an_end(tmp_path):
    put(tmp_path, "results.json", scored(tuple("abcdef")))
    assert only(tmp_path).headline.startswith("a, knowledge: 25.0%; b, knowledge")
    assert only(tmp_path).headline.endswith("and 2 more")


def test_an_evaluation_of_tasks_has_their_scores(tmp_path):
    content = {**scored(), "arms": [{"arm": "hf"}], "benchmarks": [], "groups": []}
    shares = [
        {"metric": "acc", "value": 0.875, "low": 0.53, "high": 0.98},
        {"metric": "acc_norm", "value": 1.0, "low": 0.68, "high": 1.0},
        {"metric": "perplexity", "value": 23.456, "low": None, "high": None},
        {"metric": "f1", "value": None, "low": None, "high": None},
    ]
    content["tasks"] = [{"arm": "hf", "task": "story", "measured": shares}]
    put(tmp_path, "results.json", content)
    expected = "story: acc 87.5%, acc_norm 100.0%, perplexity 23.46, f1 without a score"
    assert only(tmp_path).headline == expected


def test_tasks_of_a_group_are_told_by_its_mean(tmp_path):
    content = {**scored(), "arms": [{"arm": "before"}], "groups": []}
    content["benchmarks"] = content["benchmarks"][:1]
    share = {"metric": "acc", "value": 0.875, "low": 0.53, "high": 0.98}
    content["tasks"] = [
        {"arm": "before", "task": "one", "measured": [share], "groups": ["both"]},
        {"arm": "before", "task": "other", "measured": [share], "groups": []},
    ]
    mean = {"arm": "before", "group": "both", "metric": "acc", "score": 0.5, "complete": True}
    content["task_groups"] = [mean]
    put(tmp_path, "results.json", content)
    assert only(tmp_path).headline == "BoolQ: 25.0%; both: acc 50.0%; other: acc 87.5%"


def test_a_model_without_finite_logits_has_no_score(tmp_path):
    content = {**scored(), "arms": [{"arm": "before"}], "groups": []}
    content["benchmarks"] = [{**content["benchmarks"][0], "score": 0.0, "lost": True}]
    share = {"metric": "acc", "value": 0.0, "low": 0.0, "high": 0.3}
    content["tasks"] = [{"arm": "before", "task": "one", "measured": [share], "lost": True}]
    put(tmp_path, "results.json", content)
    assert only(tmp_path).headline == "BoolQ: not finite; one: acc not finite"


def test_an_evaluation_that_broke_off_counts_its_tasks(tmp_path):
    (tmp_path / "out" / "samples").mkdir(parents=True)
    put(tmp_path / "out" / "leaves", "boolq.json", {})
    found = only(tmp_path)
    assert (found.name, found.state) == ("out", "interrupted")
    assert found.headline == "1 task is answered"
    with lock_folder(tmp_path / "out"):
        assert only(tmp_path).state == "running"


def test_an_adaptation_has_its_domain_before_and_after(tmp_path):
    content = passed()
    for one in content["stages"]:
        one["finished"] = True
    content["changes"] = [
        {"arm": "replay", "kind": "domain", "against": "before", "before": 2.62, "after": 2.17}
    ]
    put(tmp_path, "result.json", content)
    # What a stage made is a part of it.
    put(tmp_path / "stages" / "evaluate-1", "results.json", scored())
    found = only(tmp_path)
    count = len(content["stages"])
    assert (found.kind, found.name, found.state) == ("adaptation", content["name"], "finished")
    assert found.headline == (
        "replay brings domain text from 2.62 to 2.17 bits per byte; "
        f"{count} of {count} stages are finished"
    )


def test_an_adaptation_that_broke_off_counts_its_stages(tmp_path):
    put(tmp_path / "law" / "stages" / "base-1", "stage.json", {})
    (tmp_path / "law" / "stages" / "clean-1").mkdir()
    found = only(tmp_path)
    assert (found.kind, found.name, found.state) == ("adaptation", "law", "interrupted")
    assert found.headline == "1 stage is finished"


def test_a_study_counts_its_verdicts(tmp_path):
    put(tmp_path, "study.json", STUDY)
    put(tmp_path, "study.html", "a page")
    found = only(tmp_path)
    assert (found.kind, found.name, found.page) == ("study", "gain", "study.html")
    assert (found.folder, found.headline) == (".", "2 claims hold, 1 claim fails")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("study.json", "{", "it is not JSON: Expecting property name"),
        ("study.json", "[" * 20_000 + "]" * 20_000, "it is nested too deeply"),
        ("study.json", [], "it holds no table"),
        ("report.json", {"models": []}, "it has no findings"),
        ("results.json", {**scored(), "groups": [{"arm": 3}]}, "its groups.0.arm is 3"),
        ("comparison.json", {"name": "x" * 9_000}, "it has no metric"),
        ("result.json", {"exit": 0}, "it has no name"),
        ("events.jsonl", "", "manifest.json: No such file"),
        ("campaign.json", [], "it is no table"),
        ("ledger.jsonl", "", "it has no baseline"),
    ],
)
def test_what_is_damaged_or_of_another_program_says_why(name, content, reason, tmp_path):
    put(tmp_path / "odd", name, content)
    found = only(tmp_path)
    assert (found.state, found.name) == ("damaged", "odd")
    assert reason in found.headline and "\n" not in found.headline
    assert len(found.headline) <= LONGEST


def test_a_result_that_does_not_fit_its_run_is_damaged(tmp_path):
    place = write(tmp_path, record(RUN, 3.5))
    (place / "result.json").write_text(json.dumps({**record(RUN, 3.5).result, "nats": 3.4}))
    found = only(tmp_path)
    assert found.state == "damaged" and "its nats is 3.4" in found.headline


def test_links_are_not_followed_and_pipes_not_opened(tmp_path):
    away = put(tmp_path / "away", "study.json", STUDY)
    inside = tmp_path / "inside"
    put(inside / "linked", "note.txt", "")
    (inside / "linked" / "study.json").symlink_to(away)
    (inside / "folder").symlink_to(away.parent)
    (inside / "loop").symlink_to(inside)
    (inside / "pipe").mkdir()
    os.mkfifo(inside / "pipe" / "report.json")
    found, remarks = find_entries(inside)
    assert remarks == []
    told = {one.folder: (one.state, one.headline) for one in found}
    assert told.keys() == {"linked", "pipe"}
    assert told["linked"] == ("damaged", "study.json is a link, which is not followed")
    assert told["pipe"][0] == "damaged" and "is a pipe" in told["pipe"][1]
    # The folder that is named may be one.
    assert len(find_entries(inside / "folder")[0]) == 1


def test_the_newest_comes_first(tmp_path):
    for place, name in enumerate(("b", "c", "a")):
        file = put(tmp_path / name, "study.json", {**STUDY, "study": name})
        os.utime(file, (10**9 + place, 10**9 + place))
    found, _ = find_entries(tmp_path)
    assert [one.name for one in found] == ["a", "c", "b"]
    assert found[0].changed == datetime.fromtimestamp(10**9 + 2, UTC)
    assert found[0].to_dict()["changed"] == "2001-09-09T01:46:42+00:00"


def test_what_is_too_deep_or_too_much_is_said(tmp_path, monkeypatch):
    put(tmp_path / "a" / "b" / "c", "study.json", STUDY)
    monkeypatch.setattr(search, "DEPTH", 2)
    found, (remark,) = find_entries(tmp_path)
    assert not found and remark.startswith("a/b is 2 folders deep; what lies below was not")
    monkeypatch.setattr(search, "MOST", 2)
    _, (remark,) = find_entries(tmp_path)
    assert remark == "only the first 2 folders were looked into; name one"


def test_a_folder_that_asks_for_it_is_listed_only_where_it_is_named(tmp_path):
    put(tmp_path / "docs" / "results" / "one", "study.json", STUDY)
    put(tmp_path / "own", "study.json", STUDY)
    put(tmp_path / "docs" / "results", ".layerlab-unlisted", "")
    found, remarks = find_entries(tmp_path)
    assert [one.folder for one in found] == ["own"]
    assert remarks == ["docs/results was left out, as its file .layerlab-unlisted asks; name it"]
    assert only(tmp_path / "docs" / "results").folder == "one"


def test_results_that_come_with_the_source_are_no_entries_of_a_clone():
    found, remarks = find_entries(ROOT)
    assert not [one for one in found if one.folder.startswith("docs/")]
    assert "docs was left out, as its file .layerlab-unlisted asks; name it" in remarks


def test_a_folder_that_cannot_be_read_is_said(tmp_path, monkeypatch):
    """As it is to anybody but root."""
    (tmp_path / "shut").mkdir()

    def refused(folder: Path) -> Any:
        if folder.name == "shut":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scanned(folder)

    scanned = os.scandir
    monkeypatch.setattr(os, "scandir", refused)
    assert find_entries(tmp_path) == ([], ["shut was not looked into: Permission denied"])


@pytest.mark.parametrize("name", ["gone", "x" * 5_000, "null\0"])
def test_a_folder_that_is_not_there_is_refused(name, tmp_path):
    refuses("expected one that layerlab wrote into: type", find_entries, tmp_path / name)


def test_hidden_folders_and_other_files_are_no_entries(tmp_path):
    put(tmp_path / ".study.partial", "study.json", STUDY)
    put(tmp_path / "extension", "manifest.json", {"manifest_version": 3})
    put(tmp_path / "site", "index.html", "")
    assert find_entries(tmp_path) == ([], [])


@pytest.mark.full
def test_a_thousand_runs_take_seconds(tmp_path):
    first = write(tmp_path / "0", record(RUN, 3.5))
    content = [(one.name, one.read_bytes()) for one in first.iterdir()]
    for number in range(1, 1000):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in content:
            (folder / name).write_bytes(text)
    start = time.process_time()
    found, _ = find_entries(tmp_path)
    assert time.process_time() - start < 4
    assert len(found) == 1000 and {one.state for one in found} == {"finished"}


def test_what_was_edited_since_it_was_written_is_damaged(tmp_path):
    written = {
        "results.json": {"arms": [{"arm": "a"}], "benchmarks": [], "groups": []},
        "comparison.json": race(("llama", "arm-1"), updates=100),
        "report.json": REPORT,
        "study.json": STUDY,
        "result.json": {"name": "law", "stages": [{"finished": True}]},
    }
    for name, content in written.items():
        place = tmp_path / name.partition(".")[0]
        put(place, name, seal(content))
        assert only(place).state == "finished", name
        put(place, name, {**seal(content), "edited": 1})
        found = only(place)
        assert (found.state, found.headline) == (
            "damaged",
            "it is not what was written, or is of an earlier version",
        )
