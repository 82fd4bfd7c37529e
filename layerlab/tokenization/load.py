"""The tokenizer of a corpus: trained on its text, or one that is there already."""

import copy
import logging
import re
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Sequence, Split
from transformers import PreTrainedTokenizerFast

from layerlab import builtin
from layerlab.console.tables import printable
from layerlab.errors import UserError
from layerlab.recipes.training_sections import TrainedTokenizer
from layerlab.records.parse import read_json
from layerlab.system.files import check_size
from layerlab.system.hub import explain_failure, hub
from layerlab.system.untrusted.limits import check_tokenizer, check_work
from layerlab.system.untrusted.trust import load_pretrained
from layerlab.tokenization.request import FILES, VOCABULARIES, find_tokenizer
from layerlab.tokenization.spm.model_file import check_file
from layerlab.tokenization.stored.compare import find_difference, have_same_rules, open_stored
from layerlab.tokenization.train import train_bpe, train_fallback_bpe
from layerlab.validation import expand_home

# No file of so few bytes takes seconds to convert, and most tokenizers of a test have no larger.
SMALL = 2**16
# A quarter of a million entries with as many merges takes half a GiB to load.
MEMORY = 2 * 2**30
# What a bare tokenizer.json may call its separator: it says which tokens are special, not what for.
SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<s>", "<bos>")

STORED = "tokenizer.json"
_LOG = logging.getLogger("layerlab")
_REMARKED: set[str] = set()  # remarks that were made: some tokenizers are read several times


def train_tokenizer(
    texts: Iterable[str], vocab: int, asked: TrainedTokenizer | None = None
) -> PreTrainedTokenizerFast:
    """Train a BPE of at most `vocab` entries on texts in their order.

    Args:
        texts: which may be read twice.
        asked: the kind of BPE, and its special tokens; over bytes where it is left out.
    """
    if asked is None or asked.train == "bpe":
        return train_bpe(texts, vocab=vocab, special=asked.special_tokens if asked else ())
    return train_fallback_bpe(texts, vocab=vocab, special=asked.special_tokens)


def load_tokenizer(given: str) -> PreTrainedTokenizerFast:
    """Load a tokenizer of a folder, a tokenizer.json, a built-in model, or the Hub.

    Raises:
        UserError: there is none, it is of a kind that cannot be used here, or it has no separator.
    """
    path = find_tokenizer(given)
    tokenizer = _of_file(path) if path.is_file() else _of_folder(given, path)
    separator(tokenizer, given)
    return tokenizer


def load_folder(folder: Path, name: str) -> Any:
    """Load the tokenizer of a folder, in whatever files and of whatever class.

    transformers converts older files while it loads them, and no time or memory is too much for it.

    Raises:
        LookupError: it knows no token but special ones.
        UserError: it takes more than any real one does.
    """
    files = [file for pattern in FILES for file in folder.glob(pattern) if file.is_file()]
    if max((file.stat().st_size for file in files), default=0) > SMALL:
        what = f"the tokenizer {name}"
        check_work(lambda: _load(folder), what, "its own files", memory=MEMORY)
    tokenizer = stop_dropout(_load(folder), name)
    if _is_made_up(tokenizer):
        stored = (folder / STORED).is_file()
        raise LookupError(f"its {STORED} has no vocabulary" if stored else "there is no vocabulary")
    check_tokenizer(tokenizer, name)
    return tokenizer


def describe_missing(folder: Path | None) -> str:
    """Say that a model has no tokenizer, or why the one in its folder cannot be loaded."""
    if folder is not None and any(one for name in VOCABULARIES for one in folder.glob(name)):
        try:
            load_folder(folder, str(folder))
        except Exception as error:  # as in `tokenizer_of`
            return f"has no tokenizer ({_explain(error, folder)})"
    return "has no tokenizer"


def _is_made_up(tokenizer: Any) -> bool:
    """Return whether transformers found no file, and made a tokenizer of special tokens alone."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):  # others come of files, or of none
        return False
    special = {one.content for one in tokenizer.added_tokens_decoder.values() if one.special}
    return set(tokenizer.get_vocab()) <= special | {*tokenizer.all_special_tokens}


def stop_dropout(tokenizer: Any, name: str) -> Any:
    """Return a tokenizer that cuts a text alike every time it is read, and say where that is new.

    A BPE may leave out merges at random, which is meant for training and stays on afterwards.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    dropout = getattr(getattr(backend, "model", None), "dropout", None)
    if not dropout:
        return tokenizer
    if name not in _REMARKED:
        _LOG.warning(
            "the tokenizer %s leaves out merges at random (dropout %s), so that a text would be "
            "read in another way each time; it is used without",
            name,
            dropout,
        )
    _REMARKED.add(name)
    steady = copy.deepcopy(tokenizer)
    steady.backend_tokenizer.model.dropout = None
    return steady


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    for file in sorted(folder.glob("*.model")):
        check_size(file)
        check_file(file)
    return _keep_stored(load_pretrained(AutoTokenizer, str(folder)), folder)


