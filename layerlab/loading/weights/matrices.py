"""Looks through the weights of a model, in memory or in its files: matrices, what is not finite."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from layerlab.loading.model import LoadedModel
from layerlab.loading.weights.by_layer import find_targets, read_outlines, read_stored_tensors
from layerlab.observe.architecture.effective_weights import effective_weights
from layerlab.observe.architecture.weight_matrices import MatrixNames, WeightMatrix


def read_matrices(subject: LoadedModel) -> Iterator[WeightMatrix]:
    """Read every weight matrix in the order of the model; of a stored one, a tensor at a time.

    Raises:
        UserError: the files cannot be read.
    """
    names = MatrixNames(subject.model)
    for name, tensor in _tensors(subject, names):
        yield from names.cut(name, tensor)


def _tensors(subject: LoadedModel, names: MatrixNames) -> Iterator[tuple[str, Tensor]]:
    if subject.stored:
        assert subject.folder is not None
        # Files call some otherwise; those that are joined while loaded have no own name.
        found = find_targets(subject.model, read_outlines(subject.folder))
        own = {name: target for name, target, part in found if part is None}
        for name, tensor in read_stored_tensors(
            subject.folder, lambda name: names.key(own.get(name, name))
        ):
            yield own.get(name, name), tensor
        return
    weights = effective_weights(subject.model)
    for name in sorted(weights, key=names.key):
        held = weights[name]()
        if held is not None and held.device.type != "meta":
            yield name, held


def find_weight_faults(subject: LoadedModel) -> list[dict[str, Any]]:
    """Return the weights that are not finite, with their layer, None outside the blocks."""
    stack = subject.stack
    # Some checkpoints leave out what their base model is called.
    base = f"{subject.model.base_model_prefix}."
    prefix = None if isinstance(stack, str) else stack.name.removeprefix(base) + "."
    if subject.stored and subject.folder is not None:
        tensors = read_stored_tensors(subject.folder, str)
    else:
        tensors = subject.model.named_parameters()
    found = []
    for name, tensor in tensors:
        if tensor.device.type == "meta":
            continue
        wide = tensor if tensor.dtype.itemsize > 1 else tensor.float()
        # One pass instead of four: what has a finite sum is finite.
        if bool(wide.sum().isfinite()) or bool((finite := wide.isfinite()).all()):
            continue
        inner = name.removeprefix(base)
        inside = prefix is not None and inner.startswith(prefix)
        layer = int(inner.removeprefix(prefix).split(".")[0]) if inside and prefix else None
        bad = tensor.numel() - int(finite.sum())
        what = f"{bad} of {tensor.numel()} weights not finite"
        found.append({"kind": "weights", "layer": layer, "name": name, "what": what})
    return found
