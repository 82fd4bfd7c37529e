"""A report in a few lines for a terminal; what came from outside is never read as markup."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from layerlab.console.units import amount
from layerlab.report.findings.rule import SEVERITIES, Finding
from layerlab.report.results.folder import PAGE
from layerlab.report.views.text import prose
from layerlab.system.files import from_here

MOST = 20
# Measures that answer a question: no answer is more than a remark by the way.
ASKED = {"saliency", "swap", "change"}
_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_WORDS = {"error": "error", "warning": "warning", "info": "remark"}
StyledText = tuple[str, str]
_BESIDE = 8  # columns of a severity
_HANGING = 26  # columns of what stands in front of a line at most

__all__ = ["lines", "prose", "summary"]


def summary(
    content: Mapping[str, Any],
    findings: Sequence[Finding],
    folder: Path | None = None,
    more: Sequence[RenderableType] = (),
) -> Group:
    """Summarise the models, what was found, and where the files are.

    Args:
        more: stands before the files.
    """
    found = (_draw(parts) for parts in _lines(content, findings, None))
    files = (Text.assemble(*parts) for parts in _files(folder))
    return Group(*found, *more, *files)


def _draw(parts: Sequence[StyledText]) -> RenderableType:
    """Return a line; what stands behind a severity or a model's name goes on below itself."""
    first, rest = Text(*parts[0]), Text.assemble(*parts[1:])
    if not rest:
        return first
    if first.cell_len > _HANGING:
        return Group(first, Padding.indent(rest, 2))
    found = Table.grid()
    found.add_column(width=first.cell_len)
    found.add_row(first, rest)
    return found


def lines(
    content: Mapping[str, Any], findings: Sequence[Finding], folder: Path | None = None
) -> list[str]:
    """Return the summary without colours."""
    return ["".join(text for text, _ in parts) for parts in _lines(content, findings, folder)]


def _lines(
    content: Mapping[str, Any], findings: Sequence[Finding], folder: Path | None
) -> Iterator[list[StyledText]]:
    for model in content["models"]:
        yield [(f"{prose(str(model['name']), 80)}  ", "bold"), (_shape(model), "")]
    for remark in content["text"].get("remarks", ()):
        yield [(prose(str(remark)), "yellow")]
    for measure in content["measures"]:
        for gap in measure.get("not_applicable", ()):
            sentence = f"{measure['name']}: not applicable to {gap['model']}, because "
            style = "yellow" if measure["name"] in ASKED else "dim"
            yield [(prose(sentence + str(gap["reason"])), style)]
    yield [("", "")]
    yield from _findings(findings, len(content["models"]) > 1)
    yield from _files(folder)


def _files(folder: Path | None) -> Iterator[list[StyledText]]:
    if folder is not None:
        yield [("", "")]
        yield [("The page: ", ""), (prose(from_here(folder / PAGE)), "bold")]


def _shape(model: Mapping[str, Any]) -> str:
    parts = [
        model.get("class"),
        f"{amount(model['parameters'])} parameters" if _numeric(model.get("parameters")) else None,
        f"{model['layers']} layers" if model.get("layers") else None,
        f"{model['heads']} heads" if model.get("heads") else None,
        f"width {model['width']}" if model.get("width") else None,
        f"{model['dtype']} on {model.get('device', 'cpu')}" if model.get("dtype") else None,
        f"loss {model['loss_nats']:.3f} nats" if _numeric(model.get("loss_nats")) else None,
        "no loss: its logits hang on later tokens" if model.get("reads_ahead") else None,
    ]
    return prose(", ".join(str(part) for part in parts if part))


def _numeric(entry: Any) -> bool:
    return isinstance(entry, (int, float))


def _findings(findings: Sequence[Finding], several: bool) -> Iterator[list[StyledText]]:
    if not findings:
        yield [("No findings.", "green")]
        return
    counts = [(name, sum(f.severity == name for f in findings)) for name in SEVERITIES]
    parts = (f"{count} {_WORDS[name]}{'s' * (count > 1)}" for name, count in counts if count)
    yield [(", ".join(parts), "bold")]
    for finding in findings[:MOST]:
        owner = f"{prose(finding.model, 80)}: " if several else ""
        yield [
            (f"{_WORDS[finding.severity]:<{_BESIDE}}", _STYLES[finding.severity]),
            (f"{owner}{prose(finding.sentence)}", ""),
            (f" [{prose(finding.source, 120)}]", "dim"),
        ]
        if finding.severity != "info":
            yield [(" " * _BESIDE, ""), (prose(finding.advice), "dim")]
    if len(findings) > MOST:
        yield [(f"and {len(findings) - MOST} more in the report", "dim")]
