"""Residual and dimension of features by layer: what tells a collapse."""

from collections.abc import Mapping
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
        # On the host, where spectra are taken.
        residual = torch.stack([relative_residual(part) for part in parts]).mean().cpu()
        values = gram_eigenvalues(centre(torch.cat(parts)))
        found.append(
            torch.stack([residual, effective_dimension(values, SHARE) / parts[0].shape[1]])
        )
    return torch.stack(found)


def warn_of_few(tokens: int, widths: Mapping[str, int]) -> list[str]:
    """Warn of models that are too wide to read a dimension of their features off so many tokens.

    Args:
        widths: by what a sentence calls the models.
    """
    from layerlab.measures.quantities.dimension import ENOUGH, reliable

    wide = {name: width for name, width in widths.items() if not reliable(tokens, width)}
    if not wide:
        return []
    names = " and ".join(f"{width:,} of {name}" for name, width in wide.items())
    return [
        f"A dimension is read off {tokens:,} tokens, and no more directions than tokens can show: "
        f"for a width of {names} they are too few, where {ENOUGH} for each feature are enough. "
        "There d(0.8) is less than the features have; compare layers with each other only."
    ]
