"""Paired evaluations as a value: plain numbers and sentences, to print and to draw."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from layerlab.errors import UserError
from layerlab.evaluation.paired.table import render_pairs
from layerlab.system.files import write_files
from layerlab.system.own_page import check_own_files
from layerlab.validation import short_repr

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

PAIRED, PAGE, MARK = "paired.json", "report.html", "judge"
PairedPart = Literal["rows", "flipped"]


@dataclass(frozen=True)
class PairedEvaluations:
    """Models that answered the same questions, judged against a baseline.

    Attributes:
        content: plain JSON values: a row for each test with its verdict, and every question that
            flipped.
    """

    content: Mapping[str, Any] = field(repr=False)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The tests: of all questions, of the mean of tasks, and of each task."""
        return list(self.content["rows"])

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `paired.json`."""
        return deepcopy(dict(self.content))

    def frame(self, part: PairedPart = "rows") -> "pd.DataFrame":
        """Return the tests, or the questions that flipped, as a data frame.

        Raises:
            UserError: there is no such part.
        """
        import pandas as pd

        if part not in get_args(PairedPart):
            raise UserError(
                f"paired evaluations have no part {short_repr(part)}; expected one of "
                f"{', '.join(get_args(PairedPart))}"
            )
        return pd.DataFrame(self.content[part])

    def table(self, width: int = 100) -> "RenderableType":
        """Return what a terminal of this width shows."""
        return render_pairs(self.content, width)

    def save(self, folder: Path, page: str | None = None) -> Path:
        """Write paired.json and a page, both or neither.

        Args:
            page: that shows it.

        Raises:
            UserError: they cannot be written.
        """
        text = json.dumps(self.content, ensure_ascii=False, indent=1)
        # The page first: it tells that what lies beside it was written here.
        write_files(folder, {**({PAGE: page} if page else {}), PAIRED: text + "\n"})
        return folder / PAIRED


def check_paired_folder(folder: Path) -> None:
    """Refuse a folder whose page or numbers are not those of an earlier call.

    Raises:
        UserError: it holds something that would be replaced.
    """
    check_own_files(folder, MARK, (PAGE, PAIRED), "paired evaluations")
