"""`layerlab adapt`: all stages of a recipe, or one command each; heavy imports only inside."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from layerlab.cli.adapt.data import catalogue, clean, contamination, name_today
from layerlab.cli.adapt.embeddings import embed
from layerlab.cli.adapt.tokenizer import vocabulary
from layerlab.cli.arguments.early_checks import check_loads
from layerlab.cli.arguments.options import AsJson, Lang, Load, Quiet, RecipeArgument
from layerlab.cli.arguments.recipe_checks import check_adaptation
from layerlab.cli.train import KEPT, SetOption, read_settings
from layerlab.console.tables import show, show_result
from layerlab.data.archives import limit_archives
from layerlab.system.signals import explain_interruption
from layerlab.system.untrusted.trust import trustable

DEFAULT = "recipe"


class Stages(TyperGroup):
    """A group whose first word is a stage, or else what the command `recipe` is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """List the recipes where no word is typed; an option that comes first is a recipe's."""
        option = args and args[0].startswith("-") and args[0] not in ctx.help_option_names
        meant = (option or not args) and not ctx.resilient_parsing
        return super().parse_args(ctx, [DEFAULT, *args] if meant else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that a line of words means."""
        meant = DEFAULT in self.commands and args[0] not in self.commands
        return super().resolve_command(ctx, [DEFAULT, *args] if meant else args)


adapt = typer.Typer(
    cls=Stages,
    help="Adapt a model to a domain: one stage, or all of a recipe.\n\n"
    "layerlab adapt RECIPE runs a recipe; layerlab adapt lists those of the package.",
    rich_markup_mode=None,
)


adapt.command()(trustable(embed))
adapt.command(context_settings={"token_normalize_func": name_today})(limit_archives(clean))
for stage in (limit_archives(contamination), catalogue):
    adapt.command()(stage)
adapt.command()(limit_archives(trustable(vocabulary)))

OUT = Path("layerlab-adaptations")


@adapt.command(DEFAULT)
@limit_archives
@trustable
def carry_out(
    recipe: RecipeArgument = None,
    settings: SetOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of all recipes' stages.")] = OUT,
    planned: Annotated[
        bool, typer.Option("--plan", help="Print stages, tokens, time, what is finished; run none.")
    ] = False,
    load: Load = None,
    lang: Lang = "en",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run all stages of a recipe and report what changed.

    Type the same again to resume.
    """
    if recipe is None:
        _catalogue()
        return
    from layerlab.recipes.adaptation import load_adaptation

    read, changes = load_adaptation(recipe), read_settings(settings or ())
    read = read.change(changes) if changes else read
    check_loads(load)
    if not planned:
        check_adaptation(read)

    # Late: it needs torch, and what is refused above does not.
    from layerlab.api import adapt as pipeline

    found = pipeline.plan_adaptation(read, out, lang=lang, load=load or (), strict=not planned)
    if planned:
        expected = pipeline.estimate_stages(found)
        show_result(expected, as_json, expected.table())
        return
    with explain_interruption(KEPT):
        adapted = pipeline.run_adaptation(found, progress=not quiet)
    show_result(adapted.content, as_json, adapted.table, f"The page: {adapted.page}")


def _catalogue() -> None:
    """List names and purposes of the packaged recipes."""
    from rich.table import Table
    from rich.text import Text

    from layerlab.recipes.adaptation import list_packaged, load_adaptation

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("recipe", "for"):
        table.add_column(heading)
    for name in list_packaged():
        table.add_row(Text(name, style="bold", no_wrap=True), Text(load_adaptation(name).about))
    show(table)
