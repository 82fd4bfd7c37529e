"""Options that several commands share, each declared once."""

from pathlib import Path
from typing import Annotated

import typer

from layerlab.loading.options import check_device, check_dtype

Device = Annotated[
    str | None, typer.Option(callback=check_device, help="cpu, cuda, cuda:N or mps.")
]
DeviceOrAuto = Annotated[
    str | None,
    typer.Option(
        callback=check_device,
        help="cpu, cuda, cuda:N, mps, or auto to spread a large model; if left out, a GPU for what "
        "is large and fits there, else the processor.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        callback=check_dtype, help="float32, float64, bfloat16, float16; else as config.json says."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def check_language(code: str) -> str:
    """Return the code of a language that pages are written in; another is refused at once."""
    from layerlab.report.i18n.language import language

    language(code)
    return code


Lang = Annotated[
    str,
    typer.Option(
        metavar="CODE",
        callback=check_language,
        help="Language of the page: en, or zh for Chinese.",
    ),
]
Load = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Python file with variants or measures of your own; may be repeated.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
MODELS = "Hub id, local folder, .gguf file, or built-in name."
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODELS)]
RecipeArgument = Annotated[
    str | None,
    typer.Argument(metavar="RECIPE", help="A TOML file, or a name; the list if left out."),
]
FieldOption = Annotated[str, typer.Option(help="Column that holds the text of a row.")]
ModelOrDefault = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="Hub id, folder, .gguf file, or built-in.  [default: pre-norm]"
    ),
]

# Where logs of other trainers have what is judged.
ArmOption = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="What a run tries; its path if left out.")
]
SeedOption = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="What tells the runs of an arm apart.")
]
StepOption = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="What readings are ordered by.")
]
LineOption = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="How plain text has its numbers: 'step (?P<step>\\d+).*loss (?P<loss>\\S+)'; where "
        "step and loss stand in lines of their own, an expression for each with | between.",
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="How paths of logs name a run: '(?P<arm>[^/]+)-seed(?P<seed>\\d+)'.",
    ),
]
LossOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="What is judged: a loss, or a score; COLUMN=lower or COLUMN=higher says what is "
        "better.",
    ),
]
LastOption = Annotated[int, typer.Option(metavar="K", help="Judge the mean of K readings.")]
AtOption = Annotated[
    float | None, typer.Option(metavar="STEP", help="Judge there; at the end if left out.")
]
