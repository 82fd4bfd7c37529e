"""Checks of a search for a policy: format and budget, without torch."""

from layerlab.errors import UserError
from layerlab.numerics.formats.formats import SINGLE, Format, find


def check_request(format: str, budget: float | None = None) -> str:
    """Check that a policy can be searched for in this format within this budget.

    Raises:
        UserError: no such format, one in which there is nothing to keep, or a budget that is no
            share.
    """
    if budget is not None and not 0 < budget < 1:
        raise UserError(
            f"budget is {budget}; expected a share of the squared error, between 0 and 1: type "
            "budget=0.3"
        )
    found = find(format)
    # In tf32 only the factors of products are short, and results are float32.
    wide = isinstance(found, Format) and (found.digits >= SINGLE or found.name == "tf32")
    if wide:
        raise UserError(
            f"a model in {format} is in float32 already: there is nothing to keep; name a"
            " format with fewer digits, such as bf16"
        )
    return found.name
