"""`layerlab gap`; heavy imports only inside."""

from typing import Annotated, Any

import typer

from layerlab.cli.early_checks import check_loads
from layerlab.cli.inspect import SAMPLES, Context, Samples, TextOption
from layerlab.cli.options import AsJson, Device, Dtype, Load, Quiet
from layerlab.console.tables import say_wrapped, show_json


def gap(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Hub id, folder, or built-in.  [default: pre-norm]"),
    ] = None,
    a: Annotated[
        str,
        typer.Option(
            "--a", metavar="PROFILE", help="How the trainer computes: a name or a TOML file."
        ),
    ] = "torch-eager",
    b: Annotated[
        str,
        typer.Option(
            "--b", metavar="PROFILE", help="How the engine computes that drew the tokens."
        ),
    ] = "torch-sdpa",
    profiles: Annotated[
        bool, typer.Option("--profiles", help="List the profiles that layerlab knows.")
    ] = False,
    text: TextOption = None,
    samples: Samples = SAMPLES,
    context: Context = None,
    device: Device = None,
    dtype: Dtype = None,
    load: Load = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find which operations make two runs of one model disagree."""
    from layerlab.loading.folders import check_found
    from layerlab.loading.text_input import read_file, sample
    from layerlab.numerics.profiles.profile import list_profiles, load_profile

    if profiles:
        known = [load_profile(name) for name in list_profiles()]
        if as_json:
            show_json([one.to_json() for one in known])
        else:
            say_wrapped("\n".join(f"{one.name:<16}  {one.described}" for one in known))
        return
    pair = load_profile(a), load_profile(b)
    check_loads(load)
    check_found([] if model is None else [model])
    sizes = {"samples": samples, "context": context}
    passage = sample(**sizes) if text is None else read_file(text, **sizes)
    # Late: these need torch, and what is refused above does not.
    from layerlab import plugins

    plugins.load_files(load or (), [model] if model else ())
    from layerlab.api.gap import GapRequest, answer_gap
    from layerlab.builtin import DEFAULT

    asked: dict[str, Any] = {"a": pair[0], "b": pair[1], "device": device, "dtype": dtype}
    found = answer_gap(
        GapRequest(model=model or DEFAULT, passage=passage, **asked), progress=not quiet
    )
    if as_json:
        show_json(found.to_json())
    else:
        say_wrapped(str(found))
