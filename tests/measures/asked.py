"""Small questions of saliency, and their answers by brute force."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from layerlab.loading.model import LoadedModel
from layerlab.measures.support.saliency.prompt import Prompt
from layerlab.measures.support.saliency.score import objective
from layerlab.observe.architecture.structure import anatomy, first_tensor
from layerlab.observe.tracing.block_calls import find_stream
from layerlab.observe.tracing.gradients import logits_and_gradient
from layerlab.observe.tracing.trace import observing
from layerlab.records.layer_names import EMBEDDING

TOKENS = torch.tensor([5, 9, 2, 9, 7, 3])


def precise(model: PreTrainedModel) -> PreTrainedModel:
    """The model in float64 throughout: norms of transformers cast to float32 by themselves."""
    model.double()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if "RMSNorm" in type(child).__name__:
                norm = nn.RMSNorm(len(child.weight), eps=child.variance_epsilon).double()
                norm.weight = child.weight
                setattr(module, name, norm)
    return model


def subject(model: PreTrainedModel, tokenizer: Any = None) -> LoadedModel:
    return LoadedModel(name="tiny", source="memory", model=model, tokenizer=tokenizer)


def prompt(position: int = -1, target: int = 11, foil: int | None = None) -> Prompt:
    return Prompt(
        tokens=TOKENS, position=position % len(TOKENS), target=(target,), foil=foil, remarks=()
    )


def gradients(
    model: PreTrainedModel, position: int = -1, *, tokens: Tensor = TOKENS, again: bool = True
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Streams and whole gradients of token 11's logit, by layer."""
    streams, found = {}, {}

    def keep(layer: int, stream: Tensor, gradient: Tensor) -> None:
        streams[layer], found[layer] = stream.clone(), gradient.clone()

    def ask(logits: Tensor) -> Tensor:
        return objective(logits, 11)

    place = position % len(tokens)
    with observing(model):
        logits_and_gradient(model, anatomy(model), tokens, place, ask, keep, again=again)
    return streams, found


@contextmanager
def shifted(model: PreTrainedModel, layer: int, change: Tensor) -> Iterator[None]:
    """Something is added to the stream at a layer."""
    blocks = anatomy(model).blocks

    def before(module: Any, args: Any, options: Any) -> Any:
        stream = find_stream(args, options)
        given = tuple(one + change if one is stream else one for one in args)
        named = {name: one + change if one is stream else one for name, one in options.items()}
        return given, named

    def after(module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (first_tensor(output) + change, *output[1:])
        return output + change

    hook = (
        blocks[0].register_forward_pre_hook(before, with_kwargs=True)
        if layer == EMBEDDING
        else blocks[layer].register_forward_hook(after)
    )
    with torch.no_grad():
        yield
    hook.remove()


def differences(model: PreTrainedModel, layer: int, ask: Any, position: int = -1) -> Tensor:
    """The derivative by every feature of a layer, from central differences."""
    step, width = 1e-5, model.config.hidden_size
    found = torch.zeros(len(TOKENS), width, dtype=torch.float64)
    for token in range(len(TOKENS)):
        for channel in range(width):
            change, ends = torch.zeros(1, len(TOKENS), width, dtype=torch.float64), []
            for sign in (1, -1):
                change[0, token, channel] = sign * step
                with shifted(model, layer, change):
                    ends.append(float(ask(model(TOKENS[None]).logits[0, position])))
            found[token, channel] = (ends[0] - ends[1]) / (2 * step)
    return found
