"""What lm-eval's results say of answers beside them: directions, counts and means, all held."""

import json
from pathlib import Path
from typing import Any

import pytest

import layerlab
from layerlab.evaluation.paired.harness_results import pick_directions
from layerlab.logs.directions import is_higher_better
from tests.evaluation.paired.written_samples import DATE, sample, write, write_both
from tests.support.refused import refuses

pytest.importorskip("lm_eval")


def judged(*places: Path, **given: Any) -> Any:
    return layerlab.judge(list(places), **given)


def beside(folder: Path, **told: Any) -> Path:
    """Write the results of lm-eval beside answers to the task own."""
    names = {"n_samples": "n-samples"}
    tables = {names.get(name, name): {"own": one} for name, one in told.items()}
    path = folder / f"results_{DATE}.json"
    path.write_text(json.dumps(tables))
    return path


@pytest.mark.parametrize(
    "content",
    [
        *('{"higher_is_better": {"own": {"off": fal', "", "[]", "\udcff"),
        *('{"higher_is_better": {"own": 1}}', '{"results": []}', '{"n-samples": {"own": 4}}'),
    ],
)
def test_results_that_cannot_be_read_turn_no_direction_round(tmp_path, content):
    places = write_both(tmp_path, *[[0.5, 0.25, 0.125]] * 2, metric="off")
    _, path = (beside(place, higher_is_better={"off": False}) for place in places)
    assert judged(*places).rows
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    refuses(r"results_.*\.json cannot be read: .* or move the file away", judged, *places)


def test_what_is_better_is_told_or_known_and_never_guessed(tmp_path):
    scores = ([n % 3 + at + n * at / 100 for n in range(20)] for at in range(2))
    places = write_both(tmp_path, *scores, metric="off")
    refuses(r"off of own is better is said nowhere: .* metric='off=lo", judged, *places)
    assert judged(*places, metric="off=lower").rows[0]["verdict"] == "worse"
    assert judged(*places, metric="off=higher").rows[0]["verdict"] == "better"
    said = r"metric says 'less' of off; expected off=lower or off=h"
    refuses(said, judged, *places, metric="off=less")
    beside(places[0], higher_is_better={"off": False})
    assert judged(*places).rows[0]["verdict"] == "worse"
    beside(places[1], higher_is_better={"off": True})
    refuses(r"lower in a, higher in b, as their results say; evaluate", judged, *places)
    assert judged(*places, metric="off=higher").rows[0]["verdict"] == "better"


@pytest.mark.parametrize(
    ("metric", "way", "verdict"),
    [
        ("perplexity", "mean", "worse"),
        ("perplexity", None, "worse"),
        ("ppl", "mean", "worse"),
        # What a perplexity of all questions is made of is the log-likelihood of each.
        ("ppl", "perplexity", "better"),
    ],
)
def test_a_perplexity_of_each_question_is_better_the_lower_it_is(tmp_path, metric, way, verdict):
    scores = ([2 + 7 * at + n * (1 + at) / 50 for n in range(20)] for at in range(2))
    places = write_both(tmp_path, *scores, metric=metric)
    for place in places if way is not None else ():
        listed = {"metric_list": [{"metric": metric, "aggregation": way}]}
        beside(place, higher_is_better={metric: False}, configs=listed)
    assert judged(*places).rows[0]["verdict"] == verdict


@pytest.mark.parametrize("told", [True, False])
def test_a_log_likelihood_that_is_called_a_perplexity_is_one(tmp_path, told):
    """As lm-eval keeps LAMBADA."""
    scores = ([at - 9 + n * (1 + at) / 50 for n in range(20)] for at in range(2))
    places = write_both(tmp_path, *scores, metric="perplexity")
    for place in places if told else ():
        beside(place, higher_is_better={"perplexity": False})
    assert judged(*places).rows[0]["verdict"] == "better"
    assert judged(*places, metric="perplexity=lower").rows[0]["verdict"] == "worse"


def test_the_directions_of_lm_eval_are_known():
    import lm_eval.api.metrics  # noqa: F401  (it fills the registry)
    from lm_eval.api.registry import HIGHER_IS_BETTER_REGISTRY

    told = {name: one for name, one in HIGHER_IS_BETTER_REGISTRY.items() if name != "bypass"}
    assert told == {name: is_higher_better(name) for name in told}


MEAN = {"metric_list": [{"metric": "off", "aggregation": "mean"}]}
CONTRADICTED = {
    "holds the answers to 4 questions, and results_.* tells of 5": (
        "acc",
        {"n_samples": {"original": 5, "effective": 5}},
    ),
    r"the mean acc of the questions of .* is 0\.25, and results_.* says 0\.5": (
        "acc",
        {"results": {"acc,none": 0.5}},
    ),
    r"the mean acc of the questions of .* is 0\.25, and results_.* says 0\.75": (
        "acc",
        {"results": {"acc,none": 0.75, "acc_stderr,none": 0.1, "length,none": 4.0}},
    ),
    r"the mean off of the questions of .* is 0\.25, and results_.* says 0\.5": (
        "off",
        {"results": {"off,none": 0.5}, "configs": MEAN, "higher_is_better": {"off": True}},
    ),
}
AGREED = {
    "all": {"results": {"acc,none": 0.25}, "n_samples": {"effective": 4}},
    "another aggregation": {
        "results": {"acc,none": 0.5},
        "configs": {"metric_list": [{"metric": "acc", "aggregation": "agg_gpirt"}]},
    },
    "metrics by their names": {"configs": {"metric_list": ["acc"]}},
    "several filters": {"results": {"acc,strict": 0.5, "acc,loose": 0.25}},
    "no number": {"results": {"acc,none": "N/A"}, "n_samples": {"effective": None}},
}


