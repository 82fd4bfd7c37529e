"""One run in a process of its own: `python -m layerlab.training.worker FOLDER`.

What is carried out is all in the folder: `recipe.json`, and `run.json`, which names its place in a
plan. Nothing heavy is imported before the number of threads is set.
"""

import json
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.disk import write_file
from layerlab.errors import UserError
from layerlab.lock import locked
from layerlab.parse import read_json
from layerlab.trust import list_grants, take_grants

if TYPE_CHECKING:
    from layerlab.model.match import Match
    from layerlab.training.plan import Run

RECIPE, RUN = "recipe.json", "run.json"
SCHEMA = 1
WRONG = 2  # the exit code of what a user can mend
# The process that started this one; when it is gone, nobody waits for this one any more.
PARENT = "LAYERLAB_PARENT"
_LOOK = 1.0  # seconds between two looks at it
_GRACE = 300.0  # seconds for a last checkpoint


def write_run(run: "Run", folder: Path) -> None:
    """Write what a worker needs: `recipe.json`, then `run.json`.

    Raises:
        UserError: the folder cannot be written.
    """
    recipe = run.recipe.model_dump(mode="json")
    write_file(folder / RECIPE, json.dumps(recipe, indent=1) + "\n")
    match = None if run.match is None else run.match.to_json()
    body = {
        "schema": SCHEMA,
        "run": run.name,
        "arm": run.arm,
        "digest": run.digest,
        "match": match,
        "granted": list_grants(),
    }
    write_file(folder / RUN, json.dumps(body, indent=1) + "\n")


def read_run(folder: Path) -> "Run":
    """The run that was written to a folder.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    from layerlab.training.plan import Run
    from layerlab.training.recipe import recipe_of

    body, recipe = _json(folder / RUN), _json(folder / RECIPE)
    try:
        return Run(
            arm=body["arm"],
            recipe=recipe_of(recipe, str(folder / RECIPE)),
            digest=body["digest"],
            match=None if body["match"] is None else _match(body["match"]),
        )
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{folder / RUN} lacks {error}; it is of another version of layerlab: "
            "type the command that planned the run again, with another --out"
        ) from None


def _match(body: dict[str, Any]) -> "Match":
    from layerlab.blocks.shape import Shape
    from layerlab.model.match import Match

    kept = {name: body[name] for name in ("by", "on", "found", "wanted")}
    return Match(shape=Shape(**body["sizes"]), **kept)


def _json(file: Path) -> dict[str, Any]:
    try:
        found = read_json(file)
        if isinstance(found, dict):
            return found
        reason = "it holds no table"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError:
        reason = "it is not JSON"
    raise UserError(
        f"cannot read {file}: {reason}; expected the folder of a run, which layerlab train makes"
    )


def main(arguments: list[str]) -> int:
    """Carry out the run of a folder, and give the exit code.

    0: it is finished. 2: a user has to mend something, which the last line says. 128 and the
    number of a signal: it was asked to stop, and has left a checkpoint.
    """
    if len(arguments) != 1:
        print("type: python -m layerlab.training.worker FOLDER", file=sys.stderr)
        return WRONG
    try:
        _carried(Path(arguments[0]))
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        return WRONG
    return 0


def _carried(folder: Path) -> None:
    settings = _json(folder / RECIPE).get("run") or {}
    # Before torch is imported: later it is too late for them.
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.get("threads", 1)))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _follow(os.environ.get(PARENT))
    # Of several processes the first holds the folder for all.
    with locked(folder) if os.environ.get("RANK", "0") == "0" else nullcontext():
        _trained(folder)


def _trained(folder: Path) -> None:
    from layerlab.training.result import read_result

    run = read_run(folder)
    take_grants(_json(folder / RUN).get("granted", {}))
    if (read_result(folder) or {}).get("run") == run.name:
        return
    from layerlab.training.loop import carry_out

    carry_out(run, folder)


def _follow(parent: str | None) -> None:
    """Stop, with a checkpoint, when the process that started this one is gone.

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
