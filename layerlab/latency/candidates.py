"""Models to be timed: a saved one, or a variant at any size with weights at random."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from layerlab import builtin
from layerlab.errors import UserError
from layerlab.latency.config import LatencyConfig
from layerlab.loading.model import load_model
from layerlab.model.build import assemble
from layerlab.model.cost.cost import Account, account
from layerlab.model.design import SIZES, Design, design
from layerlab.model.preset import presets
from layerlab.model.typed_options import parse_settings
from layerlab.observe.architecture.structure import context_length
from layerlab.validation import short_repr
from layerlab.variants.registry import variants


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The models that were named.

    Attributes:
        name: how a table calls it.
        design: of a variant; None for a saved model.
    """

    name: str
    design: Design | None = None

    @property
    def random(self) -> bool:
        """Return whether the weights are drawn at random."""
        return self.design is not None

    def account(self) -> Account | None:
        """Return the cost of a model before it is built; None for a saved model."""
        return None if self.design is None else account(self.design.spec, self.design.shape)


def build_candidate(given: str) -> Candidate:
    """Build what a name on the command line stands for.

    Args:
        given: a model as elsewhere, or a variant or a preset that no model is called after, alone
            or with sizes and options: pangu-pi:width=1024,layers=12,vocab=32000.

    Raises:
        UserError: sizes that do not fit, or an option that the variant does not take.
    """
    name, _, settings = given.partition(":")
    known = name in presets() or name in variants()
    if not known or Path(given).is_dir() or given in builtin.NAMES:
        return Candidate(name=given)
    options = parse_settings(name, settings)
    sizes = {size: options.pop(size) for size in SIZES if size in options}
    return Candidate(name=given, design=design(name, sizes=sizes, options=options))


def load_candidate(one: Candidate, setting: LatencyConfig) -> Any:
    """Load a model as the setting says, on the device that it names.

    Raises:
        UserError: it cannot be loaded, does not fit into memory, or has too short a context.
    """
    if one.design is None:
        model = load_model(one.name, device=setting.device, dtype=setting.kind).model
        if any(weight.is_meta for weight in model.parameters()):
            raise UserError(
                f"{one.name} does not fit into memory, and from disk its time would be the disk's; "
                "name a smaller model, or type --dtype bfloat16"
            )
    else:
        found = one.design
        longest = max(found.shape.context, setting.tokens)
        shape = replace(found.shape, context=longest)
        with _precision(setting.dtype):
            model = assemble(found.variant.name, found.spec, shape, device=setting.device)
    _check_context(one, model, setting)
    return model.eval()


def _check_context(one: Candidate, model: Any, setting: LatencyConfig) -> None:
    most = context_length(model)
    if most is not None and setting.tokens > most:
        raise UserError(
            f"{short_repr(one.name)} knows {most} positions, and a context of {setting.context} "
            f"with {setting.new} new tokens takes {setting.tokens}; type --context "
            f"{max(1, most - setting.new)}"
        )


@contextmanager
def _precision(kind: torch.dtype) -> Iterator[None]:
    """Give new parameters this number format, until the context ends."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
