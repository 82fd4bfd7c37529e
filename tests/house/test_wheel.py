"""The wheel holds what it needs and nothing else, and runs from an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "layerlab"

pytest.importorskip("hatchling", reason="hatchling, of the extra dev, is not installed")


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    # No index: what a build needs must already be here.
    done = subprocess.run(
        [*command, "--no-deps", "--no-index", "--quiet"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", str(ROOT), "--no-build-isolation", "--wheel-dir", str(folder))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip("install", str(wheel), "--no-compile", "--target", str(folder))
    return folder


def contents(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def run(installed: Path, folder: Path, *arguments: str) -> str:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "layerlab", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_holds_every_file_of_the_package(wheel):
    here = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert here - contents(wheel) == set()


def test_wheel_holds_what_is_not_python(wheel):
    suffixes = {Path(name).suffix for name in contents(wheel) if name.startswith("layerlab/")}
    assert {".html", ".js", ".css", ".txt", ".json", ".safetensors", ".toml"} <= suffixes


def test_wheel_tells_type_checkers_that_its_annotations_hold(wheel):
    assert "layerlab/py.typed" in contents(wheel)


def test_wheel_holds_the_tables_of_benchmarks(wheel):
    names = contents(wheel)
    for file in (
        "data/catalog.toml",
        "evaluation/lawbench/label.toml",
        "evaluation/results/published.toml",
        "evaluation/benchmarks/subtasks.toml",
    ):
        assert f"layerlab/{file}" in names, file
    assert any(re.match(r"layerlab/recipes/library/adaptation/.+\.toml", name) for name in names)


def test_wheel_holds_no_questions(wheel):
    data = (".csv", ".jsonl", ".parquet", ".zip", ".gz", ".lst")
    library = "layerlab/report/static/plotly-cartesian.min.js.gz"
    assert [name for name in contents(wheel) if name.endswith(data)] == [library]


def test_wheel_holds_no_tests_and_nothing_beside_the_package(wheel):
    tops = {name.split("/")[0] for name in contents(wheel)}
    assert {re.sub(r"-.*\.dist-info", "-info", top) for top in tops} == {
        "layerlab",
        "layerlab-info",
    }
    tests = re.compile(r"(^|[/_])(conf)?tests?(_|/|\.)")
    assert not [name for name in contents(wheel) if tests.search(name)]


def test_wheel_carries_the_licence(wheel):
    assert any(name.endswith("licenses/LICENSE") for name in contents(wheel))


@pytest.mark.full
def test_installed_command_gives_help(installed, tmp_path):
    assert "inspect" in run(installed, tmp_path, "--help")


@pytest.mark.full
def test_installed_command_inspects_from_an_empty_folder(installed, tmp_path):
    options = ("--measures", "diversity,attention", "--context", "32", "--samples", "1")
    run(installed, tmp_path / "empty", "inspect", *options, "--out", "report")
    assert (tmp_path / "empty" / "report" / "report.html").stat().st_size > 10_000


@pytest.mark.full
def test_installed_package_is_the_one_that_runs(installed, tmp_path):
    code = "import layerlab; print(layerlab.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert Path(where.strip()).is_relative_to(installed)
