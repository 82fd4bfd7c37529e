"""`layerlab study`: the list, or one study with its verdict; heavy imports only inside."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from layerlab.cli.arguments.options import DeviceOrAuto, Dtype, Lang, Quiet
from layerlab.console.tables import plain, show, show_json
from layerlab.errors import UserError
from layerlab.known_names import FIXED, OF_MODELS, STUDIES, refuse_models, unknown_study
from layerlab.known_options import STUDIES as STUDY_OPTIONS
from layerlab.known_options import check_settings, check_study
from layerlab.loading.folders import check_found
from layerlab.loading.options import is_random
from layerlab.report.figures.export import FigureKind
from layerlab.report.results.folder import check_folder
from layerlab.system.signals import explain_interruption

OUT = Path("layerlab-studies")
RUNS = Path("layerlab-runs")
# What has an option of its own on the command line.
SETTINGS = {
    "name",
    "draws",
    "seed",
    "out",
    "runs",
    "threads",
    "fast",
    "restart",
    "progress",
    "figures",
    "lang",
    "model",
    "text",
    "dtype",
}


def study(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="One study; the list of them if left out."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every study in turn, and a page of what holds.")
    ] = False,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Few draws; run no recipe, judge the runs there are."),
    ] = False,
    runs: Annotated[
        Path, typer.Option(metavar="DIR", help="Training runs, each recipe in a folder of its own.")
    ] = RUNS,
    draws: Annotated[
        int | None, typer.Option(help="Random initialisations.  [default: as many as the source]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option: norm=rms; may be repeated."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Model to read in place of the built-in ones: Hub id, folder, built-in, or a "
            "variant or preset at random with a colon, as gpt2-large: (may be repeated). Studies "
            "that take one: docs/studies.md.",
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text that it reads, - for standard input.")
    ] = None,
    device: DeviceOrAuto = None,
    dtype: Dtype = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Batches computed at once.  [default: one per physical core]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help=f"Folder for the result.  [default: {OUT}/NAME; {OUT} of all]"
        ),
    ] = None,
    figures: Annotated[
        FigureKind | None, typer.Option(help="Pictures as files in this format, for papers.")
    ] = None,
    lang: Lang = "en",
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what an earlier run has finished.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print study.json as well.")] = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce one figure, table or claim of a source, and judge it."""
    if name is None and not every:
        _refuse_settings(out, draws, option, fast, figures, model, text, device, dtype)
        show(_catalogue())
        return
    if not every and name not in STUDIES:
        raise unknown_study(str(name), STUDIES)
    if every:
        _refuse_choice(name, draws, option, as_json, model, text, device, dtype)
    options = read_options(option or ())
    check_study(str(name), options, STUDY_OPTIONS.get(str(name), {}))
    own_device = "device" in STUDY_OPTIONS.get(str(name), {})
    if (
        name is not None
        and name not in OF_MODELS
        and (model or text or dtype or (device and not own_device))
    ):
        raise refuse_models(name)
    check_found([one for one in model or () if not is_random(one)])
    check_settings(seed=seed, threads=threads, draws=None if name in FIXED else draws)
    if not every:
        check_folder(out or OUT / str(name), "study")
    if figures is not None:
        from layerlab.report.figures.export import check_drawing

        check_drawing(figures)
    # Late: what is refused above needs nothing that computes.
    from layerlab.studies.engine.runner import study as carry_out

    settings: dict[str, Any] = {
        "seed": seed,
        "runs": runs,
        "threads": threads,
        "fast": fast,
        "restart": restart,
        "progress": not quiet,
        "lang": lang,
    }
    with explain_interruption("what is finished is kept", ", and --restart as well to begin anew"):
        if every:
            from layerlab.studies.engine.suite import every as carry_out_all

            suite = carry_out_all(out=out or OUT, **settings)
            # First what was found: drawing takes a browser, and may fail.
            show(suite.table())
            for part in suite.parts:
                _draw(part.record, figures, lang)
            raise typer.Exit(1 if suite.failed else 0)
        record = carry_out(
            str(name),
            draws=draws,
            out=out or OUT / str(name),
            model=model,
            text=text,
            device=device,
            dtype=dtype,
            **settings,
            **options,
        )
        _draw(record, figures, lang)
    if as_json:
        show_json(record.to_json())
    else:
        show(record.table, wrap=False)


def _draw(record: Any, figures: FigureKind | None, lang: str) -> None:
    """Draw the pictures of a stored study."""
    if record is not None and figures is not None:
        record.save(record.folder, figures=figures, lang=lang)


def read_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Read options of a study as they are typed.

    Raises:
        UserError: as `parse_options`, or one of them has an option of its own.
    """
    from layerlab.model.typed_options import parse_options

    found = parse_options(pairs, example="norm=rms")
    for name in found:
        if name in SETTINGS:
            raise UserError(f"{name} is no option of a study; type --{name} {found[name]}")
    return found


def _refuse_choice(*chosen: Any) -> None:
    if any(one for one in chosen):
        raise UserError(
            "a name, --draws, --option, --model, --text, --device, --dtype or --json beside --all; "
            "expected --all without them: "
            "type for example layerlab study --all --fast"
        )


def _refuse_settings(*settings: Any) -> None:
    if any(setting for setting in settings):
        raise UserError(
            "settings without a study; expected its name before them: "
            "type for example layerlab study rounding-depth --draws 500"
        )


def _catalogue() -> Any:
    """Return two paragraphs per study: name, source, draws and cost; and below them its claim."""
    from rich.console import Group
    from rich.padding import Padding

    from layerlab.studies.engine.discovery import studies

    lines: list[Any] = []
    for one in studies().values():
        draws = "1 draw" if one.draws == 1 else f"{one.draws} draws"
        takes = ", takes --model" if one.models else ""
        facts = f"  {one.key}, {draws}, {one.cost}{takes}"
        lines.append(plain(one.name, "bold").append(facts, "dim"))
        lines.append(Padding.indent(plain(one.claim), 2))
    return Group(*lines)
