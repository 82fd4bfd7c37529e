"""Mixes the rows of several sources: order, and share of each source."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain

import numpy as np

from layerlab.adaptation.sft.conversations import Conversation
from layerlab.adaptation.sft.encode import Encoder, Example
from layerlab.adaptation.sft.packing import best_fit
from layerlab.corpus.mixture import parts_of
from layerlab.errors import UserError

LONG = "left out: longer than a block before the assistant's first turn ends"
NONE = "left out: no token of the assistant"
COPY = "left out: a copy of a row that is held out"


@dataclass
class SourceStats:
    """The use of the rows of one source.

    Attributes:
        rows: that are learned from; held-out ones and dropped ones are not among them. Where the
            chat template asks for it, one for each answer of a conversation.
        cut: conversations of which turns that do not fit were left out.
        answers: tokens that the assistant says.
        dropped: how many rows were left out, by reason.
        passes: over the rows, in the whole stage.
    """

    rows: int = 0
    held: int = 0
    turns: int = 0
    tokens: int = 0
    answers: int = 0
    cut: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    passes: float = 0.0


@dataclass(frozen=True)
class EncodedSource:
    """One source in tokens.

    Attributes:
        held: examples that are never learned from.
        note: on conversations that became several examples.
    """

    name: str
    examples: Sequence[Example]
    held: Sequence[Example]
    tally: SourceStats
    note: str = ""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each example that is learned from."""
        return [len(one.ids) for one in self.examples]


def draw_source(
    name: str,
    rows: Iterable[Conversation],
    encoder: Encoder,
    *,
    block: int,
    validation_fraction: int | float,
    seed: int,
) -> EncodedSource:
    """Encode the rows of a source and set some apart; no copy of these is learned.

    The examples of one conversation stay together: what is held out of it is learned in none.

    Args:
        block: tokens at most; turns that do not fit are left out from the end.
        validation_fraction: share of the distinct conversations that is not learned from.

    Raises:
        UserError: nothing is left to learn from.
    """
    tally, kept, given = SourceStats(), list[list[Example]](), list(rows)
    encoder.check(given)
    for row in given:
        encoded = encoder.examples(row)
        cut = [one.cut(block) for one in encoded]
        found = [one for one in cut if one.answer.any()]
        if not found:
            why = LONG if any(len(one.ids) > block for one in encoded) else NONE
            tally.dropped[why] = tally.dropped.get(why, 0) + 1
            continue
        tally.cut += sum(len(one.ids) for one in cut) < sum(len(one.ids) for one in encoded)
        if len(found) > 1:
            every = b"".join(map(_content, found))
            found = [replace(one, conversation=every) for one in found]
        kept.append(found)
    alike: dict[bytes, list[int]] = {}
    for number, (example, *_) in enumerate(kept):
        alike.setdefault(_content(example), []).append(number)
    distinct = list(alike.values())
    apart = min(round(validation_fraction * len(distinct)), max(0, len(distinct) - 1))
    order = _generator(seed, name, "held").permutation(len(distinct))
    tested = sorted(distinct[one][0] for one in order[:apart])
    learned = sorted(number for one in order[apart:] for number in distinct[one])
    copies = sum(len(kept[one]) for place in order[:apart] for one in distinct[place][1:])
    held = [example for one in tested for example in kept[one]]
    tally.held = len(held)
    source = EncodedSource(name, (), held, tally, describe_split(name, kept))
    return _learn(source, [example for one in learned for example in kept[one]], copies)


def describe_split(name: str, kept: Sequence[Sequence[Example]], share: float = 1.0) -> str:
    """Return, in a line, what conversations came to of which each answer is an example.

    It is empty where none is split.

    Args:
        kept: the examples of each conversation.
        share: of all conversations that these are.
    """
    examples = list(chain.from_iterable(kept))
    if len(examples) == len(kept):
        return ""
    tokens = sum(len(one.ids) for one in examples)
    once = sum(len(found[-1].ids) for found in kept)
    return (
        f"{name}: {round(len(kept) / share):,} conversations become "
        f"{round(len(examples) / share):,} examples, one for each answer, with "
        f"{tokens / once:.2f} times the tokens, since the chat template writes an answer "
        "differently once others follow"
    )


