"""Input of a BPE trainer that learns new merges: words whose letters are a base's tokens."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from layerlab.tokenization.bpe_file import BpeFile, Merge

# Words that are encoded at once, and characters that are handed to the trainer at once.
CHUNK = 1 << 16
FED = 1 << 20
GAP = " "


class Continuation:
    """Words in the tokens of a base, one character for each token, and how often each occurs.

    A token that no merge may have a part in parts the words.
    """

    def __init__(self, found: BpeFile, counts: Mapping[str, int], least: int) -> None:
        """Cut words as the base does; a pair of tokens has to occur `least` times."""
        self.found, self.least = found, least
        self.words = self._cut(counts)
        self.learned: list[Merge] = []

    def merges(self, number: int) -> list[Merge]:
        """Return the best merges in their order, as tokens; fewer where the words have no more."""
        if len(self.learned) < number:
            letters = len(set().union(*self.words))
            # Each merge joins two letters of a word at least; the trainer reserves memory for all.
            most = sum(len(word) - 1 for word in self.words)
            trainer = trainers.BpeTrainer(
                vocab_size=letters + min(number, most),
                min_frequency=self.least,
                show_progress=False,
            )
            engine = Tokenizer(models.BPE())
            engine.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(GAP)
            engine.train_from_iterator(self._feed(), trainer)
            pairs = json.loads(engine.to_str())["model"]["merges"]
            self.learned = [(self._token(left), self._token(right)) for left, right in pairs]
        return self.learned[:number]

    @cached_property
    def _letters(self) -> dict[int, str]:
        """Return a character for each id: no space, and no half of a surrogate pair."""
        points = map(chr, range(ord(GAP) + 1, sys.maxunicode + 1))
        free = (one for one in points if not one.isspace() and not "\ud800" <= one <= "\udfff")
        fixed = self.found.fixed
        return {
            number: GAP if token in fixed else next(free)
            for token, number in sorted(self.found.vocab.items(), key=lambda item: item[1])
        }

    @cached_property
    def _tokens(self) -> dict[str, str]:
        return {self._letters[number]: token for token, number in self.found.vocab.items()}

    def _token(self, letters: str) -> str:
        return "".join(map(self._tokens.__getitem__, letters))

    def _cut(self, counts: Mapping[str, int]) -> Counter[str]:
        bare, letters, found = self.found.bare(), self._letters, Counter[str]()
        rest = iter(counts.items())
        while chunk := list(islice(rest, CHUNK)):
            cut = bare.encode_batch_fast([word for word, _ in chunk], add_special_tokens=False)
            for (_, count), one in zip(chunk, cut, strict=True):
                for part in "".join(map(letters.__getitem__, one.ids)).split(GAP):
                    if len(part) > 1:
                        found[part] += count
        return found

    def _feed(self) -> Iterator[str]:
        """Yield every word as often as it occurs, since the trainer counts for itself."""
        parts: list[str] = []
        size = 0
        for word, count in self.words.items():
            while count:
                times = min(count, FED // len(word) + 1)
                parts.append(f"{word}{GAP}" * times)
                size += len(parts[-1])
                count -= times
                if size >= FED:
                    yield "".join(parts)
                    parts, size = [], 0
        yield "".join(parts)
