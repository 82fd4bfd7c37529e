"""`layerlab variants`: the blocks that can be built; heavy imports only inside."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from layerlab.cli.arguments.early_checks import check_loads
from layerlab.cli.arguments.options import AsJson, Load
from layerlab.console.tables import say, show_result


class Way(StrEnum):
    """The size by which two variants are matched."""

    ffn = "ffn"
    depth = "depth"
    width = "width"
    none = "none"


def variants(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="One variant or preset for its card, several for a table of them, none for all.",
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Features per token.  [default: 256]")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers.  [default: 6]")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.  [default: 4]")] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Heads of keys and values.  [default: as many]")
    ] = None,
    inner: Annotated[
        int | None,
        typer.Option(help="Features of the feed-forward.  [default: the variant's share]"),
    ] = None,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary.  [default: 8192]")] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of a full context.  [default: 256]")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Sizes of a preset, as pangu-pi-1b.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="An option: head=tied, shortcut.r=16; may be repeated."
        ),
    ] = None,
    match: Annotated[
        Way | None,
        typer.Option(help="Resize the variant until it has as many parameters as its baseline."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --match: a variant to match, not the baseline."),
    ] = None,
    costs: Annotated[
        bool, typer.Option("--costs", help="Parameters, FLOPs and memory of each, in a table.")
    ] = False,
    as_json: AsJson = False,
    load: Load = None,
    new: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a variant of your own to start from."),
    ] = None,
) -> None:
    """Show what can be built: equation, source, options, costs."""
    if new is not None:
        import shlex

        from layerlab.variants.template import name_variant, write_template

        write_template(new)
        load_it = f"--load {shlex.quote(str(new))}"
        say(f"wrote {new}; type: layerlab variants {name_variant(new)} {load_it}")
        return
    from layerlab.model.preset import check_named, check_sizes
    from layerlab.model.typed_options import check_match, check_options, parse_options

    sizes = {
        "width": width,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "inner": inner,
        "vocab": vocab,
        "context": context,
    }
    check_loads(load)
    options = parse_options(option or ())
    check_match(names or (), match, against)
    check_sizes(names or (), preset, sizes)
    if not load:
        check_named([*(names or ()), *([] if against is None else [against])])
        check_options(options)
    # Late: these need torch, and what is refused above does not.
    from layerlab import plugins
    from layerlab.model.listing.listing import request

    plugins.load_files(load or ())
    wanted = request(
        names or [],
        sizes=sizes,
        preset=preset,
        options=options,
        by=None if match is None else match.value,
        against=against,
    )
    drawn = wanted.render_costs if costs or names else wanted.render
    show_result(wanted, as_json, drawn, indent=2)
