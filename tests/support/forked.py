"""Python in processes that are forked from one that has imported everything.

What a test starts mostly imports: torch, transformers and layerlab take five seconds of a
processor, again in every process. Here they are imported once, by a server that runs nothing else;
each process is forked from it, so it begins at once, and clean. Workers of xdist have one together,
which the process starts that hands out the tests. Where it matters when transformers
or layerlab is imported, a second server has everything but these two. What such a process starts by
itself, the workers of its runs, is forked from it. What is about the imports of an empty
interpreter, or about its hash seed, needs an interpreter of its own: `subprocess`.
"""

import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import IO, Any
from unittest import mock

SERVED = (
    "layerlab.cli.app",
    "layerlab.api.inspect",
    "layerlab.api.ledger",
    "layerlab.api.precision",
    "layerlab.api.adapt",
    "layerlab.evaluation.harness.lm",
    "layerlab.api.evaluate",
    "layerlab.api.train",
    "layerlab.studies",
    "layerlab.training.trainer",
    "layerlab.training.worker",
    "scipy.stats",
    "torch._inductor.compile_fx",
    "torch._dynamo",
    "transformers.models.auto.modeling_auto",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
)
# What transformers and layerlab import of others, at the latest with a model.
FOREIGN = (
    *("PIL.Image", "accelerate", "dill", "huggingface_hub", "jaxtyping", "jinja2.sandbox"),
    *("mpmath", "safetensors.torch", "scipy.optimize", "scipy.stats", "sympy", "tokenizers"),
    *("torch", "torch._dynamo"),
)
PROCESSES = multiprocessing.get_context("forkserver")


class Server(forkserver.ForkServer):
    """It starts with the first process, ends with this one, and holds the modules of its names."""

    # Of `ForkServer`, which a process takes for its own.
    _forkserver_address: str | None
    _forkserver_alive_fd: int | None
    _forkserver_pid: int | None
    _forkserver_authkey: bytes | None = None  # since Python 3.14

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.set_forkserver_preload(["tests.support.ungarbled", "tests.support.forked", *names])
        self._shared = False

    def share(self) -> tuple[str | None, int | None, bytes | None]:
        """Start it; return what `join` takes in processes that end before this one."""
        self.ensure_running()
        return self._forkserver_address, self._forkserver_pid, self._forkserver_authkey

    def join(self, address: str, pid: int, key: bytes | None) -> None:
        """Fork from the server that another process shares, and that ends with that one."""
        self._forkserver_address, self._forkserver_pid = address, pid
        self._forkserver_authkey = key
        # In the place of the pipe by which the server hears that this process is gone.
        self._forkserver_alive_fd = os.open(os.devnull, os.O_WRONLY)
        self._shared = True

    def ensure_running(self) -> None:
        if self._shared:
            resource_tracker.ensure_running()
        else:
            super().ensure_running()

    def start(self, process: Any) -> None:
        """Fork the process from here: the standard library has one server for all."""
        own = self.connect_to_new_process
        with mock.patch.object(forkserver, "connect_to_new_process", own):
            process.start()


READY = Server(*SERVED)
BEFORE = Server(*FOREIGN)


