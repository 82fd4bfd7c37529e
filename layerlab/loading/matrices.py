"""Hands out the weight matrices of a model one at a time, from memory or from the files."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from layerlab.loading.layer_weights import stored_tensors
from layerlab.loading.model import LoadedModel
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
        yield from stored_tensors(Path(subject.folder), names.key)
        return
    found = effective_weights(subject.model)
    for name in sorted(found, key=names.key):
        tensor = found[name]()
        if tensor is not None and tensor.device.type != "meta":
            yield name, tensor
