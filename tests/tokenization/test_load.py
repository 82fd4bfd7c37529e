"""Tokenizers: trained the same in every process, or loaded, and always with a separator."""

import copy
import hashlib
import json
import logging
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from layerlab import UserError, builtin
from layerlab.evaluation.harness.model_checks import prepare_tokenizer
from layerlab.loading.inputs import tokenize
from layerlab.loading.model import load_model
from layerlab.loading.text_input import TextInput
from layerlab.loading.weights.saved import tokenizer_of
from layerlab.measures.support.saliency.prompt import tokenize_unfinished
from layerlab.tokenization.convert import load_or_convert
from layerlab.tokenization.load import engine, entries, load_tokenizer, separator, train_tokenizer
from tests.support.forked import empty_python
from tests.support.refused import refuses

TEXTS = ["the cat and the hat", "ein Käse, zwei Käse", "\n\n  x = 1\n"] * 5


def words() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, 280)


@pytest.mark.full
def test_training_gives_the_same_in_every_process():
    code = (
        "import hashlib; from layerlab.tokenization.load import train_tokenizer as t;"
        f"print(hashlib.sha256(t({TEXTS!r}, 280).backend_tokenizer.to_str().encode()).hexdigest())"
    )
    said = {empty_python("-c", code, check=True).stdout.strip() for _ in range(2)}
    assert said == {hashlib.sha256(words().backend_tokenizer.to_str().encode()).hexdigest()}


WORDS = words()


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_every_string_comes_back(text):
    assert WORDS.decode(engine(WORDS).encode(text).ids) == text


def test_entries_and_separator():
    assert entries(words()) == 280 and separator(words(), "x") == 0
    nothing = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    refuses("the tokenizer has no token at all; give the one", entries, nothing)


def test_folders_and_files_are_loaded(tmp_path):
    words().save_pretrained(tmp_path / "folder")
    for place in (tmp_path / "folder", tmp_path / "folder" / "tokenizer.json"):
        found = load_tokenizer(str(place))
        assert entries(found) == 280 and separator(found, str(place)) == 0
        assert engine(found).encode("the hat").ids == engine(words()).encode("the hat").ids
    assert entries(load_tokenizer(str(builtin.path("llama")))) == 512
    assert entries(load_tokenizer("llama")) == 512


def test_an_adapter_without_one_has_that_of_its_model(tmp_path):
    words().save_pretrained(tmp_path / "base")
    (tmp_path / "adapter").mkdir()
    settings = {"base_model_name_or_path": str(tmp_path / "base")}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    for load in (load_tokenizer, load_or_convert):
        assert load(str(tmp_path / "adapter")).get_vocab() == words().get_vocab()
    shutil.move(tmp_path / "base", tmp_path / "elsewhere")
    refuses("adapter' is an adapter without a tokenizer", load_tokenizer, str(tmp_path / "adapter"))
    other = train_tokenizer(TEXTS, 270)
    other.save_pretrained(tmp_path / "adapter")
    assert load_tokenizer(str(tmp_path / "adapter")).get_vocab() == other.get_vocab()


def test_an_older_file_of_the_model_of_an_adapter_is_converted(tmp_path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir(), adapter.mkdir()
    engine(words()).model.save(str(base))
    (adapter / "adapter_config.json").write_text(f'{{"base_model_name_or_path": "{base}"}}')
    found = load_or_convert(str(adapter))
    assert found.get_vocab() == load_or_convert(str(base)).get_vocab()


def test_nothing_is_cut_off_or_filled_up_that_a_file_asks_for():
    strict = Tokenizer.from_str(words().backend_tokenizer.to_str())
    strict.enable_truncation(2)
    strict.enable_padding(length=9)
    found = engine(PreTrainedTokenizerFast(tokenizer_object=strict))
    assert len(found.encode("a longer text than two")) > 9 and len(found.encode("a")) == 1


def test_what_cannot_be_used_is_named(tmp_path):
    with pytest.raises(UserError, match=r"there is no tokenizer 'nobody/nothing'.*a name of the"):
        load_tokenizer("nobody/nothing")
    refuses(r"holds no tokenizer that can be loaded.*tokenizer.json", load_tokenizer, str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"cannot read the tokenizer .*; expected a tokenizer.json"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))
    bare = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    bare.save(str(tmp_path / "bare.json"))
    said = 'has no token for the end or the beginning of a text.*tokenizer = "train"'
    refuses(said, load_tokenizer, str(tmp_path / "bare.json"))


