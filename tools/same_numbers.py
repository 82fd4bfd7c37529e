"""Compare two trees: every stored comparison judged again, every study in its fast mode.

Type: python tools/same_numbers.py OLD NEW, with two checkouts; it prints what differs, and ends
with code 1 where something does.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Run inside of a tree, whose own layerlab it imports: numbers and words, and no names of settings.
READ = """
import json, sys
from pathlib import Path
import layerlab

results, found = Path(sys.argv[1]), {}
for file in sorted(results.glob("*/comparison.json")):
    judged = layerlab.compare(str(file.parent), judge=True, progress=False)
    found[f"compare {file.parent.name}"] = {
        part: judged.content[part] for part in ("rows", "claims", "seeds", "runs", "gradients")
    }
for name in sorted(path.name for path in (results / "studies").iterdir()):
    done = layerlab.study(name, fast=True, runs=results, progress=False, threads=1).to_dict()
    found[f"study {name}"] = {part: done[part] for part in ("verdicts", "frames")}
Path(sys.argv[2]).write_text(json.dumps(found, default=str, sort_keys=True))
"""


def read(tree: Path) -> dict[str, Any]:
    """Judge and compute everything with the code and the results of a tree."""
    with TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        shutil.copytree(tree / "docs" / "results", results)
        out = Path(folder) / "found.json"
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", READ, str(results), str(out)],
            env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """List the places at which two values are not the same."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = dict.fromkeys([*old, *new])
        return [
            line
            for name in names
            for line in differences(old.get(name), new.get(name), f"{path}/{name}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for number, (one, two) in enumerate(zip(old, new, strict=True))
            for line in differences(one, two, f"{path}/{number}")
        ]
    return [] if old == new else [f"{path}: {str(old)[:80]} -> {str(new)[:80]}"]


def count(found: Any) -> int:
    """Count the values."""
    if isinstance(found, dict | list):
        return sum(map(count, found.values() if isinstance(found, dict) else found))
    return 1


if __name__ == "__main__":
    before, after = (read(Path(tree).resolve()) for tree in sys.argv[1:3])
    lines = differences(before, after)
    print(f"{len(before)} comparisons and studies, {count(before):,} values: {len(lines)} differ")
    print("\n".join(lines))
    raise SystemExit(bool(lines))
