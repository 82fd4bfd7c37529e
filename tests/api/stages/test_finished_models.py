"""Finished models scored by a suite and by a command: really trained, once each, and tied to it."""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from layerlab import UserError, compare
from layerlab.api.stages.finished_models import load_questions
from layerlab.cli.app import app
from layerlab.experiments.analysis.comparison import Comparison
from layerlab.recipes.training import load_recipe
from layerlab.records.parquet.folded_runs import fold_runs
from layerlab.system.untrusted.trust import trust

pytest.importorskip("lm_eval")

from layerlab.builtin import SAMPLE
from tests.support.forked import python
from tests.support.refused import refuses

SUITE, OWN = "suite:forwards.yaml", "command:size"
TASK = """
task: forwards
dataset_path: json
dataset_kwargs:
  data_files: {test: questions.jsonl}
test_split: test
output_type: multiple_choice
doc_to_text: text
doc_to_choice: answers
doc_to_target: right
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
metadata: {version: 1}
"""
# It says which models it was asked about, and scores each by the bytes of its weights.
SIZE = """
import sys
from pathlib import Path
model = Path(sys.argv[1])
with open("told", "a") as file:
    print(model.parent.name, file=file)
{more}
print((model / "model.safetensors").stat().st_size)
"""
# One arm is hardly trained at all.
RECIPE = """
name = "scored"
[model]
width = 32
layers = 1
heads = 2
context = 48
[data]
sources = [{ text = "text.txt" }]
vocab_size = 260
[train]
max_steps = 60
batch_size = 8
learning_rate = 1e-2
[evaluate]
eval_steps = 60
max_eval_blocks = 4
[compare]
arms = ["llama", { name = "briefly", set = { "train.max_steps" = 2 } }]
allowed_differences = ["train.max_steps"]
seeds = [1, 2, 3]
lockstep = true
measures = ["suite:forwards.yaml", "command:size"]
[compare.commands.size]
run = ["python", "size.py", "{model}"]
better = "lower"
timeout_minutes = 1
"""


def questions(text: str) -> list[dict[str, Any]]:
    """Does a piece of the text go on forwards, or backwards?"""
    found = []
    for place in range(24, len(text) - 8, 24):
        answer, right = text[place : place + 8], len(found) % 2
        both = [answer[::-1], answer] if right else [answer, answer[::-1]]
        found.append({"text": text[place - 24 : place], "answers": both, "right": right})
    return found


def write_all(folder: Path, more: str = "") -> None:
    """A recipe with its text, its task and its command beside it."""
    folder.mkdir(exist_ok=True)
    sample = SAMPLE.read_text("utf-8")
    (folder / "text.txt").write_text(sample[:10_000], encoding="utf-8")
    rows = "".join(json.dumps(one) + "\n" for one in questions(sample[10_000:]))
    (folder / "questions.jsonl").write_text(rows, encoding="utf-8")
    (folder / "forwards.yaml").write_text(TASK, encoding="utf-8")
    (folder / "size.py").write_text(SIZE.format(more=more), encoding="utf-8")
    (folder / "scored.toml").write_text(RECIPE, encoding="utf-8")


