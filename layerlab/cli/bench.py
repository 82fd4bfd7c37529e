"""`layerlab bench`: how fast a model is; heavy imports only inside."""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from layerlab.cli.early_checks import check_loads
from layerlab.cli.help_group import HelpGroup
from layerlab.cli.options import AsJson, Device, Load, Quiet
from layerlab.console.tables import say, show, show_json
from layerlab.errors import UserError
from layerlab.latency.sizes import SHAPE, check_pair, check_sizes
from layerlab.loading.options import check_dtype
from layerlab.records.parse import read_json
from layerlab.system.trust import trustable

bench = typer.Typer(cls=HelpGroup, help="Time models side by side.", rich_markup_mode=None)


@bench.callback()
def about() -> None:
    """Time models side by side."""


@bench.command()
@trustable
def latency(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Hub id, folder, built-in, or a variant: pangu-pi:width=1024,layers=12.",
        ),
    ] = None,
    accounting: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="PanGu-pi against Llama: equal-total, fewer-layers or equal-parameters.",
        ),
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="With --accounting: 1b or 7b.  [default: 7b]")
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(help="With --accounting: of a smaller twin.  [default: the shape's]"),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of a CPU.  [default: OMP_NUM_THREADS, or one per core]")
    ] = None,
    device: Device = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            callback=check_dtype,
            help="float32, float64, bfloat16 or float16.  [default: by device]",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences in a batch.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens of the prompt.")] = 128,
    new: Annotated[int, typer.Option(help="Tokens generated after it.")] = 32,
    repetitions: Annotated[
        int,
        typer.Option(
            help="Runs of each model, taking turns; with 6 or more a ratio has an interval."
        ),
    ] = 10,
    load: Load = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON.")] = None,
    quiet: Quiet = False,
) -> None:
    """Time a prompt and each new token, with memory and parameters."""
    _check(models, accounting, shape=shape, width=width)
    if out is not None:
        _check_out(out)
    if accounting is not None:
        check_pair(accounting, shape or SHAPE, width)
    check_sizes(batch=batch, context=context, new=new, repetitions=repetitions, threads=threads)
    check_loads(load)
    if not load:
        _check_candidates(models or ())
    # Late: these need torch, and what is refused above does not.
    from layerlab.latency.config import latency_config

    chosen = latency_config(
        device=device,
        dtype=dtype,
        threads=threads,
        batch=batch,
        context=context,
        new=new,
        repetitions=repetitions,
    )
    from layerlab import plugins
    from layerlab.latency.candidates import build_candidate
    from layerlab.latency.measure import measure_latency
    from layerlab.latency.parameter_matching import pair

    plugins.load_files(load or (), [one for one in models or () if Path(one).is_dir()])
    matched = None if accounting is None else pair(accounting, shape=shape or SHAPE, width=width)
    named = (
        [matched.pangu, matched.llama]
        if matched
        else [build_candidate(one) for one in models or ()]
    )
    found = measure_latency(named, chosen, pair=matched, note=_quiet if quiet else _describe)
    _show(found, as_json, out)


def _check(models: list[str] | None, accounting: str | None, **sizes: Any) -> None:
    """Check that models or an accounting are given, and the options that fit."""
    if bool(models) == (accounting is not None):
        raise UserError(
            f"{len(models or ())} models and {'an' if accounting else 'no'} accounting; expected "
            "either: type layerlab bench latency llama, or --accounting fewer-layers --width 1024"
        )
    given = [name for name, value in sizes.items() if value is not None]
    if given and accounting is None:
        raise UserError(
            f"--{given[0]} is a size of an accounting; sizes of a variant stand behind its name: "
            "type pangu-pi:width=1024"
        )


def _check_candidates(names: Iterable[str]) -> None:
    """Refuse what is neither a model, nor a variant or a preset, alone or with sizes."""
    from layerlab.blocks.shape import Shape
    from layerlab.known_names import VARIANTS
    from layerlab.loading.folders import check_found
    from layerlab.model.preset import check_named, check_sizes, presets
    from layerlab.model.typed_options import check_options, parse_options

    for given in names:
        name, colon, sized = given.partition(":")
        if colon:
            options = parse_options(filter(None, sized.split(",")))
            sizes = {one.name: options.get(one.name) for one in fields(Shape)}
            check_named([name])
            check_options(options)
            check_sizes([name], None, sizes)
        elif name not in {*VARIANTS, *presets()}:
            check_found([given])


def _check_out(file: Path) -> None:
    """Refuse to write over what is no result of this command, before anything is timed."""
    from layerlab.system.files import check_file

    check_file(file)
    if file.exists() and not _is_earlier(file):
        raise UserError(
            f"--out {str(file)!r} is there and is no result of layerlab bench latency; name another"
            " file: type for example --out latency.json"
        )


def _is_earlier(file: Path) -> bool:
    try:
        return {"timed", "setting"} <= set(read_json(file))
    except (OSError, ValueError, TypeError):
        return False


def _describe(text: str) -> None:
    say(text, err=True)


def _quiet(text: str) -> None:
    """Print nothing."""


def _show(found: Any, as_json: bool, out: Path | None) -> None:
    import json

    text = json.dumps(found.to_json(), indent=1) + "\n"
    if out is not None:
        from layerlab.system.files import write_file

        write_file(out, text, _is_earlier)
    if as_json:
        show_json(text)
        return
    from layerlab.latency.table import timetable

    show(lambda width: timetable(found, width))
