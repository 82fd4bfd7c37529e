"""The forward pass of a batch of prompts: what they begin with alike is run once.

The prompts of a task share their instruction and examples. The engine runs them whole, once for
every question, and keeps the logits of every token. Here the shared beginning is run once for a
batch, through the model's cache, and logits are made only where an answer is read.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from layerlab.system.hardware import is_out_of_memory
from layerlab.system.model_cache import cache_name, cache_of, read_on

# A shorter beginning is not worth a pass of its own.
WORTH = 16
# How far logits through the cache may be from those without, as a share of the largest: the
# rounding of a sum of thousands of terms in float32; in narrower formats as much as they round.
SLACK = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


Ask = Callable[[list[Any]], list[Any]]
RowKey = Callable[[int], tuple[Any, ...]]


class Forward:
    """Logits of prompts, of no more tokens than are needed.

    Attributes:
        tokens: that prompts had, padding included.
        passed: that went through the model.

    Args:
        model: any causal language model; one without a cache, as those with a recurrent state, one
            whose cache is not of keys and values alone, or whose logits through the cache differ,
            is run without.
        share: whether to try the cache at all.
        longest: tokens of the longest rows that are read alike in one piece and in two.
    """

    def __init__(
        self, model: PreTrainedModel, *, share: bool = True, longest: float = math.inf
    ) -> None:
        self.model = model
        self.longest = longest
        self._cache = cache_name(model) or ""
        self.share = share and bool(self._cache)
        self.tokens = 0
        self.passed = 0
        takes = inspect.signature(model.forward).parameters
        self._narrows = "logits_to_keep" in takes
        self._plain = {"use_cache": False} if "use_cache" in takes else {}
        self._proven = False

    def __call__(self, ids: Tensor, need: int) -> Tensor:
        """Return the logits of the last tokens of every row.

        Args:
            ids: batch x token, padded at the end with zeros.
            need: how far back from its end logits of a row are wanted.

        Returns:
            batch x token x vocab, for as many of the last tokens as reach back that far in the
            shortest row.
        """
        rows, length = ids.shape
        first = max(0, _shortest(ids) - need)
        self.tokens += rows * length
        with torch.no_grad():
            shared = self.share and rows > 1 and length <= self.longest
            prefix = min(_alike(ids), first) if shared else 0
            found = self._share_prefix(ids, prefix, first) if prefix >= WORTH else None
            if found is not None and self._proven:
                self.passed += prefix + rows * (length - prefix)
                return found
            full = self._run(ids, length - first)
            self.passed += rows * length
        if found is not None:
            self._prove(found, full)
        # A batch has the same logits whether or not it was the first.
        return found if found is not None and self._proven else full

    def _run(self, ids: Tensor, keep: int, **options: Any) -> Tensor:
        if self._narrows:
            options["logits_to_keep"] = keep
        logits: Tensor = self.model(input_ids=ids, **{**self._plain, **options}).logits
        return logits[:, -keep:]

    def _share_prefix(self, ids: Tensor, prefix: int, first: int) -> Tensor | None:
        """Return the logits with the first `prefix` tokens run once.

        None where the model's cache forbids.
        """
        try:
            cache = self._begin(ids[:1, :prefix])
            if cache is not None:
                cache.batch_repeat_interleave(len(ids))
                keep = ids.shape[1] - first
                return self._run(ids[:, prefix:], keep, use_cache=True, **{self._cache: cache})
        except Exception as error:  # of a cache of any family; the plain pass raises all others
            if is_out_of_memory(error):
                raise
        self.share = False
        return None

    def _begin(self, ids: Tensor) -> DynamicCache | None:
        """Return the keys and values of a beginning.

        None where the model keeps something else, or nothing.
        """
        options: dict[str, Any] = {"logits_to_keep": 1} if self._narrows else {}
        empty = DynamicCache(config=self.model.config)
        cache = cache_of(read_on(self.model, ids, empty, **options))
        plain = type(cache) is DynamicCache and all(
            type(layer).__name__ == "DynamicLayer" for layer in cache.layers
        )
        return cache if plain and cache.get_seq_length() == ids.shape[1] else None

    def _prove(self, found: Tensor, full: Tensor) -> None:
        """Keep sharing prefixes only if one comparison gave the same logits."""
        limit = SLACK.get(full.dtype, 0.0) * full.abs().max()
        self._proven = bool((found - full).abs().max() <= limit)
        self.share = self._proven


def split_cuts(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]], part: Sequence[int]
) -> list[list[int]]:
    """Split a part so that what is read alike is also cut alike into context and continuation.

    The engine reads such requests once, and takes the tokens of one continuation for all of them.

    Example:
        >>> split_cuts([([1], [2, 3]), ([1], [2, 4]), ([1, 2], [3])], [0, 1, 2])
        [[0, 1], [2]]
    """
    found: list[list[int]] = []
    cuts: dict[tuple[int, ...], list[int]] = {}
    for index in part:
        before, after = pairs[index]
        lengths = cuts.setdefault((*before, *after[:-1]), [])
        if len(before) not in lengths:
            lengths.append(len(before))
        number = lengths.index(len(before))
        if number == len(found):
            found.append([])
        found[number].append(index)
    return found


def split_batches(parts: Iterable[Sequence[int]], row: RowKey, rows: int) -> Iterator[list[int]]:
    """Split parts into batches, each the smallest rows first; requests of one row stay together.

    Args:
        row: of a request: what is read, in the order of reading.
        rows: of a batch.

    Example:
        >>> [*split_batches([[0, 1, 2, 3]], lambda at: [(5,), (3,), (5,), (4,)][at], 2)]
        [[1, 3], [0, 2]]
    """
    for part in parts:
        same: dict[tuple[Any, ...], list[int]] = {}
        for index in part:
            same.setdefault(row(index), []).append(index)
        order = sorted(same)
        for first in range(0, len(order), rows):
            yield [index for one in order[first : first + rows] for index in same[one]]


def _shortest(ids: Tensor) -> int:
    """Return the smallest number of tokens in a row.

    Zeros at its end may be tokens, and are not counted.
    """
    last = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return max(1, int((last * (ids != 0)).amax(dim=1).min()))


def _alike(ids: Tensor) -> int:
    """Return the number of tokens that all rows begin with."""
    return int((ids == ids[:1]).all(dim=0).to(torch.int8).cumprod(0).sum())
