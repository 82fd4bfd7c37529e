"""A process in which layerlab cannot be imported, nor what only its checks need."""

import os
import subprocess
from pathlib import Path

from tests.support.forked import BEFORE, python

ABSENT = """
import sys

NAMES = ("layerlab", "jaxtyping")

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

assert not {"layerlab", "transformers"} & sys.modules.keys()
for one in [one for one in sys.modules if one.partition(".")[0] in NAMES]:
    del sys.modules[one]
sys.meta_path.insert(0, Absent())
"""


def fresh(code: str, folder: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run where layerlab is not, with a cache for code of its own."""
    env = {**os.environ, "PYTHONPATH": "", "HF_MODULES_CACHE": str(cache)}
    return python("-c", ABSENT + code, cwd=folder, env=env, server=BEFORE)
