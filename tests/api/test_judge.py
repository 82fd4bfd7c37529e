"""A verdict on logs needs no model, and does not wait for what builds one."""

from tests.logs.written import ROWS, write_csv
from tests.support.forked import empty_python

LOADED = """
import sys
import layerlab

print(layerlab.judge(sys.argv[1:]).content["rows"][1]["arm"])
print([name for name in ("torch", "transformers") if name in sys.modules])
"""


def test_a_verdict_on_logs_loads_no_torch(tmp_path):
    for arm in ("plain", "wide"):
        for seed in (1, 2):
            write_csv(tmp_path / f"{arm}-s{seed}.csv", ROWS)
    done = empty_python("-c", LOADED, tmp_path, check=True)
    assert done.stdout.split("\n")[:2] == ["wide", "[]"]
