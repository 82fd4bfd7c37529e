"""Verification of a changed vocabulary, text by text, and what it is worth.

Nothing here goes by how the vocabulary was made: every text is encoded by both tokenizers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from operator import ne
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from layerlab.errors import UserError
from layerlab.tokenization.bpe_file import BpeFile, is_byte, read_backend
from layerlab.tokenization.compression import Compression, batches
from layerlab.tokenization.load import engine
from layerlab.tokenization.vocabulary.extend import unreachable


@dataclass(frozen=True)
class TokenizerComparison:
    """One set of texts under both tokenizers.

    Attributes:
        back: texts that come back from the new tokenizer as they were.
        broken: texts that come back from the base and not from the new one.
        changed: texts that have other tokens than before.
        longer: texts that have more tokens than before.
        coarser: texts of which every new boundary was one before.
    """

    name: str
    base: Compression
    new: Compression
    back: int
    broken: int
    changed: int
    longer: int
    coarser: int

    @property
    def ratio(self) -> float:
        """Return the tokens now over the tokens before: 1 is as long as before, lower is shorter.

        Unit: none.
        """
        return self.new.tokens / self.base.tokens

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        sizes = {"base": self.base.to_dict(), "new": self.new.to_dict()}
        return {"name": self.name, "ratio": self.ratio, **counts, **sizes}


_COUNTS = ("back", "broken", "changed", "longer", "coarser")


@dataclass(frozen=True)
class Terms:
    """Expressions of a field under both tokenizers.

    Attributes:
        base: tokens for all of them.
        whole: of them that are one token now.
    """

    terms: int
    base: int
    new: int
    whole_base: int
    whole: int


@dataclass(frozen=True, kw_only=True)
class VocabularyCheck:
    """All that was found; `holds` is the verdict.

    Attributes:
        entries_base: of the base.
        added: tokens of the new one that the base has not.
        removed: tokens of the base that the new one has not.
        unreachable: tokens that no text has, though the base could make them, or had them not.
        unused: tokens that none of these texts has: new ones, or kept ones where none is new.
        partial: new tokens that are no whole characters.
        coverage: share of a text's tokens that pruning left.
    """

    entries_base: int
    entries: int
    added: int
    removed: int
    unreachable: tuple[str, ...]
    unused: int
    partial: tuple[str, ...]
    tallies: tuple[TokenizerComparison, ...]
    terms: Terms | None = None
    coverage: float | None = None
    published: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Return whether no token is out of reach and no text lost.

        If no token was removed, no text may be longer or cut anew either.
        """
        kept = not self.unreachable and not any(one.broken for one in self.tallies)
        grown = all(not one.longer and one.coarser == one.new.texts for one in self.tallies)
        return kept and (grown or self.removed > 0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {name: value for name, value in vars(self).items() if name != "tallies"}
        return {
            **plain,
            "holds": self.holds,
            "unreachable": list(self.unreachable),
            "partial": list(self.partial),
            "terms": None if self.terms is None else asdict(self.terms),
            "published": dict(self.published),
            "texts": [one.to_dict() for one in self.tallies],
        }


def verify(
    base: PreTrainedTokenizerFast,
    new: PreTrainedTokenizerFast,
    texts: Mapping[str, Iterable[str]],
    *,
    terms: Sequence[str] = (),
    coverage: float | None = None,
) -> VocabularyCheck:
    """Compare a tokenizer with the one that it was made from.

    Args:
        texts: sets of texts by their names, each read once.
        terms: expressions that should take few tokens.
        coverage: what pruning says of itself.

    Raises:
        UserError: a set holds no text, or a tokenizer is none that can be changed.
    """
    pair = _Pair(base, new)
    tallies = tuple(pair.tally(name, several) for name, several in texts.items())
    vocab, before = pair.new.vocab, pair.base.vocab
    fresh = [token for token in vocab if token not in before]
    watched = fresh or [token for token in vocab if token not in pair.new.fixed]
    return VocabularyCheck(
        entries_base=len(before),
        entries=len(vocab),
        added=len(fresh),
        removed=sum(token not in vocab for token in before),
        unreachable=tuple(pair.list_lost()),
        unused=sum(not pair.used[vocab[token]] for token in watched),
        partial=tuple(token for token in fresh if pair.new.bytewise and not _whole(token, pair)),
        tallies=tallies,
        terms=pair.terms(terms) if terms else None,
        coverage=coverage,
    )


class _Pair:
    """Two tokenizers side by side."""

    def __init__(self, base: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast) -> None:
        self.engines = (engine(base), engine(new))
        self.base, self.new = map(read_backend, self.engines)
        self.lengths = (_lengths(self.base), _lengths(self.new))
        self.used = np.zeros(len(self.lengths[1]), bool)

    def tally(self, name: str, texts: Iterable[str]) -> TokenizerComparison:
        sizes = np.zeros(5, np.int64)  # texts, characters, bytes, tokens before and now
        counts = np.zeros(len(_COUNTS), np.int64)
        for batch in batches(texts):
            before, now = (_ids(one, batch) for one in self.engines)
            lengths = [sum(map(len, ids)) for ids in (before, now)]
            size = sum(len(text.encode()) for text in batch)
            sizes += [len(batch), sum(map(len, batch)), size, *lengths]
            counts += self._counts(batch, before, now)
        if not sizes[3:].all():
            raise UserError(f"{name} holds no text to compare tokenizers on; leave it out")
        texts_, characters, size, before_, now_ = map(int, sizes)
        return TokenizerComparison(
            name,
            Compression(texts_, characters, size, before_),
            Compression(texts_, characters, size, now_),
            *map(int, counts),
        )

    def _counts(self, batch: list[str], before: list[list[int]], now: list[list[int]]) -> list[int]:
        back = self.engines[1].decode_batch(now, skip_special_tokens=False)
        strays = [place for place, text in enumerate(batch) if back[place] != text]
        old = self.engines[0].decode_batch(
            [before[place] for place in strays], skip_special_tokens=False
        )
        broken = sum(batch[place] == text for place, text in zip(strays, old, strict=True))
        changed = sum(map(ne, before, now))
        longer = sum(len(new) > len(ids) for ids, new in zip(before, now, strict=True))
        ends = [_Ends(*pair) for pair in zip(self.lengths, (before, now), strict=True)]
        self.used[ends[1].ids] = True
        # Texts lie one after another, with room between them for the longer of both.
        room = np.maximum(ends[0].sizes, ends[1].sizes) + 1
        begin = np.cumsum(room) - room
        old_ends, new_ends = (one.ends + begin[one.texts] for one in ends)
        kept = np.isin(new_ends, old_ends)
        anew = len(np.unique(ends[1].texts[~kept]))
        return [len(batch) - len(strays), broken, changed, longer, len(batch) - anew]

    def list_lost(self) -> list[str]:
        """Return the tokens that are out of reach now and were not out of the base's reach."""
        old = set(self._out_of_reach(self.engines[0], self.base))
        return [one for one in self._out_of_reach(self.engines[1], self.new) if one not in old]

    def _out_of_reach(self, machine: Tokenizer, found: BpeFile) -> list[str]:
        return unreachable(machine, [token for token in found.vocab if token not in found.fixed])

    def terms(self, terms: Sequence[str]) -> Terms:
        """Return the numbers of tokens of all terms, before and now."""
        base, new = ([len(ids) for ids in _ids(one, list(terms))] for one in self.engines)
        return Terms(len(terms), sum(base), sum(new), base.count(1), new.count(1))


class _Ends:
    """Ends of the tokens of several texts.

    Attributes:
        ids: of all texts, one after another.
        texts: the text of each token, by its number.
        ends: of each token, in bytes from the beginning of its text.
        sizes: of the texts, in bytes.
    """

    def __init__(self, lengths: np.ndarray, several: list[list[int]]) -> None:
        tokens = np.fromiter(map(len, several), np.int64, len(several))
        self.ids = np.fromiter(chain.from_iterable(several), np.int64, tokens.sum())
        self.texts = np.repeat(np.arange(len(several)), tokens)
        ends = np.cumsum(lengths[self.ids])
        last = np.concatenate([[0], ends])[np.cumsum(tokens)]
        begin = np.concatenate([[0], last[:-1]])
        self.ends, self.sizes = ends - begin[self.texts], last - begin


def _ids(machine: Tokenizer, texts: list[str]) -> list[list[int]]:
    found = machine.encode_batch_fast(texts, add_special_tokens=False)
    return [one.ids for one in found]


def _lengths(found: BpeFile) -> np.ndarray:
    """Return the bytes of each id, so that boundaries can be compared within a character too."""
    lengths = np.zeros(max(found.vocab.values()) + 1, np.int64)
    for token, number in found.vocab.items():
        if found.bytewise and token not in found.added:
            lengths[number] = len(token)
        else:
            lengths[number] = 1 if is_byte(token) else len(token.encode())
    return lengths


def _whole(token: str, pair: _Pair) -> bool:
    """Return whether a token of byte symbols stands for whole characters."""
    text = pair.engines[1].decode([pair.new.vocab[token]], skip_special_tokens=False)
    return "\ufffd" not in text
