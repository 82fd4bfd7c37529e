"""A folder of a stranger's that a policy is written into, and policies that are too large."""

from pathlib import Path

from layerlab import Policy
from layerlab.numerics.emulation.policies.policy import check_place, load_policy
from tests.hostile.attack import typed
from tests.support.refused import refuses

POLICY = Policy(format="bf16", keep=("lm_head",))


def test_a_policy_is_not_written_through_a_link(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    place = tmp_path / "place"
    place.mkdir()
    (place / ".policy.toml.partial").symlink_to(tmp_path / "thesis.txt")
    (place / "dangling.toml").symlink_to(tmp_path / "new.toml")
    check_place(place / "policy.toml", overwrite=False)
    POLICY.save(place / "policy.toml")
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    assert load_policy(place / "policy.toml") == POLICY
    assert not (place / "policy.toml").is_symlink()
    for write in (lambda: POLICY.save(place / "dangling.toml"), lambda: check(place)):
        refuses(r"is a link to .*, where nothing is; delete the link", write)
    assert not (tmp_path / "new.toml").exists()


def check(place: Path) -> None:
    check_place(place / "dangling.toml", overwrite=True)


def test_a_hidden_file_of_the_users_stays(tmp_path):
    mine = tmp_path / ".policy.toml.partial"
    mine.write_text("mine")
    check_place(tmp_path / "policy.toml", overwrite=False)
    POLICY.save(tmp_path / "policy.toml")
    assert mine.read_text() == "mine"


def test_a_policy_has_a_size(tmp_path):
    with (tmp_path / "p.toml").open("wb") as file:
        file.truncate(300 << 20)
    words = ("evaluate", "llama", "--suite", "piqa", "--policy", str(tmp_path / "p.toml"))
    typed(*words).refused("p.toml has 300 MiB; expected at most 256 MiB")
