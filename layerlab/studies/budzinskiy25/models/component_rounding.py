"""Passages side by side through a model in a low format, its components one by one."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from threading import Lock
from typing import TYPE_CHECKING, Any

from torch import Tensor

from layerlab.studies.engine.sampling import GivenModels
from layerlab.studies.support.passages import NONE, patient

if TYPE_CHECKING:
    from layerlab.numerics.emulation.emulate import Emulation
    from layerlab.numerics.emulation.op_site import OpSite

# Kinds of places, as `SiteIndex` names them, and the component that they belong to; first fits.
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights*",),
    "residual stream": ("residual stream",),
    "embedding + position": ("*transformer:add*",),
    "rotary positions": ("*rotary_emb*", "self_attn:mul", "self_attn:add"),
    "scores and softmax": ("*attn:[!c]*",),
    "weighted sum": ("*attn:c*",),
    "queries, keys, values": ("*attn.c_attn", "*.[qkv]_proj"),
    "attention output": ("attn.c_proj", "*.o_proj", "*attn.out_proj"),
    "norms": ("ln_*", "*layernorm", "*norm", "*.ln_f"),
    "feed-forward": ("mlp*",),
    "logits": ("lm_head",),
}
# What a model of a user has besides.
OTHER = "other places"
# An emulated model is changed while it runs, and batches are computed side by side.
ALONE = Lock()


def component(kind: str) -> str:
    """Return the component that a kind of place belongs to.

    Example:
        >>> component("attn:softmax"), component("attn:context"), component("mlp.act_fn")
        ('scores and softmax', 'weighted sum', 'feed-forward')
    """
    for name, patterns in COMPONENTS.items():
        if any(fnmatchcase(kind, pattern) for pattern in patterns):
            return name
    raise ValueError(f"no component of a built-in model is {kind!r}")


class Trials:
    """Runs of a model on passages of one length, against float64.

    Attributes:
        whole: squared relative error of the logits of each passage with every place rounded.
        places: those that round, by component.
    """

    def __init__(
        self, model: str, ids: Tensor, format: str, mode: str, given: GivenModels = NONE
    ) -> None:
        # Late: the list of studies needs no transformers.
        from layerlab.numerics.emulation.arithmetic import exact, regime
        from layerlab.numerics.emulation.attribution import SiteIndex
        from layerlab.numerics.emulation.emulate import Emulation

        subject = patient(model, given)
        self.model: Any = subject.model
        self.ids = ids.to(subject.device)
        self._run = Emulation(self.model, regime(format, mode))
        self._true = self._logits(Emulation(self.model, exact(self.model.dtype)))
        self.whole = self._error()
        grouped = SiteIndex(self.model, self._run.roundings)
        self.places: dict[str, set[OpSite]] = {}
        for place in grouped.places:
            try:
                name = component(grouped.kind(place))
            except ValueError:
                if model not in given:
                    raise
                name = OTHER
            self.places.setdefault(name, set()).add(place)

    def _logits(self, run: "Emulation") -> Tensor:
        from layerlab.numerics.emulation.attribution import outputs

        with ALONE:
            return outputs(run, lambda: self.model(input_ids=self.ids, use_cache=False), ())[-1]

    def _error(self) -> Tensor:
        """Return ||z' - z||^2 / ||z||^2 for each passage."""
        seen, true = self._logits(self._run).double(), self._true.double()
        return (seen - true).square().sum((1, 2)) / true.square().sum((1, 2))

    def rounding(self, names: Iterable[str]) -> Tensor:
        """Return the error where only these components round, as far as the model has them."""
        self._run.only({place for name in names for place in self.places.get(name, ())})
        return self._error()

    def keeping(self, *names: str) -> Tensor:
        """Return the error where all components round but these."""
        return self.rounding(name for name in self.places if name not in names)
