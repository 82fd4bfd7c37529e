"""`layerlab precision`: which operations to keep in float32; heavy imports only inside."""

from pathlib import Path
from typing import Annotated, Any

import typer

from layerlab.cli.arguments.early_checks import check_loads
from layerlab.cli.arguments.options import AsJson, Device, Dtype, Load, ModelOrDefault, Quiet
from layerlab.cli.inspect import SAMPLES, Context, Samples, TextOption
from layerlab.console.tables import say, show_result


def precision(
    model: ModelOrDefault = None,
    format: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Number format of what is not kept: bf16, fp16, fp8_e4m3, ..."
        ),
    ] = "bf16",
    budget: Annotated[
        float, typer.Option(help="Share of the squared error of the logits that may be left.")
    ] = 0.3,
    text: TextOption = None,
    samples: Samples = SAMPLES,
    context: Context = None,
    device: Device = None,
    dtype: Dtype = None,
    load: Load = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the policy, as TOML.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a policy that is there.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find which operations to keep in float32, and verify it."""
    from layerlab.loading.folders import check_found
    from layerlab.loading.text_input import read_text
    from layerlab.numerics.emulation.policies.policy import check_place
    from layerlab.numerics.mixed_precision.request import check_request

    if out is not None:
        check_place(out, overwrite)
    check_request(format, budget)
    check_loads(load)
    check_found([] if model is None else [model])
    asked: dict[str, Any] = {"device": device, "dtype": dtype, "load": load or ()}
    asked["texts"] = read_text(text, samples=samples, context=context)
    # Late: it needs torch, and what is refused above does not.
    from layerlab.api.precision import precision as find_policy

    advice = find_policy(model, format, budget, progress=not quiet, **asked)
    show_result(advice, as_json, advice.summary(out), indent=2)
    if out is not None:
        advice.policy.save(out, overwrite=overwrite)
    if not advice.reached:
        say(f"layerlab: {advice.shortfall}", err=True)
        raise typer.Exit(1)