class Forked:
    """A process that does what `python` does with the same arguments.

    Args:
        arguments: of the interpreter: a file, or `-m` and a module, or `-c` and a program; then
            what the program is given.
        cwd: its folder.
        env: its environment.
        stdin: what it reads.
        server: `READY`, or `BEFORE`, where neither transformers nor layerlab is imported yet.
    """

    def __init__(
        self,
        *arguments: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        server: Server = READY,
    ) -> None:
        self.arguments = [str(one) for one in arguments]
        self._streams = tempfile.TemporaryDirectory()
        self.folder = Path(self._streams.name)
        (self.folder / "0").write_text(stdin, "utf-8")
        settings = dict(os.environ if env is None else env)
        streams = [str(self.folder / str(number)) for number in range(3)]
        given = (self.arguments, str(cwd or Path.cwd()), settings, streams)
        self.process = PROCESSES.Process(target=_interpret, args=given)
        server.start(self.process)

    def said(self, number: int) -> str:
        """So far, to standard output (1) or standard error (2)."""
        file = self.folder / str(number)
        return file.read_text("utf-8") if file.exists() else ""

    def wait(self, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """What it left when it ended; it is killed when it takes too long."""
        try:
            self.process.join(timeout)
            code = self.process.exitcode
            if code is None:
                self.process.kill()
                self.process.join()
                raise subprocess.TimeoutExpired(self.arguments, timeout)
            return subprocess.CompletedProcess(self.arguments, code, self.said(1), self.said(2))
        finally:
            self._streams.cleanup()

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self.process.kill()
        self.process.join()
        self._streams.cleanup()


class ForkedWorker:
    """A worker of several, in the place of the `Popen` by which `RunProcess` starts one.

    It is a process of a session of its own, and follows the server, whose child it is.
    """

    def __init__(
        self, command: Sequence[str], *, stdout: IO[bytes], env: Mapping[str, str], **_: Any
    ) -> None:
        from layerlab.training.worker import PARENT  # late: one of the servers is without layerlab

        READY.ensure_running()
        settings = {**env, PARENT: str(READY._forkserver_pid)}
        streams = [os.devnull, stdout.name, stdout.name]
        module = list(command[command.index("-m") :])
        given = (module, str(Path.cwd()), settings, streams, True)
        self.process = PROCESSES.Process(target=_interpret, args=given)
        READY.start(self.process)
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode


class OwnFork(subprocess.Popen[bytes]):
    """A worker of layerlab that is forked from this process, which has imported it already."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        if list(command[1:3]) == ["-P", "-m"]:
            sys.stdout.flush()  # or what waits there is written by both
            become = partial(_become, list(command[2:]), options.get("env") or dict(os.environ))
            options["preexec_fn"] = become
        super().__init__(command, **options)


def python(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run to the end; options are those of `Forked`."""
    return Forked(*arguments, **options).wait()


def empty_python(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run an interpreter of its own to the end, which has imported nothing."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)


def _become(arguments: list[str], settings: dict[str, str]) -> None:
    """The other side of a fork: nothing of the process that started it goes on here."""
    gc.freeze()  # what would close its files, whose numbers are others' now
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # Those of pytest are files of its own.
    sys.stdout, sys.stderr = (open(one, "w", 1, "utf-8", closefd=False) for one in (1, 2))
    for sign in signal.valid_signals():
        if callable(signal.getsignal(sign)):
            signal.signal(sign, signal.SIG_DFL)
    given = (arguments, str(Path.cwd()), settings)
    os._exit(
        multiprocessing.get_context("fork").Process(target=_interpret, args=given)._bootstrap()
    )


def _interpret(
    arguments: list[str],
    cwd: str,
    settings: dict[str, str],
    streams: Sequence[str] = (),
    own: bool = False,
) -> None:
    """The other side: become the interpreter that was asked for, in a session of its own or not."""
    if own:
        os.setsid()
    # A background job of a shell ignores Ctrl-C, and so would what is tested on it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    modes = (os.O_RDONLY, *2 * [os.O_WRONLY | os.O_CREAT | os.O_APPEND])
    for number, (name, mode) in enumerate(zip(streams, modes, strict=False)):
        os.dup2(os.open(name, mode), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(settings)
    os.chdir(cwd)
    if executors := sys.modules.get("layerlab.experiments.executors.process"):
        vars(executors)["Popen"] = subprocess.Popen = OwnFork
    # The path is the parent's, where transformers may have added its folder of copied code.
    sys.path[:] = [one for one in sys.path if not Path(one, "transformers_modules").is_dir()]
    first, *rest = arguments
    if first == "-c":
        code, *rest = rest
        sys.argv, sys.path[:0] = ["-c", *rest], [""]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(main))
    elif first == "-m":
        name, *rest = rest
        sys.argv, sys.path[:0] = [name, *rest], [cwd]
        if not hasattr(sys.modules.get(name), "__path__"):  # a package runs its __main__
            sys.modules.pop(name, None)  # what runs as a program is not yet there
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = [first, *rest], [str(Path(first).parent)]
        runpy.run_path(first, run_name="__main__")
