"""A recipe is carried out once, goes on after it was killed, and tells what moved."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import layerlab
from layerlab import UserError
from layerlab.adaptation.pipeline.result import AdaptationResult
from layerlab.adaptation.pipeline.stage import Stage
from layerlab.adaptation.pipeline.texts import clean_texts, halves, read_held_out
from layerlab.api import adapt
from layerlab.recipes.adaptation import make_recipe
from tests.adaptation.lessons import recipe
from tests.support.forked import python
from tests.support.refused import refuses

ARMS = [{"name": "replay"}, {"name": "alone", "set": {"pretrain.ratio": [1, 0]}}]
# In which stage, and at which of its words, a process ends as if its machine had lost power.
KILLED = {
    "base": "update 4",
    "clean": "nature",
    "vocabulary": "proving",
    "embedding": "input",
    "pretrain": "update 4",
    "tune": "update 5",
    "evaluate": "general",
}
# Each process that is killed is forked from one that has imported what the stages import, too.
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import datasets, peft
from layerlab.api import adapt
from tests.adaptation.lessons import recipe

class Killer(adapt.NullProgress):
    def tell(self, name, text, share):
        if name.startswith(kind) and word in text:
            os.kill(os.getpid(), signal.SIGKILL)

adapt.NullProgress = Killer
folder, found = Path(sys.argv[1]), []
for kind, word in json.loads(sys.argv[2]).items():
    if not (child := os.fork()):
        adapt.adapt(recipe(folder), out=folder / "out", progress=False)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    files = (folder / "out" / "lessons" / "stages").glob("*/stage.json")
    found.append([kind, code, {str(file): file.stat().st_mtime_ns for file in files}])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lessons")


@pytest.fixture(scope="module")
def whole(folder: Path) -> AdaptationResult:
    """Both arms, never stopped."""
    return layerlab.adapt(recipe(folder, arm=ARMS), out=folder / "whole", progress=False)


def weights(adapted: AdaptationResult, arm: str) -> dict[str, torch.Tensor]:
    return load_file(Path(adapted.models[arm]) / "model.safetensors")


@pytest.mark.full
def test_every_stage_is_told_and_tables_are_whole(whole):
    assert all(one["finished"] and one["seconds"] >= 0 for one in whole.content["stages"])
    scores = whole.frame("scores")
    assert set(scores["after"]) == {"base", "vocabulary", "pretrain", "tune"}
    assert (scores["error"] > 0).all() and scores["score"].between(0, 20).all()
    changes = whole.frame("changes").set_index(["arm", "kind", "against"])["value"]
    gap = changes["alone", "general", "before"] - changes["replay", "general", "before"]
    assert changes["alone", "general", "replay"] == pytest.approx(gap)
    assert changes["replay", "domain", "before"] < 0
    (proof,) = whole.content["vocabulary"]
    assert proof["holds"] and proof["added"] == 8 and whole.content["embedding"]
    assert [one["source"] for one in whole.content["pretrain"][0]["sources"]] == [
        str(Path(one["name"])) for one in whole.content["texts"]
    ]
    assert len(whole.frame("samples")) == 6
    refuses("there is no table 'x'; expected one of scores", whole.frame, "x")


@pytest.mark.full
def test_the_last_models_load_and_differ_between_arms(whole):
    assert whole.model("alone").config.vocab_size == 288
    first, second = (weights(whole, arm) for arm in ("replay", "alone"))
    assert any(not torch.equal(first[name], second[name]) for name in first)
    refuses("there is no arm 'x'; expected replay, alone", whole.model, "x")


@pytest.mark.full
def test_a_terminal_shows_it_in_25_lines(whole):
    lines = whole.summary(100).splitlines()
    assert len(lines) <= 25 and lines[0].startswith("Vocabulary: 280 entries are now 288")
    assert any("alone, forgetting:" in line and "against replay" in line for line in lines)
    assert lines[-1] == f"The page: {whole.page}" and whole.page.is_file()


@pytest.mark.full
def test_nothing_runs_twice_and_an_arm_that_is_added_shares(whole, folder, monkeypatch):
    begun: list[str] = []
    monkeypatch.setattr(adapt.NullProgress, "begin", lambda self, name, steps=0: begun.append(name))
    again = layerlab.adapt(recipe(folder, arm=ARMS), out=folder / "whole", progress=False)
    assert begun == [] and again.content == whole.content
    more = [*ARMS, {"name": "untuned", "set": {"sft": None}}]
    third = layerlab.adapt(recipe(folder, arm=more), out=folder / "whole", progress=False)
    assert begun == [] and third.models["untuned"].endswith("model")
    assert third.models["untuned"] != third.models["replay"]


@pytest.mark.full
def test_a_plan_tells_what_is_finished(whole, folder):
    expected = layerlab.estimate_adaptation(recipe(folder, arm=ARMS), out=folder / "whole")
    assert all(row.finished for row in expected.rows) and expected.left == 0
    # What they read, and not what was guessed of their texts.
    for row in expected.rows:
        if row.trains:
            file = next((folder / "whole").glob(f"*/stages/{row.key}/stage.json"))
            left = json.loads(file.read_text())["result"]
            tuned = left["sources"].values() if row.title.startswith("tune") else ()
            read = round(sum(one["tokens"] * one["passes"] for one in tuned)) or left["tokens"]
            assert row.tokens == read
    fresh = layerlab.estimate_adaptation(recipe(folder), out=folder / "none")
    tokens = {row.title: row.tokens for row in fresh.rows}
    assert tokens["base"] == 6 * 4 * 16 and tokens["pretrain, seed 1"] == 512
    assert fresh.left > 0 and not any(row.finished for row in fresh.rows)
    for row in fresh.rows:
        if row.title.startswith(("pretrain", "tune")):
            assert row.parts is not None and min(vars(row.parts).values()) > 0
            assert row.seconds == row.parts.total
    console = Console(width=120)
    with console.capture() as caught:
        console.print(fresh.table())
    assert "pretrain-" in caught.get() and "of training left: of updates tried" in caught.get()
    assert fresh.to_dict()["parameters"] == expected.parameters


@pytest.mark.full
def test_killed_in_each_stage_it_ends_with_the_weights_of_one_that_was_not(whole, folder):
    stages = folder / "out" / "lessons" / "stages"
    done: dict[str, int] = {}
    ended = python("-c", PROGRAM, folder, json.dumps(KILLED), cwd=Path.cwd())
    assert ended.returncode == 0, ended.stderr
    for kind, code, now in json.loads(ended.stdout.splitlines()[-1]):
        assert code == -signal.SIGKILL, ended.stderr
        assert not any(Path(file).parent.name.startswith(kind) for file in now)
        assert done.items() <= now.items() and len(now) == len(done) + (kind != "base")
        done = now
    found = adapt.adapt(recipe(folder), out=folder / "out", progress=False)
    ours, theirs = weights(found, "lessons"), weights(whole, "replay")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    rows = whole.frame("scores")
    shared = rows[rows["arms"].map(lambda arms: "replay" in arms)]
    assert found.frame("scores")["score"].tolist() == shared["score"].tolist()
    assert not list(stages.glob("*/checkpoint-*")) and not list(stages.glob("**/*.partial"))


@pytest.mark.full
def test_an_adaptation_leaves_the_random_numbers_of_its_caller_as_they_were(folder, tmp_path):
    before = random.getstate(), torch.get_rng_state().tolist()
    layerlab.adapt(recipe(folder), out=tmp_path, progress=False)
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


@pytest.mark.full
def test_a_model_that_is_there_is_adapted_without_text(tmp_path):
    content = {"name": "there", "base": {"model": "pre-norm"}}
    found = layerlab.adapt(content, out=tmp_path, progress=False)
    assert found.models == {"there": "pre-norm"} and found.content["base"][0]["parameters"] > 1000


@pytest.mark.full
def test_what_cannot_be_asked_is_left_out_told_and_asked_when_it_is_there(tmp_path, monkeypatch):
    data = tmp_path / "none"
    monkeypatch.setenv("LAYERLAB_DATA", str(data))
    content = {
        "base": {"model": "pre-norm"},
        "data": {"domain": [{"text": "python-docs", "limit": 20_000}]},
        "clean": {"benchmarks": ["piqa"]},
        "evaluate": {
            "suite": "piqa",
            "text_bytes": 0,
            "prompts": ["word " * 999, "Why?"],
            "max_new_tokens": 2,
        },
    }
    found = layerlab.adapt(content, out=tmp_path / "out", progress=False)
    what = found.frame("left_out")["what"].tolist()
    assert what == ["the search for piqa", "an answer", "PIQA"]
    assert "Left out: PIQA:" in found.summary()
    assert [one["prompt"] for one in found.content["samples"]] == ["Why?"]

    (data / "piqa").mkdir(parents=True)
    row = {"goal": "boil water", "sol1": "heat it in a pot until bubbles rise", "sol2": "cool it"}
    (data / "piqa/valid.jsonl").write_text(json.dumps(row) + "\n")
    (data / "piqa/valid-labels.lst").write_text("0\n")
    later = layerlab.adapt(content, out=tmp_path / "out", progress=False)
    assert later.frame("left_out")["what"].tolist() == ["an answer"]
    assert later.frame("scores")["title"].tolist().count("PIQA") == 1
    (searched,) = later.content["contamination"]
    assert [one["questions"] for one in searched["benchmarks"].values()] == [1]
    # Other questions, or answers, are asked anew: what was scored on those of before is not theirs.
    (data / "piqa/valid-labels.lst").write_text("1\n")
    changed = layerlab.adapt(content, out=tmp_path / "out", progress=False)
    before, after = (one.frame("scores").set_index("title") for one in (later, changed))
    assert before["score"]["PIQA"] == 1 - after["score"]["PIQA"]


def test_a_model_is_compared_with_the_base_of_its_own_arm(tmp_path):
    def record(question: str, score: float) -> dict[str, Any]:
        about = {"benchmark": "piqa", "subject": "all", "scoring": "choice_ll", "arm": "x"}
        return {**about, "task": "piqa", "shots": {"asked": 0}, "scores": {question: score}}

    shelf, stages = adapt.StageStore(tmp_path / "stages"), list[Stage]()
    every = [("one", "base", "1", 0.0), ("one", "tune", "1", 1.0)]
    every += [("two", "base", "1", 1.0), ("two", "tune", "1", 1.0)]
    every += [("three", "base", "1", 1.0), ("three", "tune", "2", 1.0)]
    for arm, after, question, score in every:
        settings, needs = {"of": arm}, {"model": after}
        stages.append(
            Stage(kind="evaluate", settings=settings, needs=needs, arms=(arm,), after=after)
        )
        left = {"remarks": [f"{arm} was asked"], "subjects": [record(question, score)]}
        shelf.finish(stages[-1], {"result": left}, 1.0)
    known = adapt.AdaptationPlan(make_recipe({"base": {"model": "a"}}), tuple(stages), tmp_path)
    found = adapt._compare(known, {"arms": ["one", "two", "three"], "remarks": ["first"]})
    first = {row["arms"][0]: row["difference"] for row in reversed(found["differences"])}
    assert first == {"one": 1.0, "two": 0.0}
    assert found["remarks"][:3] == ["first", "one was asked", "two was asked"]
    assert "evaluate after tune (three): this run and 'base' have no question" in str(found)


def test_texts_of_one_name_are_all_learned_and_held_out(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_text(f"{name} text, of some words.\n\n" * 40)
    content = {
        "base": {"model": "pre-norm"},
        "data": {
            "domain": [{"text": str(tmp_path / one / "train.txt")} for one in ("first", "second")]
        },
    }
    read = make_recipe(content)
    clean_texts(read, tmp_path / "cleaned", lambda said, share: None)
    with halves(read, tmp_path / "cleaned") as parts:
        assert list(parts) == [("domain", "train"), ("domain", "train 2")]
    held = read_held_out(read, tmp_path / "cleaned", "domain", 1000)
    assert [any(name in text for text in held) for name in ("first", "second")] == [True, True]


@pytest.mark.full
def test_what_cannot_be_adapted_is_one_line(tmp_path, tiny):
    tiny("llama").save_pretrained(tmp_path / "bare")
    diverging = recipe(tmp_path)
    diverging["base"]["recipe"]["train"] |= {"learning_rate": 1e30, "max_grad_norm": 0.0}
    for content, said in (
        (
            recipe(tmp_path, base={"model": "pre-norm"}, clean={"min_chars": 100_000}),
            r"nothing is left of .* after cleaning; relax the rules",
        ),
        (
            {"base": {"model": str(tmp_path / "bare")}},
            "model bare has no tokenizer beside it; expected its",
        ),
        (diverging, r"is not finite at update 1; .*; lower train"),
    ):
        refuses(said, layerlab.adapt, content, out=tmp_path / "out", progress=False)


@pytest.mark.full
def test_a_stage_that_was_changed_is_not_believed(whole, folder):
    """What an arm scored cannot be raised beside the program."""
    for file in sorted((folder / "whole" / "lessons" / "stages").glob("*/stage.json")):
        kept = file.read_text("utf-8")
        content = json.loads(kept)
        if content["kind"] != "evaluate":
            continue
        try:
            file.write_text(json.dumps({**content, "seconds": 0.0}), "utf-8")
            with pytest.raises(UserError) as caught:
                adapt.adapt(recipe(folder, arm=ARMS), out=folder / "whole", progress=False)
            said = "it is not what was written, or is of an earlier version; delete it"
            assert str(caught.value).startswith(f"cannot read {file}: {said}")
        finally:
            file.write_text(kept, "utf-8")
        return
    raise AssertionError("no evaluation was kept")


@pytest.mark.full
def test_what_a_kill_left_of_a_stage_goes_and_is_not_sealed(tmp_path):
    content = {"name": "there", "base": {"model": "pre-norm"}}
    layerlab.adapt(content, out=tmp_path, progress=False)
    (kept,) = tmp_path.glob("there/stages/*/stage.json")
    kept.unlink()
    for name in ("model", "words", "stage.json"):
        (kept.parent / f".{name}.0a1b2c3d.partial").mkdir()
    layerlab.adapt(content, out=tmp_path, progress=False)
    assert kept.is_file() and not list(kept.parent.glob(".*"))
