"""Amounts that a stage reads, by a part of them: updates, tokens of a row, held-out text."""

import time
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil, inf
from pathlib import Path
from random import Random

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from layerlab.adaptation.pipeline.stage import Stage
from layerlab.adaptation.pipeline.texts import rows_of
from layerlab.adaptation.pretraining.train import count_updates
from layerlab.adaptation.sft.chat_template import add_plain_template
from layerlab.adaptation.sft.conversations import conversations
from layerlab.adaptation.sft.encode import Encoder
from layerlab.adaptation.sft.mixing import describe_split
from layerlab.adaptation.sft.packing import best_fit
from layerlab.adaptation.trainer.arguments import split_rows
from layerlab.data.places import find_text, list_shown
from layerlab.data.sources import open_source
from layerlab.errors import UserError
from layerlab.loading.folders import find_folder
from layerlab.recipes.adaptation import AdaptationRecipe
from layerlab.recipes.adaptation_sections import (
    PretrainSection,
    RowsSection,
    SftSection,
    StageRunSection,
)
from layerlab.recipes.training_sections import Source
from layerlab.system.logs import quiet_libraries
from layerlab.tokenization.convert import load_or_convert
from layerlab.tokenization.load import engine
from layerlab.training.run_spec import design_model

# Bytes of text that a token is assumed to stand for, where nothing can be encoded.
PER_TOKEN = 3
ROWS, TEXT = 256, 1 << 18  # of each source that are encoded: rows, characters
WHOLE = 64 << 20  # bytes of rows that are all counted; of more, the size of the files tells
PACKED = 20_000  # rows that are packed for a look at what comes of it


@dataclass(frozen=True, kw_only=True)
class StageAmount:
    """Amount of tokens, updates and passes of a stage.

    Attributes:
        tokens: that it trains on.
        updates: of the weights.
        row: tokens of a row, as the passes have it: filled up to the longest of each.
        readings: of held-out text.
        held: tokens that each of them reads.
        held_passes: forward passes that each of them takes in one process.
        drawn: tokens of the batches that one process reads once, to draw those that are learned.
        drawn_passes: forward passes that this takes.
        encoding: seconds in which text or rows become tokens.
        notes: on conversations of which each answer is a row of its own.
    """

    tokens: int
    updates: int
    row: int
    readings: int
    held: float = 0.0
    held_passes: float = 0.0
    drawn: float = 0.0
    drawn_passes: float = 0.0
    encoding: float = 0.0
    notes: tuple[str, ...] = ()


def count_tokens(recipe: AdaptationRecipe, stage: Stage) -> int | None:
    """Return how many tokens a stage trains on; None where it trains nothing, or rows are away."""
    if stage.kind == "base" and (training := recipe.training()) is not None:
        if training.train.tokens is not None:
            return training.train.tokens
        block = training.data.block_size or design_model(training).shape.context
        updates = training.train.max_steps
        return updates * training.train.batch_size * block if updates is not None else None
    if stage.kind == "pretrain" and recipe.pretrain is not None:
        return round(recipe.pretrain.tokens * (recipe.pretrain.resample_fraction or 1))
    if stage.kind == "tune" and recipe.sft is not None:
        if recipe.sft.tokens is not None:
            return recipe.sft.tokens
        sizes = [_count_bytes(one) for one in recipe.sft.sources]
        if None in sizes:
            return None
        return round(recipe.sft.num_train_epochs * sum(filter(None, sizes)) / PER_TOKEN)
    return None


