"""Hands out the weight matrices of a model one at a time, from memory or from the files."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from layerlab.loading.layer_weights import stored_tensors
from layerlab.loading.model import LoadedModel
from layerlab.observe.architecture.weight_matrices import MatrixNames, WeightMatrix
from layerlab.system.offload import parameter


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
    found = [name for name, _ in subject.model.named_parameters()]
    for name in sorted(found, key=names.key):
        owner, _, last = name.rpartition(".")
        tensor = parameter(subject.model.get_submodule(owner), last)
        if tensor is not None and tensor.device.type != "meta":
            yield name, tensor
