"""`layerlab gap`; heavy imports only inside."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from layerlab.cli.arguments.early_checks import check_loads
from layerlab.cli.arguments.options import AsJson, Device, Dtype, Load, ModelOrDefault, Quiet
from layerlab.cli.inspect import SAMPLES, Context, TextOption
from layerlab.console.tables import show_result
from layerlab.errors import UserError


def gap(
    model: ModelOrDefault = None,
    a: Annotated[
        str,
        typer.Option(
            "--a", metavar="PROFILE", help="How the trainer computes: a name or a TOML file."
        ),
    ] = "torch-eager",
    b: Annotated[
        str | None,
        typer.Option(
            "--b",
            metavar="PROFILE",
            help="How the engine computes that drew the tokens.  [default: torch-sdpa, or all "
            "with --logprobs]",
        ),
    ] = None,
    logprobs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What an engine recorded in place of b: JSON lines of token ids and "
            "log-probabilities, or what vLLM, SGLang and OpenAI-type servers return.",
        ),
    ] = None,
    profiles: Annotated[
        bool, typer.Option("--profiles", help="List the profiles that layerlab knows.")
    ] = False,
    text: TextOption = None,
    samples: Annotated[
        int | None, typer.Option(help=f"Samples cut from the text.  [default: {SAMPLES}]")
    ] = None,
    context: Context = None,
    device: Device = None,
    dtype: Dtype = None,
    load: Load = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find which operations make two runs of one model disagree."""
    from layerlab.loading.folders import check_found
    from layerlab.loading.text_input import read_text
    from layerlab.numerics.profiles.profile import list_profiles, load_profile

    if profiles:
        loaded = [load_profile(name) for name in list_profiles()]
        lines = "\n".join(f"{one.name:<16}  {one.summary}" for one in loaded)
        show_result([one.to_dict() for one in loaded], as_json, lines)
        return
    asked: dict[str, Any] = {"a": load_profile(a), "b": None if b is None else load_profile(b)}
    if logprobs is not None:
        check_record(logprobs, {"text": text, "samples": samples, "context": context})
    check_loads(load)
    check_found([] if model is None else [model])
    counted = SAMPLES if samples is None else samples
    texts = None if logprobs is not None else read_text(text, samples=counted, context=context)
    # Late: it needs torch, and what is refused above does not.
    from layerlab.api import gap as function

    asked |= {"logprobs": logprobs, "texts": texts, "load": load or (), "progress": not quiet}
    found = function.gap(model, device=device, dtype=dtype, **asked)
    show_result(found, as_json, str(found))


def check_record(path: Path, given: Mapping[str, Any]) -> None:
    """Refuse a record that is not there, or one with another text.

    Raises:
        UserError: so it is.
    """
    names = [f"--{name}" for name, value in given.items() if value is not None]
    if names:
        raise UserError(
            f"--logprobs brings the tokens that it was recorded of; leave {names[0]} out"
        )
    if path.is_dir():
        raise UserError(f"--logprobs {path} is a folder; name the file in it, with a record a line")
    if not path.is_file():
        raise UserError(f"--logprobs {path}: no such file; name one with a record a line")
