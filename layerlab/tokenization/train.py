"""A BPE trained on a text: every string can be encoded, and decoding gives it back.

Over bytes, or as SentencePiece trains it: over characters, those that it lacks written in bytes. In
the second a space is a character of the token that it begins, and no other stands for it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from layerlab.errors import UserError
from layerlab.tokenization.bpe_file import BYTES
from layerlab.tokenization.word_counts import cut_long_words

END = "<|endoftext|>"
# Of the characters of a text, as many get a token of their own; SentencePiece's default.
COVERAGE = 0.9995
# Characters of a token at most, SentencePiece's default too.
LONGEST = 16
# Where SentencePiece ends a word: before a space, where the script changes, around each digit.
WORD = (
    r" ?(?:\p{Han}+|\p{N}|[\p{L}\p{M}&&[^\p{Han}]]+|[^\s\p{L}\p{M}\p{N}]+)"
    r"|\s+(?!\S)|\s+"
)


def train_bpe(
    texts: Iterable[str], *, vocab: int, special: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train a tokenizer over bytes; the same texts give the same one in every process.

    Args:
        texts: in order, read once.
        vocab: entries at most; the separator comes first, and after the special tokens 256 bytes.
        special: further special tokens.

    Raises:
        UserError: the bytes find no room, or a special token is an entry already.

    Example:
        >>> tokenizer = train_bpe(["an ant and an aunt"], vocab=260)
        >>> len(tokenizer), tokenizer.decode(tokenizer("ünt")["input_ids"])
        (260, 'ünt')
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _room(vocab, special, alphabet)
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END, *special],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    engine.train_from_iterator(cut_long_words(texts), trainer)
    return _wrap(engine, special)


def train_fallback_bpe(
    texts: Iterable[str], *, vocab: int, special: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train a tokenizer over characters; the same texts give the same one in every process.

    Args:
        texts: in order, read twice.
        vocab: entries at most; the separator comes first, and after the special tokens 256 bytes.
        special: further special tokens.

    Raises:
        UserError: the bytes find no room, or a special token is an entry already.

    Source: pangu23, section 5, for SentencePiece's BPE; section 6.2 for its bytes.

    Example:
        >>> tokenizer = train_fallback_bpe(["an ant and an aunt"], vocab=270)
        >>> len(tokenizer), tokenizer.decode(tokenizer("ünt ▁")["input_ids"])
        (270, 'ünt ▁')
    """
    room = _room(vocab, special, BYTES)
    letters = _frequent_letters(texts, room)
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        max_token_length=LONGEST,
        show_progress=False,
    )
    engine.train_from_iterator(cut_long_words(texts), trainer)
    model = json.loads(engine.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].__getitem__)
    fixed = (END, *special)
    engine.model = models.BPE(
        # A special token that was learned as a word too keeps its place before the bytes.
        {token: number for number, token in enumerate(dict.fromkeys((*fixed, *BYTES, *learned)))},
        [tuple(merge) for merge in model["merges"]],
        byte_fallback=True,
    )
    engine.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    engine.add_special_tokens([tokenizers.AddedToken(one, special=True) for one in fixed])
    return _wrap(engine, special)


def _room(vocab: int, special: Sequence[str], alphabet: Sequence[str]) -> int:
    """Return the entries that are left beside special tokens and bytes."""
    taken = {END, *alphabet}
    for token in special:
        if token in taken:
            raise UserError(
                f"data.tokenizer.special_tokens has {token!r}, which is an entry already; "
                "leave it out"
            )
        taken.add(token)
    if vocab < len(taken):
        raise UserError(
            f"a vocabulary of {vocab:,} has no room for 256 bytes and {len(special) + 1} special "
            f"tokens; write data.vocab_size = {len(taken)}, or a larger one"
        )
    return vocab - len(taken)


def _frequent_letters(texts: Iterable[str], room: int) -> list[str]:
    """Return the characters that get a token: the most frequent, until the others are few."""
    letters = Counter[str]()
    for text in texts:
        letters.update(text)
    rest, limit = letters.total(), letters.total() * (1 - COVERAGE)
    found: list[str] = []
    for letter, count in sorted(letters.items(), key=lambda item: (-item[1], item[0])):
        if rest <= limit or len(found) == room:
            break
        found.append(letter)
        rest -= count
    return found


def _wrap(engine: Tokenizer, special: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return transformers' tokenizer, whose separator begins, ends and fills texts."""
    more = {"additional_special_tokens": list(special)} if special else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=engine,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        **more,
    )
