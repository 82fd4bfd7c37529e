"""Runs in a process of their own: `python -m layerlab.training.worker FOLDER [--trust-recipe]`.

What is carried out is all in the folder: `recipe.json`, and `run.json`, which names its place in a
plan. Nothing heavy is imported before the number of threads is set. With `--serve` each line of
standard input names a folder, and is answered by an exit code.
"""

import json
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

from layerlab.errors import UserError
from layerlab.records.heartbeat import LOG
from layerlab.records.run_files import RECIPE, read_table
from layerlab.system.locks import lock_folder
from layerlab.system.logs import show_warnings
from layerlab.system.signals import Stopped
from layerlab.system.untrusted.trust import take_grants, trust

TRUST = ("--trust-recipe", "--trust-remote-code")
WRONG = 2  # the exit code of what a user can mend
SERVE = "--serve"
ANSWER = "answer"  # what one begins with: as Python starts, others may print as well
LAST = "last"  # what an answer ends in where no other run is taken
# The process that started this one; when it is gone, nobody waits for this one any more.
PARENT = "LAYERLAB_PARENT"
# What a process says that fell over the end of another one, which knows the reason.
LOST = "another process of this run has ended"
LAUNCHED = "TORCHELASTIC_RUN_ID"  # what torchrun and accelerate launch give to their processes
_TURN = 5.0  # seconds in which the first process has the word
_LOOK = 0.2  # seconds between two looks at it
_GRACE = 300.0  # seconds for a last checkpoint


def main(arguments: list[str]) -> int:
    """Train the run of a folder; return the exit code.

    0: it is finished. 2: a user has to mend something, which the last line says. 128 and the
    number of a signal: it was asked to stop, and has left a checkpoint.
    """
    show_warnings(_say)
    # Whoever runs torchrun does not name it.
    launcher = str(os.getppid()) if LAUNCHED in os.environ else None
    follow_parent(os.environ.get(PARENT, launcher))
    if arguments == [SERVE]:
        return _serve()
    folders = [one for one in arguments if one not in TRUST]
    if len(folders) != 1:
        way = f"FOLDER [{'] ['.join(TRUST)}]"
        print(f"type: python -m layerlab.training.worker {way}", file=sys.stderr)
        return WRONG
    folder = Path(folders[0])
    try:
        with trust(TRUST[1] in arguments, TRUST[0] in arguments):
            return _finish(folder)
    except (KeyboardInterrupt, Stopped) as stop:
        if _is_first():
            _say(f"interrupted; what is finished is kept in {folder}: start it again to go on")
        code: int = getattr(stop, "code", 128 + signal.SIGINT)
        return code
    except RuntimeError as error:
        from layerlab.system.hardware import is_process_lost  # late: the threads are set

        if not is_process_lost(error):
            raise
        _say(
            f"{LOST}, or was silent for run.timeout_minutes; see what it said, "
            f"and start {folder} again to go on from the last checkpoint"
        )
        return 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _serve() -> int:
    """Carry out one run after another, until one fails or leaves something behind."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    start = None
    for line in iter(sys.stdin.readline, ""):
        folder = Path(json.loads(line))
        # Not put back where the run raises: Python has still to say how it ended.
        with (folder / LOG).open("ab") as log:
            _speak_into(log.fileno())
        _set_threads(folder)
        from layerlab.training.fresh_start import FreshStart

        start = start or FreshStart()
        code = _finish(folder)
        again = code == 0 and start.restore()
        with Path(os.devnull).open("wb") as nobody:
            _speak_into(nobody.fileno())
        print(ANSWER, *([code] if again else [code, LAST]), file=answers)
        if not again:
            return code
    return 0


def _speak_into(file: int) -> None:
    """Let what is printed from now on go into a file, by its number."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.dup2(file, number)


def _finish(folder: Path) -> int:
    try:
        _carry(folder)
    except UserError as error:
        if not _is_first():  # which mostly says the same, and whose end ends this one
            time.sleep(_TURN)
        _say(str(error))
        return WRONG
    return 0


def _set_threads(folder: Path) -> None:
    """Set the threads of a run before torch is imported: some settings are read only then."""
    try:
        settings = read_table(folder / RECIPE).get("run") or {}
    except UserError:  # which is told by whoever reads the run
        settings = {}
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.get("threads", 1)))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _carry(folder: Path) -> None:
    _set_threads(folder)
    # Of several processes the first holds the folder for all.
    with lock_folder(folder) if _is_first() else nullcontext():
        _train(folder)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _train(folder: Path) -> None:
    from layerlab.records.result import read_result
    from layerlab.training.run_spec import read_run

    run = read_run(folder)
    take_grants()
    if (read_result(folder) or {}).get("run") == run.name:
        return
    import torch

    from layerlab.training.trainer import train_run

    # Of this run, whatever the one before it or its slot was given: its manifest says so.
    torch.set_num_threads(run.recipe.run.threads)
    train_run(run, folder)


def follow_parent(parent: str | None) -> None:
    """Stop with a checkpoint once the parent process is gone.

    However it ends, even by a kill -9: no run is left behind that nobody knows of.
    """
    if not parent or not parent.isdigit() or not hasattr(os, "getppid"):
        return
    number = int(parent)
    threading.Thread(target=_outlive, args=(number,), daemon=True).start()


def _outlive(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    # Whoever read what is said here may be gone as well.
    with suppress(OSError):
        print("the process that started this run is gone; it stops too", flush=True)
    # Under Slurm, SIGTERM is not heard here.
    os.kill(os.getpid(), getattr(signal, "SIGUSR1", signal.SIGTERM))
    time.sleep(_GRACE)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