def test_what_a_folder_lacks_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    refuses("loaded: no file of it is a tokenizer's; expected", load_tokenizer, str(tmp_path))
    WORDS.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    del content["added_tokens"]
    file.write_text(json.dumps(content))
    refuses("loaded: its files lack 'added_tokens'; expected", load_tokenizer, str(tmp_path))


def test_merges_are_left_out_by_nobody(tmp_path, caplog):
    """A dropout in the file, of a folder, of a file alone, beside a model, and in memory."""
    drawn = copy.deepcopy(WORDS)
    drawn.backend_tokenizer.model.dropout = 0.5
    shutil.copytree(builtin.path("llama"), tmp_path / "model")
    for old in (tmp_path / "model").glob("tokenizer*"):
        old.unlink()
    drawn.save_pretrained(tmp_path / "model")
    place = str(tmp_path / "model")
    text = "the cat and the hat " * 8
    with caplog.at_level(logging.WARNING):
        found = [
            load_tokenizer(place),
            load_tokenizer(f"{place}/tokenizer.json"),
            load_model(place).tokenizer,
            load_model(place, tokenizer=drawn).tokenizer,
        ]
        assert engine(drawn).encode(text).ids == WORDS(text)["input_ids"]
    assert [words(text)["input_ids"] for words in found if words] == [WORDS(text)["input_ids"]] * 4
    assert drawn.backend_tokenizer.model.dropout == 0.5  # it is its owner's
    said = [one for one in caplog.messages if "leaves out merges at random (dropout 0.5)" in one]
    assert [one.split(" leaves")[0].removeprefix("the tokenizer ") for one in said] == [
        place,
        f"{place}/tokenizer.json",
        "given",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "its tokenizer.json is empty"),
        ("{", "its tokenizer.json is not whole JSON: .*"),
        ("{}", "its files lack 'added_tokens'"),
        ({"vocab": {}, "merges": []}, "its tokenizer.json has no vocabulary"),
        (None, ""),
    ],
)
def test_a_tokenizer_beside_a_model_that_cannot_be_loaded_is_no_missing_one(
    content, said, tmp_path
):
    shutil.copytree(builtin.path("llama"), tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    if isinstance(content, dict):
        whole = json.loads(file.read_text("utf-8"))
        content = json.dumps({**whole, "model": {**whole["model"], **content}})
    if content is None:
        for one in file.parent.glob("tokenizer*"):
            one.unlink()
    else:
        file.write_text(content)
    found = load_model(str(file.parent))  # its weights need none
    wanted = "model has no tokenizer" + (rf" \({said}\)" if said else "")
    words = TextInput(source="words", texts=("a b",))
    refuses(wanted + "; put its tokenizer files", tokenize, words, found)
    refuses(wanted + ", which questions have to be read", prepare_tokenizer, found)
    refuses(wanted + " to read the text of a saliency", tokenize_unfinished, found, "a b")
    refuses(f"loaded: {said or '.*'}; expected a tok", load_tokenizer, str(file.parent))


@pytest.mark.parametrize("family", ["qwen2", "gemma", "bert"])
def test_a_tokenizer_that_transformers_makes_up_without_a_vocabulary_is_none(family, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    refuses("holds no tokenizer that can be loaded: .*no vocabulary", load_tokenizer, str(tmp_path))
    assert tokenizer_of(str(tmp_path)) is None


def test_a_tokenizer_whose_words_were_all_added_is_one(tmp_path):
    machine = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=machine, unk_token="[UNK]")
    tokenizer.add_tokens(list("ACGT"))
    tokenizer.save_pretrained(tmp_path)
    assert tokenizer_of(str(tmp_path))("GATTACA")["input_ids"] == [3, 1, 4, 4, 1, 2, 1]


def test_a_tokenizer_that_does_not_list_its_added_tokens_is_read(tmp_path, monkeypatch):
    # As that of mistral-common, of which ByT5's takes the place.
    def refuse(_: object) -> None:
        raise NotImplementedError

    ByT5Tokenizer(extra_ids=0).save_pretrained(tmp_path)
    monkeypatch.setattr(ByT5Tokenizer, "__len__", lambda self: 259)
    monkeypatch.setattr(ByT5Tokenizer, "get_vocab", lambda self: {"a": 0})
    monkeypatch.setattr(ByT5Tokenizer, "added_tokens_decoder", property(refuse))
    assert isinstance(tokenizer_of(str(tmp_path)), ByT5Tokenizer)