def leave_out_copies(sources: Sequence[EncodedSource]) -> list[EncodedSource]:
    """Return the sources without rows that are held out of any of them.

    Raises:
        UserError: nothing of one is left to learn from.
    """
    secret = {_content(row) for source in sources for row in source.held}
    found = []
    for source in sources:
        left = [row for row in source.examples if _content(row) not in secret]
        found.append(_learn(source, left, len(source.examples) - len(left)))
    return found


def _learn(source: EncodedSource, rows: list[Example], copies: int) -> EncodedSource:
    """Return a source of which these rows are learned.

    Args:
        copies: of held-out rows, that are left out.

    Raises:
        UserError: there is none.
    """
    dropped = dict(source.tally.dropped)
    if copies:
        dropped[COPY] = dropped.get(COPY, 0) + copies
    if not rows:
        why = "; ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise UserError(
            f"no row of {source.name} can be learned from ({why or 'it is empty'}); give other "
            "rows, or a larger block"
        )
    tally = replace(
        source.tally,
        rows=len(rows),
        turns=sum(len(one.ends) for one in rows),
        tokens=sum(len(one.ids) for one in rows),
        answers=sum(int(one.answer.sum()) for one in rows),
        dropped=dropped,
    )
    return replace(source, examples=rows, tally=tally)


def _content(row: Example) -> bytes:
    """Return what is equal in copies of a row: its tokens, and who says them.

    Of one among the answers of a conversation, it is that of all of them: many may begin alike.
    """
    if row.conversation:
        return row.conversation
    content = row.ids.tobytes() + row.answer.tobytes()
    return blake2b(content, digest_size=16).digest()


def blocks(
    sources: Sequence[EncodedSource],
    weights: Mapping[str, int | float] | None,
    amount: int | float,
    *,
    block: int,
    pack: bool,
    seed: int,
) -> Iterator[list[tuple[int, int]]]:
    """Yield blocks of the whole stage, as pairs of a source and one of its examples.

    A round is as many tokens as all sources have together. Without weights it is every row once;
    with weights each source has its share of these tokens, within one row, and takes up the next
    round where it stopped. Rows of a round are shuffled among each other, and so are its blocks.

    Args:
        weights: share of the tokens by source.
        amount: tokens of the stage; the row that reaches it is the last.
    """
    totals = [sum(one.lengths) for one in sources]
    total = sum(totals)
    streams = [_endless(one, seed) for one in sources]
    had, due = [0] * len(sources), [0.0] * len(sources)
    for number in range(math.ceil(amount / total)):
        part = min(total, amount - number * total)
        for index, share in enumerate(_shares(sources, weights, totals)):
            due[index] += part * share
        rows = list[tuple[int, int]]()
        for index, stream in enumerate(streams):
            while had[index] < due[index] - 0.5:
                example = next(stream)
                had[index] += sources[index].lengths[example]
                rows.append((index, example))
        for index, one in enumerate(sources):
            one.tally.passes = had[index] / totals[index]
        rows = [rows[one] for one in _generator(seed, number).permutation(len(rows))]
        lengths = [len(sources[index].examples[example].ids) for index, example in rows]
        found = best_fit(lengths, block) if pack else [[one] for one in range(len(rows))]
        for one in _generator(seed, number, "blocks").permutation(len(found)):
            yield [rows[row] for row in found[one]]


def _shares(
    sources: Sequence[EncodedSource],
    weights: Mapping[str, int | float] | None,
    totals: Sequence[int],
) -> list[float]:
    if weights is None:
        return [one / sum(totals) for one in totals]
    names = [one.name for one in sources]
    if set(weights) != set(names) or not all(weights[name] > 0 for name in names):
        raise UserError(
            f"weights are {dict(weights)}; expected a number above 0 for each of {', '.join(names)}"
        )
    parts = parts_of([float(weights[name]) for name in names])
    return [part / sum(parts) for part in parts]


def _endless(given: EncodedSource, seed: int) -> Iterator[int]:
    """Yield the examples pass after pass, each pass in an order of its own."""
    number = 0
    while True:
        order = _generator(seed, given.name, number).permutation(len(given.examples))
        yield from (int(one) for one in order)
        number += 1


def _generator(seed: int, *what: object) -> np.random.Generator:
    name = repr((seed, *what)).encode()
    return np.random.default_rng(int.from_bytes(blake2b(name, digest_size=8).digest()))
