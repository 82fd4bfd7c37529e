"""What a run cannot do, told when it is planned, before anything of it starts."""

from layerlab import UserError
from layerlab.training.recipe import Recipe
from layerlab.training.schedule import warmup_of


def permit(recipe: Recipe) -> None:
    """Refuse a run that could only fail, or that would not be what its recipe says.

    Raises:
        UserError: rows that cannot be split, sharding of nothing, a setting that needs whole
            weights in every process, or a warm-up that leaves nothing of the run.
    """
    _rising(recipe)
    settings, batch = recipe.run, recipe.train.batch
    if batch % settings.processes:
        raise UserError(
            f"train.batch is {batch}, which {settings.processes} processes cannot share evenly; "
            f"write batch = {settings.processes * (batch // settings.processes + 1)}"
        )
    if settings.sharding == "none":
        return
    if settings.processes == 1:
        raise UserError(
            'run.sharding is "fsdp" and run.processes is 1: nothing can be shared out; '
            'write processes = 2 or sharding = "none"'
        )
    for name in ("monitor", "control", "emulate"):
        if getattr(recipe, name) != type(getattr(recipe, name))():
            raise UserError(
                f'[{name}] reads whole weights, and run.sharding = "fsdp" leaves a part in each '
                f'process; leave [{name}] out, or write sharding = "none"'
            )


def _rising(recipe: Recipe) -> None:
    train = recipe.train
    if train.updates is not None and 0 < train.updates <= warmup_of(train.updates, train):
        raise UserError(
            f"train.warmup is {train.warmup:g}, and the run has {train.updates} updates, in all of "
            "which the rate would rise; write warmup = 0.05, a share of the run, or a longer run"
        )