def told(folder: Path) -> list[str]:
    """The runs that the command was asked about."""
    file = folder / "told"
    return file.read_text().split() if file.exists() else []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Comparison]]:
    folder = tmp_path_factory.mktemp("scored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYERLAB_CACHE", str(folder / "cache"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.chdir(folder)
        write_all(folder)
        found = compare("scored.toml", out=".", progress=False, trust_recipe=True)
        patch.chdir("/")
        yield folder, found


@pytest.fixture
def copied(
    trained: tuple[Path, Comparison], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A working folder with the trained runs and all that they were made of."""
    shutil.copytree(trained[0], tmp_path / "own", ignore=shutil.ignore_patterns("told"))
    monkeypatch.chdir(tmp_path / "own")
    return tmp_path / "own"


def again() -> Comparison:
    return compare("scored.toml", out=".", progress=False, trust_recipe=True)


def files(folder: Path) -> dict[str, bytes]:
    found = (folder / "scored" / "runs").glob("*/scores.json")
    return {one.parent.name: one.read_bytes() for one in found}


@pytest.mark.full
def test_the_arm_that_is_hardly_trained_is_worse_by_the_suite(trained):
    folder, found = trained
    suite, own = found.content["measures"]
    assert suite["measure"].endswith("forwards.yaml") and suite["n"] == 3
    assert suite["verdict"] == "worse" and suite["high"] < 0
    assert suite["text_error"] > 0 and suite["against_mean"] > 0.75
    assert own["verdict"] == "no verdict", "both arms have as many weights, and may by chance"
    names = {one["run"] for one in found.content["runs"]}
    assert set(told(folder)) == names and len(told(folder)) == 6, "each once"
    for name, content in files(folder).items():
        result = json.loads((folder / "scored" / "runs" / name / "result.json").read_text())
        kept = json.loads(content)
        assert kept["weights"] == result["weights"] and set(kept["measures"]) == {SUITE, OWN}
    page = (folder / "scored" / "report.html").read_text("utf-8")
    assert "forwards.yaml of briefly is worse than that of llama" in page


@pytest.mark.full
def test_what_is_scored_is_not_scored_again_and_judging_runs_nothing(copied):
    before = files(copied)
    first = again()
    assert files(copied) == before and told(copied) == []
    for name in ("questions.jsonl", "forwards.yaml", "size.py", "text.txt"):
        (copied / name).unlink()
    judged = compare(copied / "scored", judge=True, progress=False)
    assert judged.content["measures"] == first.content["measures"] and told(copied) == []
    said = "suite:forwards.yaml: the file of tasks is not there, so whether it is the one that"
    assert any(one.startswith(said) for one in judged.content["remarks"])


@pytest.mark.full
def test_a_file_of_the_same_name_does_not_take_over_scores(copied):
    recipe = copied / "scored.toml"
    (copied / "other").mkdir()
    other = TASK.replace("task: forwards", "task: another").replace("text: text", "text: answers")
    (copied / "other" / "forwards.yaml").write_text(other, encoding="utf-8")
    text = recipe.read_text("utf-8")
    recipe.write_text(text.replace("suite:forwards", "suite:other/forwards"), encoding="utf-8")
    judged = compare("scored.toml", out=".", judge=True, progress=False)
    said = "suite:other/forwards.yaml: left out, because another file of tasks scored them than"
    assert any(one.startswith(said) for one in judged.content["remarks"])
    suite = [one for one in judged.content["measures"] if "forwards" in one["measure"]]
    assert all(one["mean"] is None for one in suite)


@pytest.mark.full
def test_a_file_that_asks_the_same_in_other_words_keeps_its_scores(copied):
    before = {name: json.loads(one)["measures"][SUITE] for name, one in files(copied).items()}
    with (copied / "forwards.yaml").open("a") as file:
        file.write("# a remark\n")
    again()
    for name, content in files(copied).items():
        now = json.loads(content)["measures"][SUITE]
        assert now["files"] != before[name]["files"]
        assert now["seconds"] == before[name]["seconds"], "which was not asked again"
    judged = compare("scored.toml", out=".", judge=True, progress=False)
    assert not any("left out" in one for one in judged.content["remarks"])


@pytest.mark.full
def test_a_question_that_cannot_be_marked_is_left_out_and_told_also_to_who_judges_later(copied):
    rows = [json.loads(line) for line in (copied / "questions.jsonl").read_text().splitlines()]
    rows[2]["right"] = -1
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (copied / "questions.jsonl").write_text(text, encoding="utf-8")
    said = (
        f"suite:forwards.yaml: forwards: question 3 of {len(rows):,}: its answer -1 names none of "
        "its 2 options; it is left out"
    )
    assert said in again().content["remarks"]
    (copied / "questions.jsonl").unlink()
    assert said in compare(copied / "scored", judge=True, progress=False).content["remarks"]


@pytest.mark.full
def test_another_question_and_another_command_are_scored_anew(copied):
    before = files(copied)
    rows = (copied / "questions.jsonl").read_text("utf-8").splitlines(keepends=True)
    (copied / "questions.jsonl").write_text("".join(rows[:-1]), encoding="utf-8")
    again()
    for name, content in files(copied).items():
        old, new = (json.loads(one)["measures"] for one in (before[name], content))
        assert new[OWN] == old[OWN] and new[SUITE]["asked"] != old[SUITE]["asked"]
        assert len(new[SUITE]["parts"][0]["questions"]) == len(rows) - 1
    with (copied / "size.py").open("a") as file:
        file.write("print(7)\n")
    assert again().content["measures"][1]["mean"] == 7 and len(told(copied)) == 6


@pytest.mark.full
def test_changed_scores_and_other_weights_are_refused(copied):
    place = copied / "scored" / "runs"
    one, other, *_ = sorted(place.iterdir())
    text = (one / "scores.json").read_text("utf-8")
    (one / "scores.json").write_text(text.replace('": 1.0', '": 0.0', 1), encoding="utf-8")
    judged = compare("scored.toml", out=".", judge=True, progress=False)
    (left,) = [said for said in judged.content["remarks"] if "scores.json is not believed" in said]
    assert left.startswith("left out: ") and judged.failed
    done = CliRunner().invoke(app, ["compare", str(copied / "scored"), "--judge", "-q"])
    assert done.exit_code == 1 and "is not believed" in " ".join(done.output.split())
    refuses(r"scores.json is not believed: it is not what was written", again)
    # The scores of another run, whole and sealed.
    shutil.copy(other / "scores.json", one / "scores.json")
    refuses(r"is not believed: its run is not that of the result", again)
    (one / "scores.json").unlink()
    shutil.copy(other / "model" / "model.safetensors", one / "model" / "model.safetensors")
    refuses("is not the model of its result: the weights are others", again)
    shutil.rmtree(one / "model")
    refuses(r"kept no model, which suite:forwards\.yaml scores", again)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "old", "new"), [("config.json", "10000.0", "2.0"), ("extra.json", "", "{}")]
)
def test_the_same_weights_under_other_settings_are_another_model(name, old, new, copied):
    one = min((copied / "scored" / "runs").iterdir())
    (one / "scores.json").unlink()
    file = one / "model" / name
    text = file.read_text("utf-8") if file.exists() else ""
    assert old in text
    file.write_text(text.replace(old, new) or new, encoding="utf-8")
    refuses(f"not the model that its run kept: {name} was changed or", again)
    assert not (one / "scores.json").exists() and told(copied) == []


@pytest.mark.full
def test_a_comparison_that_is_killed_while_it_scores_goes_on(copied):
    for file in (copied / "scored" / "runs").glob("*/scores.json"):
        file.unlink()
    trap = copied / "trap"
    trap.touch()
    # At the third model the command kills what has started it.
    more = (
        "import os, signal\nif len(open('told').readlines()) == 3 and os.path.exists('trap'):\n"
        "    os.kill(os.getppid(), signal.SIGKILL)"
    )
    write_all(copied, more)
    words = ["compare", "scored.toml", "--out", ".", "--trust-recipe", "-q"]
    assert python("-m", "layerlab", *words, cwd=copied).returncode == -signal.SIGKILL
    half = files(copied)
    assert len(half) == 3 and len(told(copied)) == 3, "the third has its suite alone"
    trap.unlink()
    found = again()
    whole = files(copied)
    assert len(whole) == 6 and len(told(copied)) == 7, "only what was under way runs again"
    ended = {name: one for name, one in half.items() if OWN in json.loads(one)["measures"]}
    assert len(ended) == 2 and ended.items() <= whole.items()
    assert found.content["measures"][0]["verdict"] == "worse"


@pytest.mark.full
def test_a_page_is_judged_from_folded_runs(copied):
    place = copied / "scored"
    before = compare(place, judge=True, progress=False).content["measures"]
    assert fold_runs(place) == 6
    shutil.rmtree(place / "runs")
    assert compare(place, judge=True, progress=False).content["measures"] == before


@pytest.mark.full
def test_nothing_runs_unasked_nor_for_a_plan(copied):
    out = copied / "new"
    words = ["compare", "scored.toml", "--out", str(out), "-q"]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, UserError) and "--trust-recipe" in str(done.exception)
    refuses("the recipe runs the command 'size', ", compare, "scored.toml", out=out, progress=False)
    planned = CliRunner().invoke(app, [*words, "--plan", "--trust-recipe", "--json"])
    assert planned.exit_code == 0, planned.output
    suite, own = json.loads(planned.stdout)["scores"]
    assert suite["runs"] == 6 and suite["questions"] == 198 and 0 < suite["seconds"] < 60
    assert own["run"][0] == "python" and own["seconds"] is None
    said = " ".join(CliRunner().invoke(app, [*words, "--plan"]).output.split())
    assert re.search(r"forwards.yaml scores 6 finished models, 198 questions each: ", said)
    assert "command:size scores 6 finished models by python" in said
    assert told(copied) == [] and not out.exists()


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        ("suite:pika", "did you mean 'piqa'"),
        ("suite:piqa", "PIQA is not here: expected"),
        ("suite:none.yaml", "cannot read none.yaml"),
        ("suite:arc_easy", "its questions are not here: cannot get"),
        ("suite:words.yaml", "less is better, or no question has a score by itself, in all that "),
    ],
)
def test_what_cannot_be_asked_is_said_before_any_run_starts(measure, said, copied, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", str(copied))
    words = TASK.replace("multiple_choice", "generate_until").replace(
        "acc, aggregation: mean", "bleu"
    )
    (copied / "words.yaml").write_text(words.replace("forwards", "words"), encoding="utf-8")
    out = copied / "new"
    changed = {"compare.measures": [measure]}
    with pytest.raises(UserError, match=f"compare.measures has '{measure}': .*{said}"):
        compare("scored.toml", out=out, settings=changed, progress=False)
    assert not list(out.glob("*/runs/*"))


@pytest.mark.full
def test_a_command_that_gives_no_score_is_named_with_its_run(copied):
    (copied / "size.py").write_text("print('nan')")
    with trust(False, trust_recipe=True), pytest.raises(UserError, match="'size' gave no score of"):
        again()
    assert all(SUITE in json.loads(one)["measures"] for one in files(copied).values())


def test_a_task_that_runs_code_needs_the_recipe_to_be_trusted(copied):
    mark = copied / "ran"
    (copied / "own.py").write_text(f"open({str(mark)!r}, 'w')\ndef same(rows): return rows\n")
    with (copied / "forwards.yaml").open("a") as file:
        file.write("process_docs: !function own.same\n")
    given = load_recipe("scored.toml", {"compare.measures": ["suite:forwards.yaml"]})
    refuses("or --trust-recipe where a recipe names the task", load_questions, given)
    assert not mark.exists()
    with trust(False, trust_recipe=True):
        assert [len(tasks) for tasks in load_questions(given).values()] == [1]
    assert mark.exists()


@pytest.mark.full
def test_models_are_scored_before_a_look_is_taken(copied):
    before = sorted(files(copied))
    for file in (copied / "scored" / "runs").glob("*/scores.json"):
        file.unlink()
    changed = {"compare.looks": [2, 3], "compare.measures": ["suite:forwards.yaml"]}
    compare("scored.toml", out=".", settings=changed, progress=False)
    scored = sorted(files(copied))
    # The loss is decided at two seeds, and then nothing is left to run for: nor to score.
    assert scored == [name for name in before if "-s3-" not in name]
