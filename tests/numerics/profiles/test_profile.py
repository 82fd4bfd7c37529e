"""Profiles: those that are shipped are read, and what a file says wrongly is told in a line."""

from pathlib import Path
from typing import Any

import pytest

from layerlab.numerics.profiles.operations import OPERATIONS
from layerlab.numerics.profiles.profile import (
    NumericsProfile,
    differences,
    list_profiles,
    load_profile,
)
from layerlab.numerics.profiles.rules import rule
from tests.support.refused import refusal, refuses

SHIPPED = list_profiles()


def rules(profile: NumericsProfile) -> list[str | None]:
    return [rule(profile, name, low) for name in OPERATIONS for low in (True, False)]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_says_what_it_stands_for(name):
    found = load_profile(name)
    assert found.name == name and found.description
    assert found.verified or found.sources, "what is not verified names where it was read"


@pytest.mark.parametrize("a", SHIPPED)
@pytest.mark.parametrize("b", SHIPPED)
def test_with_all_differences_taken_back_one_computes_as_the_other(a, b):
    one, other = load_profile(a), load_profile(b)
    changed = other
    for name in differences(one, other):
        changed = changed.take_back(name, one)
    assert rules(changed) == rules(one) and changed.attention == one.attention
    assert differences(one, changed) == []


