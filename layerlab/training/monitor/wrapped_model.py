"""The language model that a loop trains, inside of whatever wraps it."""

from torch import nn
from transformers import PreTrainedModel

from layerlab.errors import NotApplicable, UserError
from layerlab.observe.architecture.structure import ModelStructure, anatomy


def unwrap_model(model: nn.Module) -> tuple[PreTrainedModel, list[nn.Module]]:
    """Return the model inside DDP, torch.compile or PEFT, with every wrapper around it.

    Raises:
        UserError: there is none of transformers.
    """
    faces = [model]
    while not isinstance(inner := faces[-1], PreTrainedModel):
        names = ("_orig_mod", "module", "base_model", "model")
        found = (getattr(inner, name, None) for name in names)
        following = next((one for one in found if isinstance(one, nn.Module)), None)
        if following is None:
            raise UserError(
                f"given a {type(model).__name__}; a monitor reads a causal language model of "
                "transformers, plain or wrapped: type Monitor(model)"
            )
        faces.append(following)
    return inner, faces


def find_parts(model: PreTrainedModel) -> ModelStructure:
    """Return the blocks and the attention of a model.

    Raises:
        UserError: it has none, or its beginning cannot be read alone.
    """
    try:
        found = anatomy(model)
        causal = [getattr(part.module, "is_causal", True) for part in found.attentions]
        if causal and not any(causal):  # a beginning is then not computed as if it stood alone
            raise NotApplicable("its attention reads later tokens, too")
    except NotApplicable as reason:
        raise UserError(
            f"{type(model).__name__} cannot be monitored, because {reason}; expected a causal "
            "language model of transformers: type Monitor(model)"
        ) from reason
    return found
