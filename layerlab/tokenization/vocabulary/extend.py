"""A vocabulary that goes on growing on the text of a domain: continued byte-pair encoding.

The base cuts every word as it always did, and each of its tokens becomes one symbol; a BPE trained
on those symbols gives the merges to append. They rank behind all merges of the base, so the cut of
the base is finished first and can only be joined: no text gets longer, and a boundary that is new
was there before. Ids of the base stay, new ones follow the largest.

Where the base writes an unknown character in bytes, frequent ones become tokens first.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from layerlab.errors import UserError
from layerlab.tokenization.bpe_file import BpeFile, Merge, read_backend, read_bpe, rebuild
from layerlab.tokenization.vocabulary.continued_bpe import Continuation
from layerlab.tokenization.word_counts import word_counts

LEAST = 2
# Some merges make no new token: so many more than wanted are learned, and this share of them.
SPARE, SHARE = 64, 0.05
# Of the characters of a text, as many as these become or are tokens where unknown ones are bytes.
COVERAGE = 0.9995


def extend(
    tokenizer: PreTrainedTokenizerFast,
    texts: Iterable[str],
    size: int,
    *,
    tell: Callable[[float], None] = lambda share: None,
) -> PreTrainedTokenizerFast:
    """Add entries to a tokenizer that make a domain's text shorter, and no text longer.

    Args:
        texts: of the domain, read once and not kept.
        size: entries that are added.
        tell: is told the share of merges that is learned.

    Raises:
        UserError: it is of a kind that cannot be extended, or the texts do not give as many
            entries.

    Source: Own; the merges are those that the tokenizers library's trainer learns.

    Example:
        >>> from layerlab.tokenization.load import train_tokenizer
        >>> base = train_tokenizer(["an ant and an aunt"], 260)
        >>> new = extend(base, ["plaintiff, plaintiff, plaintiff"], 8)
        >>> len(new) - len(base), base("an ant") == new("an ant")
        (8, True)
        >>> len(new("plaintiff")["input_ids"]), new.decode(new("plaintiff")["input_ids"])
        (1, 'plaintiff')
    """
    if size < 1:
        raise UserError(f"cannot add {size} entries to a vocabulary; expected 1 or more")
    found = read_bpe(tokenizer)
    continuation, barred = _begin(found, texts, size, LEAST), set(found.fixed)
    while True:
        engine = _grow(continuation, len(found.vocab), size, barred, tell)
        vocab = engine.get_vocab()
        lost = unreachable(engine, [token for token in vocab if token not in found.vocab])
        if not lost:
            return rebuild(tokenizer, engine)
        # A merge that makes an older token may set off older merges, past what was learned.
        barred |= set(lost)


def unreachable(engine: Tokenizer, tokens: Sequence[str]) -> list[str]:
    """Return those tokens of the vocabulary that no text gives, since no merges make them.

    What merges make within a word they also make alone, because no merge crossed its ends. Where a
    tokenizer looks up whole words first, merges alone have to make the token.
    """
    found = read_backend(engine)
    cut = found.bare(lookup=False).encode_batch_fast(list(tokens), add_special_tokens=False)
    return [
        token for token, one in zip(tokens, cut, strict=True) if one.ids != [found.vocab[token]]
    ]


def _begin(found: BpeFile, texts: Iterable[str], size: int, least: int) -> Continuation:
    counts = word_counts(found, texts)
    if not counts:
        raise UserError("there is no text to learn a vocabulary from; give one with words in it")
    return Continuation(_with_letters(found, counts, size, least), counts, least)


def _with_letters(found: BpeFile, counts: Mapping[str, int], size: int, least: int) -> BpeFile:
    """Add to the base the characters that texts have to spell in bytes, which never merge.

    The most frequent come in, as long as the others are more than a character in 2000, the share
    that a trainer of SentencePiece leaves out.
    """
    if found.bytewise:
        return found
    letters = Counter[str]()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    rest, limit = letters.total(), letters.total() * (1 - COVERAGE)
    rest -= sum(count for letter, count in letters.items() if letter in found.vocab)
    vocab = dict(found.vocab)
    number = max(vocab.values()) + 1
    for letter, count in sorted(letters.items(), key=lambda item: (-item[1], item[0])):
        full = len(vocab) == len(found.vocab) + size
        if full or count < least or rest <= limit:
            break
        if letter not in vocab:
            vocab[letter] = number
            number += 1
            rest -= count
    return replace(found, vocab=vocab)


def _grow(
    continuation: Continuation,
    before: int,
    size: int,
    barred: Set[str],
    tell: Callable[[float], None],
) -> Tokenizer:
    wanted = size + SPARE + int(SHARE * size)
    while True:
        pairs = continuation.merges(wanted, tell)
        vocab, merges = _append(continuation.found, pairs, before + size, barred)
        made = len(vocab) - before
        if made == size:
            return continuation.found.engine(vocab, merges)
        if len(pairs) < wanted:
            less = f", or ask for +{made}" if made else ""
            raise UserError(
                f"the text gives {made:,} of {size:,} new entries: no more pairs of tokens occur "
                f"{continuation.least} times; give more text{less}"
            )
        wanted *= 2


def _append(
    found: BpeFile, pairs: Sequence[Merge], entries: int, barred: Set[str]
) -> tuple[dict[str, int], list[Merge]]:
    """Return the base's vocabulary and merges with new ones behind them.

    A pair that the base joins already must not come a second time: the library would take its
    later rank.
    """
    vocab, merges = dict(found.vocab), list(found.merges)
    known, number = set(merges), max(vocab.values()) + 1
    for pair in pairs:
        token = "".join(pair)
        if len(vocab) == entries:
            break
        if token in barred or pair in known or not vocab.keys() >= set(pair):
            continue
        if token not in vocab:
            vocab[token] = number
            number += 1
        known.add(pair)
        merges.append(pair)
    return vocab, merges
