"""`layerlab.evaluate` on benchmark files of the tests' own making, and on the real ones."""

import copy
import json
import random
import shutil
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import layerlab
from layerlab.errors import Interrupted
from layerlab.evaluation.results.result import load_result
from layerlab.loading.model import LoadedModel
from tests.evaluation.candidate import candidate, tokenizer

pytest.importorskip("lm_eval")

from layerlab.evaluation.benchmarks.catalog import find_benchmark
from layerlab.evaluation.harness import run as sitting
from layerlab.evaluation.tasks.configs import task_configs
from tests.evaluation.exported import managed
from tests.evaluation.shelf import row, run, shelf, whole
from tests.support.refused import refusal

pytestmark = pytest.mark.full

__all__ = ["shelf", "whole"]


def test_official_averages_are_those_of_the_subjects(whole):
    frame = whole.frame("subjects")
    finance = frame[frame.benchmark == "financeiq"]
    assert whole.score("financeiq") == pytest.approx(finance.score.mean())
    assert row(whole, "financeiq")["formula"] == "mean of 10 subjects"
    fineval = frame[frame.benchmark == "fineval"]
    pooled = (fineval.score * fineval.n).sum() / fineval.n.sum()
    assert whole.score("fineval") == pytest.approx(pooled)
    assert row(whole, "fineval")["n"] == fineval.n.sum()


def test_chance_examples_and_groups_stand_beside(whole):
    assert row(whole, "boolq")["chance"] == 0.5 and row(whole, "financeiq")["chance"] == 0.25
    assert row(whole, "financeiq")["shots"]["asked"] == 5
    assert row(whole, "ax-b")["other"].keys() == {"mcc"}
    groups = whole.frame("groups").set_index("group")
    assert groups.score["knowledge"] == whole.score("boolq")
    finance = (whole.score("financeiq") + whole.score("fineval")) / 2
    assert groups.score["finance"] == pytest.approx(finance)
    assert "not run: ceval" in groups.formula["general"]
    sections = whole.frame("sections")
    assert set(sections[sections.benchmark == "fineval"].section) == {
        *("Accounting", "Certificate", "Economy", "Finance")
    }


def test_questions_leave_the_random_numbers_of_their_caller_as_they_were(shelf):
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    run(shelf, "boolq", limit=1)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before


def test_what_is_not_here_is_named_with_how_to_get_it(whole, shelf):
    (left,) = whole.content["left_out"]
    assert left["benchmark"] == "piqa" and "PIQA is not here: expected" in left["reason"]
    assert "get it from github.com/ybisk" in left["reason"]
    assert "left out: PIQA" in whole.summary()


def test_rows_of_the_source_are_labelled(whole):
    frame = whole.frame("published")
    assert set(frame["from"]) == {"published", "measured here"}
    assert set(frame.table) == {5, 6, 8, 9}
    ours = frame[(frame["from"] == "measured here") & (frame.table == 8)]
    assert ours.cells_average.item() == pytest.approx(100 * whole.score("financeiq"))
    assert "measured here" in whole.summary(200) and "published" in whole.summary(200)
    assert "measured here are the first" not in whole.summary(200)


def test_a_part_beside_published_scores_is_called_one(shelf):
    said = "measured here are the first 2 of each subject's questions, published are all"
    assert said in run(shelf, "boolq", compare=True, limit=2).content["remarks"]
    assert said not in run(shelf, "boolq", limit=2).content["remarks"]


def test_a_model_to_which_all_is_alike_is_above_chance_in_nothing(shelf):
    model = candidate(4096).model
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    found = run(shelf, "financeiq", model=model, limit=2)
    finance = row(found, "financeiq")
    assert not finance["guessing"]["above"]
    (said,) = [one for one in found.content["remarks"] if "tie at" in one]
    assert f"FinanceIQ: the likeliest options tie at {finance['n']} of {finance['n']} " in said
    for one in found.content["subjects"]:
        assert set(one["ties"]["score"].values()) == {0.25} and one["worth"] == "score"
    other = run(shelf, "financeiq", limit=2)
    (difference,) = run(shelf, "financeiq", limit=2, model=model, against=other).content[
        "compared"
    ][:1]
    assert difference["difference"] == pytest.approx(0.25 - other.score("financeiq"))


