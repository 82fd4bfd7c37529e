"""The loss of the routers of a mixture of experts, beside a stage's own."""

from typing import Any

from torch import Tensor

from layerlab.observe.architecture.structure import text_config

# What models of transformers call its weight.
WEIGHTS = ("router_aux_loss_coef", "aux_loss_coef")


def weigh_router_loss(model: Any, outputs: Any, share: Tensor | float) -> Tensor | float:
    """Return what some rows add to an update's loss for the routers, as the model itself would.

    A model has it where its configuration asks for it (`output_router_logits`), 0 is returned where
    it has none. It is a mean over tokens: rows count by their share, so that an update does not
    depend on how it is split.

    Args:
        model: of transformers or layerlab, which PEFT may have wrapped.
        outputs: of the model for these rows.
        share: of these rows in the update.
    """
    found = getattr(outputs, "aux_loss", None)
    if found is None:
        return 0.0
    base_model = model.get_base_model() if hasattr(model, "get_base_model") else model
    holders = (base_model, text_config(base_model))
    named = (getattr(holder, name, None) for holder in holders for name in WEIGHTS)
    weight = next((one for one in named if one is not None), 0.0)
    return weight * found * share
