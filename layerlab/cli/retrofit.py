"""`layerlab retrofit`: a trained model rebuilt as a variant; heavy imports only inside."""

from pathlib import Path
from typing import Annotated

import typer

from layerlab.cli.arguments.early_checks import check_loads
from layerlab.cli.arguments.options import Device, Dtype, Load, ModelArgument
from layerlab.console.tables import say


def retrofit(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the rebuilt model.")],
    variant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A variant, as layerlab variants lists them.  [default: what it is already]",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option: shortcut.r=16; may be repeated."),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**32 - 1, help="Seed for weights that the model does not have."),
    ] = 0,
    device: Device = None,
    dtype: Dtype = None,
    load: Load = None,
) -> None:
    """Rebuild a pretrained model as a variant, with its weights.

    The model is a Llama, Mistral, Qwen, GPT-2 or GPT-1.
    """
    from layerlab.loading.folders import check_found
    from layerlab.model.preset import check_named
    from layerlab.model.typed_options import check_options, parse_options
    from layerlab.system.files import check_folder

    before = check_folder(out, "model")
    check_loads(load)
    options = parse_options(option or ())
    if not load:
        check_named([] if variant is None else [variant])
        check_options(options)
    check_found([model])
    # Late: these need torch, and what is refused above does not.
    from layerlab import plugins
    from layerlab.api.retrofit import rework

    plugins.load_files(load or (), [model])

    target = {"device": device, "dtype": dtype}
    say(rework(model, variant, options, out=out, before=before, seed=seed, **target))
