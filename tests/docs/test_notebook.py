"""examples/inspect.ipynb runs from top to bottom, and what it ends its cells with shows itself."""

import json
from pathlib import Path

import pytest

from layerlab.experiments.analysis.comparison import Comparison
from tests.support.forked import python

FILE = Path(__file__).resolve().parents[2] / "examples" / "inspect.ipynb"
NOTEBOOK = json.loads(FILE.read_text("utf-8"))
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
# What a notebook does: run the cells in one namespace, and show what the last line of each is.
RUN = """
import ast, json, sys
space = {}
for code in json.loads(sys.argv[1]):
    body = ast.parse(code).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), space)
    asked = ast.Expression(ast.Constant(None) if last is None else last.value)
    value = eval(compile(ast.fix_missing_locations(asked), "cell", "eval"), space)
    if value is not None:
        print("SHOWN", type(value).__name__, value._repr_html_()[:400])
"""


@pytest.mark.full
def test_the_notebook_runs_and_shows_its_results(tmp_path):
    done = python("-c", RUN, json.dumps(CODE), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if line.startswith("SHOWN")]
    assert [line.split()[1] for line in shown] == ["Report", "DataFrame", "Comparison"]
    assert "<iframe" in shown[0] and "<table" in shown[2]


def test_the_notebook_is_stored_without_results():
    assert NOTEBOOK["nbformat"] == 4 and len({cell["id"] for cell in NOTEBOOK["cells"]}) > 4
    code = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)


def test_a_comparison_shows_its_rows_and_runs_nothing_of_a_name():
    row = {"arm": "<b>x</b>", "n": 3, "nats": 1.5, "verdict": "baseline", "said": "<i>x</i> is it"}
    shown = Comparison({"rows": [row]})._repr_html_()
    assert "&lt;b&gt;x" in shown and "<li>&lt;i&gt;x" in shown and "<b>" not in shown
