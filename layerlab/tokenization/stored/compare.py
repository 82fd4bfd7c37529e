"""Compares a tokenizer with the file that it was made of: by its rules, and text by text."""

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import BPE

from layerlab import builtin
from layerlab.tokenization.spm.compare import ODD, SAMPLE, SHOWN
from layerlab.tokenization.spm.model_file import SPACE
from layerlab.validation import short_repr

# What rules of tokenizers differ in: numbers, contractions, forms of Unicode, case, ends of lines.
RULED = (
    "1 12 123 1234 12345 123456 1,234.5",
    "It's we'LL DON'T they've I'd",
    "e\u0301 \ufb01 \u00bd \u212b \uff21\uff22 \u0130 \u1e9e \u03a3\u03c2",
    "snake_case HTTPServer x+=1; // ((a)) ...!!! --- #1",
    "a\r\nb\r\n\r\n  c\t\td   \n\n\n e",
    "नमस्ते สวัสดี مَرحبا שָׁלוֹם 한국어 ひらがなカタカナ",
    "a\u200bb\u00a0c\u3000d\u2028e",
)
BLANK = {"String": " "}
MODEL = (
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
)
ENTRIES = 500  # of the vocabulary, which are tried as texts


def open_stored(file: Path, engine: Tokenizer | None = None) -> Tokenizer:
    """Return the tokenizer of a file, which leaves out no merges at random.

    A vocabulary of a quarter of a million entries is read for seconds; where an engine has the same
    already, it is shared.

    Args:
        engine: a BPE that has the merges of the file, if it has its vocabulary.
    """
    content = json.loads(file.read_text("utf-8"))
    model = content["model"]
    if engine is not None and engine.get_vocab(with_added_tokens=False) == model.get("vocab"):
        bare = content | {"model": model | {"vocab": {}, "merges": []}, "added_tokens": []}
        rules = Tokenizer.from_str(json.dumps(bare))
        if _list_kind(rules) == _list_kind(engine):
            found = Tokenizer(engine.model)
            for name in ("normalizer", "pre_tokenizer", "decoder"):
                setattr(found, name, getattr(rules, name))
            added = {one.pop("id"): one for one in content["added_tokens"]}
            found.add_tokens([AddedToken(**added[number]) for number in sorted(added)])
            if all(found.token_to_id(one["content"]) == number for number, one in added.items()):
                return found
    found = Tokenizer.from_file(str(file))
    if isinstance(found.model, BPE):
        found.model.dropout = None
    return found


def _list_kind(engine: Tokenizer) -> list[Any]:
    model = engine.model
    return [type(model).__name__, *(getattr(model, name, None) or None for name in MODEL)]


def have_same_rules(engine: Tokenizer, stored: Tokenizer) -> bool:
    """Return whether two tokenizers cut all texts by the same rules, the beginnings of texts apart.

    Rules by which spaces are written may stand in a normalizer or in a pre-tokenizer.
    """
    return _list_rules(engine) == _list_rules(stored)


def _list_rules(engine: Tokenizer) -> list[Any]:
    """Return the rules of normalizer, pre-tokenizer and model, each in one of its forms."""
    found = _list_kind(engine)
    for part in (engine.normalizer, engine.pre_tokenizer):
        waiting = [] if part is None else [json.loads(part.__getstate__())]
        while waiting:
            one = waiting.pop(0)
            kind, inner = one["type"], one.get("normalizers", one.get("pretokenizers"))
            if kind == "Sequence":
                waiting = inner + waiting
            elif kind == "Metaspace" and one["replacement"] == SPACE:
                found.append(("spaces", one.get("split", True)))
            elif kind == "Replace" and (one["pattern"], one["content"]) == (BLANK, SPACE):
                found.append(("spaces", False))
            # No space is left where they are replaced, and beginnings are looked at in texts.
            elif kind != "Prepend" and (kind, one.get("pattern")) != ("Split", BLANK):
                one.pop("trim_offsets", None)
                found.append(one | ({"use_regex": one.get("use_regex", True)}))
    return found


def find_difference(engine: Tokenizer, stored: Tokenizer) -> str:
    """Return in which way an engine reads texts otherwise than the one that is stored.

    No text begins with a space: classes as that of Llama are meant to read such beginnings, and
    what follows a special token, otherwise than the files of their models.

    Returns:
        What the engine does and the stored one does not; empty if they agree.
    """
    vocab = engine.get_vocab()
    for token, number in stored.get_vocab().items():
        if (own := vocab.get(token)) != number:
            return f"has {short_repr(token)} as {own}, and not as {number}"
    for text in _ruled_texts(stored):
        if (wanted := _encode(stored, text)) is None:
            continue
        if (found := _encode(engine, text)) is None:
            return f"cannot read {short_repr(text)}"
        if found.ids != wanted.ids:
            pair = _first_apart(found.tokens, wanted.tokens)
            return f"cuts {short_repr(text)} into {pair[0]}, and not into {pair[1]}"
        if engine.decode(wanted.ids) != stored.decode(wanted.ids):
            return f"does not write the tokens of {short_repr(text)} as they are stored"
    return ""


def _encode(engine: Tokenizer, text: str) -> Encoding | None:
    """Return a text in tokens; None where a tokenizer has none for what it does not know."""
    try:
        return engine.encode(text, add_special_tokens=False)
    except Exception:  # the library raises nothing more definite
        return None


def _first_apart(found: list[str], wanted: list[str]) -> list[str]:
    """Return the first tokens of two lists from where they differ, as they stand."""
    pairs = zip_longest(found, wanted)
    start = next(number for number, (one, other) in enumerate(pairs) if one != other)
    return [short_repr(" ".join(one[start : start + SHOWN])) for one in (found, wanted)]


def _ruled_texts(stored: Tokenizer) -> Iterator[str]:
    """Yield texts in which two tokenizers may differ: general ones, and those of one's own rules.

    None holds a special token.
    """
    special = {one.content for one in stored.get_added_tokens_decoder().values() if one.special}
    size = stored.get_vocab_size()
    chosen = range(0, size, max(1, size // ENTRIES))
    named = [
        text for part in (stored.normalizer, stored.pre_tokenizer) for text in _list_named(part)
    ]
    sample = builtin.SAMPLE.read_text("utf-8")[:SAMPLE]
    texts = [*RULED, *ODD, sample, *sample.splitlines()]
    texts += [text.format(one) for one in named for text in ("{}", "a{}b", "a {} b")]
    texts += [stored.decode([one]) for one in chosen]
    for text in dict.fromkeys(text.lstrip(f" {SPACE}") for text in texts):
        if not any(one in text for one in special):
            yield text


def _list_named(part: Any) -> Iterator[str]:
    """Yield the texts that stand in the rules of a normalizer or pre-tokenizer."""
    waiting = [] if part is None else [json.loads(part.__getstate__())]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            for key, value in one.items():
                if key == "Regex" and isinstance(value, str):
                    yield from re.findall(r"[^\W_]{2,}", value)
                elif key == "String" and isinstance(value, str):
                    yield value
                else:
                    waiting.append(value)
        elif isinstance(one, list):
            waiting += one
