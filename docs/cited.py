"""The registry of sources as the package has it, read from sources.md; part of `make docs`."""

import json
import re
from pathlib import Path

# A row without its last column, what layerlab takes from the source.
ROW = re.compile(r"^\| ([a-z]+\d{2}) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|", re.MULTILINE)


def registry(root: Path) -> dict[Path, str]:
    """Return the file of the package with title, authors, year and place of every source."""
    table = (root / "docs" / "sources.md").read_text("utf-8")
    rows = [json.dumps(row, ensure_ascii=False) for row in ROW.findall(table)]
    text = "[\n" + ",\n".join(rows) + "\n]\n"
    return {root / "layerlab" / "report" / "static" / "sources.json": text}
