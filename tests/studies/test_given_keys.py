"""What the numbers of a study on models of a user are kept of."""

import copy

from layerlab.studies.engine.runner import study
from layerlab.studies.support.passages import patient
from tests.studies.test_given_models import change_json, given_of, made


def key_of(**given):
    name, plain = "layernorm-against-rmsnorm", {"draws": 4, "progress": False, "threads": 1}
    return study(name, **plain, **given).to_dict()["key"]


def test_keys_hang_on_the_precision_in_which_the_files_are_read(tmp_path):
    one = tmp_path / "model"
    made("llama").save_pretrained(one)
    patient("llama").tokenizer.save_pretrained(one)
    first = key_of(model=str(one))
    change_json(one / "config.json", dtype="bfloat16")  # of the same files
    assert key_of(model=str(one)) != first


def test_keys_hang_on_what_a_model_in_memory_computes_beside_its_weights():
    model, words = made("llama"), patient("llama").tokenizer
    first = key_of(model=model, tokenizer=words)
    assert key_of(model=model, tokenizer=words) == first
    for layer in model.model.layers:
        layer.self_attn.scaling *= 3
    second = key_of(model=model, tokenizer=words)
    model.set_attn_implementation("eager")
    third = key_of(model=model, tokenizer=words)
    assert len({first, second, third}) == 3


def test_keys_hang_on_how_a_tokenizer_writes_tokens():
    model, words = made("llama"), copy.deepcopy(patient("llama").tokenizer)
    first = key_of(model=model, tokenizer=words)
    words.clean_up_tokenization_spaces = not words.clean_up_tokenization_spaces
    assert key_of(model=model, tokenizer=words) != first


def test_a_random_model_has_one_key_however_often_it_is_named():
    one, other = (given_of("attention-lambda", model="llama:")["random llama"] for _ in range(2))
    assert one.state == other.state
