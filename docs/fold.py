"""Fold the finished runs of comparisons into two files each: python docs/fold.py FOLDER ..."""

import sys
from pathlib import Path

from layerlab.records.parquet.folded_runs import fold_runs

if __name__ == "__main__":
    for place in map(Path, sys.argv[1:]):
        print(f"{place}: {fold_runs(place)} runs folded")
