"""The shapes that annotations name are those that are there: every call is checked, in these files.

A check takes as long as what it checks. So it is made once, over tests that reach every annotated
function of a part, in a process of its own, and not in every test of the suite.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHECKED = "--jaxtyping-packages=layerlab,beartype.beartype"
MEASURES = (
    "attended attention component condition detail dimension diversity feature form gain heatmap "
    "junction lanczos lipschitz projection prompt querykey recompute saliency spectrum stream trace"
).split()
NUMERICS = "bounds conditioning numeric_activation product strict".split()
BLOCKS = "activation convolution dropout position spec start stream tap weighing".split()
READ = [
    *(f"tests/measures/test_{name}.py" for name in MEASURES),
    *(f"tests/numerics/test_{name}.py" for name in NUMERICS),
]
BUILT = [
    *(f"tests/blocks/test_{name}.py" for name in BLOCKS),
    "tests/model/test_laws.py::test_a_token_sees_nothing_that_comes_later",
    "tests/training/test_batch.py",
    "tests/training/test_control.py",
    "tests/adaptation/test_bits.py",
    "tests/adaptation/test_embedding.py",
]
WRONG = """
import torch
from layerlab.measures.diversity import diversity

def test_a_vector_is_no_matrix():
    diversity(torch.ones(3))
"""


def checked(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CHECKED, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize("places", [READ, BUILT], ids=["what reads", "what builds"])
def test_shapes_are_as_annotated(places: list[str]) -> None:
    done = checked(*places)
    assert done.returncode == 0, done.stdout[-4000:]


def test_another_shape_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(WRONG)
    done = checked(tmp_path / "test_wrong.py")
    assert done.returncode == 1 and "TypeCheckError" in done.stdout
