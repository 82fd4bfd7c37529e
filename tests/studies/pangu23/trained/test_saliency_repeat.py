"""A name that comes back: where it stands, what a model's gradient says, and the words for it."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from layerlab.studies.engine.runner import study
from layerlab.studies.engine.sampling import Sampler
from layerlab.studies.engine.statistics import Interval
from layerlab.studies.pangu23.trained import saliency_repeat
from layerlab.studies.pangu23.trained.saliency_repeat import (
    COSINE,
    LIFT,
    NAMES,
    RIGHT,
    STORIES,
    SURE,
    case,
    judge_back,
    judge_isotropic,
    judge_looks,
    judge_surer,
    look_back,
    pair_words,
    texts,
    twin_quantities,
)
from layerlab.studies.support import small_models
from layerlab.studies.support.passages import get_model
from tests.studies.small import context, drawing


@pytest.mark.parametrize(("story", "name"), list(product(STORIES, NAMES[:4])))
def test_a_name_comes_three_times_and_its_end_is_asked_about(story, name):
    subject = get_model("llama")
    asked, places, last = case(subject, story.format(name=name), name)
    word = subject.tokenizer(f" {name}")["input_ids"]
    assert len(word) > 1 and places == sorted(places) and len(places) == 2 * len(word)
    ids = asked.tokens.tolist()
    assert ids[last:] == word[:-1] and asked.target == (word[-1],)
    assert [ids[place] for place in places] == 2 * word and max(places) < last
    assert asked.position == len(ids) - 1


def test_a_text_begins_with_what_its_tokenizer_sets_in_front_of_it():
    plain = get_model("llama")
    begins = replace(plain, tokenizer=deepcopy(plain.tokenizer))
    begins.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    text = STORIES[0].format(name=NAMES[0])
    (own, places, last), (asked, moved, end) = (
        case(subject, text, NAMES[0]) for subject in (plain, begins)
    )
    assert asked.tokens.tolist() == [0, *own.tokens.tolist()] and asked.target == own.target
    assert moved == [place + 1 for place in places] and end == last + 1


def test_every_name_is_cut():
    tokenizer = get_model("llama").tokenizer
    assert min(len(tokenizer(f" {name}")["input_ids"]) for name in NAMES) > 1


def test_texts_are_all_different_and_known_by_their_seed():
    every = texts(drawing(len(STORIES) * len(NAMES)))
    assert len(set(every)) == len(STORIES) * len(NAMES)
    assert texts(drawing(5)) == texts(drawing(5)) == every[:5]
    assert all(text.endswith(f" {name}") and text.count(name) == 3 for text, name in every)


def test_shares_are_those_of_the_tokens_before_the_last_name():
    subject = get_model("pre-norm")
    ((text, name),) = texts(drawing(1))
    quantities, shares = look_back(subject, text, name)
    _, places, last = case(subject, text, name)
    kept = shares[: int(shares.isfinite().sum())]
    assert len(kept) == last and kept.sum().item() == pytest.approx(1)
    lift = kept[places].mean() / kept.mean()
    assert quantities[LIFT].item() == pytest.approx(lift.item())
    assert quantities[SURE] < 0 and quantities[RIGHT] in (0, 1) and -1 <= quantities[COSINE] <= 1


def test_a_gradient_on_all_tokens_alike_has_a_lift_of_one(monkeypatch):
    subject = get_model("llama")
    ((text, name),) = texts(drawing(1))

    layer = SimpleNamespace(scores={"l1": torch.full((128,), 3.0), "cosine": torch.zeros(128)})
    found = SimpleNamespace(layers={0: layer, 1: layer}, logits=torch.zeros(512))
    monkeypatch.setattr(
        "layerlab.measures.quantities.saliency.saliency", lambda *given, **options: found
    )
    quantities, _ = look_back(subject, text, name)
    assert quantities[LIFT].item() == pytest.approx(1)
    assert quantities[SURE].item() == pytest.approx(-np.log(512))


def planted(lift, sure, cosine):
    """Two pairs of twins that read ten texts: what the first has more."""
    pair = np.ones((10, 2, 4)) + np.random.default_rng(0).normal(0, 1e-3, (10, 2, 4))
    pair[:, 0, LIFT] *= lift
    pair[:, 0, SURE] += sure
    pair[:, 0, COSINE] -= cosine
    return [pair, pair.copy()]


def test_words_follow_the_numbers():
    judges = (judge_looks, judge_surer, judge_isotropic)
    assert [judge(planted(1.5, 0.5, 0.1), 0).word for judge in judges] == ["holds"] * 3
    assert [judge(planted(0.7, -0.5, -0.1), 0).word for judge in judges] == ["fails"] * 3
    high, low = planted(1.5, 0.5, 0.1)[0], planted(0.7, -0.5, -0.1)[0]
    assert [judge([high, low], 0).word for judge in judges] == ["not decided"] * 3


def unable(pairs, sides):
    """The same, but these sides are right in one text of ten, which a guess would be too."""
    for pair in pairs:
        pair[:, sides, RIGHT] = 0
        pair[0, sides, RIGHT] = 1
    return pairs


@pytest.mark.parametrize(("lift", "word"), [(1.5, "holds"), (0.5, "fails")])
def test_models_that_do_not_do_the_task_decide_nothing(lift, word):
    more = lift - 1
    assert judge_looks(planted(lift, more, 0), 0).word == word
    for sides in ([0], [1], [0, 1]):
        found = judge_looks(unable(planted(lift, more, 0), sides), 0)
        assert found.word == "not decided" and "10%" in found.said
    # That the plain model is wrong is what this claim says.
    assert judge_surer(unable(planted(lift, more, 0), [1]), 0).word == word
    assert judge_surer(unable(planted(lift, more, 0), [0]), 0).word == "not decided"


def test_features_of_models_of_few_updates_decide_nothing():
    assert judge_isotropic(planted(1, 0, 0.1), 0).word == "holds"
    assert judge_isotropic(planted(1, 0, 0.1), 0, decides=False).word == "not decided"


def test_all_pairs_have_to_agree():
    above, below, across = Interval(2, 1.5, 3), Interval(0, -1, 0.5), Interval(1, 0, 2)
    assert (
        pair_words([above, above], 1, 1) == "holds" and pair_words([below, below], 1, 1) == "fails"
    )
    assert pair_words([above, across], 1, 1) == pair_words([above, below], 1, 1) == "not decided"


def test_one_model_that_does_not_look_back_is_enough():
    def part(lift, right=1.0):
        values = np.full((10, 4), lift) + np.random.default_rng(0).normal(0, 1e-3, (10, 4))
        values[:, RIGHT] = right
        return {"quantities": values}

    assert judge_back({"one": part(2.0), "other": part(3.0)}, 0).word == "holds"
    found = judge_back({"one": part(2.0), "other": part(0.5)}, 0)
    assert found.word == "fails" and found.number == pytest.approx(0.5, abs=0.01)
    # Who cannot tell the name is not asked whether it looks at it.
    found = judge_back({"one": part(2.0), "other": part(0.5, right=0.0)}, 0)
    assert found.word == "holds" and found.number == pytest.approx(2, abs=0.01)
    assert judge_back({"one": part(0.5, right=0.0)}, 0).word == "not decided"


def test_a_model_is_pictured_whatever_its_name_ends_with():
    part = {"shares": np.array([[0.25, 0.75, np.nan]])}
    found = saliency_repeat.plot_text({"llama": part, "gpt2": part}, ["␣a", "<b>b</b>"])
    assert [one["name"] for one in found.data] == ["llama", "gpt2"]
    assert found.data[0]["y"] == [0.25, 0.75]
    axis = found.layout["xaxis"]
    assert axis["tickvals"] == [0, 1] and axis["ticktext"] == ["␣a", "<b>b</b>"]


def batch(whole):
    """The texts' numbers, as the built-in models get them."""
    return Sampler(count=whole.draws, generator=small_models.generator_of(whole, 0))


