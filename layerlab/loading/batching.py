"""Sequences that may share a batch of a model, each read as it would be by itself.

A batch fills up what is shorter. Most models never read that: in front of a text a mask hides it,
and behind one no token looks. Others do: models without position ids, or with a state instead of
attention, read what stands in front, and longrope picks its frequencies by the longest row. A few
mix the rows of any batch while they write.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import GenerationConfig

from layerlab.loading.generation import ignore_settings
from layerlab.loading.trial import NEW, SLACK, distance, read_texts, trial_ids
from layerlab.observe.architecture.structure import text_config
from layerlab.system.hardware import is_out_of_memory
from layerlab.system.logs import quiet_libraries
from layerlab.system.offload import running_device
from layerlab.system.torch_settings import evaluation_mode

Side = Literal["left", "right"]
SHORT = 5  # tokens of the shorter one of the two texts that are tried


@dataclass(frozen=True)
class Batching:
    """Rule by which sequences may share a batch.

    Attributes:
        padded: tokens up to which sequences of any length may, filled up to that of the longest;
            longer ones only with those of their own length. Infinite: all may.
        alone: none may.
    """

    padded: int | float = math.inf
    alone: bool = False

    def split(
        self, lengths: Sequence[int], most: int | None = None, *, new: int = 0
    ) -> list[list[int]]:
        """Split sequences into batches, the shortest first; return the numbers of each batch's.

        Args:
            lengths: of the sequences, in tokens.
            most: sequences of a batch; None sets no limit.
            new: tokens that will be written behind each.

        Example:
            >>> Batching(4).split([6, 2, 5, 3, 6], 8), Batching(0).split([1, 2, 1])
            ([[1, 3], [2], [0, 4]], [[0, 2], [1]])
        """

        def own(number: int) -> int:
            length = lengths[number]
            return 0 if length + new <= self.padded else length

        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        groups = [list(group) for _, group in groupby(order, own)]
        size = 1 if self.alone else most or max(1, len(lengths))
        return [
            group[first : first + size] for group in groups for first in range(0, len(group), size)
        ]


@torch.no_grad()
def find_batching(model: Any, side: Side) -> Batching:
    """Find out which sequences may share a batch: a short text is run beside others and alone.

    Args:
        model: any causal language model; PEFT may have wrapped it.
        side: where shorter sequences are filled up: "right", behind them and without a mask, where
            likelihoods are read; "left", under a mask, where texts are written.
    """
    run, ids = read_texts if side == "right" else _write, trial_ids(model)

    def is_read_alike(text: list[int], beside: list[int]) -> bool:
        # Of a token of padding there may be nothing to read: its embedding is often zero.
        fills = (0, ids[0]) if len(beside) > len(text) else (0,)
        try:
            alone = run(model, [text])[0]
            found = [run(model, [beside, text], fill)[1] for fill in fills]
            return all(distance(one, alone) <= SLACK.get(model.dtype, 2**-4) for one in found)
        except Exception as error:  # of a model that takes no mask, or not these tokens
            if is_out_of_memory(error):
                raise
            return False

    with quiet_libraries(), evaluation_mode(model):
        short = min(SHORT, len(ids) - 1)
        if is_read_alike(ids[-short:], ids):
            return Batching(_same_frequencies(text_config(model)))
        return Batching(0, alone=not is_read_alike(ids[-short:], ids[:short]))


@torch.no_grad()
def reads_ahead(model: Any) -> bool:
    """Find out whether a model's logits at a token hang on what stands behind it.

    Then they predict no next token: they have seen it.
    """
    ids = trial_ids(model)
    half = len(ids) // 2
    with quiet_libraries(), evaluation_mode(model):
        try:
            other = [*ids[:half], *[ids[half - 1]] * (len(ids) - half)]
            one, two = (read_texts(model, [text])[0][:half] for text in (ids, other))
        except Exception as error:  # of a model that gives no logits, or not of these tokens
            if is_out_of_memory(error):
                raise
            return False
    scores = one.dim() < 2 or one.shape[-1] <= max(ids)  # of labels, and not of tokens
    return not scores and distance(two, one) > SLACK.get(model.dtype, 2**-4)


def describe_ahead(name: str) -> str:
    """Describe what logits say of a model that has seen the next token.

    Example:
        >>> describe_ahead("encoder").split(",")[0]
        'encoder: its logits at a token hang on later tokens'
    """
    return (
        f"{name}: its logits at a token hang on later tokens, so that what they say of the next "
        "one is no prediction"
    )


def _write(model: Any, texts: Sequence[Sequence[int]], fill: int = 0) -> list[Tensor]:
    """Return the logits of what is written behind each text, filled up in front with a token."""
    longest = max(map(len, texts))
    device = running_device(model)
    rows = [[*[fill] * (longest - len(one)), *one] for one in texts]
    mask = [[0] * (longest - len(one)) + [1] * len(one) for one in texts]
    with ignore_settings(model):
        model.generation_config.eos_token_id = None
        found = model.generate(
            input_ids=torch.tensor(rows, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=NEW,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            ),
        )
    return list(torch.stack(found.logits, dim=1))


def _same_frequencies(config: Any) -> int | float:
    """Return how many tokens are read with the same frequencies whatever stands beside them."""
    given = getattr(config, "rope_parameters", None) or {}
    kinds = [given, *(one for one in given.values() if isinstance(one, Mapping))]
    switches = (
        int(one["original_max_position_embeddings"])
        for one in kinds
        if one.get("rope_type") == "longrope"
    )
    return min(switches, default=math.inf)
