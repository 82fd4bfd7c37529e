"""`layerlab adapt`: the stages of adapting a model, one command each; heavy imports only inside."""

from typing import Any

import typer
from typer.core import TyperGroup

from layerlab.cli.adapt_data import catalogue, clean, contamination
from layerlab.cli.adapt_embeddings import embed
from layerlab.data.archives import limit_archives
from layerlab.system.trust import trustable

DEFAULT = "recipe"


class Stages(TyperGroup):
    """A command group: a first word that is no stage goes to the command `recipe`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """List the recipes where no argument is given."""
        return super().parse_args(ctx, args or [DEFAULT])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name."""
        meant = DEFAULT in self.commands and args[0] not in self.commands
        return super().resolve_command(ctx, [DEFAULT, *args] if meant else args)


adapt = typer.Typer(
    cls=Stages,
    help="Adapt a model to a domain: all stages of a recipe (RECIPE.toml or its name), or one.",
    rich_markup_mode=None,
)


adapt.command()(trustable(embed))
for stage in (limit_archives(clean), limit_archives(contamination), catalogue):
    adapt.command()(stage)
