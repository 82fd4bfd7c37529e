"""Models of SentencePiece that no fast tokenizer can be for, or that take long to convert."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from layerlab import UserError, builtin
from layerlab.system.untrusted import limits
from layerlab.tokenization.convert import convert_sentencepiece
from tests.hostile.attack import typed
from tests.support.refused import refuses
from tests.tokenization.spm.protos import change, needed, train, write

pytestmark = needed


def _unused(proto: Any) -> None:
    proto.pieces[-1].type = 5


def _double(proto: Any) -> None:
    proto.pieces[-1].piece = proto.pieces[-2].piece


def _no_unknown(proto: Any) -> None:
    proto.pieces[0].type = 3


def _spaces(proto: Any) -> None:
    proto.normalizer_spec.escape_whitespaces = False


def _characters(proto: Any) -> None:
    proto.normalizer_spec.precompiled_charsmap = b"\xff\xff\xff\x7fxx"


def _back(proto: Any) -> None:
    proto.denormalizer_spec.precompiled_charsmap = b"\xff\xff\xff\x7fxx"


CHANGES = [
    (_unused, "has pieces that it never writes (UNUSED, the first is"),
    (_double, "twice; expected each piece once"),
    (_no_unknown, "has 0 pieces for what is unknown; expected one"),
    (_spaces, "keeps spaces as they are (escape_whitespaces=false)"),
    (_characters, "SentencePiece itself refuses"),
    (_back, "changes characters back when it decodes"),
]


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(("mend", "said"), CHANGES)
def test_what_cannot_be_converted_is_refused(kind, mend, said, tmp_path):
    path = tmp_path / "own.model"
    train(path, kind)
    change(path, mend)
    with pytest.raises(UserError) as error:
        convert_sentencepiece(path)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_whole_words_are_refused(tmp_path):
    train(tmp_path / "own.model", "word", byte_fallback=False)
    with pytest.raises(UserError, match=r"cuts a text into whole words \(model_type=word\)"):
        convert_sentencepiece(tmp_path / "own.model")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_text_that_would_be_cut_otherwise_is_named(kind, tmp_path):
    """The reader leaves a symbol as it is, where all else becomes small letters."""
    path = tmp_path / "own.model"
    train(path, kind, user_defined_symbols=["CAT"], normalization_rule_name="nmt_nfkc_cf")
    said = r"cannot be converted: from token \d a fast tokenizer cuts 'CAT' into '"
    refuses(said, convert_sentencepiece, path)


LONG = [
    pytest.param(["a" * 500_000], "has a piece of 500,000 characters", id="one"),
    pytest.param(["a" * n for n in range(2, 1500)], "has a piece of 1,499 characters", id="rising"),
    pytest.param(
        ["b" * 1000 + str(number) for number in range(4000)],
        "characters together; expected at most 4,000,000",
        id="many",
    ),
]


COMMANDS = {
    "inspect": ("inspect", "model", "--samples", "1", "--context", "16", "--quiet"),
    "train": ("train", "smoke", "--plan", "--quiet", "--set", 'data.tokenizer="model"'),
    "vocabulary": (
        *("adapt", "vocabulary", "--tokenizer", "model/tokenizer.model"),
        *("--corpus", "c.txt", "--size", "+10", "--out", "new"),
    ),
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a model that has its tokenizer in an older file, which is not there yet."""
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(builtin.path("llama"), "model"))
    (folder / "tokenizer.json").unlink()
    settings = {"tokenizer_class": "LlamaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    Path("c.txt").write_text("hello world of words\n" * 200)
    return folder


@pytest.mark.few(3)
@pytest.mark.parametrize(("pieces", "said"), LONG)
@pytest.mark.parametrize("command", COMMANDS)
def test_pieces_that_take_long_to_merge(command, pieces, said, model):
    write(model / "tokenizer.model", pieces)
    done = typed(*COMMANDS[command]).refused(said)
    assert done.busy < 3


@pytest.mark.full
@pytest.mark.parametrize("command", [one for one in COMMANDS])
def test_what_else_takes_long_to_convert_ends(command, model, monkeypatch):
    """Pieces of a length that is allowed have as many merges as letters, each of them slow."""
    monkeypatch.setattr(limits, "SECONDS", 1)
    write(model / "tokenizer.model", ["a" * number for number in range(2, 1025)])
    typed(*COMMANDS[command]).refused("takes over 1 s for its own ")
