"""Files that are none, never end, are nested without end, or steer a terminal."""

import json
import os
from pathlib import Path

import pytest

import layerlab
from layerlab import UserError, builtin
from tests.hostile.attack import typed, unblock_pipes

DEEP, DIGITS = "[" * 20_000 + "]" * 20_000, "9" * 5000
TEXT, TOKENIZER = str(builtin.SAMPLE), ("--tokenizer", "llama")
SIZE = (*TOKENIZER, "--size", "+9", "--out", "new", "--quiet")
SMALL = ("--samples", "1", "--context", "16", "--measures", "stream", "--json", "--quiet")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkfifo("pipe.txt")
    os.mkfifo("pipe.toml")
    os.mkfifo("pipe.py")
    return tmp_path


SPECIAL = [
    (("inspect", "--text", "/dev/zero", *SMALL), "'/dev/zero' is a device"),
    (("inspect", "--text", "pipe", *SMALL), "'pipe' is a pipe; expected a file"),
    (("precision", "--text", "pipe"), "'pipe' is a pipe; expected a file"),
    (("inspect", "--load", "pipe.py"), "no Python file at pipe.py"),
    (("inspect", "pipe"), "'pipe' is a file; expected the folder"),
    (("train", "/dev/zero"), "'/dev/zero' is a device; expected a file"),
    (("compare", "pipe.toml"), "'pipe.toml' is a pipe; expected a file"),
    (("adapt", "pipe.toml"), "'pipe.toml' is a pipe; expected a file"),
    (("adapt", "clean", "pipe.txt", "--out", "new"), "is a pipe; expected a file"),
    (("variants", "--load", "pipe.py"), "no Python file at pipe.py"),
    (("adapt", "vocabulary", *SIZE, "--corpus", "pipe.txt"), "is a pipe; expected a file"),
    (("adapt", "vocabulary", *SIZE, "--corpus", TEXT, "--against", "pipe.txt"), "is a pipe"),
    (("adapt", "vocabulary", *SIZE, "--corpus", TEXT, "--terms", "pipe.txt"), "is a pipe"),
    (("adapt", "embed", "llama", *TOKENIZER, "--out", "new", "--text", "pipe.txt"), "is a pipe"),
    (("adapt", "contamination", "pipe.txt", "--benchmark", "x"), "is a pipe; expected a file"),
    (("evaluate", "llama", "--suite", "piqa", "--against", "pipe"), "is a pipe; expected a file"),
    (("evaluate", "llama", "--policy", "pipe", "--suite", "piqa"), "is a pipe; expected a file"),
]


@pytest.mark.parametrize(
    ("words", "said"), SPECIAL, ids=[" ".join(words)[:40] for words, _ in SPECIAL]
)
def test_what_is_no_file_is_refused(words, said, place):
    with unblock_pipes(place):
        typed(*words).refused(said)


NESTED = [
    ("deep.toml", f"a = {DEEP}", ("train", "deep.toml"), "deep.toml is not TOML"),
    ("digits.toml", f"[train]\nmax_steps = {DIGITS}", ("train", "digits.toml"), "is not TOML"),
    ("deep.toml", f"a = {DEEP}", ("adapt", "deep.toml"), "is not TOML"),
    ("deep.toml", f"a = {DEEP}", ("evaluate", "llama", "--policy", "deep.toml"), "deep.toml"),
    ("rows.jsonl", DEEP, ("adapt", "clean", "rows.jsonl", "--out", "new"), "nested too deeply"),
    ("rows.jsonl", DIGITS, ("adapt", "clean", "rows.jsonl", "--out", "new"), "is not JSON"),
    (
        "a.json",
        DEEP,
        ("adapt", "contamination", "rows.jsonl", "--benchmark", "a.json"),
        "is not JSON: it is nested too deeply",
    ),
    ("comparison.json", DEEP, ("compare", ".", "--judge"), "nested too deeply"),
    ("comparison.json", DIGITS, ("compare", ".", "--judge"), "cannot read the recipe in"),
]


@pytest.mark.parametrize(("name", "text", "words", "said"), NESTED)
def test_what_is_nested_without_end_is_one_line(name, text, words, said, place):
    (place / "rows.jsonl").write_text(json.dumps({"text": "A row."}) + "\n")
    (place / name).write_text(text)
    typed(*words).refused(said)


@pytest.mark.parametrize("value", [DEEP, DIGITS])
def test_a_setting_without_end_is_one_line(value, place):
    typed("train", "smoke", "--plan", "--set", f"train.max_steps={value}").refused(
        "train.max_steps"
    )


def test_a_chain_of_recipes_ends(place):
    for number in range(40):
        name = f'extends = "{number + 1}.toml"' if number < 39 else 'extends = "smoke"'
        (place / f"{number}.toml").write_text(name)
    typed("compare", "0.toml", "--plan").refused("extends goes through 17 recipes")
    typed("compare", "25.toml", "--plan", "--quiet").survived()


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda at: layerlab.inspect(at, progress=False), "is neither a folder, nor a built-in"),
        (lambda at: layerlab.clean_text(at, "new.jsonl"), "there is no text"),
        (
            lambda at: layerlab.change_vocabulary("llama", corpus=at, size="+2", out="new"),
            "there is no text",
        ),
        (
            lambda at: layerlab.change_vocabulary(at, corpus=TEXT, size="+2", out="new"),
            "there is no tokenizer",
        ),
        (lambda at: layerlab.evaluate("llama", tasks=f"{at}.yaml"), "x.yaml"),
    ],
)
def test_the_home_of_nobody_is_no_folder(ask, said, place):
    with pytest.raises(UserError, match="~nobody-here") as told:
        ask("~nobody-here/x")
    assert said in str(told.value) and "\n" not in str(told.value)


@pytest.mark.full
def test_a_user_without_a_home_folder_is_told_what_to_set(place, monkeypatch):
    def nobody(_: int) -> None:
        raise KeyError("uid not found")

    for name in ("HOME", "LAYERLAB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    said = "this user has no home folder; set HOME, or LAYERLAB_CACHE"
    typed("train", "smoke", "--plan").refused(said)
    monkeypatch.setenv("LAYERLAB_CACHE", str(place / "cache"))
    assert typed("train", "smoke", "--plan").code == 0
