"""docs/families.md: written from an examination of every family, and read back by the tests.

`python -m tests.families.page` (part of `make docs`) examines all families and writes the page.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
import transformers

from tests.families.examination import TOLERANCE, examine
from tests.families.recipe import CLASSES, MULTIMODAL, TOKENS, UNBUILT
from tests.families.row import COLUMNS, NOTHING, YES, Row, row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "families.md"
_COVERAGE, _REASONS, _UNBUILT = "## Coverage", "## Not applicable", "## Not built"


def render(rows: Mapping[str, Row]) -> str:
    """The whole page."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for family in sorted(rows):
        for reason in rows[family].reasons:
            reasons.setdefault(reason, []).append(family)
    ordered = sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    parts = [
        "# Families",
        *_introduction(rows),
        _COVERAGE,
        _table(COLUMNS, [rows[family].cells for family in sorted(rows)]),
        _REASONS,
        _table(
            ("what", "because", "families"),
            [(what, why, ", ".join(families)) for (what, why), families in ordered],
        ),
        _UNBUILT,
        _table(("family", "because"), sorted(UNBUILT.items())),
    ]
    return "\n\n".join(parts) + "\n"


def parse(page: str) -> dict[str, Row]:
    """The rows that a page was rendered from."""
    cells = {line[0]: tuple(line) for line in _lines(page, _COVERAGE, _REASONS)}
    reasons: dict[str, set[tuple[str, str]]] = {family: set() for family in cells}
    for what, why, families in _lines(page, _REASONS, _UNBUILT):
        for family in families.split(", "):
            reasons[family].add((what, why))
    return {family: Row(cells[family], frozenset(reasons[family])) for family in cells}


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
        f"Which causal language models of transformers {transformers.__version__} layerlab reads. "
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
        "sound, remote code, quantised weights.",
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


def main() -> None:
    """Examine every family and write the page."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = {family: row(examine(family)) for family in CLASSES if family not in UNBUILT}
    PAGE.write_text(render(rows), encoding="utf-8")
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
