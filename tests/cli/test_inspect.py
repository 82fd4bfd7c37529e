"""The command as a user types it: a process, its exit code, its files, its words."""

import json
import os
import signal
import time

import pytest

from layerlab import builtin, load_report
from tests.cli.several import several
from tests.support.forked import Forked, python

QUICK = ("--measures", "diversity,spectrum", "--context", "24", "--samples", "1")
WEIGHTS = ("inspect", "own/model", "--weights", "--measures", "matrices(fewest=8)")


def layerlab(*words, cwd, text=""):
    return python("-m", "layerlab", *map(str, words), cwd=cwd, stdin=text)


@pytest.mark.full
def test_the_first_command_leaves_a_report(tmp_path):
    done = layerlab("inspect", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layerlab-report"]
    report = load_report(tmp_path / "layerlab-report")
    assert [card["name"] for card in report.models] == ["pre-norm"]
    assert (tmp_path / "layerlab-report" / "tables" / "diversity.parquet").stat().st_size > 0
    assert "The page: layerlab-report/report.html" in done.stdout
    assert "100%" in done.stderr


@pytest.mark.full
def test_json_goes_to_standard_output_and_nothing_else_does(tmp_path):
    done = layerlab("inspect", "llama", *QUICK, "--json", cwd=tmp_path)
    content = json.loads(done.stdout)
    assert content["schema"] == 2 and content["models"][0]["name"] == "llama"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_rare_measure_that_is_named_is_kept_with_the_reason_why_it_does_not_apply(tmp_path):
    words = ("inspect", "llama", "--measures", "theorems", "--samples", "1", "--context", "16")
    (told,) = json.loads(layerlab(*words, "--json", cwd=tmp_path).stdout)["measures"]
    assert told["not_applicable"][0]["model"] == "llama"


@pytest.mark.full
def test_standard_input_is_read(tmp_path):
    done = layerlab(
        "inspect", *QUICK, "--text", "-", "--json", "-q", cwd=tmp_path, text="Friends, Romans!"
    )
    content = json.loads(done.stdout)
    assert content["text"]["source"] == "standard input" and done.stderr == ""


@pytest.mark.full
def test_a_saliency_is_asked_for_in_words(tmp_path):
    words = ("--saliency", "My lord, the", "--target", " king", "--foil", " \x1b[31mqueen")
    done = layerlab("inspect", *QUICK, *words, "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = load_report(tmp_path / "layerlab-report")
    frame = report.frame("saliency")
    assert {*report.frames} == {"diversity", "spectrum", "saliency"}
    assert "".join(frame[frame["layer"] == 0]["token"]) == "My lord, the"
    picture = report.to_dict()["pictures"]["saliency"]["pre-norm"]
    assert picture["target"]["token"][:2] == " k" and picture["foil"]["token"] == " "
    assert "\x1b[31m" not in done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "predicted probability hangs on position share" in said
    assert "the foil ' \\x1b[31mqueen' is" in said and "tokens here: the first, " in said
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.full
def test_a_prompt_too_long_is_told_with_a_way_that_works(tmp_path):
    (tmp_path / "long.txt").write_text("the king " * 300)
    words = ("inspect", "--measures", "diversity", "-q", "--saliency", "the king " * 300)
    done = layerlab(*words, cwd=tmp_path)
    said = " ".join(done.stdout.split())
    assert done.returncode == 0 and "and the context of pre-norm is 256; shorten it" in said
    way = ("--text", "FILE", "--context", "256", "--measures", "'saliency(text=None)'")
    assert " ".join(way) in said
    typed = [{"FILE": "long.txt"}.get(word, word.strip("'")) for word in way]
    done = layerlab("inspect", *typed, "-q", "--samples", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    picture = load_report(tmp_path / "layerlab-report").to_dict()["pictures"]["saliency"]
    assert picture["pre-norm"]["length"] == 256 and picture["pre-norm"]["position"] == 255


@pytest.mark.full
def test_features_join_what_is_read(tmp_path):
    done = layerlab("inspect", *QUICK, "--features", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = load_report(tmp_path / "layerlab-report")
    assert {*report.frames} == {"diversity", "spectrum", "features"}
    assert len(report.to_dict()["pictures"]["features"]["pre-norm"]["words"]) == 8


@pytest.mark.full
def test_weights_alone_need_no_tokenizer(tiny, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "own" / "model")
    done = layerlab(*WEIGHTS, "--lang", "zh", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = load_report(tmp_path / "layerlab-report")
    assert len(report.frames["matrices"]) == 10 and report.models[0]["device"] == "disk"
    page = (tmp_path / "layerlab-report" / "report.html").read_text("utf-8")
    assert "仅看权重" in page and "权重矩阵的谱" in page


@pytest.mark.full
def test_figures_are_drawn_beside_the_report(tiny, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "own" / "model")
    done = layerlab(*WEIGHTS, "-q", "--figures", "svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    drawn = [path.name for path in (tmp_path / "layerlab-report" / "figures").iterdir()]
    assert "matrices-own-model-mlp.c_fc-layer-1.svg" in drawn


@pytest.mark.full
def test_the_page_is_in_the_language_that_is_asked_for(tmp_path):
    words = ("inspect", "--measures", "diversity", "--context", "24", "--samples", "1", "-q")
    refused = layerlab(*words, "--lang", "fr", cwd=tmp_path)
    assert refused.returncode == 2 and list(tmp_path.iterdir()) == []
    assert "there is no page in 'fr'; its languages are: en, zh" in " ".join(refused.stderr.split())
    assert layerlab(*words, "--lang", "zh", "--out", "out", cwd=tmp_path).returncode == 0
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert '<html lang="zh">' in page and "token 的多样性" in page
    assert load_report(tmp_path / "out").measures["diversity"]["title"] == "Diversity of the tokens"


@pytest.mark.full
def test_fail_on_turns_findings_into_an_exit_code(tiny, tmp_path):
    import torch
    from transformers import AutoTokenizer

    model = tiny("gpt2", vocab_size=512)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(builtin.path("llama")).save_pretrained(tmp_path / "broken")
    words = ("inspect", "broken", *QUICK, "--fail-on")
    assert layerlab(*words, "error", "-q", cwd=tmp_path).returncode == 1
    healthy = ("inspect", "llama", *QUICK, "--fail-on", "error", "-q")
    assert layerlab(*healthy, cwd=tmp_path).returncode == 0


MISTAKES = [
    (("nobody/nothing",), "'nobody/nothing' is neither a folder, nor a built-in model"),
    (("--measures", "diversty"), "no measure is called 'diversty'; did you mean 'diversity'?"),
    (("--measures", "dimension(eps=1)"), "measure 'dimension' has no option 'eps'"),
    (("--text", "missing.txt"), "--text missing.txt: no such file or directory"),
    (("--context", "4000"), "--context 4000 is longer than the 256 positions of pre-norm"),
    (("--out", "taken"), "cannot write a report to taken: it is a file; name a folder"),
    (("--context", "1"), "context is 1; expected a whole number, at least 2"),
    (("--fail-on", "info"), "Invalid value for '--fail-on'"),
    (("--no-such-option",), "No such option: --no-such-option"),
    (("",), "the model's name is empty"),
    (("--json", "--open"), "--open shows a page that --json does not write; give --out DIR"),
    (("--load", "missing.py"), "no Python file at missing.py"),
    (("--target", " a"), "--target asks about the next token of a text; type for example"),
    (("--saliency", ""), "the text of a saliency is empty; give some words, as --saliency 'I am'"),
    (
        ("--saliency", "I am", "--target", " x", "--foil", " x"),
        "target and foil are both ' x', and nothing tells a word from itself; give two words",
    ),
    (
        ("--figures", "gif"),
        "Invalid value for '--figures'",
    ),
    (("--json", "--figures", "svg"), "--figures svg writes files that --json does not; give --out"),
    (("--weights", "--context", "8"), "--weights reads no text and runs no model, so that --cont"),
    (("--weights", "--measures", "stream"), "measure 'stream' reads a text, and --weights"),
    (("--measures", "features(skip=-1)"), "option skip of measure 'features' got -1; expected"),
    (("--measures", "saliency(of=loss)"), "option of of measure 'saliency' got 'loss'; expected"),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What every mistake was answered with, and the folder it was made in."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "taken").touch()
    return several([("inspect", "-q", *words) for words, _ in MISTAKES], folder), folder


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=lambda number: MISTAKES[number][1])
def test_a_mistake_is_one_line_and_exit_code_two(told, number):
    found, folder = told[0][number], told[1]
    assert found.code == 2
    assert MISTAKES[number][1] in found.error and found.error.count("\n") == 1
    assert found.out == "" and [path.name for path in folder.iterdir()] == ["taken"]


def test_a_mistake_ends_the_process_with_two(tmp_path):
    done = layerlab("inspect", "-q", "--context", "1", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("hard work")
    done = layerlab("inspect", *QUICK, "--out", "thesis", cwd=tmp_path)
    assert done.returncode == 2 and "holds something other than a report" in done.stderr
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "hard work"


# A suite that runs in the background inherits a SIGINT that is ignored.
HEARING = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("layerlab", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "kill", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.full)]
)
def test_interrupted_half_way_leaves_no_half_report(tmp_path, kill):
    env = {**os.environ, "FORCE_COLOR": "1", "TTY_INTERACTIVE": "1"}
    words = ("inspect", "--samples", "30", "--out", "out")
    process, deadline = Forked("-c", HEARING, *words, cwd=tmp_path, env=env), time.monotonic() + 120
    while "layer" not in (seen := process.said(2)) and time.monotonic() < deadline:
        assert process.process.is_alive(), seen
        time.sleep(0.02)
    os.kill(process.process.pid, kill)
    done = process.wait(60)
    assert "layer" in done.stderr, "the bar never named a layer"
    assert list(tmp_path.iterdir()) == []
    if kill is signal.SIGINT:
        assert done.returncode == 130 and "interrupted; nothing was written" in done.stderr
    else:
        assert done.returncode == -kill


@pytest.mark.full
def test_interrupted_and_typed_again_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    words = ("inspect", "--samples", "4", "--measures", "spectrum,querykey,gain")
    code = "from layerlab.measures import kept_readings; kept_readings.SHORT = 0\n" + HEARING
    live = {**os.environ, "FORCE_COLOR": "1", "TTY_INTERACTIVE": "1"}
    process, deadline = Forked("-c", code, *words, cwd=tmp_path, env=live), time.monotonic() + 120
    while "layer 3" not in (seen := process.said(2)) and time.monotonic() < deadline:
        assert process.process.is_alive(), seen
        time.sleep(0.02)
    os.kill(process.process.pid, signal.SIGINT)
    done = process.wait(60)
    assert done.returncode == 130
    assert "layerlab: interrupted; what was read is kept" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["cache"]
    again = layerlab(*words, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "readings are kept from before, and not made again" in again.stderr
    assert not list((tmp_path / "cache" / "inspections").iterdir())
    assert (tmp_path / "layerlab-report" / "report.json").exists()


@pytest.mark.full
def test_a_model_name_is_never_read_as_markup(tiny, tmp_path):
    from transformers import AutoTokenizer

    name = "[bold]\x1b[31mhostile[red]"
    tiny("gpt2", vocab_size=512).save_pretrained(tmp_path / name)
    AutoTokenizer.from_pretrained(builtin.path("llama")).save_pretrained(tmp_path / name)
    done = layerlab("inspect", name, *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[bold]" in done.stdout and "\x1b[31m" not in done.stdout + done.stderr


def test_help_is_quick_and_names_the_command(tmp_path):
    done = layerlab("--help", cwd=tmp_path)
    assert done.returncode == 0 and "inspect" in done.stdout
    assert layerlab("--version", cwd=tmp_path).stdout.startswith("layerlab ")
