"""One attention layer on one sequence, kept as its factors so that no n x n matrix need exist.

An attention interface hands over q, k, v, mask, scaling, softcap and sinks; families that compute
attention by themselves hand over the scores that their softmax received. Either way the attention
matrix is asked for in tiles: some heads, some rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from layerlab.shapes import Allowed, Attentions, HeadVector, Keys, Queries, Values

ALL = slice(None)


@dataclass(frozen=True, kw_only=True)
class AttentionRecord:
    """The factors of one attention layer, for one sequence without padding.

    Attributes:
        layer: the block that it lies in, the first is 0.
        name: path of the module inside the model.
        first: the number of its first head: of several attentions in a block, heads are counted on.
        scaling: the factor on q.k that the module itself uses.
        bias: added to the scores after softcap; -inf (or the dtype's lowest number) forbids a key;
            or boolean: the keys that are allowed.
        causal: row i may use keys 0..i only; on top of `bias`.
        window: row i may use its last `window` keys only; of a causal record.
        sinks: one extra score per head that takes probability and gives no value.
        scores: what the softmax received, for families that hand over neither query nor key.
        biased: whether `scores` hold more than scaled q.k, as ALiBi; then `logits` do, too.
    """

    layer: int
    name: str
    first: int = 0
    scaling: float = 1.0
    query: Queries | None = None
    key: Keys | None = None
    value: Values | None = None
    softcap: float | None = None
    bias: Tensor | None = None
    causal: bool = True
    window: int | None = None
    sinks: HeadVector | None = None
    scores: Attentions | None = None
    biased: bool = False

    @property
    def _shape(self) -> torch.Size:
        factor = self.query if self.query is not None else self.scores
        assert factor is not None, "an attention record holds a query or scores"
        return factor.shape

    @property
    def heads(self) -> int:
        return self._shape[0]

    @property
    def tokens(self) -> int:
        return self._shape[1]

    @property
    def keys(self) -> int:
        return self.key.shape[1] if self.key is not None else self._shape[2]

    @property
    def device(self) -> torch.device:
        return (self.query if self.query is not None else self.scores).device  # type: ignore[union-attr]

    @property
    def sums_to_one(self) -> bool:
        """Return whether every row of the attention matrix sums to 1."""
        return self.sinks is None

    def kv_head(self, head: int) -> int:
        """Return the key-value head that query head `head` reads, as in grouped attention."""
        return head if self.key is None else head * self.key.shape[0] // self.heads

    def of_kv_heads(self, given: Tensor, heads: slice = ALL) -> Tensor:
        """Return the part of each query head, of what there is of key-value heads.

        A list of their numbers would have to be sent to the device.
        """
        if given.shape[0] == self.heads:
            return given[heads]
        head = torch.arange(self.heads, device=given.device)[heads]
        return given[head * given.shape[0] // self.heads]

    def logits(
        self, heads: slice = ALL, rows: slice = ALL, dtype: torch.dtype = torch.float32
    ) -> Attentions:
        """Return the scaled scores before softcap, bias and mask: scaling * q_i . k_j.

        Of a biased record they cannot be told from their bias, and hold it.
        """
        if self.scores is not None:
            return self.scores[heads, rows].to(dtype, copy=True)
        assert self.query is not None and self.key is not None
        query = self.query[heads, rows].to(dtype) * self.scaling
        return query @ self.of_kv_heads(self.key, heads).to(dtype).transpose(-1, -2)

    def allowed_keys(self, heads: slice = ALL, rows: slice = ALL, keys: slice = ALL) -> Allowed:
        """Return which keys a row may use; the head axis has length 1 where heads agree."""
        row = torch.arange(self.tokens, device=self.device)[rows, None] + self.keys - self.tokens
        column = torch.arange(self.keys, device=self.device)[keys]
        allowed = torch.ones(1, len(row), len(column), dtype=torch.bool, device=self.device)
        if self.causal:
            allowed = allowed & (column <= row)
        if self.window is not None:
            allowed = allowed & (column > row - self.window)
        if self.scores is not None:
            allowed = allowed & ~_is_forbidden(self.scores[heads, rows, keys])
        if self.bias is not None:
            bias = self._bias(heads, rows)[..., keys]
            allowed = allowed & (bias if bias.dtype == torch.bool else ~_is_forbidden(bias))
        return allowed

    def _bias(self, heads: slice, rows: slice) -> Tensor:
        """Return the bias of some heads and rows, which may share one."""
        assert self.bias is not None
        parts = zip(self.bias.shape, (heads, rows), strict=False)
        return self.bias[tuple(ALL if size == 1 else part for size, part in parts)]

    def _unsure(self, rows: slice) -> slice:
        """Return the keys that some row may not use: with causality alone, the last few."""
        if self.bias is not None or self.scores is not None or self.window is not None:
            return ALL
        first = rows.indices(self.tokens)[0] + self.keys - self.tokens + 1
        return slice(max(0, first) if self.causal else self.keys, None)

    def masked_scores(
        self, heads: slice = ALL, rows: slice = ALL, dtype: torch.dtype = torch.float32
    ) -> Attentions:
        """Return the scores that the softmax sees, -inf where a key is forbidden.

        Softcap and bias have been applied.
        """
        scores = self.logits(heads, rows, dtype)
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.bias is not None and self.bias.dtype != torch.bool:
            scores = scores + self._bias(heads, rows).to(dtype)
        keys = self._unsure(rows)
        if self.scores is not None:
            return scores.masked_fill(~self.allowed_keys(heads, rows), -torch.inf)
        scores[..., keys].masked_fill_(~self.allowed_keys(heads, rows, keys), -torch.inf)
        return scores

    def weights(
        self, heads: slice = ALL, rows: slice = ALL, dtype: torch.dtype = torch.float32
    ) -> Attentions:
        """Return rows of the attention matrix A.

        They sum to 1, or to less where there are sinks.
        """
        return self.normalize(self.masked_scores(heads, rows, dtype), heads)

    def normalize(self, scores: Attentions, heads: slice = ALL) -> Attentions:
        """Return the softmax of masked scores; a sink takes its part and is cut off."""
        if self.sinks is None:
            return torch.softmax(scores, -1)
        sinks = self.sinks[heads].to(scores)[:, None, None].expand(-1, scores.shape[1], 1)
        return torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]


def _is_forbidden(bias: Tensor) -> Tensor:
    """Return which entries mean minus infinity: some families write the dtype's lowest number."""
    return bias <= torch.finfo(bias.dtype).min / 2


def group_alike(records: Sequence[AttentionRecord]) -> list[list[int]]:
    """Return the numbers of the records whose heads can be read as those of one.

    They differ in nothing but what query, key and sinks hold. What hands over scores is alone,
    because they would be copied, and so is what has a bias of each head.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, record in enumerate(records):
        groups.setdefault(_rules(record) or (number,), []).append(number)
    return list(groups.values())


def join(records: Sequence[AttentionRecord]) -> AttentionRecord:
    """Return the heads of records that are alike as those of one record, in their order."""
    first = records[0]
    return replace(
        first,
        query=torch.cat([one.query for one in records if one.query is not None]),
        key=torch.cat([one.key for one in records if one.key is not None]),
        value=None,
        sinks=None
        if first.sinks is None
        else torch.cat([one.sinks for one in records if one.sinks is not None]),
    )


def _rules(record: AttentionRecord) -> tuple[object, ...] | None:
    """Return what alike records share, the very same bias too; None where none can be alike."""
    query, key, bias = record.query, record.key, record.bias
    if query is None or key is None or (bias is not None and len(bias) > 1):
        return None
    rules = (record.scaling, record.softcap, record.causal, record.window, record.sinks is None)
    same = None if bias is None else id(bias)
    return query.device, query.dtype, query.shape, key.shape, same, *rules
