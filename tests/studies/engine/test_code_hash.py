"""The hash of a study's code: it knows its file and what that imports, and nothing else."""

import shutil

import pytest

import layerlab.studies.engine.code_hash as code


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the package whose files may be changed."""
    place = tmp_path / "layerlab"
    shutil.copytree(code.ROOT, place, ignore=shutil.ignore_patterns("__pycache__", "builtin"))
    monkeypatch.setattr(code, "ROOT", place)
    code._import.cache_clear()
    yield place
    code._import.cache_clear()


DEPTH = "layerlab.studies.budzinskiy25.figure1_depth"


@pytest.mark.full
@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("studies/budzinskiy25/figure1_depth.py", True),
        ("studies/budzinskiy25/support/random_transformers.py", True),
        ("studies/budzinskiy25/support/reference_transformer.py", True),
        ("numerics/formats/rounding.cpp", True),
        ("studies/budzinskiy25/stochastic_rounding.py", False),
        ("report/pages/study.py", False),
        ("training/trainer.py", False),
    ],
)
def test_a_change_counts_where_numbers_come_from(copy, changed, counts):
    before = code.fingerprint(DEPTH)
    (copy / changed).write_text((copy / changed).read_text() + "\n# changed\n")
    code._import.cache_clear()
    assert (code.fingerprint(DEPTH) != before) is counts


@pytest.mark.full
def test_who_builds_variants_depends_on_all_of_them(copy):
    build = "layerlab.model.build"
    before = code.fingerprint(build)
    (copy / "variants" / "models" / "pangu.py").write_text("")
    code._import.cache_clear()
    assert code.fingerprint(build) != before


@pytest.mark.full
def test_kernels_of_gpus_count_for_whoever_rounds(copy):
    before = code.fingerprint(DEPTH)
    (copy / "numerics" / "formats" / "triton_kernel.py").write_text("")
    code._import.cache_clear()
    assert code.fingerprint(DEPTH) != before


def test_versions_count(monkeypatch):
    before = code.fingerprint(DEPTH)
    monkeypatch.setattr(code, "versions", lambda: {"torch": "0.1"})
    assert code.fingerprint(DEPTH) != before


def test_two_studies_have_two_hashes():
    assert code.fingerprint(DEPTH) != code.fingerprint(
        "layerlab.studies.budzinskiy25.figure2_spectral_norm"
    )
