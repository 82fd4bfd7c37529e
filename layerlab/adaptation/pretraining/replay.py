"""Replay: blocks of domain and general text in an exact ratio of tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from layerlab.corpus.batches import BatchOrder, batch_of
from layerlab.corpus.corpus import Corpus, ProgressCallback, prepare
from layerlab.corpus.streams import TokenStream
from layerlab.data.sources import to_source
from layerlab.errors import UserError
from layerlab.recipes.training_sections import DataSection, Source
from layerlab.system.logs import quiet_libraries
from layerlab.system.write_errors import temporary_folder
from layerlab.tokenization.load import separator
from layerlab.validation import short_repr

DOMAIN, GENERAL = "domain", "general"
# A path or a name as recipes write it, a source with its settings, or several of them.
Material = str | Path | Source | Sequence[str | Path | Source]


@dataclass(frozen=True, kw_only=True)
class ReplayData:
    """The text that is read, and the part of it that is held out.

    Attributes:
        domain: a file, a folder, a name, or several; as `text` of a recipe's data.sources.
        general: text to replay. None knows no general text; the ratio (1, 0) keeps what there is
            for the measurement of forgetting alone.
        validation: share of each source's bytes that is held out, at its end.
        documents: whether attention stops at the boundaries of documents; a model in which it does
            not is refused.
        cache: where tokens are kept; LAYERLAB_CACHE or ~/.cache/layerlab where it is left out.
    """

    domain: Material
    general: Material | None = None
    validation: float = 0.05
    documents: bool = False
    cache: Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.validation < 1:
            raise UserError(
                f"validation is {short_repr(self.validation)}; expected a share between 0 and 1"
            )
        if not _sources(self.domain):
            raise UserError("there is no text of the domain; give a file, a folder or a name")


@dataclass(frozen=True, kw_only=True)
class MixedCorpus:
    """Text of two kinds, as tokens.

    Attributes:
        corpus: what is trained on, each source with its weight.
        kinds: of each of its sources: domain or general.
        held: the held-out text of each kind, whether or not that kind is trained on.
    """

    corpus: Corpus
    kinds: tuple[str, ...]
    held: dict[str, Corpus]


def mix_texts(
    tokenizer: PreTrainedTokenizerFast,
    reading: ReplayData,
    progress: ProgressCallback | None = None,
    ratio: Sequence[int | float] = (1, 1),
) -> MixedCorpus:
    """Mix the tokens of both kinds of text; they are cached.

    A document that is held out is learned nowhere, neither in a copy nor in the other kind of text.
    Documents stand one after another, each after the tokenizer's end of text; blocks are cut from
    that, so their ratio is that of tokens, however long the documents are.

    Args:
        progress: is told what is done, and the share of it.
        ratio: of domain to general tokens.

    Raises:
        UserError: the ratio is none, the tokenizer has no end of text, or a text cannot be had.
    """
    separator(tokenizer, tokenizer.name_or_path or "given")
    general = [] if reading.general is None else _sources(reading.general)
    texts = {DOMAIN: _sources(reading.domain), GENERAL: general}
    shares = _shares(texts, ratio)
    every = [source for kind in texts.values() for source in kind]
    with temporary_folder() as folder, quiet_libraries():
        tokenizer.save_pretrained(folder)
        data = DataSection(
            sources=tuple(every),
            tokenizer=folder,
            validation_fraction=reading.validation,
            document_masking=reading.documents,
        )
        corpus = prepare(data, reading.cache, progress, copies=False)
    kinds = [kind for kind, found in texts.items() for _ in found]
    trained = [(number, share) for number, share in enumerate(shares) if share]
    return MixedCorpus(
        corpus=replace(
            corpus,
            train=tuple(replace(corpus.train[number], weight=share) for number, share in trained),
        ),
        kinds=tuple(kinds[number] for number, _ in trained),
        held={
            kind: replace(corpus, validation=_of_kind(corpus.validation, kinds, kind))
            for kind in dict.fromkeys(kinds)
        },
    )


class BlockDataset(Dataset[dict[str, Tensor]]):
    """The blocks of a run in their order: a row is a function of the seed and its number.

    Labels are the tokens after the inputs, each in the place of the one before it.
    """

    def __init__(self, order: BatchOrder, count: int, batches: Sequence[int] | None = None) -> None:
        """Take the first blocks of an order.

        Args:
            count: of the blocks; of each batch, where batches are given.
            batches: of the order, by their numbers, where not all of them are read.
        """
        self.order = order
        self.places = np.arange(count)
        if batches is not None:
            firsts = np.asarray(batches, np.int64) * count
            self.places = (firsts[:, None] + np.arange(count)).ravel()

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        """Return several rows; those that follow each other in the order are read at once."""
        places = self.places[list(indices)]
        ends = [*(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        parts, first = [], 0
        for end in ends:
            parts.append(self.order.rows(int(places[first]), end - first))
            first = end
        found = batch_of(np.concatenate(parts), self.order.corpus)
        rows = []
        for row in range(len(found)):
            one = {"input_ids": found.inputs[row], "labels": found.targets[row]}
            if found.positions is not None:
                one["position_ids"] = found.positions[row]
            rows.append(one)
        return rows

    def read(self, blocks: int) -> list[int]:
        """Count the blocks of each source among the first so many rows."""
        sources, _ = self.order.mixture.turn(self.places[:blocks])
        return np.bincount(sources, minlength=len(self.order.blocks)).tolist()


def stack_rows(rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack rows of equal length as one batch."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _sources(given: Material) -> list[Source]:
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return [one if isinstance(one, Source) else to_source(str(one)) for one in several]


def _shares(texts: dict[str, list[Source]], ratio: Sequence[int | float]) -> list[float]:
    """Return whole numbers in the ratio of the tokens that each source gives."""
    if len(ratio) != 2 or min(ratio) < 0 or not 0 < ratio[0] < float("inf") > ratio[1]:
        raise UserError(
            f"ratio is {short_repr(ratio)}; expected the parts of domain and of general text, "
            "such as (1, 1), or (1, 0) for no replay"
        )
    found = [
        share
        for kind, part in zip(texts.values(), ratio, strict=True)
        for share in _parts(kind, Fraction(str(part)))
    ]
    unit = lcm(*(share.denominator for share in found))
    return [float(share * unit) for share in found]


def _parts(sources: Sequence[Source], part: Fraction) -> Iterator[Fraction]:
    total = sum(Fraction(str(source.weight)) for source in sources)
    for source in sources:
        yield part * Fraction(str(source.weight)) / total


def _of_kind(streams: Sequence[TokenStream], kinds: Sequence[str], kind: str) -> tuple[Any, ...]:
    return tuple(one for one, other in zip(streams, kinds, strict=True) if other == kind)
