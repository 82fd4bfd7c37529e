"""The dataset of instruction tuning: sources in tokens, distributed over the updates."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from hashlib import blake2b
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from layerlab.adaptation.sft.conversations import Conversation
from layerlab.adaptation.sft.encode import Encoder, Example
from layerlab.adaptation.sft.mixing import EncodedSource, blocks, draw_source, leave_out_copies
from layerlab.adaptation.sft.packing import Collator
from layerlab.errors import UserError
from layerlab.loading.batching import Batching
from layerlab.recipes.adaptation_sections import SftSection
from layerlab.system.logs import quiet_libraries
from layerlab.system.torch_settings import evaluation_mode


@dataclass(frozen=True)
class SFTDataset:
    """The encoded rows of all sources.

    Attributes:
        rows: of the whole stage, as many as fill its updates: pairs of a source and an example.
        notes: on the chat template, and on what became of the conversations by it.
        closing: the token that ends an answer by it, where there is one.
    """

    section: SftSection
    sources: Sequence[EncodedSource]
    rows: Sequence[Sequence[tuple[int, int]]]
    collator: Collator = field(repr=False)
    notes: Sequence[str] = ()
    closing: int | None = None

    @property
    def updates(self) -> int:
        """The number of updates of the weights."""
        return len(self.rows) // self.section.batch_size

    @property
    def digest(self) -> str:
        """A hash of all tokens, labels and their order."""
        content = blake2b(digest_size=16)
        for one in self.sources:
            for example in (*one.examples, *one.held):
                content.update(example.ids.tobytes() + example.answer.tobytes())
        content.update(repr(self.rows).encode())
        return content.hexdigest()

    def loss(
        self, model: Any, batching: Batching, precision: Callable[[], Any], batch: int
    ) -> dict[str, float]:
        """Return the mean loss of held-out answers, in nats per token, by source."""
        options: dict[str, Any] = {"batching": batching, "precision": precision, "batch": batch}
        return {
            one.name: answer_loss(model, one.held, self.collator, **options)
            for one in self.sources
            if one.held
        }

    def to_dict(self) -> dict[str, Any]:
        """Return how the rows were used, by source."""
        return {one.name: asdict(one.tally) for one in self.sources}


class PackedRows(Dataset[list[Example]]):
    """All rows, in their order, each with the examples that are packed into it."""

    def __init__(self, prepared: SFTDataset) -> None:
        self.prepared = prepared

    def __len__(self) -> int:
        return len(self.prepared.rows)

    def __getitem__(self, number: int) -> list[Example]:
        sources = self.prepared.sources
        return [sources[index].examples[one] for index, one in self.prepared.rows[number]]


def prepare_dataset(
    tokenizer: PreTrainedTokenizerFast,
    given: Mapping[str, Iterable[Conversation]],
    section: SftSection,
    block: int,
    weights: Mapping[str, int | float] | None = None,
    day: date | None = None,
) -> SFTDataset:
    """Encode all rows, and decide when each is read; what is held out of one is learned in none.

    Args:
        block: tokens of a row.
        weights: share of the tokens by source; None reads every row once in an epoch.
        day: that a chat template takes for today.

    Raises:
        UserError: a source is empty or its rows cannot be used, or the weights name others.
    """
    if not given:
        raise UserError("there is no source to learn from; give rows by the name of their source")
    with quiet_libraries():
        encoder = Encoder(tokenizer, day)
        options: dict[str, Any] = {"block": block, "seed": section.seed}
        options["validation_fraction"] = section.validation_fraction
        drawn = [draw_source(name, rows, encoder, **options) for name, rows in given.items()]
        sources = leave_out_copies(drawn)
    tokens = sum(sum(one.lengths) for one in sources)
    rows = list(
        blocks(
            sources,
            weights,
            section.tokens or section.num_train_epochs * tokens,
            block=block,
            pack=section.packing,
            seed=section.seed,
        )
    )
    # Rows without a conversation fill the last update: processes must have as many each.
    rows += [[] for _ in range(-len(rows) % section.batch_size)]
    ends = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    filler = next(one for one in ends if one is not None)
    collator = Collator(filler, section.packing)
    closing = None
    with suppress(UserError):  # of a template that refuses two plain turns
        closing = encoder.closing()
    notes = (*encoder.notes, *(one.note for one in sources if one.note))
    return SFTDataset(section, sources, rows, collator, notes, closing)


@torch.no_grad()
def answer_loss(
    model: Any,
    examples: Sequence[Example],
    collator: Collator,
    *,
    batching: Batching,
    precision: Callable[[], Any],
    batch: int = 8,
) -> float:
    """Return the mean negative log-likelihood of the assistant's tokens.

    Each conversation stands alone in a row.

    Unit: nats per token.

    Args:
        batching: which of them may share a pass.
        precision: of the forward pass.
    """
    device = model.get_input_embeddings().weight.device
    nats, count = torch.zeros((), dtype=torch.float64), 0
    parts = batching.split([len(one.ids) for one in examples], batch)
    with evaluation_mode(model):
        for part in parts:
            rows = collator([[examples[number]] for number in part])
            labels = rows.pop("labels")[:, 1:].to(device)
            with precision():
                logits = model(**{name: one.to(device) for name, one in rows.items()}).logits
            flat = logits[:, :-1].flatten(0, 1).float()
            nats += cross_entropy(flat, labels.flatten(), reduction="sum").double().cpu()
            count += int((labels >= 0).sum())
    return float(nats / count)
