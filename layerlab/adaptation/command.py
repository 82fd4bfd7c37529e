"""`layerlab adapt`: the stages of adapting a model, one command each; heavy imports only inside."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from layerlab.adaptation.cleaning_command import catalogue, clean, contamination
from layerlab.adaptation.embedding_command import embed

DEFAULT = "recipe"


class Stages(TyperGroup):
    """A group whose first word is a stage, or else what the command `recipe` is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a word, recipes are listed."""
        return super().parse_args(ctx, args or [DEFAULT])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that a line of words means."""
        meant = DEFAULT in self.commands and args[0] not in self.commands
        return super().resolve_command(ctx, [DEFAULT, *args] if meant else args)


adapt = typer.Typer(
    cls=Stages,
    help="Adapt a model to a domain: all stages of a recipe (RECIPE.toml or its name), or one.",
    rich_markup_mode=None,
)


@adapt.command()
def vocabulary(
    tokenizer: Annotated[
        str, typer.Option(metavar="T", help="A folder, tokenizer.json, .model, or Hub name.")
    ],
    corpus: Annotated[
        list[str],
        typer.Option(metavar="FILE", help="Text of the domain, or a folder; may be repeated."),
    ],
    size: Annotated[str, typer.Option(metavar="+N|V", help="Add N entries, or cut down to V.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for tokenizer and proof.")],
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Other text to prove it on; or jec-qa; may be repeated."),
    ] = None,
    terms: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Expressions of the domain, one a line.")
    ] = None,
    field: Annotated[str, typer.Option(help="Of a row that holds the text.")] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Print proof.json.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on the way.")] = False,
) -> None:
    """Extend a tokenizer on a domain's text, or cut it down to what the text needs; prove it."""
    from rich.console import Console

    from layerlab.adaptation.drawing import drawn
    from layerlab.adaptation.tokenizer import PROOF, Asked, change

    asked = Asked(
        tokenizer=tokenizer,
        size=size,
        corpus=tuple(corpus),
        against=tuple(against or ()),
        terms=terms,
        field=field,
    )
    changed = change(asked, out, (lambda text: None) if quiet else _say)
    if as_json:
        sys.stdout.write((out / PROOF).read_text("utf-8"))
    else:
        console = Console(markup=False, highlight=False)
        console.print(drawn(changed.proof, console.width))
        typer.echo(f"The tokenizer and its proof: {out}")
    if not changed.proof.holds:
        raise typer.Exit(1)


adapt.command()(embed)
for stage in (clean, contamination, catalogue):
    adapt.command()(stage)


def _say(text: str) -> None:
    plain = "".join(one if one.isprintable() else " " for one in text)
    typer.echo(plain, err=True)