def test_what_is_set_to_the_same_is_no_difference():
    plain = NumericsProfile(name="a")
    assert differences(plain, NumericsProfile(name="b", operations={"residual": "fp32"})) == [
        "residual"
    ]
    assert set(differences(plain, NumericsProfile(name="b", format="fp16"))) == set(OPERATIONS)


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"format": "bf16"}, {"format": "BFloat16"}),
    ({"format": "bf16"}, {"format": "t8:-126:127"}),
    ({"format": "int8:group32"}, {"format": "int8:symmetric:group32"}),
    ({"operations": {"head": "fp32"}}, {"operations": {"head": "float32"}}),
    # Values are held in float32.
    ({"operations": {"head": "fp32"}}, {"operations": {"head": "fp64"}}),
    ({"sums": {"head": "bf16 split-k 4"}}, {"sums": {"head": "bfloat16  split-k 04"}}),
    # Of what is not rounded, neither one in so many is, nor before or after it is normalized.
    ({"format": "fp32"}, {"format": "fp32", "attention": "unnormalized", "every": {"residual": 4}}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_is_said_in_other_words_is_no_difference(one, other):
    a, b = NumericsProfile(name="a", **one), NumericsProfile(name="b", **other)
    assert differences(a, b) == differences(b, a) == []


def test_the_same_words_of_what_is_rounded_are_differences():
    sparse = NumericsProfile(name="a", every={"residual": 4})
    late = NumericsProfile(name="b", attention="unnormalized")
    assert differences(sparse, late) == ["residual", "attention"]
    assert differences(sparse, NumericsProfile(name="c", format="bf16:saturate"))


WRONG = {
    'format = "bf16"\n[operations]\nsoftmaxx = "fp32"\n': "names the operation 'softmaxx'; did you "
    "mean 'softmax'?",
    'format = "bf17"\n': "format of the profile 'p': no number format is called 'bf17'",
    '[operations]\nhead = "fp33"\n': "head of the profile 'p': no number format is called "
    "'fp33'; did you mean 'fp32'?",
    '[operations]\nhead_weight = "fp32"\n': "did you mean 'head_weights'?",
    "format = 3\n": "format in 'p.toml' is 3; expected the name of a number format",
    'atention = "normalized"\n': "has the key 'atention'; did you mean 'attention'?",
    'attention = "flash"\n': "attention of the profile 'p' is 'flash'; type 'normalized' or",
    "format = \n": "is not TOML",
    "[operations]\nhead = 1\n": "operations in 'p.toml' is {'head': 1}; expected a table",
    '[sums]\nprojection = "bf16 splitk 4"\n': "sums of projection of the profile 'p' are 'bf16 "
    "splitk 4'; did you mean 'split-k'? expected a format, sequential or tree or split-k, and a",
    '[sums]\nhead = "bf16 split-k"\n': "are 'bf16 split-k'; expected a format",
    '[sums]\nhead = "bf16 tree 0"\n': "are 'bf16 tree 0'; expected a format",
    '[sums]\nhead = ""\n': "are ''; expected a format",
    '[sums]\nhead = "fp32 tree 2, "\n': "are 'fp32 tree 2, '; expected a format",
    '[sums]\nhead = "bf17 tree 2"\n': "sums of head of the profile 'p': no number format is "
    "called 'bf17'",
    '[sums]\nhead = "int8 tree 2"\n': "sums of head of the profile 'p' are rounded to 'int8'; "
    "expected a floating format of float32's digits or fewer",
    '[sums]\nhead = "fp64 tree 2"\n': "are rounded to 'fp64'",
    '[sums]\nnorm = "bf16 tree 2"\n': "sums of norm of the profile 'p': no sum makes them; "
    "known: norm_inside, projection, scores, softmax, context, router, head",
    '[sums]\nscore = "bf16 tree 2"\n': "names the operation 'score'; did you mean 'scores'?",
    "[sums]\nhead = 4\n": "sums in 'p.toml' is {'head': 4}; expected a table of sums",
    'sums = "bf16"\n': "sums in 'p.toml' is 'bf16'; expected a table of sums by operation",
    'format = "fp16"\nruns = "eager"\n': "says runs = 'eager', which is how torch runs "
    "torch-eager, and differs from it in weights, ",
    'verified = "yes"\n': "verified in 'p.toml' is 'yes'; expected true or false",
    "verified = true\n": "'p.toml' says verified = true, which is said of profiles alone that "
    "tests hold against their engine",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_profile_is_one_line(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text(text, "utf-8")
    assert WRONG[text] in refusal(load_profile, "p.toml")


def test_orders_of_sums_are_differences_that_can_be_taken_back(tmp_path):
    path = tmp_path / "apart.toml"
    said = "t14 sequential 32, fp32 sequential 128"
    path.write_text(f'[sums]\nprojection = "{said}"\nhead = "bf16 split-k 4"\n', "utf-8")
    plain, apart = NumericsProfile(name="plain"), load_profile(path)
    spaced = NumericsProfile(name="spaced", sums={"projection": said.replace(" ", "  ")})
    assert differences(plain, apart) == ["projection", "head"]
    assert differences(apart, spaced) == ["head"]
    assert apart.take_back("head", plain).sums == {"projection": said}
    assert plain.take_back("head", apart).sums == {"head": "bf16 split-k 4"}
    assert differences(plain, apart.take_back("head", plain).take_back("projection", plain)) == []


def test_a_profile_that_is_nowhere_is_told_with_the_names_of_those_that_are():
    assert "torch-sdpa" in refuses("did you mean 'torch-eager'", load_profile, "torch-eagre")


def test_what_is_no_name_is_one_line():
    wrong: Any = None
    refuses("a profile is None; expected its name or a TOML file", load_profile, wrong)


@pytest.mark.parametrize(
    ("encoding", "said"), [("utf-8-sig", None), ("utf-16", "is no text in UTF-8; expected TOML")]
)
def test_a_mark_at_the_head_is_no_part_of_a_profile(encoding, said, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('format = "fp16"\n', encoding)
    if said is None:
        assert load_profile(path).format == "fp16"
        return
    refuses(said, load_profile, path)


def test_a_profile_is_looked_for_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "mine.toml").write_text('format = "fp16"\n', "utf-8")
    assert load_profile("~/mine.toml").format == "fp16"


def test_a_profile_of_ones_own_is_read_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('description = "mine"\n[operations]\ncache = "fp8_e4m3"\n', "utf-8")
    found = load_profile(path)
    assert found.name == "mine" and differences(load_profile("torch-eager"), found) == ["cache"]
    assert not found.verified and found.summary == "not verified: mine"
