"""docs/families.md: written from an examination of every family, and read back by the tests.

`python -m tests.families.page` (part of `make docs`) examines all families and writes the page: of
the version of transformers that constraints.txt names, or, with another one, only what differs.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from tests.families.examination import TOLERANCE, examine
from tests.families.recipe import CLASSES, MULTIMODAL, TOKENS, UNBUILT
from tests.families.row import COLUMNS, NOTHING, YES, Row, row

_ROOT = Path(__file__).resolve().parents[2]
PAGE = _ROOT / "docs" / "families.md"
_PINS = (_ROOT / "constraints.txt").read_text("utf-8")
REFERENCE = re.findall("^transformers==(.*)$", _PINS, re.MULTILINE)[0]
_COVERAGE, _REASONS, _UNBUILT = "## Coverage", "## Not applicable", "## Not built"
_OTHER, _OTHER_REASONS = "## Another version", "## Not applicable there"


@dataclass(kw_only=True)
class Page:
    """The rows of the version that constraints.txt names, and those that differ in another one."""

    rows: dict[str, Row]
    other: str
    differing: dict[str, Row]

    def installed(self) -> dict[str, Row]:
        """The rows that the version at hand is held to."""
        return self.rows if transformers.__version__ == REFERENCE else self.rows | self.differing

    def render(self) -> str:
        parts = [
            "# Families",
            *_introduction(self.rows),
            _COVERAGE,
            _coverage(self.rows),
            _REASONS,
            _reasons(self.rows),
            _OTHER,
            f"transformers {self.other} brings families, or computes otherwise; all others read "
            "there as above.",
            _coverage(self.differing),
            _OTHER_REASONS,
            _reasons(self.differing),
            _UNBUILT,
            _table(("family", "because"), sorted(UNBUILT.items())),
        ]
        return "\n\n".join(parts) + "\n"


def parse(page: str) -> Page:
    """What a page was rendered from."""
    return Page(
        rows=_rows(page, _COVERAGE, _REASONS, _OTHER),
        other=page.split(f"\n{_OTHER}\n")[1].split()[1],
        differing=_rows(page, _OTHER, _OTHER_REASONS, _UNBUILT),
    )


def _rows(page: str, start: str, middle: str, end: str) -> dict[str, Row]:
    cells = {line[0]: tuple(line) for line in _lines(page, start, middle)}
    reasons: dict[str, set[tuple[str, str]]] = {family: set() for family in cells}
    for what, why, families in _lines(page, middle, end):
        for family in families.split(", "):
            reasons[family].add((what, why))
    return {family: Row(cells[family], frozenset(reasons[family])) for family in cells}


def _coverage(rows: Mapping[str, Row]) -> str:
    return _table(COLUMNS, [rows[family].cells for family in sorted(rows)])


def _reasons(rows: Mapping[str, Row]) -> str:
    reasons: dict[tuple[str, str], list[str]] = {}
    for family in sorted(rows):
        for reason in rows[family].reasons:
            reasons.setdefault(reason, []).append(family)
    ordered = sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    return _table(
        ("what", "because", "families"),
        [(what, why, ", ".join(families)) for (what, why), families in ordered],
    )


def _introduction(rows: Mapping[str, Row]) -> list[str]:
    built = len(rows)
    seeing = len(rows.keys() & MULTIMODAL)
    classes = len({one.cells[1] for one in rows.values()})
    agreed = [one.cells[4] for one in rows.values() if one.cells[4] != NOTHING]
    worst = max((float(re.split(" ", cell)[0]) for cell in agreed), default=0.0)
    literal = sum("softmax" in cell for cell in agreed)
    silent = sorted(family for family, one in rows.items() if one.cells[4] == NOTHING)
    streams = [
        family
        for family, one in rows.items()
        if not any("diversity" in what for what, _ in one.reasons)
    ]
    places = Counter(one.cells[6] for one in rows.values())
    full = sum(one.cells[7] == YES for one in rows.values())
    partial = sum(one.cells[7] == "scores only" for one in rows.values())
    return [
        f"Which causal language models of transformers {REFERENCE} layerlab reads. "
        "This page is written by `make docs` from `tests/families`; every run of the tests examines"
        " every family again and fails where a cell differs (but for the digits of an error).",
        "\n".join(
            [
                f"- **Built**: {built} of the {built + len(UNBUILT)} families that "
                f"`AutoModelForCausalLM` and `AutoModelForMultimodalLM` know ({classes} classes), "
                "each at a tiny random configuration, matrices four times as large as "
                f"initialised, {TOKENS} tokens.",
                f"- **Images and sounds**: the {seeing} that only the latter knows read these too; "
                "here they read text alone.",
                f"- **Norm of attention**: {len(agreed)} families agree with a float64 SVD of "
                f"their own eager attention within {TOLERANCE:.0e} (worst: {worst:.1e}), with "
                f"every implementation they were run with. For {literal} of them, which do not "
                "return the matrix that they multiply with, the SVD is of what their softmax gave.",
                f"- **Not applicable**: {len(silent)} families: {', '.join(silent)}.",
                "- **Logits**: bit-identical with the trace, before it and after it, in every "
                "implementation of every family that can be traced, also while every default "
                "measure is read; hooks, flags, configuration, weights and the registered "
                "attention functions are afterwards what they were.",
                f"- **Stream**: {len(streams)} families pass batch x token x width from block to "
                "block, so that diversity, dimension, stream and lipschitz have readings.",
                f"- **Sublayers**: in {places['attention, ffn']} families both attention and "
                "feed-forward are seen to join the stream, that is, some sum in the block contains "
                f"them; in {places['attention'] + places['ffn']} only one is, in {places[NOTHING]} "
                "neither: BERT's sums and norms lie inside the sublayers, for example.",
                f"- **Weights in heads**: {full} families; in {partial} more only bounds of the "
                "scores exist, since a norm on query and key makes the plain form meaningless.",
            ]
        ),
        "Models run in float32. The error in the table is that of norms measured in float64 on the "
        "factors that were recorded; the SVD is of float32 attention, so agreement can be no "
        "better than the rounding of one softmax on the machine at hand. The default reading, in "
        f"float32, is held to {TOLERANCE:.0e} as well, plus the rounding of its largest score.",
        "Not tested here: trained weights, other implementations than eager and sdpa (flash, flex "
        "and paged attention are replaced by one of these while a model is traced), half "
        "precision, texts longer than a sliding window's or a chunk's few multiples, images and "
        "sound, remote code, quantized weights.",
    ]


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
        for line in [head, ["---"] * len(head), *lines]
    )


def _lines(page: str, start: str, end: str) -> list[list[str]]:
    """The cells of the table between two headings, without its head."""
    part = page.split(f"\n{start}\n")[1].split(f"\n{end}\n")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
    ]


def _differs(one: Row, rows: Mapping[str, Row]) -> bool:
    family = one.cells[0]
    return family not in rows or one.masked() != rows[family].masked()


def main() -> None:
    """Examine every family and write the page."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = {family: row(examine(family)) for family in CLASSES if family not in UNBUILT}
    page = parse(PAGE.read_text("utf-8"))
    if transformers.__version__ == REFERENCE:
        page.rows = rows
    else:
        page.other = transformers.__version__
        page.differing = {name: one for name, one in rows.items() if _differs(one, page.rows)}
    PAGE.write_text(page.render(), encoding="utf-8")
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
