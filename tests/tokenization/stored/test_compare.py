"""What transformers makes of a tokenizer.json, held against the file."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from layerlab import builtin
from layerlab.loading.model import load_model
from layerlab.tokenization.load import load_folder, load_tokenizer
from layerlab.tokenization.stored.compare import find_difference, have_same_rules, open_stored

BUILT_IN = builtin.path("llama")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# As a released file has it; transformers' class says the same.
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
# No piece has more than two letters.
PAIRS = r"\p{L}{1,2}|[^\s\p{L}]+|\s+"
SPACES = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
METASPACE = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
WRITTEN = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
STRIPPED = decoders.Sequence([*WRITTEN, decoders.Strip(" ", 1, 0)])


def split(pattern: str) -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), BYTES])


def bytes_of(pre: Any, normalizer: Any = None) -> Tokenizer:
    """The built-in tokenizer, over bytes, with other rules."""
    found = Tokenizer.from_file(str(BUILT_IN / "tokenizer.json"))
    found.pre_tokenizer, found.normalizer, found.decoder = pre, normalizer, decoders.ByteLevel()
    return found


def spaces_of(pre: Any, normalizer: Any, decoder: Any = STRIPPED) -> Tokenizer:
    """One with a token for each byte, and some words whose spaces are written out."""
    words = ["▁", "t", "h", "e", "c", "a", "▁t", "▁th", "▁the", "▁c", "▁ca", "th", "the"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    merges = [["▁", "t"], ["▁t", "h"], ["▁th", "e"], ["▁", "c"], ["▁c", "a"], ["t", "h"]]
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    model |= {"vocab": {name: number for number, name in enumerate(names)}}
    found = Tokenizer.from_str(
        json.dumps({"version": "1.0", "model": model | {"merges": [*merges, ["th", "e"]]}})
    )
    found.add_special_tokens(names[:3])
    found.pre_tokenizer, found.normalizer, found.decoder = pre, normalizer, decoder
    return found


def saved(folder: Path, engine: Tokenizer, family: str, kind: str | None = None) -> Path:
    """A folder with a tokenizer, and what decides the class that transformers takes for it."""
    folder.mkdir(exist_ok=True)
    engine.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    special = [one.content for one in engine.get_added_tokens_decoder().values()]
    own = {} if kind is None else {"tokenizer_class": kind}
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": special[-1], **own}))
    return folder


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("qwen2", "PreTrainedTokenizerFast"),
        ("qwen2", None),
        ("llama", "Qwen2Tokenizer"),
        ("llama", "GPT2Tokenizer"),
        ("llama", "GemmaTokenizer"),
        ("llama", "BertTokenizer"),
    ],
)
def test_texts_are_cut_as_the_file_says(family, kind, tmp_path, caplog):
    text = "In 2024 there were 123456 cats. It's 3.14\n\n  y"
    wanted = bytes_of(split(PAIRS))
    folder = saved(tmp_path / "m", wanted, family, kind)
    before = AutoTokenizer.from_pretrained(folder)
    with contextlib.suppress(Exception):  # that of Gemma or BERT has no token for an unknown one
        assert before(text, add_special_tokens=False)["input_ids"] != wanted.encode(text).ids
    for _ in range(2):
        for found in (load_folder(folder, "m"), load_tokenizer(str(folder))):
            assert found(text, add_special_tokens=False)["input_ids"] == wanted.encode(text).ids
            assert found.decode(wanted.encode(text).ids) == text
            assert found.eos_token == "<|endoftext|>" and found.eos_token_id == 0
            assert len(found) == wanted.get_vocab_size()
    (said,) = [one for one in caplog.messages if "is read as its tokenizer.json says" in one]
    assert type(before).__name__ in said and str(folder) in said


def test_a_model_is_read_with_the_tokenizer_of_its_file(tmp_path):
    folder = Path(shutil.copytree(BUILT_IN, tmp_path / "model"))
    wanted = bytes_of(split(PAIRS))
    wanted.save(str(folder / "tokenizer.json"))
    file = folder / "tokenizer_config.json"
    kind = {"tokenizer_class": "Qwen2Tokenizer"}
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **kind}))
    found: Any = load_model(str(folder)).tokenizer
    text = "In 2024 there were 123456 cats."
    assert found(text, add_special_tokens=False)["input_ids"] == wanted.encode(text).ids


@pytest.mark.parametrize(
    ("family", "kind", "engine"),
    [
        ("gpt2", "GPT2Tokenizer", bytes_of(pre_tokenizers.ByteLevel(add_prefix_space=False))),
        ("qwen2", "Qwen2Tokenizer", bytes_of(split(QWEN), normalizers.NFC())),
        ("llama", "LlamaTokenizer", spaces_of(None, normalizers.Sequence(SPACES))),
        ("llama", "LlamaTokenizer", spaces_of(METASPACE, None)),
        (
            "gemma",
            "GemmaTokenizer",
            spaces_of(None, normalizers.Replace(" ", "▁"), decoders.Sequence(WRITTEN)),
        ),
    ],
)
def test_a_class_that_agrees_with_the_file_is_kept(family, kind, engine, tmp_path, caplog):
    found = load_folder(saved(tmp_path / "m", engine, family, kind), "m")
    assert type(found).__name__ == kind and not caplog.messages


@pytest.mark.parametrize(
    "normalizer", [normalizers.Replace("cat", "dog"), normalizers.Lowercase(), normalizers.NFKC()]
)
def test_a_rule_of_the_file_alone_is_found(normalizer, tmp_path):
    engine = bytes_of(pre_tokenizers.ByteLevel(add_prefix_space=False))
    other = bytes_of(engine.pre_tokenizer, normalizer)
    assert find_difference(engine, other).startswith("cuts ")
    assert not have_same_rules(engine, other)
    found = load_folder(saved(tmp_path / "m", other, "gpt2", "GPT2Tokenizer"), "m")
    text = "A cat \ufb01 \u00bd"
    assert found(text, add_special_tokens=False)["input_ids"] == other.encode(text).ids


def test_rules_that_no_text_of_ours_tells_apart_are_those_of_the_file(tmp_path, caplog):
    """The file wins without a word, since nothing can be shown."""
    rare = normalizers.Replace(Regex("\u2603{7}"), "\u2603")
    engine = bytes_of(pre_tokenizers.ByteLevel(add_prefix_space=False))
    other = bytes_of(engine.pre_tokenizer, rare)
    assert not find_difference(engine, other)
    found = load_folder(saved(tmp_path / "m", other, "gpt2", "GPT2Tokenizer"), "m")
    snow = 7 * "\u2603"
    assert found(snow, add_special_tokens=False)["input_ids"] == other.encode(snow).ids
    assert not caplog.messages


def test_how_a_text_begins_is_left_to_the_class():
    file = spaces_of(None, normalizers.Sequence(SPACES))
    own = spaces_of(METASPACE, None)
    assert file.encode(" the").ids != own.encode(" the").ids
    assert not find_difference(own, file) and have_same_rules(own, file)
    bare = spaces_of(None, normalizers.Replace(" ", "▁"))
    assert find_difference(own, bare).startswith("cuts ")
    assert have_same_rules(own, bare)


@pytest.mark.parametrize(("given", "shared"), [(True, True), (True, False), (False, False)])
def test_a_file_is_opened_as_it_stands(given, shared, tmp_path):
    """Whether or not it shares a vocabulary with an engine; without dropout."""
    file = tmp_path / "tokenizer.json"
    engine = bytes_of(split(QWEN))
    other = bytes_of(split(PAIRS))
    other.model.dropout = 0.5
    if not shared:
        other.model.ignore_merges = True
    other.add_tokens(["Hällo"])
    other.save(str(file))
    other.model.dropout = None
    found = open_stored(file, engine if given else None)
    for text in ("Hällo 12345", "the cat", "<|endoftext|>"):
        assert found.encode(text).ids == other.encode(text).ids
    assert found.get_vocab() == other.get_vocab()
    assert find_difference(engine, found).startswith("has 'Hällo' as None, and not as 512")
