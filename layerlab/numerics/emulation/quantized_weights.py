"""Weights that engines quantize: the matrices of products, but for those of head and router.

Embeddings, gains, biases and what mixes tokens without a product stay in the dtype of the results:
recipes of llm-compressor and gpt-oss leave them out, and vLLM has no quantized form of most.
"""

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

# Matrices that no product reads: decays of a state, and what is added to queries.
_ELEMENTWISE = ("A_log", "bias")


def is_router(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> bool:
    """Return whether a module scores experts, by its class or by what stands beside it."""
    owner, _, last = name.rpartition(".")
    if last == "router" or "router" in type(module).__name__.lower():
        return True
    return last == "gate" and any("expert" in one for one, _ in modules[owner].named_children())


def find_unquantized(model: nn.Module) -> frozenset[str]:
    """Return the paths of the modules whose weights, and what meets them, are left as they are."""
    modules = dict(model.named_modules())
    head = getattr(model, "get_output_embeddings", lambda: None)()
    left = [
        name
        for name, one in modules.items()
        if one is head or isinstance(one, nn.Embedding | _ConvNd) or is_router(name, one, modules)
    ]
    return frozenset(
        name for name in modules if any(name == one or name.startswith(f"{one}.") for one in left)
    )


def is_matrix(name: str, weight: Tensor) -> bool:
    """Return whether a parameter, by its name in its module, may be a factor of a product.

    That of one output is taken for a gain: engines leave such gates as they are.
    """
    return weight.squeeze().dim() > 1 and not name.endswith(_ELEMENTWISE)
