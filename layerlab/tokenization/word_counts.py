"""Words of a text and how often each occurs, counted where the tokenizers library cuts them."""

import json
import re
from collections.abc import Iterable, Iterator

from tokenizers import Regex, Tokenizer, pre_tokenizers, trainers

from layerlab.errors import UserError
from layerlab.tokenization.bpe_file import BpeFile, is_byte
from layerlab.tokenization.spm.model_file import SPACE
from layerlab.validation import short_repr

_DIGITS = re.compile(r"\d\d")
# Runs of one kind without a break: the time of a trainer grows with the square of a word.
LONGEST = 1024
_LONG = re.compile(
    "|".join(f"{kind}{{{LONGEST}}}" for kind in (r"[^\W\d_]", r"\d", r"(?:[^\w\s]|_)", r"\s"))
)


def check_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts as they come.

    Raises:
        UserError: one is no `str`, or holds half of a surrogate pair, which no tokenizer reads.
    """
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(
                f"texts[{number}] is {short_repr(text)}; expected a str: decode bytes, and leave "
                "out what is missing"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"texts[{number}] holds half of a surrogate pair ({text[error.start]!r}), which is "
                "no text; mend it with text.encode(errors='replace').decode()"
            ) from None
        yield text


def cut_long_words(texts: Iterable[str]) -> Iterator[str]:
    """Cut words that no language has, as those of a genome, for a trainer that counts pairs.

    Example:
        >>> list(map(len, cut_long_words(["a b", "G" * 2500])))
        [3, 1024, 1024, 452]
    """
    for text in texts:
        start = 0
        for found in _LONG.finditer(text):
            yield text[start : found.end()]
            start = found.end()
        yield text[start:]


def word_counts(found: BpeFile, texts: Iterable[str]) -> dict[str, int]:
    """Count the distinct words of texts, cut and spelled as the BPE meets them, in any order.

    Texts are read once and not kept. A tokenizer that hands whole texts to its BPE, as those of
    SentencePiece do, gets them cut here as a SentencePiece trainer would: at spaces, where the
    script changes, and around each digit where no token holds two of them. One that cuts words by a
    pattern of its own, as `train_fallback_bpe` makes them, is left to it.
    """
    engine = Tokenizer.from_str(json.dumps({**found.content, "added_tokens": [], "model": _EMPTY}))
    own = found.content["pre_tokenizer"] or {}
    if not found.bytewise and "Regex" not in own.get("pattern", {}):
        steps = [engine.pre_tokenizer, pre_tokenizers.Split(Regex(_pattern(found)), "isolated")]
        engine.pre_tokenizer = pre_tokenizers.Sequence([step for step in steps if step])
    # Nothing is learned: a trainer keeps the words that it was fed, and they are what is wanted.
    trainer = trainers.BpeTrainer(vocab_size=0, limit_alphabet=0, show_progress=False)
    engine.train_from_iterator(cut_long_words(_between(check_texts(texts), found.added)), trainer)
    counts: dict[str, int] = json.loads(trainer.__getstate__())["BpeTrainer"]["words"]
    return counts


_EMPTY = {"type": "BPE", "vocab": {}, "merges": []}


def _pattern(found: BpeFile) -> str:
    tokens = (token for token in found.vocab if not is_byte(token) and token not in found.added)
    digits = r"\p{N}+" if any(map(_DIGITS.search, tokens)) else r"\p{N}"
    kinds = (
        r"\p{Han}+",
        digits,
        r"[\p{L}\p{M}&&[^\p{Han}]]+",
        rf"[^{SPACE}\p{{L}}\p{{M}}\p{{N}}]+",
    )
    return "|".join([*(f"{SPACE}*{kind}" for kind in kinds), f"{SPACE}+"])


def _between(texts: Iterable[str], added: Iterable[str]) -> Iterator[str]:
    """Yield the text between added tokens, which never come before the BPE."""
    marks = sorted(added, key=lambda token: (-len(token), token))
    if not marks:
        yield from texts
        return
    cut = re.compile("|".join(map(re.escape, marks)))
    for text in texts:
        yield from filter(None, cut.split(text))
