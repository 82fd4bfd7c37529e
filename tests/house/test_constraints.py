"""Both sets of versions are versions that the project allows."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]


def required() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *(one for extra in ("dev", "docs", "eval") for one in extras[extra]),
    ]
    return [Requirement(one) for one in asked]


def pinned(file: str) -> dict[str, Version]:
    lines = (ROOT / file).read_text("utf-8").splitlines()
    pairs = [line.partition("==") for line in lines if "==" in line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): Version(version) for name, _, version in pairs}


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-oldest.txt"])
def test_each_version_is_allowed(file):
    versions = pinned(file)
    assert len(versions) > 100
    known = [one for one in required() if one.name.lower() in versions]
    assert len(known) > 35, "of the tools that only check the style, the set of the oldest has none"
    assert [str(one) for one in known if versions[one.name.lower()] not in one.specifier] == []


def test_the_oldest_are_the_lowest_that_are_allowed():
    """Of what the package itself needs: 4.4 is the lowest of `>=4.4`."""
    versions = pinned("constraints-oldest.txt")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    for one in map(Requirement, needed):
        (least,) = [part.version for part in one.specifier if part.operator == ">="]
        found = versions[one.name.lower()]
        assert found.release[: len(Version(least).release)] == Version(least).release, one
