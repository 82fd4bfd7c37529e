"""BPE of a fast tokenizer's own file, where it loses no text, and tokenizers made of it.

The file is `tokenizer.json` of the tokenizers library. An id stays what it is: a token that was
added behind the vocabulary is written into it as well where others follow, because the library
numbers added tokens anew from the end of the vocabulary when it reads the file.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from layerlab.errors import UserError
from layerlab.validation import short_repr

_REASONS = {
    "Unigram": "its pieces compete by probability, so that there is no order to add merges to",
    "WordPiece": "it takes the longest piece that fits, and has no merges to go on from",
    "WordLevel": "its entries are whole words, and it has no merges to go on from",
}
# Tokens for bytes that no other token stands for.
BYTES = tuple(f"<0x{number:02X}>" for number in range(256))
_WANTED = "give a BPE over bytes, or one that falls back to bytes"
# Of a tokenizer's settings, those that its own class has and the plain one has not.
_OWN = {
    "add_bos_token",
    "add_eos_token",
    "added_tokens_decoder",
    "backend",
    "is_local",
    "local_files_only",
    "merges",
    "merges_file",
    "name_or_path",
    "tokenizer_class",
    "tokenizer_file",
    "tokenizer_object",
    "vocab",
    "vocab_file",
}

# Those that may be set after it was made.
_LIMITS = ("model_max_length", "padding_side", "truncation_side")

Merge = tuple[str, str]


@dataclass(frozen=True)
class BpeFile:
    """A BPE as its file holds it.

    Attributes:
        content: the whole file.
        vocab: the id of every token, of the added ones too.
        merges: in their order.
        added: tokens that are found in a text before it is cut into words.
        bytewise: whether the characters of a token stand for bytes; else unknown characters fall
            back to tokens like <0x41>.
    """

    content: Mapping[str, Any]
    vocab: Mapping[str, int]
    merges: tuple[Merge, ...]
    added: frozenset[str]
    bytewise: bool

    @cached_property
    def fixed(self) -> frozenset[str]:
        """Return the tokens that no merge may make: added, unknown and byte-fallback tokens."""
        unknown = self.content["model"].get("unk_token")
        spare = set() if self.bytewise else {token for token in self.vocab if is_byte(token)}
        return frozenset(self.added | spare | ({unknown} if unknown else set()))

    @cached_property
    def around(self) -> frozenset[str]:
        """Return the tokens that are put around a text."""
        ids = {holder[place] for holder, place in _find_ids(self.content)}
        return frozenset(token for token, number in self.vocab.items() if number in ids)

    def engine(self, vocab: Mapping[str, int], merges: Iterable[Merge]) -> Tokenizer:
        """Return the same tokenizer with another vocabulary and other merges.

        Ids follow the vocabulary.

        Its tokens that are added or stand around a text have to be in the vocabulary.
        """
        content = json.loads(json.dumps(self.content))
        own = self.content["model"]["vocab"]
        ordered = dict(sorted(vocab.items(), key=lambda item: item[1]))
        # In the vocabulary a token that is found in whole texts alone would be found in words too.
        while (last := next(reversed(ordered), None)) in self.added and last not in own:
            del ordered[last]
        content["model"]["vocab"] = ordered
        content["model"]["merges"] = [list(merge) for merge in merges]
        for token in content["added_tokens"]:
            token["id"] = vocab[token["content"]]
        content["added_tokens"].sort(key=lambda token: token["id"])
        numbers = {
            self.vocab[token]: number for token, number in vocab.items() if token in self.vocab
        }
        for holder, place in _find_ids(content):
            holder[place] = numbers.get(holder[place], holder[place])
        return Tokenizer.from_str(json.dumps(content))

    def bare(self, *, lookup: bool = True) -> Tokenizer:
        """Return the BPE alone, for words that are cut already.

        Args:
            lookup: whether a word that is a token needs no merges, where the tokenizer says so.
        """
        model = {**self.content["model"], "vocab": self.vocab, "merges": list(self.merges)}
        model["ignore_merges"] = lookup and bool(model.get("ignore_merges"))
        return Tokenizer.from_str(
            json.dumps({"version": "1.0", "added_tokens": [], "model": model})
        )


def read_bpe(tokenizer: PreTrainedTokenizerFast) -> BpeFile:
    """Read the BPE of a tokenizer.

    Raises:
        UserError: it is no BPE, or one that loses text or draws lots.
    """
    return read_backend(tokenizer.backend_tokenizer)


def read_backend(engine: Tokenizer) -> BpeFile:
    """Read the BPE of a tokenizer's engine.

    Raises:
        UserError: it is no BPE, or one that loses text or draws lots.
    """
    content = json.loads(engine.to_str())
    model = content["model"]
    bytewise = writes_bytes(engine)
    _refuse(model, bytewise)
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    return BpeFile(
        content=content,
        vocab={**model["vocab"], **added},
        merges=tuple(map(_pair, model["merges"])),
        added=frozenset(added),
        bytewise=bytewise,
    )


def rebuild(tokenizer: PreTrainedTokenizerFast, engine: Tokenizer) -> PreTrainedTokenizerFast:
    """Rebuild a tokenizer with another engine: special tokens, chat template and limits stay.

    Its class is the plain one, whose file is read as it stands; a family's own class builds the
    pre-tokenizer and the like anew.
    """
    kept = {name: value for name, value in tokenizer.init_kwargs.items() if name not in _OWN}
    kept |= {name: getattr(tokenizer, name) for name in _LIMITS}
    vocab = engine.get_vocab()
    for name, value in tokenizer.special_tokens_map.items():
        if isinstance(value, str) and value in vocab:
            kept[name] = value
    kept.setdefault("clean_up_tokenization_spaces", False)
    return PreTrainedTokenizerFast(
        tokenizer_object=engine,
        **{**kept, "chat_template": tokenizer.chat_template},
    )


def writes_bytes(engine: Tokenizer) -> bool:
    """Return whether a step before or after the model turns bytes into characters and back."""
    steps = filter(None, (engine.normalizer, engine.pre_tokenizer, engine.decoder))
    return any(b'"type":"ByteLevel"' in step.__getstate__() for step in steps)


def is_byte(token: str) -> bool:
    """Return whether a token stands for a byte to fall back on, as <0x41> does."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _pair(merge: str | list[str]) -> Merge:
    """Return the two parts of a merge, which older files hold as one string."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _refuse(model: Mapping[str, Any], bytewise: bool) -> None:
    kind = model.get("type")
    if kind != "BPE":
        reason = _REASONS.get(kind or "", "it is no BPE")
        raise UserError(f"cannot change the vocabulary of a {kind} tokenizer: {reason}; {_WANTED}")
    marks = [model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")]
    if any(marks):
        mark = next(filter(None, marks))
        raise UserError(
            "cannot change the vocabulary of a BPE that marks parts of words with "
            f"{short_repr(mark)}: its text does not come back as it was; {_WANTED}"
        )
    if not bytewise and not (model.get("byte_fallback") and model["vocab"].keys() >= set(BYTES)):
        raise UserError(
            "cannot change the vocabulary of a BPE without bytes: a character that it does not "
            f"know is lost; {_WANTED}"
        )
    if model.get("dropout"):
        raise UserError(
            f"the tokenizer leaves out merges at random (dropout {model['dropout']}), so that "
            "nothing can be said of its cuts; set dropout to null in its tokenizer.json"
        )


def _find_ids(step: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each id that a post-processor or padding names: what holds it, and where."""
    if isinstance(step, list):
        for one in step:
            yield from _find_ids(one)
    elif isinstance(step, dict):
        for name in ("sep", "cls"):
            if isinstance(step.get(name), list):
                yield step[name], 1
        if "pad_id" in step:
            yield step, "pad_id"
        named = step.get("special_tokens")
        for one in named.values() if isinstance(named, dict) else ():
            yield from ((one["ids"], place) for place in range(len(one["ids"])))
        for name in ("padding", "post_processor", "processors"):
            yield from _find_ids(step.get(name))
