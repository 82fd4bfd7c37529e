"""Options that several commands share, each declared once."""

from pathlib import Path
from typing import Annotated

import typer

from layerlab.loading.options import check_device, check_dtype

Device = Annotated[
    str | None, typer.Option(callback=check_device, help="cpu, cuda, cuda:N or mps.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        callback=check_dtype, help="float32, float64, bfloat16 or float16; else as stored."
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
    typer.Option(metavar="REGEX", help="Lines of a text, with groups step and loss."),
]
NameOption = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Paths of logs, with groups arm and seed."),
]
