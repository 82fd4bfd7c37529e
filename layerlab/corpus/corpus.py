"""A corpus: texts as tokens on disk, training and held-out, made once and found again."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from layerlab.console.progress import ProgressCallback
from layerlab.corpus.blocks import count_blocks
from layerlab.corpus.extent import CorpusSize
from layerlab.corpus.shards import SHARDS, TOKENS_OF, describe_shards, open_shards, plan_shards
from layerlab.corpus.stored import (
    SCHEMA,
    TOKENIZER,
    lock_in_turn,
    open_tokenizer,
    read_contents,
    write_contents,
)
from layerlab.corpus.streams import (
    SIDES,
    TokenStream,
    describe_copies,
    describe_spelled,
    leave_out_copies,
    open_stream,
)
from layerlab.corpus.tokenize import TokenLayout, write_tokens
from layerlab.data.documents import DocumentStore, PieceTexts, store_documents
from layerlab.data.shared_files import describe_shared
from layerlab.data.sources import Text, open_source
from layerlab.errors import UserError
from layerlab.recipes.training_sections import BYTE_LEVEL, DataSection, Source
from layerlab.records.kept import warn_of_damage
from layerlab.records.parse import one_line
from layerlab.system.files import write_folder
from layerlab.system.hardware import cache_folder
from layerlab.system.write_errors import WriteError
from layerlab.tokenization.load import entries, load_tokenizer, separator, train_tokenizer
from layerlab.tokenization.round_trip import describe_loss

# In the cache. Those of 0.1 lie in "corpora" and carry no digest: none of them is looked at.
CORPORA = "corpora-2"
# How text becomes tokens: with another number a corpus is another, and so are all runs on it.
TOKENS = 1
# In keys, since special tokens that a text spells are text: what was cached before is not found.
SPELLED = "text"
# What is kept of a stream and decides what is learned of it.
DECISIVE = ("kind", "tokens", "documents", "bytes", "files")


@dataclass(frozen=True)
class Corpus:
    """Texts as tokens.

    Attributes:
        folder: in the cache.
        vocab: one more than the tokenizer's largest token.
        separator: stands before each document.
        digest: of the tokens, the tokenizer and how both are cut, by which corpora are compared.
        train: one stream a source.
        validation: the same of the held-out text.
        documents: whether attention stops at separators.
        notes: what the reader of a result has to know.
        named: the tokenizer that was asked for by name. Of the settings that tokens do not depend
            on, such as its chat template, the cache holds those of whoever came first.
    """

    folder: Path
    vocab: int
    separator: int
    digest: str
    train: tuple[TokenStream, ...] = field(compare=False)
    validation: tuple[TokenStream, ...] = field(compare=False)
    documents: bool = False
    notes: tuple[str, ...] = ()
    named: PreTrainedTokenizerFast | None = None

    @property
    def name(self) -> str:
        """Return the names of the sources that were really read."""
        return ", ".join(stream.name for stream in self.train)

    @property
    def validation_bytes(self) -> int:
        """Return the bytes of the held-out text."""
        return sum(stream.bytes for stream in self.validation)

    @property
    def loss(self) -> str:
        """Return an example of how held-out text does not come back from its tokens, or nothing.

        Where there is one, bytes cannot be counted.
        """
        return next((one.loss for one in self.validation if one.loss), "")

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer that made the tokens, with the settings that it has where it is."""
        return open_tokenizer(self.folder, self.named)


def prepare(
    data: DataSection,
    cache: Path | None = None,
    progress: ProgressCallback | None = None,
    *,
    copies: bool = True,
) -> Corpus:
    """Prepare the corpus of a recipe; one that was made before comes from the cache.

    Where other texts are held out than those to train on, they are encoded with the same tokenizer.

    Args:
        cache: a folder; LAYERLAB_CACHE or ~/.cache/layerlab where it is left out.
        progress: is told what is done, and the share of it.
        copies: whether documents are learned that are held out too; a note counts them.

    Raises:
        UserError: a text or the tokenizer cannot be had, or a text is too short to be cut.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     corpus = prepare(DataSection(vocab_size=300), Path(folder))
        >>> corpus.name, corpus.vocab
        ('python-docs', 300)
    """
    own = _prepare(data.head(), cache, progress)
    shared = describe_shared(data.sources, data.eval_sources)
    own = replace(own, notes=(*own.notes, *shared))
    read = [one.bytes + its.bytes for one, its in zip(own.train, own.validation, strict=True)]
    found = own if data.eval_sources is None else _hold_out(own, data, cache, progress)
    found = _judge(found, copies)
    return found if data.shard_bytes is None else _attach_shards(found, data, read)


def _hold_out(
    own: Corpus, data: DataSection, cache: Path | None, progress: ProgressCallback | None
) -> Corpus:
    """Return a corpus with other text held out than its own."""
    tokenizer = str(own.folder / TOKENIZER)
    held = data.model_copy(
        update={"sources": data.eval_sources, "eval_sources": None, "tokenizer": tokenizer}
    )
    other = _prepare(held.head(), cache, progress)
    return replace(
        own,
        digest=_digest([own.digest, other.digest]),
        validation=other.validation,
        notes=tuple(dict.fromkeys([*own.notes, *other.notes])),
    )


