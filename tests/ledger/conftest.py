"""A ledger of one idea, as most tests of one begin."""

from pathlib import Path

import pytest

import layerlab
from tests.ledger.test_campaign import FIRST


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger with an idea that is written down."""
    layerlab.create_ledger(tmp_path / "own", baseline="plain")
    layerlab.add_idea(tmp_path / "own", "wide", says="wider", seeds=FIRST)
    return tmp_path / "own"