def test_the_group_of_plain_lm_eval_has_the_same_score(shelf, monkeypatch):
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

    from layerlab.system.logs import hush

    monkeypatch.setenv("LAYERLAB_DATA", str(shelf))
    model: Any = candidate(4096).model
    with hush():
        tasks = managed().load(["layerlab_financeiq", "layerlab_boolq"])
        for task in tasks["tasks"].values():
            task.set_fewshot_seed(0)
        engine = HFLM(pretrained=model, tokenizer=tokenizer())
        found = evaluate(engine, tasks, bootstrap_iters=0, limit=2)
    ours = run(shelf, model=model, limit=2)
    for name in ("financeiq", "boolq"):
        assert ours.score(name) == pytest.approx(found["groups"][f"layerlab_{name}"]["score,none"])


def test_a_tokenizer_that_takes_more_is_asked_anew(shelf, tmp_path, monkeypatch):
    monkeypatch.setattr(LoadedModel, "context", None)  # as of a model without positions
    words, asked, ask = copy.deepcopy(tokenizer()), [], sitting.run_task
    monkeypatch.setattr(
        sitting, "run_task", lambda *given, **options: asked.append(0) or ask(*given, **options)
    )
    for longest in (512, 512, 1024):
        words.model_max_length = longest
        run(shelf, "boolq", out=tmp_path / "out", limit=1, tokenizer=words)
    assert len(asked) == 2


def test_a_second_run_goes_on_after_the_last_finished_task(shelf, tmp_path, monkeypatch):
    answered: list[str] = []
    ask = sitting.run_task

    def counted(engine: Any, task: Any, **options: Any) -> Any:
        answered.append(task.task_name)
        if len(answered) == 3:
            raise KeyboardInterrupt
        return ask(engine, task, **options)

    monkeypatch.setattr(sitting, "run_task", counted)
    with pytest.raises(Interrupted, match="interrupted; what is finished is kept in"):
        run(shelf, out=tmp_path / "out", limit=1)
    assert not (tmp_path / "out" / "results.json").exists()
    first = run(shelf, out=tmp_path / "out", limit=1)
    assert len(answered) == 3 + 9 and answered[2] == answered[3]
    assert run(shelf, out=tmp_path / "out", limit=1).content == first.content
    assert len(answered) == 12
    run(shelf, "boolq", out=tmp_path / "out", limit=1, seed=1)
    assert len(answered) == 13
    # Undisturbed, and with nothing kept, it comes to the same.
    changing = {"seconds": 0, "samples": None}
    undisturbed = [{**one, **changing} for one in run(shelf, limit=1).content["subjects"]]
    assert undisturbed == [{**one, **changing} for one in first.content["subjects"]]


@pytest.mark.parametrize("changed", ["scorer", "template", "end", "special"])
def test_what_is_kept_is_not_taken_for_something_else(shelf, tmp_path, monkeypatch, changed):
    """Neither that of other code, nor of another way to write."""
    speaking = copy.deepcopy(tokenizer())
    speaking.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    model: Any = candidate(512).model

    def keys() -> set[str]:
        layerlab.evaluate(
            model,
            "boolq",
            data=shelf,
            tokenizer=speaking,
            out=tmp_path / "out",
            limit=1,
            progress=False,
        )
        return {path.name for path in (tmp_path / "out" / "leaves").iterdir()}

    assert len(keys()) == len(keys()) == 1
    if changed == "scorer":
        monkeypatch.setattr(sitting, "scorer", lambda: "another")
    elif changed == "template":
        speaking.chat_template += "!"
    elif changed == "end":
        model.generation_config.repetition_penalty = 1.5  # which is not used
        assert len(keys()) == 1
        model.generation_config.eos_token_id = [0, 5]
    else:
        speaking.eos_token = "A"
    assert len(keys()) == 2


def put_another_activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = torch.nn.GELU()


def stretch_positions(model: Any) -> None:
    model.model.rotary_emb.inv_freq /= 8


def scale_attention(model: Any) -> None:
    model.model.layers[0].self_attn.scaling *= 2


def hang_in_a_hook(model: Any) -> None:
    model.model.layers[0].mlp.register_forward_hook(lambda module, given, found: 0 * found)


def bend_a_method(model: Any) -> None:
    model.model.layers[0].mlp.forward = lambda x: 0 * x


