"""A process in which layerlab cannot be imported, nor what only its checks need."""

import os
import subprocess
import sys
from pathlib import Path

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("layerlab", "jaxtyping"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def fresh(code: str, folder: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run where layerlab is not, with a cache for code of its own."""
    return subprocess.run(
        [sys.executable, "-c", ABSENT + code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "", "HF_MODULES_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=500,
    )
