"""The tokenizer of a corpus: trained on its text, or one that is there already."""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from layerlab import builtin
from layerlab.errors import UserError
from layerlab.system.hub import hub
from layerlab.system.limits import check_tokenizer
from layerlab.system.trust import load_pretrained
from layerlab.tokenization.train import train_bpe

TRAINED = "train"
# What a bare tokenizer.json may call its separator: it says which tokens are special, not what for.
SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<s>", "<bos>")


def train_tokenizer(texts: Iterable[str], vocab: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of at most `vocab` entries on texts in their order."""
    return train_bpe(texts, vocab=vocab)


def load_tokenizer(given: str) -> PreTrainedTokenizerFast:
    """Load a tokenizer of a folder, a tokenizer.json, a built-in model, or the Hub.

    Raises:
        UserError: there is none, it is of a kind that cannot be used here, or it has no separator.
    """
    path = Path(given).expanduser()
    if given in builtin.NAMES and not path.exists():
        given, path = str(builtin.path(given)), builtin.path(given)
    words = _of_file(path) if path.is_file() else _of_name(given, path)
    separator(words, given)
    check_tokenizer(words, given)
    return words


def separator(words: PreTrainedTokenizerFast, name: str) -> int:
    """Return the token that stands before every document.

    Raises:
        UserError: the tokenizer marks neither an end nor a beginning.
    """
    for found in (words.eos_token_id, words.bos_token_id):
        if found is not None:
            return int(found)
    raise UserError(
        f"the tokenizer {name} has no token for the end or the beginning of a text; "
        'set its eos_token, or write tokenizer = "train"'
    )


def entries(words: PreTrainedTokenizerFast) -> int:
    """Return the size that a model's vocabulary needs: one more than the largest token."""
    return max(words.get_vocab().values()) + 1


def engine(words: PreTrainedTokenizerFast) -> Tokenizer:
    """Return an engine that encodes whole texts: no truncation, padding or added special tokens."""
    found = Tokenizer.from_str(words.backend_tokenizer.to_str())
    found.no_truncation()
    found.no_padding()
    return found


def _of_file(path: Path) -> PreTrainedTokenizerFast:
    try:
        bare = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more definite
        raise UserError(
            f"cannot read the tokenizer {path}: {' '.join(str(error).split())}; "
            "expected a tokenizer.json of the tokenizers library"
        ) from None
    special = {token.content for token in bare.get_added_tokens_decoder().values() if token.special}
    end = next((name for name in SEPARATORS if name in special), None)
    return PreTrainedTokenizerFast(
        tokenizer_object=bare, eos_token=end, clean_up_tokenization_spaces=False
    )


def _of_name(given: str, path: Path) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    why = ""
    try:
        with nullcontext("") if path.is_dir() else hub() as why:
            words = load_pretrained(AutoTokenizer, given)
    except UserError:
        raise
    except Exception as error:  # of many kinds: no such name, no network, a strange configuration
        if path.is_dir():
            raise UserError(
                f"the folder {given} holds no tokenizer that can be loaded: {_line(error)}; "
                "expected a tokenizer.json"
            ) from None
        raise UserError(
            f"there is no tokenizer {given!r}: {why or _line(error)}; "
            'expected a folder, a file, a name of the Hub, or tokenizer = "train"'
        ) from None
    if not isinstance(words, PreTrainedTokenizerFast) or words.backend_tokenizer is None:
        raise UserError(
            f"the tokenizer {given} is a {type(words).__name__} without a tokenizer.json; "
            "convert it to the tokenizers library first"
        )
    return words


def _line(error: Exception) -> str:
    """Return the first line of a library's error message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