def _judge(corpus: Corpus, copies: bool) -> Corpus:
    """Return a corpus with notes on how far its held-out text is a measure."""
    train, left = corpus.train, list[str]()
    if not copies:
        train, left = leave_out_copies(train, corpus.validation)
    copied = describe_copies(train, corpus.validation)
    sizes = [[one.documents, len(one.tokens)] for one in train]
    lost = [describe_loss(one.name, one.loss) for one in corpus.validation if one.loss]
    return replace(
        corpus,
        train=train,
        # What is left counts, and not what the texts are called where they lie.
        digest=_digest([corpus.digest, sizes]) if left else corpus.digest,
        notes=(*corpus.notes, *left, *copied, *lost),
    )


def _attach_shards(corpus: Corpus, data: DataSection, read: Sequence[int]) -> Corpus:
    """Return a corpus whose text goes on behind what was read of each source, in shards."""
    kind, folder = str(corpus.train[0].tokens.dtype), corpus.folder
    plan = plan_shards(data, read, kind=kind, separator=corpus.separator)
    digest = _digest([TOKENS, TOKENS_OF, corpus.digest, plan])
    held = np.concatenate([stream.hashes for stream in corpus.validation])
    readers = open_shards(folder.parents[1] / SHARDS / digest, plan, folder / TOKENIZER, held)
    train = tuple(map(lambda one, its: replace(one, shards=its), corpus.train, readers))
    return replace(corpus, digest=digest, train=train, notes=(*corpus.notes, describe_shards(data)))


def _prepare(data: DataSection, cache: Path | None, progress: ProgressCallback | None) -> Corpus:
    """Prepare the corpus of one list of texts."""
    texts = [_open(source, data) for source in data.sources]
    tokenizer = None if data.trained_tokenizer else load_tokenizer(str(data.tokenizer))
    key = _key(data, texts, tokenizer)
    folder = (cache or cache_folder()) / CORPORA / key
    maker = CorpusBuilder(key, data, texts, tokenizer, progress or (lambda what, share: None))
    found, why = _find(folder, maker)
    if found is None:
        with lock_in_turn(folder, folder.parent, f".{folder.name}.*.partial"):
            found, why = _find(folder, maker)  # another process may have made it meanwhile
            if found is None:
                if why:
                    warn_of_damage(f"{folder} in the cache is made again: {why}")
                try:
                    write_folder(folder, maker.fill, "corpus", like=lambda _: True)
                except WriteError as error:
                    other = "make room there, or set LAYERLAB_CACHE to another folder"
                    raise UserError(f"{error.reason}; {other}") from error
                found = _read(folder, maker)
    return found


def _open(source: Source, data: DataSection) -> Text:
    return open_source(source, full=data.shard_bytes is None)


def extent(corpus: Corpus, block: int) -> CorpusSize:
    """Return what a plan has to know of the corpus.

    Raises:
        UserError: a source is shorter than one block.
    """
    tokens = sum(count_blocks(stream, block) * block for stream in corpus.train)
    sharded = any(stream.shards for stream in corpus.train)
    return CorpusSize(vocab=corpus.vocab, tokens=None if sharded else tokens, digest=corpus.digest)


def _key(data: DataSection, texts: list[Text], tokenizer: PreTrainedTokenizerFast | None) -> str:
    """Return a key that differs where the corpus would, as far as can be told without its texts."""
    made: list[Any] = [data.vocab_size]
    if tokenizer is not None:
        made = [_hash(tokenizer), separator(tokenizer, str(data.tokenizer))]
    elif data.trained_tokenizer not in (
        None,
        BYTE_LEVEL,
    ):  # which is named by its size, as it always was
        made.append(data.trained_tokenizer.model_dump())
    sources = [
        [text.name, text.identity, source.limit, *([True] if source.special_tokens else [])]
        for text, source in zip(texts, data.sources, strict=True)
    ]
    content = json.dumps([TOKENS, SPELLED, sources, made, data.validation_fraction])
    return blake2b(content.encode(), digest_size=16).hexdigest()


