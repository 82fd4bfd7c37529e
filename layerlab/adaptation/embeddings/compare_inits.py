"""Compares initialisations of new rows by bits per byte before any training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from layerlab.adaptation.embeddings.init import STARTS
from layerlab.adaptation.embeddings.resize import ResizeResult, Resizing, find_kept_rows
from layerlab.adaptation.trainer.bits_per_byte import Bits, bits_per_byte
from layerlab.data.documents import store_documents
from layerlab.data.sources import Text
from layerlab.loading.weights.saved import check_changeable
from layerlab.recipes.adaptation_sections import EmbeddingSection
from layerlab.system.write_errors import temporary_folder

# Bytes of each text that are read, once for every way.
LIMIT = 200_000
NamedTexts = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class InitResult:
    """An initialisation of new rows, and the bits per byte of texts with it.

    Attributes:
        input: the start of the embedding's new rows.
        head: that of the head's.
        bits: by the name of the text.
    """

    input: str
    head: str
    bits: Mapping[str, Bits]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain dicts, numbers and texts."""
        bits = {name: one.to_dict() for name, one in self.bits.items()}
        return {"input": self.input, "head": self.head, "bits": bits}


@dataclass(frozen=True, kw_only=True)
class EmbeddingResult:
    """A model with another tokenizer.

    Attributes:
        resized: what was done to it.
        before: what texts cost with the base tokenizer.
        ways: what they cost after each way to begin; the last is the one that stayed.
    """

    resized: ResizeResult
    before: Mapping[str, Bits]
    ways: tuple[InitResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain dicts, lists, numbers and texts."""
        return {
            "resized": self.resized.to_dict(),
            "before": {name: one.to_dict() for name, one in self.before.items()},
            "ways": [way.to_dict() for way in self.ways],
        }


def embed(
    model: Any,
    base: PreTrainedTokenizerFast,
    new: PreTrainedTokenizerFast,
    texts: NamedTexts,
    chosen: EmbeddingSection = EmbeddingSection(),
    note: Callable[[str], None] = lambda text: None,
    context: int | None = None,
) -> EmbeddingResult:
    """Give a model another tokenizer, and compare initialisations before any training.

    Each start of the embedding is tried beside the chosen one of the head, and the other way round.
    Tokens that both tokenizers have keep their rows, wherever they stand now.

    Args:
        texts: what is read, by name.
        chosen: the beginning that stays.
        note: is told of each way.
        context: of the windows in which texts are read; None for what the model can.

    Raises:
        UserError: what `Resizing` and `bits_per_byte` raise, or weights that are not finite.
    """
    check_changeable(model)
    resizing = Resizing(model, base, new, find_kept_rows(base, new))

    def read(tokenizer: PreTrainedTokenizerFast) -> dict[str, Bits]:
        return {
            name: bits_per_byte(model, tokenizer, each, context=context)
            for name, each in texts.items()
        }

    note("the base tokenizer")
    before = read(base)
    ways = []
    # A tokenizer that only loses tokens has one way.
    for input, head in _ways(chosen, resizing.tied) if resizing.fresh else [_stays(chosen)]:
        note(f"input {input}, head {head}")
        resized = resizing.carry_out(chosen.model_copy(update={"input": input, "head": head}))
        ways.append(InitResult(input=resized.input, head=resized.head, bits=read(new)))
    return EmbeddingResult(resized=resized, before=before, ways=tuple(ways))


def read_sample(text: Text, limit: int = LIMIT) -> list[str]:
    """Read the documents at the beginning of a text, up to so many bytes; the last may be cut.

    Raises:
        UserError: there is no text, or it is none that can be written as UTF-8.
    """
    with temporary_folder() as folder:
        with store_documents(text.pieces(), Path(folder) / "text", text.name, limit) as store:
            return ["".join(document) for document in store.documents()]


def _ways(chosen: EmbeddingSection, tied: bool) -> list[tuple[str, str]]:
    """Return all pairs of initialisations to try; the last one is kept."""
    if tied:
        every = [(one, one) for one in STARTS]
    else:
        every = [(one, chosen.head) for one in STARTS] + [(chosen.input, one) for one in STARTS]
    stays = (chosen.input, chosen.input) if tied else _stays(chosen)
    return [*dict.fromkeys(one for one in every if one != stays), stays]


def _stays(chosen: EmbeddingSection) -> tuple[str, str]:
    return chosen.input, chosen.head