@pytest.mark.parametrize(
    "change",
    [put_another_activation, stretch_positions, scale_attention, hang_in_a_hook, bend_a_method],
)
def test_a_model_that_was_changed_in_memory_is_asked_anew(shelf, tmp_path, change):
    """Its weights and its configuration are the same."""
    model = copy.deepcopy(candidate(512).model)

    def keys() -> int:
        run(shelf, "boolq", model=model, out=tmp_path / "out", limit=1)
        return len(list((tmp_path / "out" / "leaves").iterdir()))

    assert keys() == keys() == 1
    change(model)
    assert keys() == 2


def test_what_is_written_can_be_read(shelf, tmp_path):
    found = run(shelf, "boolq", out=tmp_path / "out")
    assert load_result(tmp_path / "out").content == found.content
    assert load_result(tmp_path / "out" / "results.json").to_dict() == found.to_dict()
    tables = {path.stem for path in (tmp_path / "out" / "tables").iterdir()}
    assert tables == {"benchmarks", "groups", "subjects"}
    record = found.content["subjects"][0]
    samples = (tmp_path / "out" / record["samples"]).read_text("utf-8").splitlines()
    assert [json.loads(line)["score"] for line in samples] == list(record["scores"].values())
    assert not list((tmp_path / "out").rglob(".*"))


def test_differences_to_an_earlier_run(shelf, whole, tmp_path):
    same = run(shelf, against=whole, limit=2)
    parts = [one for one in same.content["compared"] if one.get("complete", True)]
    assert {one["difference"] for one in parts} == {0.0} == {one["error"] for one in parts}
    titles = [one["title"] for one in same.content["compared"]]
    assert titles == ["BoolQ", "FinanceIQ", "domain mean", "general mean", "forgetting"]
    other = run(
        shelf, model=candidate(512, initializer_range=0.5).model, against=whole, shots=1, limit=2
    )
    frame = other.frame("compared").set_index("title")
    earlier = run(shelf, limit=2)
    gained = other.score("boolq") - earlier.score("boolq")
    assert frame.difference["BoolQ"] == pytest.approx(gained)
    partial = frame[frame.complete.eq(False)]
    assert partial.difference.isna().all() and partial.whole.tolist() == [2, 11, 11]
    assert "incomplete (1 of 11)" in other.summary(140)
    assert "asked differently: FinanceIQ: 1 example here, 5 there" in other.content["remarks"]


def test_models_of_one_name_are_compared_with_those_of_their_folders(shelf, tmp_path):
    places = [tmp_path / one / "mine" for one in ("a", "b")]
    for place, spread in zip(places, (0.02, 0.5), strict=True):
        candidate(512, initializer_range=spread).model.save_pretrained(place)
        tokenizer().save_pretrained(place)
    earlier = run(shelf, "boolq", model=list(map(str, places)), limit=9)
    one, other = (earlier.score("boolq", arm) for arm in ("mine", "mine (2)"))
    assert one != other
    turned = run(shelf, "boolq", model=[str(places[1]), str(places[0])], limit=9, against=earlier)
    rows = [row for row in turned.content["compared"] if row["title"] == "BoolQ"]
    assert [row["against"] for row in rows] == ["mine (2), earlier", "mine, earlier"]
    assert [row["difference"] for row in rows] == [0.0, 0.0]


def test_what_a_precision_costs(shelf, tmp_path):
    policy = tmp_path / "policy.toml"
    layerlab.Policy(format="bf16", keep=("lm_head",)).save(policy)
    found = run(shelf, "boolq", format="int4", policy=policy, limit=4)
    assert [one["precision"] for one in found.content["arms"]] == ["", "int4", "bf16, 1 kept"]
    seen = found.frame("precision")
    perplexities = seen.perplexity.dropna().tolist()
    assert len(perplexities) == 3 and perplexities[0] != perplexities[1]
    differences = seen[seen.title == "BoolQ"]
    assert len(differences) == 2 and differences.n.tolist() == [4, 4]
    assert "What a precision costs" in found.summary()


def test_weights_are_read_for_their_hash_once(shelf, monkeypatch):
    from layerlab.loading import model as module

    hashed: list[Any] = []
    plain = module.weights_hash

    def counted(*given: Any) -> str | None:
        hashed.append(given)
        return plain(*given)

    monkeypatch.setattr(module, "weights_hash", counted)
    monkeypatch.setattr(sitting, "weights_hash", counted, raising=False)
    found = run(shelf, "boolq", format="bf16", limit=1)
    assert len(found.content["arms"]) == 2 and len(hashed) == 1


