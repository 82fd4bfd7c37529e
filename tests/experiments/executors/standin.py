"""A run's worker that trains nothing: it writes the journal of one, and ends as it is told.

The processes around it, their pins, signals and folders are real; the model is left out because it
takes seconds to import. Type: standin.py HOW FOLDER.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from layerlab.system.signals import GracefulStop
from layerlab.training.worker import PARENT, follow_parent


def main(how: str, folder: Path) -> None:
    name = folder.name
    attempt = len(list(folder.glob("attempt-*")))
    (folder / f"attempt-{attempt}").write_text(str(os.getpid()))
    # A stop in the middle leaves the number of updates that are made.
    kept = folder / "kept"
    start = int(kept.read_text()) if kept.exists() else 0
    print(f"{name} starts after update {start}", flush=True)
    if how == "wrong":
        print("the text is gone; put it back", file=sys.stderr)
        sys.exit(2)
    follow_parent(os.environ.get(PARENT))
    with GracefulStop() as halt:
        long = how == "slow" or (how == "preempted" and attempt == 0 and "first" in name)
        for update in range(start + 1, 300 if long else start + 4):
            with (folder / "events.jsonl").open("a") as stream:
                stream.write(json.dumps({"kind": "train", "update": update, "loss": 1.0}) + "\n")
            if attempt == 0 and how in {"crash", "killed", "hangs"} and "first" in name:
                kept.write_text(str(update))
                fall(how)
            if halt.wanted:
                kept.write_text(str(update))
                halt.leave()
            time.sleep(0.2 if long else 0.02)
    seen = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "RANK", "WORLD_SIZE")}
    cores = sorted(os.sched_getaffinity(0))
    losses = {"nats": 1.0, "bits_per_byte": 0.5, "accuracy": 0.5}
    run = {"run": name, "arm": "standin"}
    with (folder / "events.jsonl").open("a") as stream:
        stream.write(json.dumps({"kind": "evaluation", "update": 3, **losses}) + "\n")
    numbers = ("seed", "updates", "tokens", "seconds", "parameters", "flops")
    result = {"schema": 1, **run, **dict.fromkeys(numbers, 3), "rate": 0.1, **losses}
    result |= dict.fromkeys(("step0_nats", "tokens_per_second", "peak_memory_bytes", "diverged"))
    result |= {"weights": "", "cores": cores, "start": start, "environment": seen}
    (folder / "manifest.json").write_text(json.dumps(run))
    (folder / "result.json").write_text(json.dumps(result))


def fall(how: str) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs":
        time.sleep(600)
    raise ValueError("a model that cannot be")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
