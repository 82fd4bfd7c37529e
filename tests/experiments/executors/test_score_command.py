"""Commands that score a model: what they print, what they must not, and that they end."""

import os
import sys
import time
from pathlib import Path

import pytest

from layerlab.errors import UserError
from layerlab.experiments.executors.score_command import check_program, hash_command, run_command
from layerlab.recipes.comparison_sections import Command
from layerlab.records.scores import ModelScore
from layerlab.system.untrusted.trust import trust
from tests.support.refused import refuses


def command(folder: Path, code: str, **given: float) -> Command:
    """A command that runs a file with this code."""
    file = folder / "score.py"
    file.write_text(f"import sys, time\n{code}\n", encoding="utf-8")
    return Command(run=("python", str(file), "{model}"), **given)


def scored(folder: Path, code: str, **given: float) -> ModelScore:
    with trust(False, trust_recipe=True):
        return run_command("own", command(folder, code, **given), folder, "llama-s1")


def test_a_number_a_table_and_a_list_are_scores(tmp_path):
    assert scored(tmp_path, "print('hello'); print(-2.5)").score == -2.5
    one = scored(tmp_path, "print('{\"score\": 3}\\n')")
    assert one.score == 3.0 and one.parts[0].questions == {} and 0 < one.seconds < 600
    found = scored(tmp_path, "print([1, 0, 0.5])")
    assert found.score == 0.5 and found.parts[0].questions == {"0": 1.0, "1": 0.0, "2": 0.5}
    assert scored(tmp_path, "print('{\"score\": [1, 0]}')").parts[0].questions == {"0": 1, "1": 0}
    assert scored(tmp_path, "print([1e12, 1e-5, -1e12])").score == pytest.approx(1e-5 / 3)
    assert scored(tmp_path, "print([0.25])").parts[0].questions == {"0": 0.25}
    assert scored(tmp_path, "print('no score'); print(7); print(file=sys.stderr)").score == 7.0


def test_it_is_told_the_model_and_no_shell_reads_its_words(tmp_path):
    told = [sys.executable, str(tmp_path.resolve())]
    whole = f"print(float([sys.executable, *sys.argv[1:]] == {told}))"
    assert scored(tmp_path, whole).score == 1.0
    given = command(tmp_path, "print(len(sys.argv[2:]) if sys.argv[2] == '; echo 9 $HOME' else 0)")
    with trust(False, trust_recipe=True):
        words = Command(run=(sys.executable, *given.run[1:], "; echo 9 $HOME"))
        assert run_command("own", words, tmp_path, "llama-s1").score == 1.0


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("pass", "it printed '' last"),
        ("print(1); print('done')", "it printed 'done' last"),
        ("print('NaN')", "it printed nan, which is no finite score"),
        ("print('[1, Infinity]')", "it printed inf, which is no finite score"),
        ("print('1e999')", "which is no finite score"),
        ("print(10**400)", "which is no finite score"),
        ("print('true')", "it printed 'true' last"),
        ("print('[]')", "it printed an empty list"),
        ("print('{\"loss\": 1}')", "it printed"),
        ("print('[1, \"2\"]')", "it printed"),
        ("print('[' * 100000)", "it printed"),
        ("print(1); sys.exit('no GPU')", "it ended with exit code 1: no GPU"),
        ("sys.stdout.buffer.write(b'\\xff\\n')", "it printed"),
        ("print('\\x1b[2J')", "it printed"),
        ("open(__file__, 'a').write('print(3)'); print(2)", "it was changed while it ran"),
    ],
)
def test_anything_else_is_one_line_that_names_command_and_run(code, why, tmp_path):
    said = refuses("gave no score of llama-s1: it ", scored, tmp_path, code)
    assert said.startswith("the command 'own' gave no score") and why in said
    assert "expected a last line of standard output with a number" in said
    assert "\n" not in said and "\x1b" not in said and len(said) < 1000


def test_one_that_cannot_be_started_is_one_line(tmp_path):
    given = Command(run=("no-such-program-anywhere", "{model}"))
    with trust(False, trust_recipe=True), pytest.raises(UserError, match="it cannot be started"):
        run_command("own", given, tmp_path, "llama-s1")


@pytest.mark.full
def test_one_that_does_not_end_is_ended_with_all_that_it_started(tmp_path):
    child = tmp_path / "child"
    code = (
        "import os\n"
        f"if os.fork() == 0:\n    open({str(child)!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    with pytest.raises(UserError, match=r"it took longer than its timeout_minutes = 0\.02"):
        scored(tmp_path, code, timeout_minutes=0.02)
    assert time.monotonic() - start < 30
    wait_for_end(int(child.read_text()))


def test_what_one_leaves_behind_is_ended_with_it(tmp_path):
    child = tmp_path / "child"
    code = (
        "import subprocess\n"
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(child)!r}, 'w').write(str(left.pid)); print(1)"
    )
    assert scored(tmp_path, code).score == 1.0
    wait_for_end(int(child.read_text()))


def wait_for_end(number: int) -> None:
    """Wait until a process has ended, and whoever it was left to has noticed."""
    for _ in range(100):
        if not Path(f"/proc/{number}").exists() or "Z" in _state(number):
            return
        time.sleep(0.05)
    os.kill(number, 9)
    pytest.fail("what it started goes on")


def _state(number: int) -> str:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_nothing_runs_unasked(tmp_path):
    marker = tmp_path / "ran"
    given = command(tmp_path, f"open({str(marker)!r}, 'w'); print(1)")
    with pytest.raises(UserError, match="nothing runs unasked; read it, and where you trust it"):
        run_command("own", given, tmp_path, "llama-s1")
    assert not marker.exists()


def test_a_changed_file_is_another_command(tmp_path):
    given = command(tmp_path, "print(1)")
    before = hash_command(given)
    assert hash_command(command(tmp_path, "print(1)")) == before
    assert hash_command(command(tmp_path, "print(2)")) != before
    # What a script imports of its own folder decides its score as well, in functions too.
    given = command(tmp_path, "def f():\n    from own import part\nimport helper.inner")
    (tmp_path / "own").mkdir()
    for name in ("own/__init__.py", "own/part.py", "helper.py", "other.py"):
        (tmp_path / name).write_text("")
    seen = [hash_command(given)]
    for name in ("own/part.py", "helper.py"):
        (tmp_path / name).write_text("N = 1")
        seen.append(hash_command(given))
    (tmp_path / "other.py").write_text("N = 1")
    assert len(set(seen)) == 3 and hash_command(given) == seen[-1]


def test_what_an_option_names_and_all_in_a_folder_count(tmp_path, monkeypatch):
    folder = tmp_path / "questions"
    (folder / "law" / "__pycache__").mkdir(parents=True)
    data, inside = tmp_path / "data.jsonl", folder / "law" / "first.jsonl"
    data.write_text("1")
    inside.write_text("1")
    words = ("python", "-c", "print(1)", "{model}", f"--data={data}", f"--key=x={folder}")
    given = Command(run=(*words, str(folder)))
    seen = [hash_command(given)]
    for file in (data, inside, folder / "second.jsonl"):
        file.write_text("2")
        seen.append(hash_command(given))
    assert len(set(seen)) == 4
    # What a run leaves there by itself does not count, nor does what a folder of all work holds.
    (folder / "law" / "__pycache__" / "first.pyc").write_text("3")
    assert hash_command(given) == seen[-1]
    monkeypatch.chdir(tmp_path)
    here = Command(run=("python", "-c", "print(1)", "{model}", "."))
    before = hash_command(here)
    data.write_text("3")
    assert hash_command(here) == before
    # Where a folder or a file lies does not matter, nor whether an option names it.
    for before, name in (("", "questions"), ("--data=", "questions"), ("--a=b=", "data.jsonl")):
        places = (name, str(tmp_path / name))
        near, far = (Command(run=(*words[:4], before + one)) for one in places)
        assert hash_command(near) == hash_command(far) and near.digest == far.digest
        assert hash_command(near) != hash_command(Command(run=(*words[:4], f"--other={name}")))


def test_one_that_writes_into_a_folder_that_it_names_is_told_so(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    given = command(tmp_path, "open(sys.argv[2] + '/log', 'w').write('1'); print(1)")
    words = Command(run=(*given.run, str(out)))
    with (
        trust(False, trust_recipe=True),
        pytest.raises(UserError, match="or wrote into a folder that it names"),
    ):
        run_command("own", words, tmp_path, "llama-s1")


def test_a_file_of_a_command_is_known_wherever_it_lies(tmp_path, monkeypatch):
    expected = hash_command(command(tmp_path, "print(1)"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").mkdir()  # which is no program
    here = Command(run=("python", "score.py", "{model}"))
    assert hash_command(here) == expected


def test_a_command_may_be_longer_than_a_path_can_be(tmp_path):
    code = f"print(2.5)  # {'long' * 2000}"
    with trust(False, trust_recipe=True):
        given = Command(run=("python", "-c", code, "{model}"))
        assert run_command("own", given, tmp_path, "llama-s1").score == 2.5


@pytest.mark.parametrize("words", [["no-such-program-anywhere"], ["python", "no.py"], ["a\0"]])
def test_a_program_that_is_not_here_is_told_before_anything_runs(words):
    with pytest.raises(UserError, match=r"the command 'own' is to run '[an].*', which is"):
        check_program("own", Command(run=(*words, "{model}")))


def test_what_is_here_or_may_come_may_run(tmp_path):
    words = ("sh", "{model}"), ("python", "-c", "1", "{model}"), ("{model}/a",)
    for one in (command(tmp_path, "pass").run, *words):
        check_program("own", Command(run=one))
