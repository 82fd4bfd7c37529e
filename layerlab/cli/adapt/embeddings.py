"""`layerlab adapt embed`: a model with another tokenizer; heavy imports only inside."""

from pathlib import Path
from typing import Annotated, Any

import typer

from layerlab.cli.arguments.early_checks import check_loads
from layerlab.cli.arguments.options import AsJson, Device, Dtype, Load, ModelArgument, Quiet
from layerlab.console.tables import show_result


def embed(
    model: ModelArgument,
    tokenizer: Annotated[
        str, typer.Option(metavar="DIR", help="The new one, as layerlab adapt vocabulary makes it.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder for model and tokenizer; what an earlier call left there goes.",
        ),
    ],
    input: Annotated[
        str,
        typer.Option(
            help="Initialisation of new embedding rows: mean, mean-resizing, first or random."
        ),
    ] = "mean",
    head: Annotated[
        str,
        typer.Option(help="Initialisation of new head rows; a tied head follows the embedding."),
    ] = "mean-resizing",
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Text to compare initialisations on; may be repeated.  [default: built-in]",
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens per window.  [default: all the model can, to 1024]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of random rows.")] = 0,
    device: Device = None,
    dtype: Dtype = None,
    load: Load = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Give a model another tokenizer; compare initialisations."""
    check_loads(load)
    from layerlab.api.stages.adaptation import embed_tokenizer

    done = embed_tokenizer(
        model,
        tokenizer,
        out,
        input=input,
        head=head,
        text=text,
        context=context,
        seed=seed,
        device=device,
        dtype=dtype,
        load=load or (),
        progress=not quiet,
    )
    summary = f"{done.resized.summary()}\nThe model: {out}"
    show_result(done, as_json, lambda width: _table(done, width), summary)


def _table(done: Any, width: int) -> Any:
    """Return a row for the base and for each initialisation; the last one is kept."""
    from rich.console import Group
    from rich.text import Text

    from layerlab.console.tables import grids, plain

    names = list(done.before)
    rows: list[Any] = [["before", *(_bits(done.before[name]) for name in names)]]
    legend = []
    for number, way in enumerate(done.ways, 1):
        cells = (_bits(way.bits[name], done.before[name]) for name in names)
        rows.append([str(number), *cells])
        legend.append(Text(f"{number}: input {way.input}, head {way.head}"))
    rows[-1] = [plain(cell, "bold") for cell in rows[-1]]
    headings = ("start", *(f"bits per byte, {name}" for name in names))
    legend += map(Text, [_explain_choice(done), *_losses(done)])
    return Group(grids(headings, rows, headings[:1], width), *legend)


def _explain_choice(done: Any) -> str:
    """Say which initialisation is kept and why, and which has the fewest bits per byte."""
    if len(done.ways) == 1:
        return "kept: 1, the only one: the new tokenizer has no token that would need a start"
    kept = f"kept: {len(done.ways)}, the default, or what --input and --head ask for"
    fewest = []
    for name in done.before:
        if done.ways[0].bits[name].bits_per_byte is None:  # of all: they share a tokenizer
            continue
        best = min(range(len(done.ways)), key=lambda at: done.ways[at].bits[name].bits_per_byte)
        fewest.append(f"{best + 1} on {name}")
    sentence = f"{kept}; these numbers, of before any training, do not choose"
    return f"{sentence}. Fewest bits per byte: {', '.join(fewest)}" if fewest else sentence


def _losses(done: Any) -> list[str]:
    """Say which texts have no bits per byte, and why."""
    from layerlab.tokenization.round_trip import describe_loss

    return [
        describe_loss(f"{name} ({whose} tokenizer)", one.loss)
        for whose, found in (("base", done.before), ("new", done.ways[-1].bits))
        for name, one in found.items()
        if one.bits_per_byte is None
    ]


def _bits(one: Any, before: Any = None) -> str:
    if one.bits_per_byte is None:
        return "-"
    comparable = before is not None and before.bits_per_byte is not None
    change = f" ({one.bits_per_byte - before.bits_per_byte:+.3f})" if comparable else ""
    return f"{one.bits_per_byte:.3f}{change}"
