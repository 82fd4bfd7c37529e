"""What the numbers of a study on models of a user are kept of."""

import copy
import shutil

import numpy as np
import pytest
import torch

from layerlab.studies.engine import code_hash
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.runner import StudyRequest, study
from layerlab.studies.support.passages import excerpts, get_model
from tests.studies.small import change_json, context, given_of, made

NAME = "layernorm-against-rmsnorm"


def key_of(**given):
    plain = {"draws": 4, "progress": False, "threads": 1}
    return study(NAME, **plain, **given).to_dict()["key"]


@pytest.mark.full
def test_keys_hang_on_the_precision_in_which_the_files_are_read(tmp_path):
    one = tmp_path / "model"
    made("llama").save_pretrained(one)
    get_model("llama").tokenizer.save_pretrained(one)
    first = key_of(model=str(one))
    change_json(one / "config.json", dtype="bfloat16")  # of the same files
    assert key_of(model=str(one)) != first


@pytest.mark.full
def test_keys_hang_on_what_a_model_in_memory_computes_beside_its_weights():
    model, words = made("llama"), get_model("llama").tokenizer
    first = key_of(model=model, tokenizer=words)
    assert key_of(model=model, tokenizer=words) == first
    for layer in model.model.layers:
        layer.self_attn.scaling *= 3
    second = key_of(model=model, tokenizer=words)
    model.set_attn_implementation("eager")
    third = key_of(model=model, tokenizer=words)
    assert len({first, second, third}) == 3


@pytest.mark.full
def test_keys_hang_on_how_a_tokenizer_writes_tokens():
    model, words = made("llama"), copy.deepcopy(get_model("llama").tokenizer)
    first = key_of(model=model, tokenizer=words)
    words.clean_up_tokenization_spaces = not words.clean_up_tokenization_spaces
    assert key_of(model=model, tokenizer=words) != first


@pytest.mark.full
def test_keys_hang_on_the_code_that_builds_what_the_user_names(tmp_path, monkeypatch):
    place = tmp_path / "layerlab"
    shutil.copytree(
        code_hash.ROOT, place, ignore=shutil.ignore_patterns("__pycache__", "builtin", "report")
    )
    monkeypatch.setattr(code_hash, "ROOT", place)
    one, given, keys = studies()[NAME], given_of(NAME, model="llama:"), []
    for text in ("", "# changed"):
        with (place / "blocks" / "attention.py").open("a") as file:
            file.write(f"\n{text}\n")
        code_hash._import.cache_clear()
        keys.append(
            StudyRequest(study=one, draws=4, seed=0, threads=1, given=given, options={}).key
        )
    code_hash._import.cache_clear()
    assert keys[0] != keys[1]


@pytest.mark.full
def test_a_random_model_has_one_key_however_often_it_is_named():
    one, other = (given_of("attention-lambda", model="llama:")["random llama"] for _ in range(2))
    assert one.state == other.state


@pytest.mark.full
def test_batches_of_a_model_that_was_changed_under_its_name_are_computed_anew(tmp_path):
    def stream(draw, name):
        ids = excerpts(draw, name, 8)
        return {"logits": get_model(name, draw.given).model(ids).logits.detach()}

    model, words = made("llama"), get_model("llama").tokenizer
    found = []
    for _ in range(2):
        given = given_of(NAME, model=model, tokenizer=words)
        found_in = context(store=tmp_path, given=given, models=tuple(given))
        found += found_in.sample_models(stream).values()
        assert found_in.kept == 0
        with torch.no_grad():
            model.lm_head.weight.mul_(2)
    assert np.allclose(found[1]["logits"], 2 * found[0]["logits"])
