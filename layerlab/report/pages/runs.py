"""The page of an index: a table of everything a folder holds, with links relative to the page.

The content is the dict that `RunIndex.to_dict` gives.
"""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from layerlab.report.i18n.language import ENGLISH, labels
from layerlab.report.pages.shell import fill_page

PAGE = "runs.html"
# What tells the page from others; it stands in the template.
MARK = '<main id="main" class="run-index"'
_KINDS = labels("run", "comparison", "report", "evaluation", "adaptation", "study", "campaign")
_STATES = labels("finished", "running", "interrupted", "diverged", "damaged")
KINDS, STATES = ({str(one): one for one in words} for words in (_KINDS, _STATES))


def render(content: Mapping[str, Any], page_folder: Path, lang: str = ENGLISH) -> str:
    """Render the page of an index.

    Args:
        content: its folder, entries and remarks.
        page_folder: folder of the page, from which its links lead.
        lang: of the page.

    Raises:
        UserError: there is no page in this language.
    """
    folder = Path(content["folder"]).absolute()
    rows = [
        {**entry, "link": _link(folder, entry["page"] or entry["folder"], page_folder)}
        for entry in content["entries"]
    ]
    return fill_page(
        "runs.html",
        ["page.css", "comparison.css"],
        lang,
        folder=Path(os.path.normpath(folder)).name or str(folder),
        entries=rows,
        counts=Counter(entry["kind"] for entry in content["entries"]),
        remarks=content["remarks"],
        kinds=KINDS,
        states=STATES,
    )


def _link(folder: Path, inside: str, page_folder: Path) -> str:
    """Return the address of a file from a page, safe whatever its name is."""
    path = os.path.relpath(folder / inside, page_folder)
    # Never a scheme, though a name may begin like one: `javascript:x` is a folder here.
    return "./" + quote(os.fsencode(Path(path).as_posix()))
