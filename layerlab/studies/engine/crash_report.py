"""An error that nobody foresaw: one line about it, and its traceback in a file."""

import traceback
from pathlib import Path

from layerlab.report.results.folder import ACCIDENT, ACCIDENT_HEAD
from layerlab.report.views.text import prose
from layerlab.system import files

LONGEST = 200


def report_crash(error: Exception, folder: Path) -> str:
    """Leave the traceback in a folder, and say in one line what happened and where it lies."""
    named = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    message = prose(" ".join(named.split()), LONGEST)
    text = "".join([ACCIDENT_HEAD, *traceback.format_exception(error)])
    try:
        files.write_file(folder / ACCIDENT, text)
    except Exception as second:  # a full disk, say, which may be the accident itself
        return f"{message}; its traceback could not be written ({prose(str(second), LONGEST)})"
    return f"{message}; its traceback is in {folder / ACCIDENT}"
