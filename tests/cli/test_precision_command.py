"""`layerlab precision` as it is typed: its table, its file, its JSON, its one-line mistakes."""

import json

import pytest
from transformers import AutoTokenizer

from layerlab import builtin, load_policy
from tests.cli.several import several

QUICK = ("precision", "model", "--samples", "1", "--context", "24", "--budget", "0.8")
COMMANDS = {
    "first": (*QUICK, "--out", "policy.toml"),
    "again": (*QUICK, "-q", "--out", "policy.toml"),
    "json": (*QUICK, "-q", "--format", "fp16", "--out", "policy.toml", "--overwrite", "--json"),
}
BEYOND = (*QUICK[:-1], "1e-30", "-q", "--format", "fp8_e4m3")
MISTAKES = [
    (("--format", "bf61"), "bf61"),
    (("--format", "fp32"), "a model in fp32 is in float32 already: there is nothing to keep"),
    (
        ("--budget", "2"),
        "budget is 2.0; expected a share of the squared error, between 0 and 1: type --budget 0.3",
    ),
    (("--out", "folder"), "cannot write the policy to 'folder': it is a folder; name a file"),
    (("--out", "no/policy.toml"), "no folder 'no'; make it first"),
    (("--context", "1"), "context is 1; expected a whole number, at least 2"),
    (("--text", "missing.txt"), "--text missing.txt: no such file or directory"),
]


@pytest.fixture(scope="module")
def told(tiny, tmp_path_factory):
    """What every command said, by its name, and the folder they ran in."""
    folder = tmp_path_factory.mktemp("precision")
    (folder / "folder").mkdir()
    tiny("llama", vocab_size=512).save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(builtin.path("llama")).save_pretrained(folder / "model")
    commands = [*COMMANDS.values(), *(("precision", "model", "-q", *one) for one, _ in MISTAKES)]
    commands.append(BEYOND)
    return several(commands, folder), folder


def test_the_first_command_shows_and_writes_what_it_found(told):
    found = told[0][0]
    assert found.code == 0, found.error
    for part in (
        "alone leaves  together leave",
        "residual",
        "within the budget of 0.8",
        "in a real run",
        "layerlab.apply_precision(model, layerlab.load_policy('policy.toml'))",
        "advises scores and softmax in higher precision: ",
        "advises control of W_k^T W_q: ",
    ):
        assert part in found.out
    assert "model, bf16" in found.error


def test_a_policy_is_replaced_only_when_that_is_asked_for(told):
    again, replaced = told[0][1:3]
    assert again.code == 2 and again.error.count("\n") == 1
    assert "'policy.toml' is there already; type another name, or --overwrite" in again.error
    assert replaced.code == 0 and replaced.error == ""
    policy = load_policy(told[1] / "policy.toml")
    assert policy.format == "fp16" and policy.measured["budget"] == 0.8
    assert sorted(path.name for path in told[1].iterdir()) == ["folder", "model", "policy.toml"]


def test_json_is_all_that_is_printed(told):
    content = json.loads(told[0][2].out)
    assert content["policy"]["format"] == "fp16" and content["reached"]
    assert {one["verdict"] for one in content["counsels"]} <= {"holds", "fails", "not decided"}


def test_a_budget_that_is_not_reached_is_exit_code_one(told):
    found = told[0][-1]
    assert found.code == 1 and "apply   with layerlab.emulate(model, " in found.out
    assert "layerlab: the budget of 1e-30 is not reached: the policy that was found" in found.error


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=lambda number: MISTAKES[number][1])
def test_a_mistake_is_one_line_and_exit_code_two(told, number):
    found = told[0][len(COMMANDS) + number]
    assert found.code == 2 and found.out == ""
    assert MISTAKES[number][1] in found.error and found.error.count("\n") == 1