def measure_amount(
    recipe: AdaptationRecipe, stage: Stage, tokens: int | None, block: int
) -> StageAmount | None:
    """Return what a stage reads, as a part of its rows or texts shows; None where no tokens are.

    Args:
        tokens: that it trains on, as `count_tokens` found them.
        block: tokens of a row at the most.
    """
    section = recipe.pretrain if stage.kind == "pretrain" else recipe.sft
    assert section is not None
    if isinstance(section, SftSection) and (found := _measure_rows(recipe, section, block)):
        return found
    if tokens is None:
        return None
    updates = max(1, round(tokens / (section.batch_size * block)))
    readings = _count_readings(updates, section.eval_steps)
    usual = StageAmount(tokens=tokens, updates=updates, row=block, readings=readings)
    if isinstance(section, PretrainSection):  # which makes whole updates
        whole = replace(usual, tokens=updates * section.batch_size * block)
        if section.resample_fraction is not None:
            rows = count_updates(section, block) * section.batch_size / recipe.run.num_processes
            passes = rows / _count_micro(section, recipe.run)
            whole = replace(whole, drawn=rows * block, drawn_passes=passes)
        return _measure_texts(recipe, section, whole)
    passed = 1.0 if section.tokens is not None else section.num_train_epochs
    part = section.validation_fraction
    held = tokens / passed * part / (1 - part)
    return _hold(usual, held, ceil(held / block / _count_micro(section, recipe.run)))


def _count_micro(section: PretrainSection | SftSection, run: StageRunSection) -> int:
    rows = section.batch_size // run.num_processes
    return split_rows(rows, section.micro_batch_size or section.batch_size)


