"""Generates answers to prompts, to look at before and after."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast

from layerlab.adaptation.sft.conversations import Turn
from layerlab.adaptation.sft.encode import Encoder
from layerlab.adaptation.trainer.arguments import context_of
from layerlab.errors import UserError
from layerlab.loading.batching import Batching, find_batching
from layerlab.loading.generation import ignore_settings
from layerlab.system.logs import quiet_libraries
from layerlab.system.torch_settings import evaluation_mode
from layerlab.validation import short_repr


@torch.no_grad()
def answers(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str | Sequence[Turn]],
    *,
    new: int = 128,
    batch: int = 8,
) -> list[str]:
    """Return the likeliest answer, token by token, to each prompt, through the chat template.

    Prompts are read together: filled up on the left where the tokenizer has a token for that, the
    model does not read it and the context has room for a whole answer, else only with those of the
    same length.

    Args:
        prompts: what a user says, or the turns so far.
        new: tokens of an answer at most; fewer where the context ends before.

    Raises:
        UserError: a prompt does not fit into the model's context, or there is no chat template.
    """
    encoder = Encoder(tokenizer)
    asked = [encoder.prompt(prompt) for prompt in prompts]
    context = context_of(model)
    for prompt, one in zip(prompts, asked, strict=True):
        if context and len(one) >= context:
            question = prompt if isinstance(prompt, str) else prompt[-1].text
            raise UserError(
                f"the prompt {short_repr(question)} has {len(one)} tokens, and the model reads "
                f"{context} with its answer; shorten it"
            )
    ends = {encoder.closing(), tokenizer.eos_token_id} - {None}
    batching = find_batching(model, "left") if len(asked) > 1 else Batching()
    room = 0 if tokenizer.pad_token_id is None else context or math.inf
    batching = replace(batching, padded=min(batching.padded, room))
    found = [""] * len(asked)
    cached = model.config.use_cache
    model.config.use_cache = True
    try:
        with quiet_libraries(), evaluation_mode(model), ignore_settings(model):
            for part in batching.split([len(one) for one in asked], batch, new=new):
                rows = [asked[number] for number in part]
                most = min(new, context - len(rows[-1])) if context else new
                for number, ids in zip(
                    part, _write(model, tokenizer, rows, ends, most), strict=True
                ):
                    found[number] = str(tokenizer.decode(ids, skip_special_tokens=True)).strip()
    finally:
        model.config.use_cache = cached
    return found


def _write(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    rows: Sequence[Sequence[int]],
    ends: set[Any],
    new: int,
) -> Iterator[list[int]]:
    longest = len(rows[-1])
    filler = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    ids = [[*[filler] * (longest - len(one)), *one] for one in rows]
    mask = [[0] * (longest - len(one)) + [1] * len(one) for one in rows]
    device = model.get_input_embeddings().weight.device
    written = model.generate(
        input_ids=torch.tensor(ids, device=device),
        attention_mask=torch.tensor(mask, device=device),
        generation_config=GenerationConfig(
            do_sample=False,
            max_new_tokens=new,
            eos_token_id=sorted(ends) or None,
            pad_token_id=filler,
        ),
    )
    for row in written[:, longest:].tolist():
        last = next((position for position, token in enumerate(row) if token in ends), len(row))
        yield row[:last]