def test_the_name_of_the_first_text_is_marked_where_it_came_before():
    whole = context(models=saliency_repeat.MODELS)
    words = saliency_repeat.first(whole)
    text, name = saliency_repeat.texts(batch(whole))[0]
    bare = "".join(word.removeprefix("<b>").removesuffix("</b>") for word in words)
    assert text == (bare + f"␣{name}").replace("␣", " ")
    marked = "".join(word[3:-4] if word.startswith("<b>") else "|" for word in words)
    assert [one for one in marked.split("|") if one] == 2 * [f"␣{name}"]


@pytest.mark.full
def test_what_twins_have_read_is_judged_whole(tmp_path, monkeypatch):
    def taught(arm, seed, **sizes):
        return small_models.Twin(get_model("llama"), 1.0, torch.zeros(1, 1))

    twins = partial(context, runs=tmp_path, options=small_models.SIZES)
    monkeypatch.setattr(small_models, "train_one", taught)
    jobs = [("pangu-pi", 1)]
    ((whole,), notes) = twin_quantities(twins(draws=3), jobs)
    assert whole["quantities"].shape == (3, 4) and notes == []
    direct = look_back(get_model("llama"), *texts(batch(context(draws=3)))[2])[0]
    assert np.allclose(whole["quantities"][2], direct)
    monkeypatch.setattr(small_models, "train_one", None)
    ((few,), notes) = twin_quantities(twins(fast=True), jobs)
    assert (few["quantities"] == whole["quantities"]).all()
    assert notes == ["Of 1 models 1 had been trained before, and are read."]
    # Those of another seed are of other texts, which no page of this one may show.
    with pytest.raises(TypeError, match="not callable"):
        twin_quantities(twins(fast=True, seed=1), jobs)


@pytest.mark.full
def test_the_fast_mode_without_runs_says_which_sizes_it_had_and_decides_nothing(
    tmp_path, monkeypatch
):
    def taught(arm, seed, **sizes):
        assert sizes == small_models.FAST
        return small_models.Twin(get_model("llama"), 1.0, torch.zeros(1, 1))

    monkeypatch.setattr(small_models, "train_one", taught)
    options = {"draws": 4, "seeds": 1, "runs": tmp_path, "progress": False, "threads": 1}
    found = study("saliency-repeat", fast=True, **options)
    assert {one["word"] for one in found.verdicts[:3]} == {"not decided"}
    assert found.to_dict()["settings"] == {"draws": 4, "seed": 0, "seeds": 1, **small_models.FAST}
    assert saliency_repeat.SMALL in found.to_dict()["remarks"]


def test_a_model_that_looks_back_at_nothing_has_no_lift():
    values = np.full((10, 4), np.nan)
    values[:, RIGHT] = 1
    found = judge_back({"one": {"quantities": values}}, 0)
    assert found.word == "not decided" and found.unit == "10 texts, one model"
    assert "comings is none in one, which looks back at nothing; above" in found.said
