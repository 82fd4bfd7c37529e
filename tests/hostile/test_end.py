"""However a command ends: one line, the right code, nothing half-written."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from layerlab.console.ending import run_app
from layerlab.experiments.executors.local import wait_for
from tests.support.forked import python

FULL = Path("/dev/full")
COMMAND = (sys.executable, "-m", "layerlab")
READ = ("inspect", "llama", "--measures", "stream", "--samples", "1", "--context", "16", "--quiet")
# It would take hours.
LONG = """
model = { variant = "llama", width = 16, layers = 1, heads = 2, context = 16 }
data = { sources = [{ text = "text.txt" }], vocab_size = 260 }
train = { max_steps = 10_000_000, batch_size = 4 }
run = { save_steps = 20, max_parallel = 2 }
compare = { arms = ["llama", "gpt2"], seeds = [0] }
"""
# A signal that comes while a class is made, and what libraries make of the error that it becomes.
MADE = """
import os
class Part:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), {sign})
class Whole:
    part = Part()
"""
MISSED = f"""
try:
    exec({MADE!r})
except Exception as error:
    raise ModuleNotFoundError("a part of a library") from error
"""
SWALLOWED = """
import os
try:
    os.kill(os.getpid(), 2)
except BaseException:
    pass
import nothing_of_this_name
"""
# While the command line itself is imported.
EARLY = """
import os, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), {sign})
sys.meta_path.insert(0, Finder())
sys.argv = ["layerlab", "variants"]
from layerlab.__main__ import main
main()
"""
# Once it is done, while the interpreter ends.
LATE = """
import atexit, os, sys
atexit.register(os.kill, os.getpid(), {sign})
sys.argv = ["layerlab", {word!r}]
from layerlab.__main__ import main
main()
"""
SIGNS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("doctor", "--json"), marks=pytest.mark.full),
        pytest.param(("variants", "--json"), marks=pytest.mark.full),
        ("--version",),
    ],
)
def test_a_full_standard_output_is_one_line(words):
    with FULL.open("w") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "layerlab: cannot write standard output: No space left on device; make room there\n"
    )


@pytest.mark.parametrize(
    "words", [pytest.param(("variants", "--json"), marks=pytest.mark.full), ("--help",)]
)
def test_a_closed_pipe_is_quiet(words):
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run([*COMMAND, *words], stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.full
@pytest.mark.parametrize(
    ("sign", "said"),
    [
        (signal.SIGTERM, "terminated; nothing was written"),
        (signal.SIGHUP, "terminated; nothing was written"),
        (signal.SIGINT, "interrupted; nothing"),
    ],
)
def test_a_signal_is_one_line(sign, said, tmp_path):
    """Sent while it waits for a text that does not come."""
    command = [*COMMAND, *READ, "--text", "-", "--out", "report"]
    started = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
        # A background job of a shell ignores Ctrl-C, and hands that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    waiting = Path(f"/proc/{started.pid}/wchan")
    until = time.monotonic() + 60
    while "pipe" not in waiting.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    started.send_signal(sign)
    _, told = started.communicate(timeout=60)
    assert started.returncode == 128 + sign
    assert told.startswith(f"layerlab: {said}") and told.count("\n") == 1
    assert not (tmp_path / "report").exists()


def test_a_closed_standard_output_is_one_line():
    line = f"{' '.join(COMMAND)} --version >&-"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "layerlab: standard output is closed; give it a place, or type > /dev/null\n"
    )


@pytest.mark.full
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
def test_a_mistake_has_its_code_where_nobody_can_be_told():
    with FULL.open("w") as full:
        done = subprocess.run([*COMMAND, "train", "nosuch"], stdout=full, stderr=full)
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("raise GeneratorExit", 2, "line 1 failed while it was loaded: GeneratorExit"),
        ("class E(BaseException): pass\nraise E", 2, "line 2 failed while it was loaded: "),
        ("x = " + "-" * 200_000 + "1", 2, "cannot read own.py as Python: line 1"),
        ("import sys\nsys.stdout.close()\nMEASURES = ()", 1, "standard output was closed while"),
        ("import os\nos.kill(os.getpid(), 15)", 143, "terminated; nothing was written"),
        (MADE.format(sign=15), 143, "terminated; nothing was written"),
        (MADE.format(sign=2), 130, "interrupted; nothing was written"),
        (MISSED.format(sign=2), 130, "interrupted; nothing was written"),
        (SWALLOWED, 130, "interrupted; nothing was written"),
        ("exec('import os; os.kill(os.getpid(), 2)')", 130, "interrupted; nothing was written"),
    ],
)
def test_a_file_that_ends_oddly_is_named(text, code, said, tmp_path):
    (tmp_path / "own.py").write_text(text)
    done = python("-m", "layerlab", "variants", "--load", "own.py", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert said in done.stderr


@pytest.mark.parametrize("sign", SIGNS)
def test_a_signal_before_there_is_a_command_is_one_line(sign):
    done = heard(EARLY.format(sign=int(sign)))
    word = "interrupted" if sign == signal.SIGINT else "terminated"
    assert done.stderr == f"layerlab: {word}; nothing was written\n"
    assert done.returncode == 128 + sign


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize(("word", "code"), [("--version", 0), ("nosuch", 2)])
def test_a_signal_after_a_command_changes_nothing(sign, word, code):
    done = heard(LATE.format(sign=int(sign), word=word))
    assert (done.returncode, done.stderr.count("\n")) == (code, int(code > 0))


def heard(text: str) -> subprocess.CompletedProcess[str]:
    """Run Python that hears every signal: a background job of a shell ignores some."""

    def hear() -> None:
        for sign in SIGNS:
            signal.signal(sign, signal.SIG_DFL)

    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, preexec_fn=hear
    )


@pytest.mark.parametrize("link", [False, True])
def test_a_report_takes_no_other_file_s_place(link, tmp_path):
    row = '{"text": "A row of text that is long enough to matter for all of us here."}\n'
    (tmp_path / "mine.jsonl").write_text(row)
    (tmp_path / "q.jsonl").write_text(row.replace("text", "question"))
    if link:
        (tmp_path / "out.json").symlink_to("mine.jsonl")
    words = ["-m", "layerlab", "adapt", "contamination", "mine.jsonl", "--benchmark", "q.jsonl"]
    words.append("--out")
    name = "out.json" if link else "mine.jsonl"
    done = python(*words, name, cwd=tmp_path)
    assert done.returncode == 2 and f"'{name}' is there already, and is no report" in done.stderr
    assert (tmp_path / "mine.jsonl").read_text() == row
    for _ in range(2):  # its own is written anew
        assert python(*words, "new.json", cwd=tmp_path).returncode == 0


@pytest.mark.full
def test_a_terminal_of_ascii_gets_what_it_can_show():
    """Where Python is told to write ASCII, other characters are question marks."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "layerlab", "variants", "llama"],
        env={**os.environ, **plain},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert b"?" in done.stdout and done.stdout.isascii()


@pytest.mark.full
@pytest.mark.parametrize("begun", ["log.txt", "checkpoints/*"])
def test_runs_end_soon_after_a_comparison_that_is_killed(begun, tmp_path):
    """Both while they import what they need, and while they train."""
    (tmp_path / "text.txt").write_text("a river runs to the sea, and rain fell all night. " * 400)
    (tmp_path / "one.toml").write_text(LONG)
    command = [*COMMAND, "compare", "one.toml", "--out", "out", "--quiet"]
    started = subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"LAYERLAB_CACHE": "cache"})
    try:
        assert wait_for(lambda: len({*tmp_path.glob(f"out/*/runs/*/{begun}")}) >= 2, 120.0)
        workers = psutil.Process(started.pid).children()
        # A log is there a moment before its worker speaks into it.
        speaking = [Path(f"/proc/{one.pid}/fd/1") for one in workers]
        assert wait_for(lambda: all(one.readlink().name == "log.txt" for one in speaking), 60.0)
    finally:
        started.kill()
        started.wait()
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=60.0)
    for one in alive:
        one.kill()
    assert not alive
    logs = [one.read_text() for one in tmp_path.glob("out/*/runs/*/log.txt")]
    assert [log for log in logs if not log.endswith("is gone; it stops too\n")] == []


def test_without_a_folder_for_temporary_files_one_is_told_what_to_set(monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    monkeypatch.setattr(sys, "argv", ["layerlab"])
    assert run_app(lambda **_: tempfile.gettempdir()) == 2
    said = "no folder for temporary files can be written to; set TMPDIR to one that can"
    assert capsys.readouterr().err == f"layerlab: {said}\n"
