"""How fast a text is cleaned on all cores, beside one, in turns; both write the same bytes.

    python bench/adaptation/clean.py [--text SOURCE] [--megabytes 20] [--times 3]

SOURCE is a file, a folder or a name, as in a recipe; Brown is usual.
"""

# ruff: noqa: E402
import os
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from loky import cpu_count

from layerlab.data.cleaning.clean import TEXT, clean
from layerlab.data.sources import to_source

LIMIT = "LOKY_MAX_CPU_COUNT"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default="brown")
    for name, default in (("megabytes", 20), ("times", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    source = to_source(options.text).model_copy(update={"limit": options.megabytes * 10**6})
    ways = {"one core": "1", f"{cpu_count()} cores": str(cpu_count())}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    written, size = set[bytes](), 0
    with TemporaryDirectory() as folder:
        for turn in range(options.times):
            for name, count in ways.items():
                os.environ[LIMIT] = count
                begun = perf_counter()
                found = clean(source, Path(folder) / f"{turn}-{count}")
                seconds[name].append(perf_counter() - begun)
                size = found.bytes
                written.add((Path(folder) / f"{turn}-{count}" / TEXT).read_bytes())
    if len(written) > 1:
        raise SystemExit("the bytes differ")
    for name, taken in seconds.items():
        print(f"{name}: {median(taken):.2f} s, {size / 1e6 / median(taken):.2f} MB/s")
    one, several = map(median, seconds.values())
    print(f"{one / several:.2f} times as fast")


if __name__ == "__main__":
    main()
