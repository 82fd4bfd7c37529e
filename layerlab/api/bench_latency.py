"""`layerlab.bench_latency`: how fast models are, side by side; what is refused needs no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from importlib.metadata import entry_points
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.console.tables import note_printer
from layerlab.errors import UserError
from layerlab.latency.sizes import SHAPE, USUAL, check_pair, check_sizes
from layerlab.system.files import File
from layerlab.system.untrusted.trust import trust

if TYPE_CHECKING:
    from layerlab.latency.measure import Latency


def bench_latency(
    models: File | Sequence[File] = (),
    *,
    accounting: str | None = None,
    shape: str | None = None,
    width: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    batch: int = USUAL["batch"],
    context: int = USUAL["context"],
    new: int = USUAL["new"],
    repetitions: int = USUAL["repetitions"],
    load: File | Iterable[File] = (),
    trust_remote_code: bool = False,
    allow_unused: bool = False,
    progress: bool = True,
) -> "Latency":
    """Time the prompt and each new token of models that take turns, with memory and parameters.

    Args:
        models: Hub ids, folders, built-in names, or variants with sizes, as
            `"pangu-pi:width=1024,layers=12"`.
        accounting: instead of models, PanGu-pi against Llama: equal-total, fewer-layers or
            equal-parameters.
        shape: of an accounting: 1b or 7b, the default.
        width: of a smaller twin under an accounting; the shape's if left out.
        threads: of a CPU; as OMP_NUM_THREADS says, else one per core, if left out.
        device: a GPU where there is one, if left out.
        dtype: bfloat16 on a GPU and float32 on a CPU, if left out.
        batch: sequences in a batch.
        context: tokens of the prompt.
        new: tokens generated after it.
        repetitions: runs of each model; with 6 or more a ratio has an interval.
        load: Python files with variants of your own.
        trust_remote_code: run Python that a model brings along; read it before.
        allow_unused: leave weights out that the model's configuration has no place for.
        progress: tell of each repetition on standard error.

    Raises:
        UserError: a model cannot be loaded or keeps no cache, or a size that cannot be.

    Example:
        >>> name = "llama:width=16,layers=1,heads=2,vocab=32,context=8"
        >>> sizes = {"context": 4, "new": 2, "repetitions": 1, "threads": 1}
        >>> found = bench_latency(name, device="cpu", progress=False, **sizes)
        >>> found.timed[0].decode.median > 0
        True
    """
    named = [str(one) for one in ([models] if isinstance(models, str | PathLike) else models)]
    _check(named, accounting, shape=shape, width=width)
    if accounting is not None:
        check_pair(accounting, shape or SHAPE, width)
    sizes = {"batch": batch, "context": context, "new": new, "repetitions": repetitions}
    check_sizes(**sizes, threads=threads)
    if not load:
        _check_candidates(named)
    # Late: these need torch, and what is refused above does not.
    from layerlab import plugins
    from layerlab.latency.candidates import build_candidate
    from layerlab.latency.config import latency_config
    from layerlab.latency.measure import measure_latency
    from layerlab.latency.parameter_matching import pair
    from layerlab.system.torch_settings import usual_arithmetic

    with usual_arithmetic(), trust(trust_remote_code, allow_unused=allow_unused):
        setting = latency_config(device=device, dtype=dtype, threads=threads, **sizes)
        plugins.load_files(load, [one for one in named if Path(one).is_dir()])
        matched = pair(accounting, shape=shape or SHAPE, width=width) if accounting else None
        candidates = (
            [matched.pangu, matched.llama] if matched else [build_candidate(one) for one in named]
        )
        return measure_latency(candidates, setting, pair=matched, note=note_printer(progress))


def _check(models: Sequence[str], accounting: str | None, **sizes: Any) -> None:
    """Check that models or an accounting are given, and the options that fit."""
    if bool(models) == (accounting is not None):
        raise UserError(
            f"{len(models)} models and {'an' if accounting else 'no'} accounting; expected "
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
    from layerlab.known_names import PLUGINS, VARIANTS
    from layerlab.loading.folders import check_found
    from layerlab.model.preset import check_named, check_sizes, presets
    from layerlab.model.typed_options import check_options, parse_settings

    for given in names:
        name, colon, settings = given.partition(":")
        if colon and not Path(given).is_dir():
            options = parse_settings(name, settings)
            sizes = {one.name: options.get(one.name) for one in fields(Shape)}
            check_named([name])
            check_options(options)
            check_sizes([name], None, sizes)
        elif name not in {*VARIANTS, *presets()} and not entry_points(group=PLUGINS):
            check_found([given])  # with a plug-in it may be a variant: only importing it tells
