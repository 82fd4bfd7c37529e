"""Where files of a benchmark are found: loose, at any depth, in archives."""

import tarfile
import zipfile
from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.evaluation.benchmarks import files
from layerlab.evaluation.benchmarks.catalog import find_benchmark
from layerlab.evaluation.benchmarks.files import is_here, read_files
from tests.support.refused import refusal, refuses

CEVAL = find_benchmark("ceval")
PART = CEVAL["law"]


def put(folder: Path, name: str, text: str = "x") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("name", ["val/law_val.csv", "formal/ceval-exam/val/law_val.csv"])
def test_a_file_is_found_at_any_depth(tmp_path, name):
    path = put(tmp_path, f"ceval/{name}")
    assert read_files(CEVAL, PART, "val", tmp_path) == [(str(path), b"x")]


@pytest.mark.parametrize("ending", [".zip", ".tar.gz", ".tar", ".tgz"])
def test_a_file_is_found_in_an_archive(tmp_path, ending):
    (tmp_path / "ceval").mkdir()
    archive = tmp_path / "ceval" / f"all{ending}"
    inside = put(tmp_path, "law_val.csv", "in the archive")
    if ending == ".zip":
        with zipfile.ZipFile(archive, "w") as packed:
            packed.write(inside, "data/val/law_val.csv")
    else:
        with tarfile.open(archive, "w:gz" if "gz" in ending else "w") as packed:
            packed.add(inside, "data/val/law_val.csv")
    (found,) = read_files(CEVAL, PART, "val", tmp_path)
    assert found == (f"{archive}:data/val/law_val.csv", b"in the archive")
    assert is_here(CEVAL, tmp_path) is False  # another subject is the first one
    loose = put(tmp_path, "ceval/elsewhere/val/law_val.csv", "in the archive")
    assert read_files(CEVAL, PART, "val", tmp_path)[0].name == str(loose)
    loose.write_text("another")
    refuses("law_val.csv differ, and nothing says", read_files, CEVAL, PART, "val", tmp_path)
    put(tmp_path, "ceval/val/law_val.csv", "where it is expected")
    assert read_files(CEVAL, PART, "val", tmp_path)[0].content == b"where it is expected"


def test_an_archive_that_changed_is_read_anew(tmp_path):
    (tmp_path / "ceval").mkdir()
    for text in ("one", "another"):
        with zipfile.ZipFile(tmp_path / "ceval" / "all.zip", "w") as packed:
            packed.writestr("val/law_val.csv", text)
        assert read_files(CEVAL, PART, "val", tmp_path)[0].content == text.encode()


def test_of_two_archives_that_differ_none_is_taken(tmp_path):
    """As cmmlu_v1_0.zip and cmmlu_v1_0_1.zip, of which the older was taken for its name."""
    (tmp_path / "ceval").mkdir()
    places = [tmp_path / "ceval" / name for name in ("ceval_v1_0.zip", "ceval_v1_0_1.zip")]

    def pack(place: Path, text: str) -> None:
        with zipfile.ZipFile(place, "w") as packed:
            packed.writestr("val/law_val.csv", text)

    for place in places:
        pack(place, "one")
    assert read_files(CEVAL, PART, "val", tmp_path)[0].content == b"one"
    pack(places[1], "another")
    refuses(r"ceval_v1_0\.zip.* differ, and nothing says", read_files, CEVAL, PART, "val", tmp_path)


def test_of_two_files_that_differ_none_is_taken(tmp_path):
    first, other = (put(tmp_path, f"ceval/{name}/val/law_val.csv") for name in ("new", "old"))
    assert read_files(CEVAL, PART, "val", tmp_path) == [(str(first), b"x")]
    other.write_text("y")
    assert refusal(read_files, CEVAL, PART, "val", tmp_path) == (
        f"{first} and {other} differ, and nothing says which of them is val/law_val.csv; move one "
        "of them away"
    )
    put(tmp_path, "ceval/val/law_val.csv", "z")
    assert read_files(CEVAL, PART, "val", tmp_path)[0].content == b"z"


def test_missing_data_say_where_to_get_them(tmp_path):
    assert not is_here(CEVAL, tmp_path)
    assert refusal(read_files, CEVAL, PART, "val", tmp_path) == (
        f"C-Eval is not here: expected {tmp_path}/ceval/val/law_val.csv, or an archive in "
        f"{tmp_path}/ceval that holds it (cannot get ceval/ceval-exam from the Hub: HF_HUB_OFFLINE "
        "is set, and no copy that is kept here can be read); get it from "
        "github.com/hkust-nlp/ceval, or name its place in LAYERLAB_DATA"
    )
    boolq = find_benchmark("boolq")
    with pytest.raises(UserError, match=r"superglue that holds it; get it from super\.gluebench"):
        read_files(boolq, boolq.subjects[0], "val", tmp_path)


def test_what_is_not_in_the_folder_comes_from_the_hub(tmp_path, monkeypatch):
    """A copy that the Hub's own library keeps, as it lays it out, read without a network."""
    home = tmp_path / "hub" / "datasets--ceval--ceval-exam"
    put(home, "refs/main", "0" * 40)
    kept = home / "snapshots" / ("0" * 40) / "ceval-exam.zip"
    kept.parent.mkdir(parents=True)
    with zipfile.ZipFile(kept, "w") as packed:
        packed.writestr("val/law_val.csv", "from the Hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    try:
        (found,) = read_files(CEVAL, PART, "val", tmp_path)
        assert found == (f"{kept}:val/law_val.csv", b"from the Hub")
        assert not is_here(CEVAL, tmp_path)
        put(tmp_path, "ceval/val/law_val.csv", "in the folder")
        assert read_files(CEVAL, PART, "val", tmp_path)[0].content == b"in the folder"
        with pytest.raises(UserError, match=r"dev/law_dev.csv, or an archive in .* that holds it;"):
            read_files(CEVAL, PART, "dev", tmp_path)
    finally:
        files._download.cache_clear()


@pytest.mark.parametrize(
    ("names", "split", "said"),
    [
        (["interval/law_val.csv", "val/criminal_law_val.csv"], "val", "C-Eval is not here"),
        ([], "train", "C-Eval has no split 'train'; expected dev or val or test"),
        (["all.zip"], "val", "cannot read the archive .*all.zip: .*; copy it anew"),
        (["all.tar.gz"], "val", "cannot read the archive .*all.tar.gz: .*; copy it anew"),
    ],
)
def test_what_holds_no_questions_is_one_line(tmp_path, names, split, said):
    for name in names:
        put(tmp_path, f"ceval/{name}", "PK half")
    refuses(said, read_files, CEVAL, PART, split, tmp_path)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path, monkeypatch):
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    put(tmp_path, "ceval/val/law_val.csv")
    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(UserError, match=r"cannot read .*law_val.csv: Permission denied; copy it"):
        read_files(CEVAL, PART, "val", tmp_path)
