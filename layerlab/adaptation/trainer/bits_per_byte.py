"""Bits per byte of documents: the only loss that models with different tokenizers share."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float
from tokenizers import Encoding
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast

from layerlab.corpus.batches import IGNORED
from layerlab.corpus.tokenize import byte_ends
from layerlab.errors import UserError
from layerlab.loading.batching import find_batching
from layerlab.observe.architecture.structure import context_length
from layerlab.system.torch_settings import evaluation_mode
from layerlab.tokenization.load import engine, entries
from layerlab.tokenization.round_trip import RoundTrip, describe_loss
from layerlab.validation import short_repr

CONTEXT = 1024
# What the logits of one pass may take, and how many windows are sorted by length at once.
LOGITS = 1 << 28
POOL = 16


@dataclass(frozen=True)
class Document:
    """Bits per byte of one text.

    Attributes:
        nats: of all its predicted tokens.
        tokens: that are predicted.
        bytes: that they stand for.
    """

    nats: float
    tokens: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Bits:
    """Bits per byte of texts.

    Attributes:
        documents: one for each text, in order.
        start: what stands before a text: the name of a token, or "" for nothing.
        context: tokens of the longest window.
        unseen: bytes of first characters that nothing predicts, where nothing stands before a
            text; they count nowhere.
        loss: an example of how a text does not come back from its tokens, where one does not.
    """

    documents: tuple[Document, ...]
    start: str
    context: int
    unseen: int
    loss: str = ""

    @property
    def nats(self) -> float:
        """The sum of nats of all predicted tokens."""
        return math.fsum(one.nats for one in self.documents)

    @property
    def tokens(self) -> int:
        """The number of predicted tokens."""
        return sum(one.tokens for one in self.documents)

    @property
    def bytes(self) -> int:
        """The bytes of all texts."""
        return sum(one.bytes for one in self.documents)

    @property
    def bits_per_byte(self) -> float | None:
        """All nats / (ln 2 * all bytes); None where tokens do not say which bytes they are."""
        return None if self.loss else self.nats / (math.log(2) * self.bytes)

    @property
    def error(self) -> float | None:
        """Standard error of bits per byte over documents; None for fewer than two, or without them.

        sqrt(n/(n-1) * sum_i (bits_i - r * bytes_i)^2) / sum of bytes,   r bits per byte

        Empty documents do not count.
        """
        count = sum(one.bytes > 0 for one in self.documents)
        rate = self.bits_per_byte
        if count < 2 or rate is None:
            return None
        squares = ((one.nats / math.log(2) - rate * one.bytes) ** 2 for one in self.documents)
        return math.sqrt(count / (count - 1) * math.fsum(squares)) / self.bytes

    def summary(self) -> str:
        """Return a description in words of how it was found."""
        before = (
            f"each text after {self.start}"
            if self.start
            else "the tokenizer has no token to stand before a text: the first character of each "
            f"({self.unseen:,} bytes in all) is not predicted and not counted"
        )
        lost = f"; {describe_loss('these texts', self.loss)}" if self.loss else ""
        return (
            f"{len(self.documents):,} texts, {self.tokens:,} tokens, {self.bytes:,} bytes, windows "
            f"of {self.context:,} tokens; {before}{lost}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers and texts as plain values."""
        return {
            "bits_per_byte": self.bits_per_byte,
            "error": self.error,
            "nats": self.nats,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "documents": len(self.documents),
            "start": self.start,
            "context": self.context,
            "unseen_bytes": self.unseen,
            "loss": self.loss,
        }


