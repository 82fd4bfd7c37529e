"""Layer of a parameter: the embedding, a block, or what follows the blocks.

Names do not say it: CTRL's embedding is called `w`, LFM2's last norm `embedding_norm`. Outside the
blocks it is the order in which the modules run.
"""

from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from layerlab.observe.architecture.structure import ModelStructure
from layerlab.records.layer_names import EMBEDDING
from layerlab.system.hooks import temporary_hooks


@contextmanager
def hearing_front(model: PreTrainedModel, stack: ModelStructure) -> Iterator[set[str]]:
    """Collect the names of the parameters whose modules have run when the first block begins.

    And those of the embedding, which a caller may have run by itself.
    """
    embedding = None
    with suppress(NotImplementedError):
        embedding = model.get_input_embeddings()
    front, reached = set[str](), False
    inside = {id(module) for block in stack.blocks for module in block.modules()}

    def leave(names: list[str], module: nn.Module, args: Any, output: Any) -> None:
        if not reached:
            front.update(names)

    def enter(module: nn.Module, args: Any) -> None:
        nonlocal reached
        reached = True

    handles = [stack.blocks[0].register_forward_pre_hook(enter)]
    for path, module in model.named_modules(remove_duplicate=False):
        own = [f"{path}.{name}".strip(".") for name, _ in module.named_parameters(recurse=False)]
        if module is embedding:
            front.update(own)
        if own and id(module) not in inside:
            handles.append(module.register_forward_hook(partial(leave, own)))
    with temporary_hooks(handles):
        yield front


def layer_of(name: str, stack: ModelStructure, front: Container[str]) -> int:
    """Return the layer of a parameter: EMBEDDING, its block, or their count for what follows.

    Args:
        front: what `hearing_front` has collected.
    """
    if name.startswith(f"{stack.name}."):
        return int(name.removeprefix(f"{stack.name}.").split(".")[0])
    return EMBEDDING if name in front else len(stack.blocks)
