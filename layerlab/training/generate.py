"""Samples of the model under training: continuations of a recipe's prompts."""

from typing import Any

import torch

from layerlab.observe.tracing.compiled import run_uncompiled
from layerlab.recipes.training_sections import EvaluateSection
from layerlab.system.rng import keep_device_state
from layerlab.system.torch_settings import evaluation_mode


def generate_samples(model: Any, corpus: Any, evaluate: EvaluateSection) -> list[tuple[str, str]]:
    """Continue each prompt of a recipe with the model, by the likeliest token each time.

    That moves neither anybody's random state, nor the mode that the model is in. Of a prompt that
    leaves too little room in the context, the last tokens are kept: half the context at least.

    Args:
        corpus: for its tokenizer and its separator.
    """
    if not evaluate.prompts:
        return []
    tokenizer, end = corpus.tokenizer, corpus.separator
    found = []
    # Growing sequences would compile layers anew for each length.
    with keep_device_state(), torch.no_grad(), evaluation_mode(model), run_uncompiled(model):
        for prompt in evaluate.prompts:
            given = tokenizer(prompt, add_special_tokens=False)["input_ids"] or [end]
            added = _continue(model, given, end, evaluate.max_new_tokens)
            found.append((prompt, tokenizer.decode(added)))
    return found


def _continue(model: Any, given: list[int], end: int, length: int) -> list[int]:
    """Generate the tokens that follow others, without an end-of-text token."""
    context = model.config.max_position_embeddings
    room = max(context - length, context // 2, 1)
    tokens = torch.tensor([given[-room:]], device=model.device)
    length = min(length, context - tokens.shape[1])
    if length < 1:
        return []
    found = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=length,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=end,
    )
    added: list[int] = found[0, tokens.shape[1] :].tolist()
    return added[:-1] if added and added[-1] == end else added