def _keep_stored(tokenizer: Any, folder: Path) -> Any:
    """Return a tokenizer that reads texts as the tokenizer.json of its folder does.

    Many classes of transformers take vocabulary and merges alone out of that file, and have rules
    of their own, whatever rules stand there.
    """
    kind, file = type(tokenizer), folder / STORED
    rebuilt = isinstance(tokenizer, PreTrainedTokenizerFast) and kind is not PreTrainedTokenizerFast
    if not rebuilt or not kind.__module__.startswith("transformers.") or not file.is_file():
        return tokenizer
    engine = tokenizer.backend_tokenizer
    # Others of its classes make up merges of their own.
    stored = open_stored(file, engine if kind.model is BPE else None)
    difference = find_difference(engine, stored)
    if not difference and have_same_rules(engine, stored):
        return tokenizer
    found = load_pretrained(PreTrainedTokenizerFast, str(folder))
    for role, token in tokenizer.special_tokens_map.items():  # some are those of the class
        if getattr(found, role, None) is None and stored.token_to_id(str(token)) is not None:
            setattr(found, role, token)
    if difference and str(folder) not in _REMARKED:
        _LOG.warning(
            "the tokenizer in %s is read as its tokenizer.json says; %s, which transformers makes "
            "of it, %s (elsewhere it is read so by PreTrainedTokenizerFast.from_pretrained)",
            printable(str(folder)),
            kind.__name__,
            difference,
        )
    _REMARKED.add(str(folder))
    return found


def separator(tokenizer: PreTrainedTokenizerFast, name: str) -> int:
    """Return the token that stands before every document.

    Raises:
        UserError: the tokenizer marks neither an end nor a beginning.
    """
    for found in (tokenizer.eos_token_id, tokenizer.bos_token_id):
        if found is not None:
            return int(found)
    raise UserError(
        f"the tokenizer {name} has no token for the end or the beginning of a text; "
        'set its eos_token, or write tokenizer = "train"'
    )


def entries(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the size that a model's vocabulary needs: one more than the largest token.

    Raises:
        UserError: it has no token.
    """
    if not (vocabulary := tokenizer.get_vocab()):
        raise UserError("the tokenizer has no token at all; give the one that the model came with")
    return max(vocabulary.values()) + 1


def special_tokens(machine: Tokenizer) -> list[str]:
    """Return the special tokens that a text can spell, the longest first."""
    added = machine.get_added_tokens_decoder().values()
    found = [one.content for one in added if one.special and one.content.strip()]
    return sorted(found, key=len, reverse=True)


def engine(tokenizer: PreTrainedTokenizerFast, *, special: bool = True) -> Tokenizer:
    """Return an engine that encodes whole texts: no truncation, padding or added special tokens.

    Nor does it leave out merges.

    Args:
        special: whether special tokens that a text spells are those tokens; else they are text.
    """
    found = Tokenizer.from_str(stop_dropout(tokenizer, "given").backend_tokenizer.to_str())
    found.no_truncation()
    found.no_padding()
    if not special:
        found.encode_special_tokens = True
        _part_special(found)
    return found


def _part_special(machine: Tokenizer) -> None:
    """Cut behind the first character of a special token that the model itself would look up."""
    model = machine.model
    if isinstance(model, BPE) and not model.ignore_merges:
        return
    known = machine.get_vocab(with_added_tokens=False)
    found = [one for one in special_tokens(machine) if one in known and len(one) > 1]
    if found:
        cuts = "|".join(f"{re.escape(one[0])}(?={re.escape(one[1:])})" for one in found)
        steps = [machine.pre_tokenizer, Split(Regex(cuts), "isolated")]
        machine.pre_tokenizer = Sequence([one for one in steps if one])


def _of_file(path: Path) -> PreTrainedTokenizerFast:
    check_size(path)
    try:
        bare = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more definite
        raise UserError(
            f"cannot read the tokenizer {path}: {' '.join(str(error).split())}; "
            "expected a tokenizer.json of the tokenizers library"
        ) from None
    special = {token.content for token in bare.get_added_tokens_decoder().values() if token.special}
    end = next((name for name in SEPARATORS if name in special), None)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, eos_token=end, clean_up_tokenization_spaces=False
    )
    tokenizer = stop_dropout(tokenizer, str(path))
    check_tokenizer(tokenizer, str(path))
    return tokenizer


def _of_folder(given: str, folder: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a folder, which may be what was fetched of a name."""
    here = given in builtin.NAMES or expand_home(given).is_dir()
    try:
        # A class of its own may lead to the Hub once more.
        with nullcontext("") if here else hub():
            tokenizer = load_folder(folder, given)
    except UserError:
        raise
    except Exception as error:  # of many kinds: no tokenizer, a strange configuration
        raise UserError(
            f"{'the folder ' if here else ''}{given} holds no tokenizer that can be loaded: "
            f"{_explain(error, folder)}; expected a tokenizer.json"
        ) from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.backend_tokenizer is None:
        raise UserError(
            f"the tokenizer {given} is a {type(tokenizer).__name__} without a tokenizer.json; "
            "convert it to the tokenizers library first"
        )
    return tokenizer


def _explain(error: Exception, folder: Path) -> str:
    """Explain in a few words why transformers made no tokenizer of a folder."""
    for file in sorted(folder.glob("*.json")) if isinstance(error, ValueError) else ():
        try:
            read_json(file)
        except ValueError as broken:
            whole = f"not whole JSON: {broken}" if file.stat().st_size else "empty"
            return f"its {file.name} is {whole}"
    if isinstance(error, KeyError):
        return f"its files lack {error}"
    reason = explain_failure(error)
    return "no file of it is a tokenizer's" if "instantiate the backend" in reason else reason
