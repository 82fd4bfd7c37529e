"""Resizes a model's tables of tokens for another tokenizer: adds rows, or removes some.

Tokens that both tokenizers have keep their rows to the bit, and with them their logits, as far as a
product with more columns or fewer rounds alike. Rows that a model holds beyond its tokenizer are
padding: a model that had some has some again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from layerlab.adaptation.embeddings.init import EmbeddingRows, RowInit
from layerlab.adaptation.embeddings.special_tokens import renumber
from layerlab.adaptation.embeddings.token_mapping import spell_tokens, token_strings
from layerlab.adaptation.embeddings.vocabulary_tables import (
    KeptLogits,
    TokenTable,
    find_tables,
    set_vocabulary,
    swap,
)
from layerlab.errors import UserError
from layerlab.recipes.adaptation_sections import EmbeddingSection
from layerlab.system.rng import draw_with_seed
from layerlab.tokenization.bpe_file import writes_bytes
from layerlab.tokenization.load import entries
from layerlab.validation import short_repr

# Vocabularies are padded to a multiple of a power of two, of no more than this.
PADDING = 128


@dataclass(frozen=True, kw_only=True)
class ResizeResult:
    """The change of a model's embedding and head.

    Attributes:
        rows_before: of the embedding.
        rows: it has now.
        tokens_before: entries of the base tokenizer.
        tokens: entries of the new one.
        added: tokens whose rows are new.
        dropped: tokens that lost their rows.
        orphans: new tokens that the base tokenizer cannot write.
        padded_before: rows beyond the base tokenizer's tokens.
        padded: rows beyond the new one's.
        tied: whether the head is the embedding.
        input: how the new rows of the embedding began.
        head: how those of the head did; as `input` where it is tied.
        moved: special ids of the settings that changed.
    """

    rows_before: int
    rows: int
    tokens_before: int
    tokens: int
    added: int
    dropped: int
    orphans: int
    padded_before: int
    padded: int
    tied: bool
    input: str
    head: str
    moved: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return a description of the change in words."""
        lines = [f"{self.rows_before:,} rows are now {self.rows:,}: {self.tokens:,} tokens"]
        if self.padded or self.padded_before:
            lines[0] += f" and {self.padded:,} rows of padding (before: {self.padded_before:,})"
        if self.added:
            begun = f"{self.added:,} new tokens began as {self.input}"
            lines.append(
                f"{begun}; the head is tied and follows"
                if self.tied
                else f"{begun} in the embedding and as {self.head} in the head"
            )
        if self.orphans:
            lines.append(
                f"{self.orphans:,} of them cannot be written in older tokens: where a start asks "
                "for those they began as the mean of all rows"
            )
        if self.dropped:
            lines.append(f"{self.dropped:,} tokens lost their rows")
        return "\n".join([*lines, *self.moved])

    def to_dict(self) -> dict[str, Any]:
        """Return the change as plain numbers and texts."""
        return {**asdict(self), "moved": list(self.moved)}


def resize(
    model: Any,
    base: PreTrainedTokenizerFast,
    new: PreTrainedTokenizerFast,
    beginning: EmbeddingSection = EmbeddingSection(),
    *,
    kept: Sequence[int] | None = None,
) -> ResizeResult:
    """Give a model the rows of a new tokenizer, in place.

    Args:
        base: the tokenizer that the model has now.
        new: the one that it gets: the base's tokens, and more behind them; or any with `kept`.
        beginning: of new rows.
        kept: for each token of the new tokenizer, in order, its id in the base; -1 for a new one.

    Raises:
        UserError: the tokenizers do not belong together or to the model, or it is of a kind that
            cannot be resized: what was moved by then leaves it of no use.
    """
    return Resizing(model, base, new, kept).carry_out(beginning)


