"""What pytest looks into: kernels in Triton only where it is installed, examples where they are."""

from collections.abc import Generator
from importlib.util import find_spec

import pytest
from _pytest.doctest import DoctestModule

KERNELS = [
    "layerlab/measures/support/flash_products.py",
    "layerlab/numerics/formats/triton_*.py",
    "tests/measures/support/compile_flash.py",
    "tests/numerics/formats/compile_triton.py",
]
collect_ignore_glob = [] if find_spec("triton") else KERNELS


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples only in files that have any: to look through all objects took seconds."""
    return [one for one in (yield) if not isinstance(one, DoctestModule) or _has_example(one)]


def _has_example(module: DoctestModule) -> bool:
    return ">>>" in module.path.read_text("utf-8")