def bits_per_byte(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    texts: Iterable[str],
    *,
    context: int | None = None,
    batch: int = 8,
) -> Bits:
    """Return the bits per byte of a causal language model on texts, each byte counted once.

    bits per byte = sum over tokens of -log2 p(token | those before it in its window) / bytes

    A text is cut into windows of `context` tokens beside each other; a window begins with the last
    token of the one before, a text with the tokenizer's own start, else its end, else its begin
    token. Where a text does not come back from its tokens there are none: it has other bytes than
    were predicted. 8 is what a model pays that takes every byte for equally likely.

    Args:
        texts: read once, a few at a time.
        context: tokens of a window; all the model can, up to 1024, if left out.
        batch: windows in a pass at most; fewer where a vocabulary is large.

    Raises:
        UserError: a context or a batch that cannot be, no text, a tokenizer with more entries than
            the model, or logits that are no numbers.
    """
    length = _context(model, context)
    if batch < 1:
        raise UserError(f"batch is {short_repr(batch)}; expected at least one window: type batch=8")
    rows = len(model.get_input_embeddings().weight)
    if entries(tokenizer) > rows:
        raise UserError(
            f"the tokenizer has {entries(tokenizer)} entries and the model {rows} rows; "
            "expected the model's own tokenizer, or resize the model to this one"
        )
    reading = _Reading(tokenizer, length)
    size = max(1, min(batch, LOGITS // (length * rows)))
    batching = find_batching(model, "right")
    with evaluation_mode(model):
        windows = reading.windows(texts)
        while pool := list(islice(windows, size * POOL)):
            # The last token of a window is not read.
            for part in batching.split([len(window.tokens) - 1 for window in pool], size):
                reading.add([pool[number] for number in part], model)
    return reading.result()


@dataclass(frozen=True)
class _Window:
    """Tokens of a text, of which all but the first few are predicted."""

    document: int
    tokens: list[int]
    first: int = 1


@dataclass
class _Reading:
    """Texts cut into windows, and their losses."""

    tokenizer: PreTrainedTokenizerFast
    context: int
    nats: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    unseen: int = 0
    loss: str = ""

    def __post_init__(self) -> None:
        self.start = _start(self.tokenizer)
        self.engine = engine(self.tokenizer, special=False)
        self.trip = RoundTrip(self.engine)

    def windows(self, texts: Iterable[str]) -> Iterator[_Window]:
        for document, text in enumerate(texts):
            found = self.engine.encode(text, add_special_tokens=False)
            self.loss = self.loss or self.trip.loss(text, found.ids)
            ids = found.ids if self.start is None else [self.start, *found.ids]
            given, skipped = (1, 0) if self.start is not None else _first(text, found)
            self.unseen += skipped
            self.bytes.append(len(text.encode()) - skipped)
            self.tokens.append(max(0, len(ids) - given))
            self.nats.append(0.0)
            for start in range(0, len(ids) - 1, self.context):
                tokens = ids[start : start + self.context + 1]
                if start + len(tokens) > given:
                    yield _Window(document, tokens, max(1, given - start))

    def add(self, windows: list[_Window], model: Any) -> None:
        for window, nats in zip(windows, _nats(model, windows), strict=True):
            self.nats[window.document] += nats

    def result(self) -> Bits:
        documents = tuple(map(Document, self.nats, self.tokens, self.bytes))
        if not any(one.tokens for one in documents):
            raise UserError(
                f"the {len(documents)} texts hold no token to predict; expected texts of some words"
            )
        if not all(map(math.isfinite, self.nats)):
            raise UserError(
                "the model's loss on these texts is not finite, so that nothing can be compared; "
                "expected a model whose logits are numbers: look at it with layerlab inspect"
            )
        name = "" if self.start is None else str(self.tokenizer.convert_ids_to_tokens(self.start))
        return Bits(
            documents=documents,
            start=name,
            context=self.context,
            unseen=self.unseen,
            loss=self.loss,
        )


@torch.no_grad()
def _nats(model: Any, windows: list[_Window]) -> list[float]:
    """Return the nats of each window.

    Shorter ones are padded at the end, where no token looks.
    """
    longest = max(len(window.tokens) for window in windows)
    rows = torch.zeros(len(windows), longest, dtype=torch.long)
    wanted = torch.full((len(windows), longest - 1), IGNORED)
    for number, window in enumerate(windows):
        rows[number, : len(window.tokens)] = torch.tensor(window.tokens)
        asked = torch.tensor(window.tokens[window.first :])
        wanted[number, window.first - 1 : len(window.tokens) - 1] = asked
    device = model.get_input_embeddings().weight.device
    logits = model(input_ids=rows[:, :-1].to(device), use_cache=False).logits
    return _costs(logits, wanted.to(logits.device)).sum(-1).tolist()


def _costs(
    logits: Float[Tensor, "batch token vocab"], wanted: Tensor
) -> Float[Tensor, "batch token"]:
    """Return the nats of each token, in double precision from there on."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    flat = logits.flatten(0, 1).to(wide)
    costs = cross_entropy(flat, wanted.flatten(), ignore_index=IGNORED, reduction="none")
    return costs.view(wanted.shape).double()


def _first(text: str, found: Encoding) -> tuple[int, int]:
    """Return the tokens and bytes of the first character, or of more where its token holds more.

    The others of its tokens go with the first: a character's bytes count with the first of them.
    """
    if not found.ids:
        return 0, 0
    ends = byte_ends(text, found)
    return int((ends == ends[0]).sum()), int(ends[0])


def _start(tokenizer: PreTrainedTokenizerFast) -> int | None:
    """Return the token that stands before a text.

    It is what the tokenizer itself puts there, else an end or a begin.
    """
    own = tokenizer("a")["input_ids"]
    if own and own[0] == tokenizer.bos_token_id:
        return int(own[0])
    found = (one for one in (tokenizer.eos_token_id, tokenizer.bos_token_id) if one is not None)
    return next((int(one) for one in found), None)


def _context(model: Any, asked: int | None) -> int:
    """Return the tokens of a window, at most as many as the model has positions."""
    own = context_length(model) or CONTEXT
    if asked is None:
        return min(CONTEXT, own)
    if asked < 1 or asked > own:
        raise UserError(
            f"context is {short_repr(asked)}; expected from 1 to the {own} positions of the model: "
            f"type context={min(CONTEXT, own)}"
        )
    return asked
