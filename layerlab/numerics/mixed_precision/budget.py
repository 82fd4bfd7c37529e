"""The share of an error that a policy may leave, checked without torch."""

from layerlab.errors import UserError


def check_budget(budget: float | None) -> None:
    """Refuse a budget that is no share of an error; None is no budget.

    Raises:
        UserError: it is not between 0 and 1.
    """
    if budget is not None and not 0 < budget < 1:
        raise UserError(
            f"budget={budget} is no share of the squared error; type a number between 0 and 1, such"
            " as 0.3"
        )
