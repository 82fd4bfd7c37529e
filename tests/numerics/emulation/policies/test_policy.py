"""Policies as files: written whole, read back exactly, and refused in one line."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layerlab
from layerlab import UserError
from layerlab.numerics.emulation.policies.policy import Policy, check_place, load_policy
from tests.support.refused import refuses

NAMES = st.text(max_size=12)
NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=40)
@given(
    keep=st.lists(NAMES, max_size=4),
    measured=st.dictionaries(NAMES, NAMES | NUMBERS, max_size=4),
    format=st.sampled_from(["bf16", "fp16", "fp8_e4m3", "int8", "t11"]),
)
def test_what_is_saved_is_what_is_read(tmp_path_factory, keep, measured, format):
    path = tmp_path_factory.getbasetemp() / "policy.toml"
    policy = Policy(format=format, keep=tuple(keep), measured=measured)
    policy.save(path)
    assert load_policy(path) == policy


@pytest.mark.parametrize(
    "name",
    ['a "quoted" name', "back\\slash", "тензор.слой", "\x7f\x00\n\t", "😀", "]", "# no comment"],
)
def test_names_of_any_kind_survive(name, tmp_path):
    policy = Policy(format="bf16", keep=(name,), measured={name: name, "not a number": math.inf})
    policy.save(tmp_path / "policy.toml")
    assert layerlab.load_policy(tmp_path / "policy.toml") == policy


@pytest.mark.parametrize("spelling", ["BF16", "bfloat16", " bf16", torch.bfloat16])
def test_a_format_is_held_by_its_own_name(spelling):
    assert Policy(format=spelling).format == "bf16"


def test_a_single_entry_is_not_taken_for_its_letters():
    assert Policy(format="bf16", keep="lm_head").keep == ("lm_head",)
    assert Policy(format="bf16", keep=["lm_head", "residual"]).keep == ("lm_head", "residual")


@pytest.mark.parametrize("keep", [[1], None, 3, ["lm_head", None]])
def test_an_entry_that_is_no_text_is_refused(keep):
    refuses("keep of a policy is .*; expected a list of texts", Policy, format="bf16", keep=keep)


WRONG = {
    b'keep = ["residual"]': "is not a policy: it needs format, a string, and keep, a list",
    b'format = "bf16"\nkeep = "residual"': "is not a policy: it needs format",
    b'format = "bf16"\nkeep = [1]': "is not a policy: it needs format",
    b"format = 16": "is not a policy: it needs format",
    b'format = "bf16"\nmeasured = 3': "strings; measured, a table of numbers, is for the reader",
    b'format = "bf16"\nmeasured.left = [1]': "measured, a table of numbers",
    b'format = "bf16"\nkept = ["a"]\nalso = 1': "; it knows no also, kept",
    b'format = "bf16': "is not TOML: .*; write format and keep",
    b"format = '\xff'": "is not TOML",
    b'format = "bf61"': "bf61",
    None: "type `layerlab precision MODEL --out",
}


@pytest.mark.parametrize("content", WRONG)
def test_what_is_no_policy_is_refused(content, tmp_path):
    path = tmp_path / "policy.toml"
    if content is not None:
        path.write_bytes(content)
    refuses(WRONG[content], load_policy, path)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("no/such/policy.toml", "no folder .*; make it first"),
        ("file/policy.toml", "no folder .*; make it first"),
        ("folder", "it is a folder; name a file"),
    ],
)
def test_what_cannot_be_written_leaves_nothing_behind(place, said, tmp_path):
    (tmp_path / "file").write_text("here before")
    (tmp_path / "folder").mkdir()
    refuses(said, Policy(format="bf16").save, tmp_path / place)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder"]


def test_a_write_that_breaks_off_leaves_the_old_policy(tmp_path, monkeypatch):
    path = tmp_path / "policy.toml"
    Policy(format="fp16").save(path)
    write = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        write(self, content[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    refuses("no space is left on the device", Policy(format="bf16", keep=("residual",)).save, path)
    assert load_policy(path) == Policy(format="fp16")
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_is_looked_at_before_the_work(tmp_path):
    path = tmp_path / "policy.toml"
    check_place(path, overwrite=False)
    path.touch()
    check_place(path, overwrite=True)
    with pytest.raises(UserError, match="is there already; type another name, or --overwrite"):
        check_place(path, overwrite=False)
    refuses("it is a folder; name a file", check_place, tmp_path, overwrite=True)
    with pytest.raises(UserError, match=r"no folder .*; make it first"):
        check_place(tmp_path / "no" / "policy.toml", overwrite=False)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_takes_no_file_is_told_before_the_work(tmp_path, monkeypatch):
    def refuse(self: Path, *args: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(UserError, match="the file system is read-only; name another place"):
        check_place(tmp_path / "policy.toml", overwrite=False)
