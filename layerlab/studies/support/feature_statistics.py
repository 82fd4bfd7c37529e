"""Residual and dimension of features by layer: what tells a collapse."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layerlab.measures.quantities.diversity import relative_residual
from layerlab.measures.support.centring import centre
from layerlab.studies.support.passages import for_each_layer

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel

SHARE = 0.8
# The beginning of a passage is an outlier in many models; the source leaves it out, too.
OUTLIERS = 1
RESIDUAL, DIMENSION = range(2)
# Less than half of what there was at the beginning is called collapse here.
HALF = 0.5


def depths(subject: "LoadedModel", ids: Tensor) -> Tensor:
    """Return, by layer, the mean residual of the passages and the dimension of all tokens."""
    # Late: spectra of features bring nothing that the list of studies needs.
    from layerlab.measures.quantities.dimension import effective_dimension
    from layerlab.measures.support.centring import gram_eigenvalues

    streams: dict[int, list[Tensor]] = {}

    def read(layer: Any) -> None:
        streams.setdefault(layer.layer, []).append(layer.stream[OUTLIERS:].clone())

    for_each_layer(subject, ids, read)
    found = []
    for layer in sorted(streams):
        parts = streams[layer]
        residual = torch.stack([relative_residual(part) for part in parts]).mean()
        values = gram_eigenvalues(centre(torch.cat(parts)))
        found.append(
            torch.stack([residual, effective_dimension(values, SHARE) / parts[0].shape[1]])
        )
    return torch.stack(found)
