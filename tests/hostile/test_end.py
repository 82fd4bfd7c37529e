"""However a command ends: one line, the right code, nothing half-written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FULL = Path("/dev/full")
COMMAND = (sys.executable, "-m", "layerlab")
READ = ("inspect", "llama", "--measures", "stream", "--samples", "1", "--context", "16", "--quiet")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("words", [("doctor", "--json"), ("variants", "--json"), ("--version",)])
def test_a_full_standard_output_is_one_line(words: tuple[str, ...]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "layerlab: cannot write standard output: No space left on device; make room there\n"
    )


@pytest.mark.parametrize("words", [("variants", "--json"), ("--help",)])
def test_a_closed_pipe_is_quiet(words: tuple[str, ...]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run([*COMMAND, *words], stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("sign", "said"),
    [(signal.SIGTERM, "terminated; nothing was written"), (signal.SIGINT, "interrupted; nothing")],
)
def test_a_signal_is_one_line(sign: signal.Signals, said: str, tmp_path: Path) -> None:
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
