"""Looks through the weights of a model, in memory or in its files: matrices, what is not finite."""

from collections.abc import Iterator
from typing import Any

import torch

from layerlab.loading.model import LoadedModel
from layerlab.loading.weights.by_layer import find_targets, read_stored_tensors
from layerlab.loading.weights.stored_tensors import read_outlines
from layerlab.observe.architecture.effective_weights import effective_weights
from layerlab.observe.architecture.packed_weights import read_parameters
from layerlab.observe.architecture.weight_matrices import MatrixNames, WeightMatrix


def read_matrices(subject: LoadedModel) -> Iterator[WeightMatrix]:
    """Read every weight matrix in the order of the model; of a stored one, a tensor at a time.

    Raises:
        UserError: the files cannot be read.
    """
    names, own = _find_names(subject)
    if subject.stored:
        assert subject.folder is not None
        for name, tensor in read_stored_tensors(
            subject.folder, lambda name: names.key(own.get(name, name))
        ):
            yield from names.cut(own.get(name, name), tensor)
        return
    weights = effective_weights(subject.model)
    for name in sorted(weights, key=names.key):
        held = weights[name]()
        if held is not None and held.device.type != "meta":
            yield from names.cut(name, held)


def count_matrices(subject: LoadedModel) -> int:
    """Return how many matrices there are to read, by the shapes of the weights alone."""
    names, own = _find_names(subject)
    shapes: dict[str, tuple[int, ...]] = {
        name: tuple(one.shape) for name, one in subject.model.named_parameters()
    }
    if subject.stored and subject.folder is not None:
        shapes = {name: one.shape for name, one in read_outlines(subject.folder).items()}
    return sum(
        len(list(names.cut(own.get(name, name), torch.empty(shape, device="meta"))))
        for name, shape in shapes.items()
    )


def _find_names(subject: LoadedModel) -> tuple[MatrixNames, dict[str, str]]:
    """Return the places of tensors, and by their names in a file those that they have in the model.

    Files call some otherwise, and hold one by one what is joined while it is loaded.
    """
    if not subject.stored:
        return MatrixNames(subject.model), {}
    assert subject.folder is not None
    found = list(find_targets(subject.model, read_outlines(subject.folder)))
    joined = {part: target for _, target, part in found if part is not None}
    own = {name: target if part is None else part for name, target, part in found}
    return MatrixNames(subject.model, joined), own


def find_weight_faults(subject: LoadedModel) -> list[dict[str, Any]]:
    """Return the weights that are not finite, with their layer, None outside the blocks."""
    names, own = _find_names(subject)
    if subject.stored and subject.folder is not None:
        tensors = read_stored_tensors(subject.folder, str)
    else:
        tensors = read_parameters(subject.model)
    found = []
    for name, tensor in tensors:
        wide = tensor if tensor.dtype.itemsize > 1 else tensor.float()
        # One pass instead of four: what has a finite sum is finite.
        if bool(wide.sum().isfinite()) or bool((finite := wide.isfinite()).all()):
            continue
        layer = names.key(own.get(name, name))[0]
        bad = tensor.numel() - int(finite.sum())
        what = f"{bad} of {tensor.numel()} weights not finite"
        inside = layer if 0 <= layer < names.blocks else None
        found.append({"kind": "weights", "layer": inside, "name": name, "what": what})
    return found
