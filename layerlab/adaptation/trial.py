"""What each way to begin new rows costs before any training: bits per byte, before and after."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from layerlab.adaptation.bits import Bits, bits_per_byte, whole
from layerlab.adaptation.embedding import Resized, Resizing, kept_of
from layerlab.adaptation.start import STARTS, check_start
from layerlab.training.section import Source
from layerlab.training.source import opened

# Bytes of each text that are read, once for every way.
LIMIT = 200_000
Texts = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to begin, and what texts cost with it.

    Attributes:
        input: the start of the embedding's new rows.
        head: that of the head's.
        bits: by the name of the text.
    """

    input: str
    head: str
    bits: Mapping[str, Bits]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, numbers and texts."""
        bits = {name: one.to_json() for name, one in self.bits.items()}
        return {"input": self.input, "head": self.head, "bits": bits}


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """A model with another tokenizer.

    Attributes:
        resized: what was done to it.
        before: what texts cost with the base tokenizer.
        ways: what they cost after each way to begin; the last is the one that stayed.
    """

    resized: Resized
    before: Mapping[str, Bits]
    ways: tuple[Way, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and texts."""
        return {
            "resized": self.resized.to_json(),
            "before": {name: one.to_json() for name, one in self.before.items()},
            "ways": [way.to_json() for way in self.ways],
        }


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a user may choose.

    Attributes:
        input: the start of the embedding's new rows that stays.
        head: that of the head's.
        seed: of what is drawn.
        context: of the windows in which texts are read; None for what the model can.
    """

    input: str = "mean"
    head: str = "mean-resizing"
    seed: int = 0
    context: int | None = None


def embed(
    model: Any,
    base: PreTrainedTokenizerFast,
    new: PreTrainedTokenizerFast,
    texts: Texts,
    choice: Choice | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Embedded:
    """Give a model another tokenizer, and say what each way to begin costs before any training.

    Each start of the embedding is tried beside the chosen one of the head, and the other way round.
    A tokenizer that holds only some of the base's tokens is taken as pruned.

    Args:
        texts: what is read, by name.
        note: is told of each way.

    Raises:
        UserError: what `resize` and `bits_per_byte` raise.
    """
    chosen = choice or Choice()
    check_start("input", chosen.input)
    check_start("head", chosen.head)
    resizing = Resizing(model, base, new, kept_of(base, new))

    def read(words: PreTrainedTokenizerFast) -> dict[str, Bits]:
        return {
            name: bits_per_byte(model, words, each, context=chosen.context)
            for name, each in texts.items()
        }

    note("the base tokenizer")
    before = read(base)
    ways = []
    # A tokenizer that only loses tokens has one way.
    for input, head in _ways(chosen, resizing.tied) if resizing.fresh else [_stays(chosen)]:
        note(f"input {input}, head {head}")
        resized = resizing.carry_out(input=input, head=head, seed=chosen.seed)
        ways.append(Way(input=resized.input, head=resized.head, bits=read(new)))
    return Embedded(resized=resized, before=before, ways=tuple(ways))


def sampled(source: Source, limit: int = LIMIT) -> list[str]:
    """The beginning of a text: whole documents up to so many bytes, or a part of the first.

    Raises:
        UserError: there is no such text.
    """
    return list(_limited(whole(opened(source).pieces()), limit))


def _limited(documents: Iterable[str], limit: int) -> Iterator[str]:
    done = 0
    for text in documents:
        size = len(text.encode())
        if done + size > limit:
            if not done:
                yield text.encode()[:limit].decode(errors="ignore")
            return
        done += size
        yield text


def _ways(chosen: Choice, tied: bool) -> list[tuple[str, str]]:
    """All pairs that are tried; the one that stays is the last."""
    if tied:
        every = [(one, one) for one in STARTS]
    else:
        every = [(one, chosen.head) for one in STARTS] + [(chosen.input, one) for one in STARTS]
    stays = (chosen.input, chosen.input) if tied else _stays(chosen)
    return [*dict.fromkeys(one for one in every if one != stays), stays]


def _stays(chosen: Choice) -> tuple[str, str]:
    return chosen.input, chosen.head