class Resizing:
    """A model between two tokenizers, whose new rows can be initialised repeatedly."""

    def __init__(
        self,
        model: Any,
        base: PreTrainedTokenizerFast,
        new: PreTrainedTokenizerFast,
        kept: Sequence[int] | None = None,
    ) -> None:
        """Check that model and tokenizers fit, and copy the model's rows.

        Raises:
            UserError: it does not.
        """
        self.model = model
        self.embedding, self.head = _matrices(model)
        self.tied = self.head.weight is self.embedding.weight
        self.before = {"input": _rows(self.embedding), "head": _rows(self.head)}
        self.tokens_before, self.tokens = entries(base), entries(new)
        self.rows_before = len(self.before["input"].weight)
        least = min(len(one.weight) for one in self.before.values())
        if least < self.tokens_before:
            raise UserError(
                f"the base tokenizer has {self.tokens_before} entries and the model "
                f"{least} rows; expected the tokenizer that the model was trained with"
            )
        self.kept = _check(base, new, kept)
        self._base, self._new = base, new
        tables = find_tables(model, self.rows_before)
        parts = (self.embedding.weight, self.head.weight, getattr(self.head, "bias", None))
        self._others = {
            id(table.values): table
            for table in tables
            if not any(table.values is one for one in parts)
        }
        self._logits = KeptLogits(model, self.kept or range(self.tokens_before), tables)
        self._moved: tuple[str, ...] | None = None

    @cached_property
    def origin(self) -> Tensor:
        """The old row of every new one; -1 where it has none."""
        first = range(self.tokens_before) if self.kept is None else self.kept
        found = torch.full((self._size(),), -1, dtype=torch.long)
        found[: len(first)] = torch.tensor(list(first), dtype=torch.long)
        # Padding keeps its place; behind it, and where tokens were dropped, its last row goes on.
        padding = torch.arange(self.tokens, len(found))
        found[self.tokens :] = padding if self.kept is None else self.rows_before - 1
        return found

    @cached_property
    def fresh(self) -> list[int]:
        """Ids of the new tokens."""
        return torch.nonzero(self.origin < 0).flatten().tolist()

    @cached_property
    def parts(self) -> list[list[int]]:
        """The old rows of the tokens that write each new one."""
        strings = token_strings(self._new)
        real = [number for number in self.fresh if number in strings]
        found = dict(zip(real, spell_tokens(self._base, self._new, real), strict=True))
        return [found.get(number, []) for number in self.fresh]

    @torch.no_grad()
    def carry_out(self, beginning: EmbeddingSection) -> ResizeResult:
        """Put the new rows into the model, replacing those of an earlier initialisation.

        Raises:
            UserError: tokens that both tokenizers have would get other logits than they had.
        """
        first = self._moved is None
        moved = self._renumber()
        input = beginning.input
        head = input if self.tied else beginning.head
        with draw_with_seed(beginning.seed):
            found = {"input": self._make_rows("input", input, self.embedding)}
            found["head"] = self._make_rows("head", head, self.head)
            others = [(table, self._move(table, input)) for table in self._others.values()]
        self._install(found, others)
        if first:
            self._logits.check()
        return self._result(input, head, moved)

    def _make_rows(self, part: str, kind: str, module: Any) -> EmbeddingRows:
        """Return all rows of a matrix, or only the bias where its weight is the embedding's."""
        old = self.before[part]
        if part == "head" and self.tied and old.bias is None:
            return old
        origin = self.origin.to(old.weight.device)
        found = old[origin.clamp(min=0, max=len(old.weight) - 1)]
        if self.fresh:
            places = torch.tensor(self.fresh, device=old.weight.device)
            start = RowInit(self.model, module, self.parts, places, len(origin))
            values = start.values(kind, old[: self.tokens_before])
            found.weight[places] = values.weight
            if found.bias is not None and values.bias is not None:
                found.bias[places] = values.bias
        return found

    def _move(self, table: TokenTable, kind: str) -> Tensor:
        """Return another table by token ids; where it is no embedding, a start means its first."""
        old, device = table.values.data, table.values.device
        places = torch.tensor(self.fresh, dtype=torch.long, device=device)
        origin = self.origin.to(device).clone()
        firsts = [part[0] if part else 0 for part in self.parts]
        origin[places] = torch.tensor(firsts, dtype=torch.long, device=device)
        found = old.index_select(table.dim, origin.clamp(max=old.shape[table.dim] - 1))
        if self.fresh and isinstance(table.module, nn.Embedding):
            start = RowInit(self.model, table.module, self.parts, places, len(origin))
            found[places] = start.values(kind, EmbeddingRows(old[: self.tokens_before])).weight
        return found

    def _install(
        self, found: Mapping[str, EmbeddingRows], others: Sequence[tuple[TokenTable, Tensor]]
    ) -> None:
        for part, module in (("input", self.embedding), ("head", self.head)):
            if part == "input" or not self.tied:
                swap(self.model, module.weight, found[part].weight)
            bias, own = found[part].bias, getattr(module, "bias", None)
            if bias is not None and isinstance(own, Tensor):
                swap(self.model, own, bias)
        for table, values in others:
            swap(self.model, getattr(table.module, table.key), values)
        rows = len(self.origin)
        self.head.out_features = rows
        set_vocabulary(self.model.config, rows, self.rows_before)
        for one in (self.model, self.model.base_model):
            if hasattr(one, "vocab_size"):
                one.vocab_size = rows
        self.model.tie_weights()

    def _renumber(self) -> tuple[str, ...]:
        """Renumber the special tokens in the model's settings, once."""
        if self._moved is None:
            numbers = self._numbers()
            self._moved = () if self.kept is None else renumber(self.model, numbers)
            for module in (self.embedding, *(table.module for table in self._others.values())):
                if getattr(module, "padding_idx", None) is not None:
                    module.padding_idx = numbers.get(module.padding_idx)
        return self._moved

    def _numbers(self) -> dict[int, int]:
        """Return the new id of every old token that is left."""
        if self.kept is None:
            return {number: number for number in range(self.rows_before)}
        return {old: number for number, old in enumerate(self.kept) if old >= 0}

    def _size(self) -> int:
        """Return the number of rows.

        A model with padding gets a multiple of what its rows were a multiple of.
        """
        if self.rows_before == self.tokens_before:
            return self.tokens
        unit = min(PADDING, self.rows_before & -self.rows_before)
        rounded = -(-self.tokens // unit) * unit
        return max(rounded, self.rows_before) if self.kept is None else rounded

    def _result(self, input: str, head: str, moved: tuple[str, ...]) -> ResizeResult:
        kept = self.tokens_before if self.kept is None else len(self._numbers())
        return ResizeResult(
            rows_before=self.rows_before,
            rows=len(self.origin),
            tokens_before=self.tokens_before,
            tokens=self.tokens,
            added=len(self.fresh),
            dropped=self.tokens_before - kept,
            orphans=sum(not part for part in self.parts),
            padded_before=self.rows_before - self.tokens_before,
            padded=len(self.origin) - self.tokens,
            tied=self.tied,
            input=input,
            head=head,
            moved=moved,
        )


def find_kept_rows(
    base: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast
) -> tuple[int, ...] | None:
    """Return the old row of each new token, -1 where it has none; None where all ids stay."""
    old, now = base.get_vocab(), token_strings(new)
    if all(now.get(number) == token for token, number in old.items()):
        return None
    return tuple(old[now[one]] if now.get(one) in old else -1 for one in range(entries(new)))


def _matrices(model: Any) -> tuple[nn.Embedding, nn.Linear]:
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(embedding, nn.Embedding) or not isinstance(head, nn.Linear):
        raise UserError(
            f"{type(model).__name__} has a {type(embedding).__name__} and a {type(head).__name__} "
            "in place of an embedding and a linear head; expected a causal language model"
        )
    for weight in (embedding.weight, head.weight):
        if weight.is_meta or not weight.is_floating_point():
            what = "not in memory" if weight.is_meta else f"stored as {weight.dtype}"
            raise UserError(
                f"the embedding or the head is {what}; expected floating-point weights in memory: "
                "load the model without quantization, on one device"
            )
    return embedding, head


def _rows(module: Any) -> EmbeddingRows:
    bias = getattr(module, "bias", None)
    return EmbeddingRows(module.weight.data, None if bias is None else bias.data)


def _check(
    base: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, kept: Sequence[int] | None
) -> tuple[int, ...] | None:
    old, now = base.get_vocab(), token_strings(new)
    kinds = [
        "bytes" if writes_bytes(one.backend_tokenizer) else "characters" for one in (new, base)
    ]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"the new tokenizer writes {kinds[0]}, and the base {kinds[1]}, so that the same "
            "string is not the same text in both; expected one that layerlab adapt vocabulary "
            "makes of the base"
        )
    if kept is None:
        moved = [token for token, number in old.items() if now.get(number) != token]
        if moved:
            first = min(moved, key=lambda token: old[token])
            raise UserError(
                f"the new tokenizer does not extend the base: {len(moved)} of its tokens have "
                f"another id there or none (first: {short_repr(first)}, {old[first]}); expected "
                "the base's ids, or give kept, the old ids in their new order"
            )
        return None
    strings = token_strings(base)
    for index, number in enumerate(kept):
        if number == -1:
            continue
        if number not in strings or now.get(index) != strings[number]:
            raise UserError(
                f"kept[{index}] is {short_repr(number)}, which the base calls "
                f"{short_repr(strings.get(number))} and the new tokenizer "
                f"{short_repr(now.get(index))}; expected the old ids in the order of the new "
                "tokenizer"
            )
    if not any(number >= 0 for number in kept):
        raise UserError(
            "kept is empty: no token of the base is left; expected at least one of its ids"
        )
    return tuple(kept)
