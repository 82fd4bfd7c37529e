"""`layerlab bench`: how fast a model is; heavy imports only inside."""

from pathlib import Path
from typing import Annotated, Any

import typer

from layerlab.cli.arguments.early_checks import check_loads
from layerlab.cli.arguments.options import AsJson, Device, Load, Quiet
from layerlab.console.help_group import HelpGroup
from layerlab.console.tables import show_result
from layerlab.errors import UserError
from layerlab.loading.options import check_dtype
from layerlab.records.parse import read_json
from layerlab.system.untrusted.trust import trustable

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
            metavar="MODEL",
            help="Hub id, folder, built-in, or a variant: pangu-pi:width=1024,layers=12.",
        ),
    ] = None,
    accounting: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="In place of MODEL: PanGu-pi against a Llama with as many parameters: equal-total "
            "with the paper's vocabularies, fewer-layers with one vocabulary and fewer layers of "
            "PanGu-pi, equal-parameters with as many layers.",
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="With --accounting: size in the paper, 1b or 7b.  [default: 7b]"),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(
            help="With --accounting: a smaller width for both.  [default: that of --shape]"
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Threads of a CPU.  [default: OMP_NUM_THREADS, or one per core]"),
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
    if out is not None:
        _check_out(out)
    check_loads(load)
    from layerlab.api.bench_latency import bench_latency

    found = bench_latency(
        models or (),
        accounting=accounting,
        shape=shape,
        width=width,
        threads=threads,
        device=device,
        dtype=dtype,
        batch=batch,
        context=context,
        new=new,
        repetitions=repetitions,
        load=load or (),
        progress=not quiet,
    )
    _show(found, as_json, out)


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


def _show(found: Any, as_json: bool, out: Path | None) -> None:
    import json

    text = json.dumps(found.to_dict(), indent=1) + "\n"
    if out is not None:
        from layerlab.system.files import write_file

        write_file(out, text, _is_earlier)
    from layerlab.latency.table import timetable

    show_result(text, as_json, lambda width: timetable(found, width))