def _hash(tokenizer: PreTrainedTokenizerFast) -> str:
    return blake2b(tokenizer.backend_tokenizer.to_str().encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class CorpusBuilder:
    """Makes a corpus in a folder.

    Attributes:
        key: the name of that folder in the cache.
        tokenizer: none where one is to be trained.
    """

    key: str
    data: DataSection
    texts: list[Text]
    tokenizer: PreTrainedTokenizerFast | None
    progress: ProgressCallback

    def fill(self, folder: Path) -> None:
        """Read and split the texts, train a tokenizer if one is wanted, and encode."""
        with ExitStack() as stack:
            parts = [
                stack.enter_context(self._store(folder / f"text-{number}", number)).split(
                    self.data.validation_fraction, self.texts[number].name
                )
                for number in range(len(self.texts))
            ]
            self._check_unchanged()
            tokenizer = self.tokenizer or self._train_tokenizer([train for train, _ in parts])
            self._check_size(tokenizer)
            sources = self._encode(folder, parts, tokenizer)
        for store in folder.glob("text-*"):
            store.unlink()
        tokenizer.save_pretrained(folder / TOKENIZER)
        mark = separator(tokenizer, str(self.data.tokenizer))
        # Where a text lies, and what it is called there, is no part of what it is.
        parts = [
            [{name: one[side][name] for name in DECISIVE} for side in SIDES] for one in sources
        ]
        content = {
            "schema": SCHEMA,
            "digest": _digest([TOKENS, _hash(tokenizer), mark, parts]),
            "vocab": entries(tokenizer),
            "separator": mark,
            "sources": sources,
            "notes": [*self._notes(tokenizer), *describe_spelled(sources)],
        }
        write_contents(folder, self.key, content)

    def _store(self, file: Path, number: int) -> Any:
        text, limit = self.texts[number], self.data.sources[number].limit
        self.progress(f"reading {text.name}", 0.0)
        return store_documents(text.pieces(), file, text.name, limit)

    def _check_unchanged(self) -> None:
        """Refuse texts that changed while they were read: the key is that of what stood there."""
        for text, source in zip(self.texts, self.data.sources, strict=True):
            if _open(source, self.data).identity != text.identity:
                raise UserError(
                    f"the text {text.name} was changed while it was read, and nothing was kept of "
                    "it; type the command again when it stays as it is"
                )

    def _train_tokenizer(self, parts: list[DocumentStore]) -> PreTrainedTokenizerFast:
        self.progress("training a tokenizer", 0.0)
        return train_tokenizer(PieceTexts(parts), self.data.vocab_size, self.data.trained_tokenizer)

    def _check_size(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Refuse a first shard that gives too few entries: all of the text might give more."""
        if self.data.shard_bytes is not None and self._notes(tokenizer):
            raise UserError(
                f"the first {self.data.shard_bytes:,} bytes of each text give a tokenizer of "
                f"{entries(tokenizer):,} entries, not the {self.data.vocab_size:,} of "
                f"data.vocab_size; write data.shard_bytes = {4 * self.data.shard_bytes}, or "
                f"data.vocab_size = {entries(tokenizer)}"
            )

    def _notes(self, tokenizer: PreTrainedTokenizerFast) -> list[str]:
        if self.tokenizer is not None or entries(tokenizer) == self.data.vocab_size:
            return []
        return [
            f"the text gives a tokenizer of {entries(tokenizer)} entries, "
            f"not the {self.data.vocab_size} of data.vocab_size"
        ]

    def _encode(
        self,
        folder: Path,
        parts: list[tuple[DocumentStore, DocumentStore]],
        tokenizer: PreTrainedTokenizerFast,
    ) -> list[dict[str, Any]]:
        kind = "uint32" if entries(tokenizer) > 65_535 else "uint16"
        mark = separator(tokenizer, str(self.data.tokenizer))
        found = []
        for number, (text, sides) in enumerate(zip(self.texts, parts, strict=True)):
            one: dict[str, Any] = {"name": text.name}
            special = self.data.sources[number].special_tokens
            for side, store in zip(SIDES, sides, strict=True):
                stem, counted = f"{side}-{number}", side == "validation"
                layout = TokenLayout(folder, stem, kind, mark, counted, special)
                self.progress(f"encoding {text.name}", 0.0)
                one[side] = write_tokens(store, tokenizer, layout, self.progress)
            found.append(one)
        return found


def _digest(content: Any) -> str:
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _find(folder: Path, asked: CorpusBuilder) -> tuple[Corpus | None, str]:
    """Return the corpus that lies here, or none and, where something lies here, why it is none."""
    if not folder.is_dir():
        return None, ""
    try:
        return _read(folder, asked), ""
    # Of many kinds: a table that was sealed anew may hold anything.
    except (OSError, ValueError, LookupError, TypeError, AttributeError, UserError) as error:
        return None, one_line(error)


def _read(folder: Path, asked: CorpusBuilder) -> Corpus:
    content, data = read_contents(folder), asked.data
    sides = {
        side: tuple(
            open_stream(folder, f"{side}-{number}", one["name"], one[side], source.weight)
            for number, (one, source) in enumerate(
                zip(content["sources"], data.sources, strict=True)
            )
        )
        for side in SIDES
    }
    return Corpus(
        folder=folder,
        vocab=content["vocab"],
        separator=content["separator"],
        digest=content["digest"],
        train=sides["train"],
        validation=sides["validation"],
        documents=data.document_masking,
        notes=(*(note for text in asked.texts for note in text.notes), *content["notes"]),
        named=asked.tokenizer,
    )