@pytest.mark.parametrize("scoring", ["mean_nll", "gen"])
def test_other_scorings(shelf, scoring):
    found = run(shelf, "financeiq,boolq,piqa", scoring=scoring, limit=1)
    assert row(found, "financeiq")["scoring"] == scoring
    expected = "choice_ll" if scoring == "gen" else scoring
    assert row(found, "boolq")["scoring"] == expected
    assert row(found, "financeiq")["abstained"] is not None
    # PIQA, which is not here, was not asked in any way.
    assert ("BoolQ: not scored by gen" in found.content["remarks"]) == (scoring == "gen")


def test_explained_examples(shelf, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", str(shelf))
    fineval = find_benchmark("fineval")
    tasks = sitting.load_tasks(task_configs(fineval, "cot")[:1])
    engine = sitting.HarnessModel(candidate(2048), batch=1, scoring="gen")
    found = sitting.run_task(engine, tasks[fineval.leaf(fineval.subjects[0])], limit=1)
    assert found.samples[0]["prompt"].count("让我们一步一步思考") == 6
    assert found.samples[0]["prompt"].count("因为") == 5


def test_two_models_beside_each_other(shelf):
    models = [candidate(512).model, candidate(512, hidden_size=16, head_dim=4).model]
    found = run(shelf, "boolq", model=models)
    names = [one["arm"] for one in found.content["arms"]]
    assert len(set(names)) == 2 and len(found.content["benchmarks"]) == 2
    assert found.score("boolq", names[1]) == found.content["benchmarks"][1]["score"]


def test_a_model_is_gone_before_the_next_is_loaded(shelf, monkeypatch):
    from layerlab.api import evaluate as api

    load, held, alive = api.load_model, [], []

    def watch(*given: Any, **options: Any) -> LoadedModel:
        alive.append(sum(one() is not None for one in held))
        found = load(*given, **options)
        held.append(weakref.ref(found.model))
        return found

    monkeypatch.setattr(api, "load_model", watch)
    names = ["llama", "pre-norm", "post-norm"]
    layerlab.evaluate(names, "boolq", data=shelf, limit=2, progress=False)
    assert alive == [0, 0, 0]


def test_another_folder_of_data_gives_the_same_questions(shelf, tmp_path, monkeypatch):
    """Where data lies is no part of what is asked, so that kept answers are found again."""
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path / "none"))
    first = run(shelf, "boolq", limit=1, out=tmp_path / "out")
    shutil.copytree(shelf, tmp_path / "moved")
    monkeypatch.setattr(sitting, "run_task", lambda *args, **kwargs: pytest.fail("asked again"))
    again = run(tmp_path / "moved", "boolq", limit=1, out=tmp_path / "out")
    assert again.score("boolq") == first.score("boolq")


def test_chat(shelf):
    assert refusal(run, shelf, "boolq", chat=True) == (
        "the tokenizer of LlamaForCausalLM has no chat template, which chat= takes prompts from; "
        "leave chat= out, or set its chat_template"
    )
    speaking = copy.deepcopy(tokenizer())
    speaking.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    )
    found = layerlab.evaluate(
        candidate(512).model,
        "boolq",
        data=shelf,
        tokenizer=speaking,
        chat=True,
        limit=1,
        progress=False,
    )
    assert row(found, "boolq")["n"] == 1 and found.content["options"]["chat"]


@pytest.mark.parametrize("name", ["pre-norm", "llama"])
def test_built_in_models_are_asked(shelf, name):
    found = layerlab.evaluate(name, "boolq", data=shelf, progress=False, limit=3)
    assert found.content["arms"][0]["arm"] == name
    assert row(found, "boolq")["n"] == 3


def test_a_model_of_others_on_real_questions(data):
    """Real files of a benchmark, and a trained model with a tokenizer of SentencePiece."""
    found = layerlab.evaluate(
        str(data / "model-stories260K" / "hf"), "piqa", data=data, progress=False, limit=5
    )
    assert row(found, "piqa")["n"] == 5 and row(found, "piqa")["shots"]["unfit"] == 0
