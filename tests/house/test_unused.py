"""No private function of the package is left that nothing calls."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "layerlab"


def idle(source: str) -> list[str]:
    """Private functions and classes of a module that nothing in it uses but they themselves."""
    body = ast.parse(source).body
    own = [one for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    used = [{getattr(at, "id", "") for at in ast.walk(one)} for one in body]
    return [
        one.name
        for one in own
        if one.name.startswith("_") and not one.name.startswith("__")
        if not any(one.name in names for at, names in zip(body, used, strict=True) if at is not one)
    ]


@pytest.mark.full
def test_no_private_function_is_left_that_nothing_calls():
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in PACKAGE.rglob("*.py")
        if (names := idle(path.read_text("utf-8")))
    }
    assert found == {}, "delete it, or call it"


def test_a_function_that_nothing_calls_would_be_found():
    source = (
        "def _deep(x):\n    return _deep(x)\n\n\ndef _used(x):\n    return x\n\n\nFIRST = _used(1)"
    )
    assert idle(source) == ["_deep"]
