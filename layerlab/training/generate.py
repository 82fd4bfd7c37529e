"""What the model under training writes: continuations of a recipe's prompts."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from layerlab.recipes.training_sections import EvaluateSection
from layerlab.system.usual_arithmetic import evaluation_mode


def generate_samples(
    model: Any, corpus: Any, evaluate: EvaluateSection, *, seed: int | None = None
) -> list[tuple[str, str]]:
    """Continue each prompt of a recipe with the model.

    The likeliest token each time. With a seed, tokens are drawn by their probabilities. Neither
    moves anybody's random state, nor the mode that the model is in. Of a prompt that leaves
    too little room in the context, the last tokens are kept: half the context at least.

    Args:
        corpus: for its tokenizer and its separator.
        seed: of the draws.
    """
    if not evaluate.prompts:
        return []
    words, end = corpus.tokenizer, corpus.separator
    found = []
    with _apart(model, seed), _uncompiled(model):
        for prompt in evaluate.prompts:
            given = words(prompt, add_special_tokens=False)["input_ids"] or [end]
            added = _continue(model, given, end, evaluate.max_new_tokens, seed)
            found.append((prompt, words.decode(added)))
    return found


def _continue(model: Any, given: list[int], end: int, length: int, seed: int | None) -> list[int]:
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
        do_sample=seed is not None,
        # All of the distribution: what a family's own settings would cut off is of interest here.
        **({} if seed is None else {"top_k": 0, "top_p": 1.0, "temperature": 1.0}),
        eos_token_id=end,
        pad_token_id=end,
    )
    added: list[int] = found[0, tokens.shape[1] :].tolist()
    return added[:-1] if added and added[-1] == end else added


@contextmanager
def _apart(model: Any, seed: int | None) -> Iterator[None]:
    """Switch dropout off and use separate random numbers until the block ends."""
    place = model.device.type
    devices = [] if place == "cpu" else [torch.accelerator.current_device_index()]
    kind = "cuda" if place == "cpu" else place
    with torch.random.fork_rng(devices=devices, device_type=kind), torch.no_grad():
        if seed is not None:
            torch.manual_seed(seed)
        with evaluation_mode(model):
            yield


def _uncompiled(model: Any) -> AbstractContextManager[Any]:
    """Run layers uncompiled: growing sequences would compile them anew for each length."""
    if not any(getattr(one, "_compiled_call_impl", None) for one in model.modules()):
        return nullcontext()
    eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager
