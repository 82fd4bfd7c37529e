"""`layerlab inspect`; heavy imports only inside."""

import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from layerlab.cli.arguments.early_checks import check_formats, check_loads, check_measures
from layerlab.cli.arguments.options import DeviceOrAuto, Dtype, Load, Quiet, check_language
from layerlab.console.tables import show, show_json
from layerlab.errors import UserError
from layerlab.known_names import MEASURES
from layerlab.report.figures.export import FigureKind

OUT = Path("layerlab-report")
SAMPLES = 4

TextOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Text to read, - for standard input.")
]
Samples = Annotated[int, typer.Option(help="Samples cut from the text.")]
Context = Annotated[
    int | None, typer.Option(help="Tokens per sample.  [default: 512, or all the model can]")
]


class FailSeverity(StrEnum):
    """The severity from which on a finding fails the command."""

    warning = "warning"
    error = "error"


def inspect(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Hub id, folder, .gguf file, run folder with checkpoint-*, or built-in: pre-norm "
            "(the default), post-norm, llama.",
        ),
    ] = None,
    text: TextOption = None,
    samples: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Samples cut from the text; auto: 4, and for the dimension as many as it needs.",
        ),
    ] = str(SAMPLES),
    context: Context = None,
    measures: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Measures with commas, options in brackets: 'stream,dimension(epsilon=0.9)'.  "
            f"[default: those that cost little]  All: {', '.join(MEASURES)}; what each is: "
            "docs/measures.",
        ),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Number formats to round in, as bf16,fp16,fp8_e4m3 (slow)."
        ),
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="With --formats: errors of gradients too.")
    ] = False,
    saliency: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Show what the next token after this text depends on."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="With --saliency: ask about the word ' this'.  [default: the predicted]",
        ),
    ] = None,
    foil: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="With --saliency: ask, too, why not the word ' that'."),
    ] = None,
    features: Annotated[
        bool, typer.Option("--features", help="Show frequent tokens in three dimensions.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Show which weights make it differ from another checkpoint, as the one that it "
            "was quantized or tuned from. With --weights: how matrices differ, loading neither.",
        ),
    ] = None,
    weights: Annotated[
        bool,
        typer.Option("--weights", help="Look at the weights alone: no text, no forward pass."),
    ] = False,
    device: DeviceOrAuto = None,
    dtype: Dtype = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help=f"Folder for the report.  [default: {OUT}]"),
    ] = None,
    figures: Annotated[
        FigureKind | None,
        typer.Option(help="Also write every picture as a file, for papers, into DIR/figures."),
    ] = None,
    lang: Annotated[
        str,
        typer.Option(
            metavar="CODE",
            callback=check_language,
            help="Language of the page: en, or zh for Chinese; figures and tables stay English.",
        ),
    ] = "en",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print report.json; write files only with --out.")
    ] = False,
    opened: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    fail_on: Annotated[
        FailSeverity | None, typer.Option(help="Exit with 1 if a finding is at least this severe.")
    ] = None,
    load: Load = None,
    quiet: Quiet = False,
) -> None:
    """Show, layer by layer, what is wrong inside language models.

    Type the same again to resume.
    """
    from layerlab.loading.folders import check_found
    from layerlab.loading.options import check_lengths, check_unread, parse_samples
    from layerlab.loading.text_input import read_text
    from layerlab.measures.questions import check_backward
    from layerlab.report.results.folder import check_folder

    folder = out or (None if as_json else OUT)
    before = None if folder is None else check_folder(folder)
    if opened and folder is None:
        raise UserError("--open shows a page that --json does not write; give --out DIR as well")
    if figures is not None:
        _check_figures(figures.value, folder)
    counted = parse_samples(samples)
    check_lengths(context=context)
    unread = {"--text": text, "--context": context, "--formats": formats}
    unread |= {"--saliency": saliency, "--features": features}
    unread |= {"--device": device, "--dtype": dtype}
    if weights:
        check_unread(unread)
    check_formats(formats)
    check_backward(formats, backward)
    check_loads(load)
    if not load:
        check_measures(measures, weights=weights, text=saliency, target=target, foil=foil)
    check_found([*(models or ()), *([] if against is None else [against])])
    read: Any = None if weights else read_text(text, samples=counted, context=context)

    # Late: it needs torch, and what is refused above does not.
    from layerlab.api.inspect import inspect
    from layerlab.measures.kept_readings import keep_readings

    with keep_readings(typed=True):
        report = inspect(
            models or None,
            texts=read,
            measures=measures,
            device=device,
            dtype=dtype,
            formats=formats,
            backward=backward,
            saliency=saliency,
            target=target,
            foil=foil,
            features=features,
            against=against,
            weights=weights,
            load=load or (),
            progress=not quiet,
        )
        if folder is not None:
            drawn = None if figures is None else figures.value
            report.save(folder, figures=drawn, lang=lang, before=before)
    _show(report, as_json)
    if opened and folder is not None:
        webbrowser.open((folder / "report.html").resolve().as_uri())
    if fail_on is not None:
        from layerlab.report.findings.find import exceeds

        if exceeds(report.findings, fail_on.value):
            raise typer.Exit(1)


def _check_figures(kind: str, folder: Path | None) -> None:
    from layerlab.report.figures.export import check_drawing

    if folder is None:
        raise UserError(
            f"--figures {kind} writes files that --json does not; give --out DIR as well"
        )
    check_drawing(kind)


def _show(report: Any, as_json: bool) -> None:
    if as_json:
        show_json(report.to_json())
    else:
        show(report.table())
