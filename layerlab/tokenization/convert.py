"""A tokenizer to adapt: one that training can load, or in older files: `.model`, `merges.txt`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from layerlab.errors import UserError
from layerlab.tokenization.bpe_file import SPACE
from layerlab.tokenization.load import SEPARATORS, load_tokenizer

MODEL = ".model"
NEEDED = ("sentencepiece", "google.protobuf")
UNIGRAM, NORMAL, CONTROL, DEFINED = 1, 1, 3, 4


def load_or_convert(given: str) -> PreTrainedTokenizerFast:
    """Load a tokenizer of a folder, a file (tokenizer.json or .model), a model, or the Hub.

    A folder may also hold the vocab.json and merges.txt of GPT-2's kind. Where settings stand
    beside them, they are of some other kind, which the library knows.

    Raises:
        UserError: there is none, or it is of a kind that cannot be read.
    """
    path = Path(given).expanduser()
    files = sorted(path.glob(f"*{MODEL}")) if path.is_dir() else [path]
    whole = path.is_dir() and (path / "tokenizer.json").exists()
    bare = not (whole or (path / "tokenizer_config.json").exists())
    if bare and (path / "merges.txt").exists() and (path / "vocab.json").exists():
        return _bytewise(path) or load_tokenizer(given)
    if len(files) == 1 and not whole and files[0].suffix == MODEL and files[0].is_file():
        return convert_sentencepiece(files[0])
    return load_tokenizer(given)


def _bytewise(folder: Path) -> PreTrainedTokenizerFast | None:
    """Return a BPE over bytes that cuts words as GPT-2 does; None if the vocabulary lacks bytes."""
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
    """Convert a `.model` as a fast tokenizer.

    Its scores become the order of merges, so that merges which come later rank below all of them,
    as pieces with scores below its least would. The library's own conversion goes by the order of
    the pieces, which need not be that of their scores.

    Raises:
        UserError: the package that reads it is missing, it is no such file, or its pieces end with
            the space behind them.
    """
    missing = [name for name in NEEDED if not present(name)]
    if missing:
        raise UserError(
            f"{path} is a model of SentencePiece, and {' and '.join(missing)} cannot be imported; "
            'type: pip install "layerlab[spm]"'
        )
    from google.protobuf.message import DecodeError
    from transformers.convert_slow_tokenizer import SentencePieceExtractor

    try:
        proto = SentencePieceExtractor(str(path)).proto
    except DecodeError:
        proto = None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name another file") from None
    if proto is None or not proto.pieces:
        raise UserError(
            f"{path} is no model of SentencePiece; expected what its trainer writes, or a folder "
            "with a tokenizer.json"
        )
    if proto.trainer_spec.treat_whitespace_as_suffix:
        raise UserError(
            f"{path} has the space behind a word in the word's last piece, which no fast tokenizer "
            "does; expected a model that has it in the first, as SentencePiece trains it by itself"
        )
    return _fast(proto)


def present(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _fast(proto: Any) -> PreTrainedTokenizerFast:
    from transformers.convert_slow_tokenizer import SpmConverter

    unigram = proto.trainer_spec.model_type == UNIGRAM
    vocab = [(one.piece, one.score) for one in proto.pieces]
    numbers = {piece: number for number, (piece, _) in enumerate(vocab)}
    engine = SpmConverter.build_tokenizer_from_spm_proto(
        proto, vocab if unigram else numbers, None if unigram else _merges(proto)
    )
    _with_spaces(engine, proto.normalizer_spec)
    engine.add_tokens(
        [
            AddedToken(one.piece, normalized=False, special=one.type == CONTROL)
            for one in proto.pieces
            if one.type in {CONTROL, DEFINED}
        ]
    )
    named = {}
    for name in ("bos", "eos", "pad", "unk"):
        number = getattr(proto.trainer_spec, f"{name}_id")
        if 0 <= number < len(vocab):
            named[f"{name}_token"] = vocab[number][0]
    return PreTrainedTokenizerFast(
        tokenizer_object=engine, clean_up_tokenization_spaces=False, **named
    )


def _merges(proto: Any) -> list[tuple[str, str]]:
    """Return every way to merge two pieces into one, best scores first, then in piece order."""
    kinds = {one.piece: one.type for one in proto.pieces}
    numbers = {one.piece: number for number, one in enumerate(proto.pieces)}
    usable = {piece for piece, kind in kinds.items() if kind == NORMAL}
    found = [
        (-one.score, numbers[one.piece], numbers[left], numbers[right], left, right)
        for one in proto.pieces
        if one.type == NORMAL
        for cut in range(1, len(one.piece))
        if (left := one.piece[:cut]) in usable and (right := one.piece[cut:]) in usable
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _with_spaces(engine: Any, spec: Any) -> None:
    """Treat spaces as the model does before it cuts, which the library's conversion leaves out."""
    steps = [engine.normalizer]
    if spec.remove_extra_whitespaces:
        around, several = Regex(rf"\A{SPACE}+|{SPACE}+\z"), Regex(f"{SPACE}{{2,}}")
        steps += [normalizers.Replace(around, ""), normalizers.Replace(several, SPACE)]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
        engine.decoder = decoders.Sequence([engine.decoder, decoders.Strip(" ", 1, 0)])
    engine.normalizer = normalizers.Sequence(steps)
