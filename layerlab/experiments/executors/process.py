"""The processes of one run, started together and ended together."""

import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen

from layerlab.experiments.executors.slots import RunSlot
from layerlab.records.heartbeat import LOG
from layerlab.system.files import check_regular, unshare
from layerlab.system.untrusted.trust import GRANTS, list_grants
from layerlab.training.worker import LOST, PARENT, WRONG

# -P: no file of the folder that it is started in takes the place of a module.
WORKER = (sys.executable, "-P", "-m", "layerlab.training.worker")
# What several processes hand over lies in buffers of megabytes. By itself glibc soon takes them
# from its heap, which they leave in pieces: three and a half times the weights at the peak.
BUFFERS = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20)}


class RunProcess:
    """A run that is being carried out in processes of its own.

    Args:
        folder: of the run, with its recipe; what the processes say is added to its `log.txt`.
        places: of its processes, one each; the first writes the files.
        command: that carries out the run of the folder that is its last argument.
        grants: what they may do, as `list_grants` says it; what this process may, if left out.

    Raises:
        UserError: `log.txt` is a pipe or a device.
    """

    def __init__(
        self,
        folder: Path,
        places: Sequence[RunSlot],
        command: Sequence[str] = WORKER,
        grants: str | None = None,
    ) -> None:
        self.folder = folder
        self._all: list[Popen[bytes]] = []
        self._bad: int | None = None
        given = {GRANTS: grants or list_grants(), PARENT: str(os.getpid())}
        usual = BUFFERS if len(places) > 1 else {}
        self._log_start = open_log(folder)
        # One crash ends all of them: the rest would wait for it for ever.
        with (folder / LOG).open("ab") as log:
            for slot, extra in zip(places, ranks(len(places)), strict=True):
                own = Popen(
                    [*command, str(folder)],
                    stdin=DEVNULL,
                    stdout=log,
                    stderr=STDOUT,
                    env={**usual, **os.environ, **slot.environment(), **extra, **given},
                    # Ctrl-c is for the one who started it, who passes it on.
                    start_new_session=True,
                )
                self._all.append(own)
                slot.pin(own.pid)

    def code(self) -> int | None:
        """Return the exit code of the run: None while it goes on, else the first that is not 0."""
        codes = [one.poll() for one in self._all]
        bad = [code for code in codes if code]
        if bad and self._bad is None:
            # Kept: the others are killed below, and that is not why the run ended. Of several at
            # once it is what a user can mend that the others fell over, or else a kill (below 0).
            self._bad = WRONG if WRONG in bad else min(bad)
        if bad and None in codes:
            self.kill()
        return self._bad if bad or None in codes else 0

    def find_delay(self) -> None:
        """Return why the run has not begun; a local one never waits."""

    def stop(self, sign: int = signal.SIGTERM) -> None:
        """Ask for a checkpoint and an end."""
        for one in self._all:
            one.send_signal(sign)

    def kill(self) -> None:
        """End it at once, and what it has started."""
        for one in self._all:
            end_group(one)

    def words(self, most: int = 20) -> list[str]:
        """Return the last lines of output since it was started; why it ended comes last."""
        lines = tail(self.folder / LOG, most, self._log_start)
        return sorted(lines, key=lambda line: not line.startswith(LOST))


def open_log(folder: Path) -> int:
    """Make room for what the processes of a run say; return the length of what is there already.

    Raises:
        UserError: `log.txt` is a pipe or a device.
    """
    check_regular(log := folder / LOG)
    log.touch()
    unshare(log)
    return log.stat().st_size


def end_group(process: Popen[bytes]) -> None:
    """End a process at once, and what it has started."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
    process.wait()


def tail(file: Path, most: int, start: int = 0) -> list[str]:
    """Return the last lines of a file, but for empty ones; none where there is no such file.

    Args:
        start: where in the file to begin at the earliest.

    Raises:
        UserError: it is a pipe or a device.
    """
    check_regular(file)
    try:
        with file.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start, end - 2**16))
            text = log.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-most:]


def explain_silence(folder: Path) -> str:
    """Explain why a run has left no word in its folder."""
    if shutil.disk_usage(folder).free:
        return "its log is empty"
    return f"no space is left on the disk of {folder}, not even for its log; make room there"


def ranks(count: int) -> list[dict[str, str]]:
    """Return the environment of each of several processes, as torchrun sets it."""
    if count == 1:
        return [{}]
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free()),
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def _free() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
    return number