def _count_readings(updates: int, every: int | None) -> int:
    """Return how often held-out text is read: at the start, where it is due, and at the end."""
    every = every or max(1, updates // 10)
    return 1 + ceil(updates / every)


def _hold(amount: StageAmount, tokens: float, passes: float) -> StageAmount:
    return replace(amount, held=tokens, held_passes=passes if tokens else 0.0)


@dataclass(frozen=True)
class _Rows:
    """Some rows of a source in tokens.

    Attributes:
        lengths: in tokens, as they are learned.
        count: of all rows of the source that are used.
        seconds: in which all of them become tokens.
        note: where each answer of a conversation is a row of its own.
    """

    lengths: list[int]
    count: float
    seconds: float
    note: str

    @property
    def mean(self) -> float:
        return sum(self.lengths) / len(self.lengths)


def _measure_rows(recipe: AdaptationRecipe, section: SftSection, block: int) -> StageAmount | None:
    """Return what tuning reads; None where its rows or its tokenizer are not here."""
    try:
        with quiet_libraries():
            tokenizer = find_words(recipe)
            add_plain_template(tokenizer)
            encoder = Encoder(tokenizer)
            every = [_sample_rows(one, encoder, block) for one in section.sources]
    except UserError:  # which the list of what is absent, or the stage itself, says
        return None
    held = [round(section.validation_fraction * one.count) for one in every]
    learned = [one.count - apart for one, apart in zip(every, held, strict=True)]
    totals = [count * one.mean for count, one in zip(learned, every, strict=True)]
    tokens = section.tokens or section.num_train_epochs * sum(totals)
    weights = [one.weight or size for one, size in zip(section.sources, totals, strict=True)]
    drawn = [tokens * one / sum(weights) for one in weights]
    counts = [ceil(part / one.mean) for part, one in zip(drawn, every, strict=True)]
    share = min(1.0, PACKED / sum(counts))
    lengths = list[int]()
    for count, one in zip(counts, every, strict=True):
        mixed = Random(0).sample(one.lengths, len(one.lengths))
        lengths += islice(cycle(mixed), ceil(share * count))
    Random(0).shuffle(lengths)
    packed = best_fit(lengths, block) if section.packing else [[row] for row in range(len(lengths))]
    rows = [sum(lengths[one] for one in row) for row in packed]
    Random(1).shuffle(rows)
    micro = _count_micro(section, recipe.run)
    longest = [max(rows[first : first + micro]) for first in range(0, len(rows), micro)]
    updates = ceil(len(rows) * sum(counts) / len(lengths) / section.batch_size)
    amount = StageAmount(
        tokens=round(tokens),
        updates=updates,
        row=round(sum(longest) / len(longest)),
        readings=_count_readings(updates, section.eval_steps),
        encoding=sum(one.seconds for one in every),
        notes=tuple(one.note for one in every if one.note),
    )
    texts = sum(count * one.mean for count, one in zip(held, every, strict=True))
    return _hold(amount, texts, sum(ceil(count / micro) for count in held))


def _sample_rows(section: RowsSection, encoder: Encoder, block: int) -> _Rows:
    """Encode rows from all over a source, or from its beginning where it is large."""
    size = _count_bytes(section) or 0
    if size <= WHOLE:
        rows = rows_of(section)
        some = rows[:: max(1, ceil(len(rows) / ROWS))]
    else:
        given = conversations(str(find_text(section.path)), ignore=section.ignore)
        rows = some = list(islice(given, min(ROWS, section.limit or ROWS)))
    encoder.check(some)
    begun = time.process_time()
    every = [[one.cut(block) for one in encoder.examples(row)] for row in some]
    seconds = (time.process_time() - begun) / len(some)
    kept = [found for row in every if (found := [one for one in row if one.answer.any()])]
    if not kept:
        raise UserError(f"no row of {section.name} can be learned from")
    lengths = [len(one.ids) for row in kept for one in row]
    count: float = len(rows)
    if size > WHOLE:
        once = sum(len(row[-1].ids) for row in kept)
        count = section.limit or size / PER_TOKEN * len(some) / once
    note = describe_split(section.name, kept, len(some) / count)
    return _Rows(lengths, count * len(lengths) / len(some), count * seconds, note)


def _measure_texts(
    recipe: AdaptationRecipe, section: PretrainSection, usual: StageAmount
) -> StageAmount:
    """Return what continued pretraining reads, held-out text of both kinds and all it encodes."""
    try:
        with quiet_libraries():
            machine: Tokenizer | None = engine(find_words(recipe))
    except UserError:
        machine = None
    micro, seconds, held = _count_micro(section, recipe.run), 0.0, 0.0
    for given in (recipe.data.domain, recipe.data.general):
        found = [_sample_text(one, machine) for one in given]
        seconds += sum(one[1] for one in found)
        blocks = sum(one[0] for one in found) * recipe.data.validation_fraction / usual.row
        held += min(blocks, section.max_eval_blocks or inf)
    if held == inf:  # no file says how much there is
        return usual
    held /= recipe.run.num_processes
    return _hold(replace(usual, encoding=seconds), held * usual.row, held / micro)


def _sample_text(source: Source, machine: Tokenizer | None) -> tuple[float, float]:
    """Return the tokens of a text, and seconds in which they are made, as its beginning shows."""
    size, path = inf, Path(source.text)
    if path.exists():
        inside = list_shown(path) if path.is_dir() else [path]
        size = sum(one.stat().st_size for one in inside)
    size = min(size, source.limit or inf)
    if machine is None or not path.exists():
        return size / PER_TOKEN, 0.0
    texts, done = list[str](), 0
    for piece in open_source(source, full=False).pieces():
        texts.append(piece.text[: TEXT - done])
        done += len(texts[-1])
        if done >= TEXT:
            break
    begun = time.process_time()
    tokens = sum(map(len, machine.encode_batch(texts, add_special_tokens=False)))
    share = size / max(1, sum(len(text.encode()) for text in texts))
    return tokens * share, (time.process_time() - begun) * share


def find_words(recipe: AdaptationRecipe) -> PreTrainedTokenizerFast:
    """Return the tokenizer of the base, of which no weights are read.

    Raises:
        UserError: it is not here, or is trained later.
    """
    if recipe.base.model is None:
        raise UserError("the tokenizer of a base that is trained is not there before")
    return load_or_convert(str(find_folder(recipe.base.model, with_weights=False)))


def _count_bytes(section: RowsSection) -> int | None:
    try:
        path = find_text(section.path)
    except UserError:  # which the list of what is absent says
        return None
    if section.limit is not None:
        turns = (turn for row in rows_of(section) for turn in row.turns)
        return sum(len(turn.text.encode()) for turn in turns)
    inside = list_shown(path) if path.is_dir() else [path]
    return sum(one.stat().st_size for one in inside)
