"""Times of models as a terminal shows them, beside those that the source printed."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from layerlab.console.tables import grids
from layerlab.latency.config import LatencyConfig, threads_asked_for
from layerlab.latency.measure import Latency, Timing
from layerlab.latency.paired_ratio import Spread
from layerlab.latency.parameter_matching import MatchedPair, published_times


def timetable(found: Latency, width: int) -> RenderableType:
    """Return a table of the candidates and of the source, with the ratios and the verdict.

    Args:
        width: of the terminal in characters.
    """
    headings = ("model", "parameters", "prefill", "decode", "weights", "cache", "peak")
    rows: list[Sequence[str | Text]] = [
        _cells(number, one) for number, one in enumerate(found.timed, 1)
    ]
    if found.pair is not None:
        times = published_times(found.pair.shape)
        for name in ("pangu", "llama"):
            time = f"{times[f'{name}_ms']:.1f}"
            cells = (_source_name(name, found.pair), "", "", time, "", "", "")
            rows.append([Text(cell, style="dim") for cell in cells])
    table = grids(headings, rows, ("model",), width)
    return Group(table, *(Text(line) for line in _lines(found)))


def _source_name(name: str, pair: MatchedPair) -> str:
    """Return the name of a model of the source."""
    return f"{name} {pair.shape.upper()}"


def _cells(number: int, one: Timing) -> tuple[str, ...]:
    return (
        str(number),
        f"{one.parameters / 1e6:,.1f}M",
        _milliseconds(one.prefill),
        _milliseconds(one.decode),
        _size(one.weights),
        _size(one.cache),
        "unknown" if one.peak is None else _size(one.peak),
    )


def _milliseconds(one: Spread) -> str:
    return f"{one.median:.3g} [{one.low:.3g}, {one.high:.3g}]"


def _size(bytes_: int) -> str:
    return f"{bytes_ / 1e6:,.1f}"


def _threads(setting: LatencyConfig) -> str:
    text = f"{setting.threads} thread{'' if setting.threads == 1 else 's'}"
    return f"{text} (OMP_NUM_THREADS)" if setting.threads == threads_asked_for() else text


def _lines(found: Latency) -> Iterator[str]:
    setting = found.setting
    clock = "processor time" if (setting.device, setting.threads) == ("cpu", 1) else "wall time"
    yield (
        f"ms per token, median and quartiles of {setting.repetitions} repetitions in turns; memory "
        f"in MB; batch {setting.batch}, context {setting.context}, {setting.new} new tokens, "
        f"{setting.kind}, {setting.device}, {_threads(setting)}, {clock}"
    )
    for number, one in enumerate(found.timed, 1):
        yield f"{number}: {one.name}{', weights at random' if one.random else ''}"
    if found.decode is not None and found.prefill is not None:
        yield (
            f"first over second, paired, with 95 % intervals: prefill {found.prefill.summary()}, "
            f"decode {found.decode.summary()}"
        )
    pair, verdict = found.pair, found.verdict
    if pair is not None and verdict is not None:
        note = f"; {pair.note}" if pair.note else ""
        yield f"predicted by the weights that a token reads: {pair.predicted:.3f}{note}"
        yield (
            f"{_source_name('pangu', pair)} over {_source_name('llama', pair)}: published, on an "
            "Ascend 910A in a setting that is not printed: "
            f"{published_times(pair.shape)['ratio']:.3f}"
        )
        yield verdict.said
