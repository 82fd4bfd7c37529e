"""A Slurm cluster of one machine: Debian's packages, a temporary folder, the current user."""

import getpass
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from layerlab.experiments.executors.local import wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
# No cgroups, no accounting, no plugin that a container forbids.
CONFIGURATION = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmctldPort={first}
SlurmdPort={second}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """The programs of Slurm that are not installed here; those of the system count, too."""
    places = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=places) is None]


@contextmanager
def cluster(folder: Path) -> Iterator[Path]:
    """Start one, and give its configuration; its last words are in the error if it fails."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o400)
    file = folder / "slurm.conf"
    file.write_text(_configuration(folder))
    settings = {**os.environ, "SLURM_CONF": str(file), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    names = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log"}
    munge = [f"--{name}={folder}/munge.{end}" for name, end in names.items()]
    munge += [f"--seed-file={folder}/munge.seed", "--foreground", "--force"]
    with ExitStack() as stack:
        for command in (["munged", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]):
            stack.enter_context(_started(command, folder, settings))
            if command[0] == "munged":
                assert wait_for((folder / "munge.sock").exists, 10.0), _said(folder)
        idle = ["sinfo", "--noheader", "--format=%T"]
        assert wait_for(lambda: "idle" in _asked(idle, settings), 30.0), _said(folder)
        yield file


@contextmanager
def _started(command: list[str], folder: Path, settings: dict[str, str]) -> Iterator[None]:
    with (folder / f"{command[0]}.out").open("wb") as out:
        own = subprocess.Popen(command, env=settings, stdout=out, stderr=out)
    try:
        yield
    finally:
        own.terminate()
        try:
            own.wait(timeout=10)
        except subprocess.TimeoutExpired:
            own.kill()
            own.wait()


def _asked(command: list[str], settings: dict[str, str]) -> str:
    return subprocess.run(
        command, env=settings, capture_output=True, text=True, check=False
    ).stdout.strip()


def _said(folder: Path) -> str:
    outs = [path.read_text(errors="replace").splitlines() for path in sorted(folder.glob("*.out"))]
    errors = [line for lines in outs for line in lines if "error" in line or "fatal" in line]
    return " | ".join(errors[-3:]) or "it said nothing"


def _configuration(folder: Path) -> str:
    first, second = _ports()
    return CONFIGURATION.format(
        host=socket.gethostname().partition(".")[0],
        user=getpass.getuser(),
        folder=folder,
        first=first,
        second=second,
        cores=os.cpu_count(),
    )


def _ports() -> tuple[int, int]:
    """Two ports that nobody listens on."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