@pytest.mark.parametrize("said", CONTRADICTED)
def test_answers_that_contradict_the_results_beside_them_are_refused(tmp_path, said):
    metric, told = CONTRADICTED[said]
    first, second = write_both(tmp_path, *[[1, 0, 0, 0]] * 2, metric=metric)
    path = beside(second, **told)
    beside(first, higher_is_better={"off": True})
    refuses(said, judged, first, second)
    path.unlink()
    assert judged(first, second).rows


@pytest.mark.parametrize("told", AGREED.values(), ids=[*AGREED])
def test_answers_that_may_well_be_those_of_the_results_are_judged(tmp_path, told):
    places = write_both(tmp_path, *[[1, 0, 0, 0]] * 2)
    beside(places[1], **told)
    assert judged(*places).rows


def test_means_of_several_filters_are_held_against_those_of_the_same_name(tmp_path):
    rows = [sample(n, n == 0, filter=way) for way in ("loose", "strict") for n in range(4)]
    for name in ("a", "b"):
        write(tmp_path / name, rows)
        path = beside(tmp_path / name, results={"acc,loose": 0.25, "acc,strict": 0.25})
    assert judged(tmp_path / "a", tmp_path / "b").rows
    path.write_text(path.read_text().replace('strict": 0.25', 'strict": 0.5'))
    refuses("the mean acc,strict of .* says 0.5", judged, tmp_path / "a", tmp_path / "b")


def test_one_answer_is_held_against_its_results(tmp_path):
    places = write_both(tmp_path, [1], [1])
    _, path = (beside(place, results={"acc,none": 1}) for place in places)
    assert judged(*places).rows
    path.write_text(path.read_text().replace("1}", "0}"))
    refuses("the mean acc of .* is 1, and .* says 0;", judged, *places)


def test_a_direction_that_is_neither_is_none():
    told = {"higher_is_better": {"own": {"acc": True, "off": False, "other": None}}}
    assert pick_directions(told, "own") == {"acc": True, "off": False}


def dated(folder: Path, settings: list[Any]) -> Path:
    """Write a task for each date, with results that say what the model was loaded with."""
    for at, one in enumerate(settings):
        date = f"2026-01-0{at + 1}T03-04-05.678901"
        write(folder, [sample(n, (n + at) % 3 == 0) for n in range(12)], f"task{at}", date)
        told = {"config": {"model": "hf", "model_args": one, "model_sha": ""}}
        (folder / f"results_{date}.json").write_text(json.dumps(told))
    return folder


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"pretrained": "m", "revision": "step2"}, "revision is 'step1' in .* and 'step2' in"),
        ("pretrained=m,revision=step1,peft=ada", "peft is '' in .* and 'ada' in"),
        ({"pretrained": "n", "revision": "step1"}, "pretrained is 'm' in .* and 'n' in"),
        (
            {"pretrained": "m", "revision": "step1", "dtype": "float16"},
            "dtype is '' in .*'fl",
        ),
    ],
)
def test_answers_of_two_models_in_one_folder_are_refused(other, name, tmp_path):
    """lm-eval calls it by `pretrained`, whatever the revision is, and tasks would be mixed."""
    one = {"pretrained": "m", "revision": "step1"}
    base = dated(tmp_path / "base", [one, one])
    mixed = dated(tmp_path / "mixed", [one, other])
    refuses(rf"mixed holds answers of two models: {name}", judged, base, mixed)


def test_where_and_how_it_was_asked_is_no_other_model(tmp_path):
    one = {"pretrained": "m", "device": "cpu"}
    base = dated(tmp_path / "base", [one, "pretrained=m,device=cuda,batch_size=8"])
    again = dated(tmp_path / "again", [one, {**one, "max_length": 99}])
    found = judged(base, again)
    told = found.content["remarks"]
    assert "again was asked its tasks with other settings of max_length" in told
    assert not any(one.startswith("base was asked") for one in told)


def test_what_lm_eval_could_not_find_out_is_no_other_model(tmp_path):
    """Without a network it knows no commit; a dtype that is left out may be the same."""
    places = [dated(tmp_path / name, [{"pretrained": "m"}] * 2) for name in ("base", "again")]
    first, second = sorted(places[1].glob("results_*.json"))

    def tell(file: Path, given: str, **found: str) -> None:
        told = {"model_args": f"pretrained=m{given}", "model_revision": "main", **found}
        file.write_text(json.dumps({"config": told}))

    tell(first, "", model_dtype="torch.bfloat16", model_sha="abc")
    tell(second, ",dtype=bfloat16,revision=main", model_dtype="torch.bfloat16", model_sha="")
    assert judged(*places).rows
    tell(second, "", model_dtype="torch.bfloat16", model_sha="abd")
    refuses("model_sha is 'abc' in .* and 'abd' in", judged, *places)
    tell(second, "", model_dtype="torch.float16", model_sha="abc")
    refuses("model_dtype is 'torch.bfloat16' in .* and 'torch.float16' in", judged, *places)
