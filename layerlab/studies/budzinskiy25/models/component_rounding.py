"""Passages side by side through a model in a low format, its components one by one."""

from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.studies.budzinskiy25.support.components import WEIGHTED
from layerlab.studies.engine.sampling import GivenModels
from layerlab.studies.support.passages import NONE, get_model

if TYPE_CHECKING:
    from layerlab.numerics.emulation.emulate import Emulation
    from layerlab.numerics.emulation.op_site import OpSite

# An emulated model is changed while it runs, and batches are computed side by side.
ALONE = Lock()


class Trials:
    """Runs of a model on passages of one length, against float64.

    Attributes:
        whole: squared relative error of the logits of each passage with every place rounded.
        places: those that round, by component.

    Raises:
        NotApplicable: the weighted sum of its attention, which rounds in every mode, is not found.
    """

    def __init__(
        self, model: str, ids: Tensor, format: str, mode: str, given: GivenModels = NONE
    ) -> None:
        # Late: the list of studies needs no transformers.
        from layerlab.numerics.emulation.arithmetic import exact, make_arithmetic
        from layerlab.numerics.emulation.emulate import Emulation
        from layerlab.studies.budzinskiy25.support.model_components import ComponentIndex

        subject = get_model(model, given)
        self.model: Any = subject.model
        self.ids = ids.to(subject.device)
        self._run = Emulation(self.model, make_arithmetic(format, mode))
        self._true = self._logits(Emulation(self.model, exact(self.model.dtype)))
        self.whole = self._error()
        assert not isinstance(subject.stack, str), subject.stack
        index = ComponentIndex(self.model, subject.stack, self._run.roundings)
        self.places: dict[str, set[OpSite]] = {}
        for site in index.places:
            self.places.setdefault(index.find(site), set()).add(site)
        if WEIGHTED not in self.places:
            raise NotApplicable(
                "no operation of its code is found to be the weighted sum of its attention"
            )

    def _logits(self, run: "Emulation") -> Tensor:
        from layerlab.numerics.emulation.attribution import outputs

        with ALONE:
            return outputs(run, lambda: self.model(input_ids=self.ids, use_cache=False), ())[-1]

    def _error(self) -> Tensor:
        """Return ||z' - z||^2 / ||z||^2 for each passage."""
        seen, true = self._logits(self._run).double(), self._true.double()
        return (seen - true).square().sum((1, 2)) / true.square().sum((1, 2))

    def rounding(self, names: Iterable[str]) -> Tensor:
        """Return the error where only these components round; NaN where no place is theirs."""
        places = {site for name in names for site in self.places.get(name, ())}
        if not places:
            return torch.full_like(self.whole, torch.nan)
        return self._round_only(places)

    def keeping(self, *names: str) -> Tensor:
        """Return the error where all components round but these; NaN where no place is theirs."""
        if self.places.keys().isdisjoint(names):
            return torch.full_like(self.whole, torch.nan)
        kept = (places for name, places in self.places.items() if name not in names)
        return self._round_only(set().union(*kept))

    def _round_only(self, places: "set[OpSite]") -> Tensor:
        self._run.only(places)
        return self._error()
