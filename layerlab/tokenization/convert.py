"""A tokenizer to adapt: one that training can load, or in older files: `.model`, `merges.txt`."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from layerlab.errors import UserError, describe_install
from layerlab.system.files import check_size
from layerlab.system.untrusted.limits import check_tokenizer, check_work
from layerlab.system.write_errors import temporary_folder
from layerlab.tokenization.load import SEPARATORS, load_tokenizer
from layerlab.tokenization.request import find_tokenizer
from layerlab.tokenization.spm.compare import compare, open_reader
from layerlab.tokenization.spm.engine import build_engine
from layerlab.tokenization.spm.model_file import NEEDED, check_kind, present, read_model
from layerlab.validation import expand_home

MODEL = ".model"


def load_or_convert(given: str) -> PreTrainedTokenizerFast:
    """Load a tokenizer of a folder, a file (tokenizer.json or .model), a model, or the Hub.

    A folder may also hold the vocab.json and merges.txt of GPT-2's kind. Where settings stand
    beside them, they are of some other kind, which the library knows.

    Raises:
        UserError: there is none, or it is of a kind that cannot be read.
    """
    path = expand_home(given)
    tokenizer = _convert_older(find_tokenizer(given) if path.is_dir() else path)
    if tokenizer is None:
        return load_tokenizer(given)
    check_tokenizer(tokenizer, given)
    return tokenizer


def _convert_older(path: Path) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer in older files, or None if there are none that need a conversion."""
    files = sorted(path.glob(f"*{MODEL}")) if path.is_dir() else [path]
    complete = path.is_dir() and (path / "tokenizer.json").exists()
    bare = not (complete or (path / "tokenizer_config.json").exists())
    if bare and (path / "merges.txt").exists() and (path / "vocab.json").exists():
        return _bytewise(path)
    if len(files) == 1 and not complete and files[0].suffix == MODEL and files[0].is_file():
        return convert_sentencepiece(files[0])
    return None


def _bytewise(folder: Path) -> PreTrainedTokenizerFast | None:
    """Return a BPE over bytes that cuts words as GPT-2 does; None if the vocabulary lacks bytes."""
    for name in ("vocab.json", "merges.txt"):
        check_size(folder / name)
    try:
        model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:  # the library raises nothing more definite
        raise UserError(
            f"cannot read the vocab.json and merges.txt of {folder}: "
            f"{' '.join(str(error).split())}; copy them anew"
        ) from None
    engine = Tokenizer(model)
    if not set(pre_tokenizers.ByteLevel.alphabet()) <= engine.get_vocab().keys():
        return None
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    end = next((name for name in SEPARATORS if name in engine.get_vocab()), None)
    return PreTrainedTokenizerFast(
        tokenizer_object=engine, eos_token=end, clean_up_tokenization_spaces=False
    )


def convert_sentencepiece(path: Path) -> PreTrainedTokenizerFast:
    """Convert a `.model` as a fast tokenizer that cuts sample texts as SentencePiece does.

    Raises:
        UserError: the package that reads it is missing, it is no such file, no fast tokenizer does
            as it does, or it takes more time or memory than any real one.
    """
    missing = [name for name in NEEDED if not present(name)]
    if missing:
        raise UserError(
            f"{path} is a model of SentencePiece, and {' and '.join(missing)} cannot be imported; "
            f"{describe_install('spm')}"
        )
    check_size(path)
    with temporary_folder() as folder:
        file = Path(folder) / "converted.json"
        check_work(lambda: _convert(path, file), f"the tokenizer {path}", "its own pieces")
        if not file.exists():  # it was refused there, and is here; or nothing can be limited
            _convert(path, file)
        found = json.loads(file.read_text("utf-8"))
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(found["engine"]),
        clean_up_tokenization_spaces=False,
        **found["named"],
    )


def _convert(path: Path, file: Path) -> None:
    """Write the engine of a `.model`, and the tokens that have a name, into a file."""
    proto = read_model(path)
    check_kind(proto, path)
    reader = open_reader(proto, path)
    try:
        engine = build_engine(proto, path)
    except UserError:
        raise
    except Exception as error:  # the library raises nothing more definite
        message = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"{path} cannot be converted: {message}; copy it anew") from None
    compare(engine, reader, proto, path)
    named = {}
    for name in ("bos", "eos", "pad", "unk"):
        number = getattr(proto.trainer_spec, f"{name}_id")
        if 0 <= number < len(proto.pieces):
            named[f"{name}_token"] = proto.pieces[number].piece
    file.write_text(json.dumps({"engine": engine.to_str(), "named": named}), "utf-8")
