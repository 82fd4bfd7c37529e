"""Twenty kills (-9) of `layerlab train` at random moments: how many bits of the weights differ.

    python bench/resume.py [--kills 20] [--seed 0] [--device cpu]

A run is carried out once undisturbed, then again while it is killed over and over, process group
and all, once it has a checkpoint, and started anew by the same command. Weights, losses and the
result are compared.
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

UPDATES = 600
RECIPE = f"""
name = "resume"
[model]
width = 48
layers = 2
heads = 4
context = 64
options = {{dropout = 0.1}}
[data]
sources = [{{text = "python-docs"}}]
vocab_size = 512
[train]
max_steps = {UPDATES}
batch_size = 4
[evaluate]
eval_steps = 100
max_eval_blocks = 8
[run]
save_steps = 5
device = "{{device}}"
"""
# The digest of a result covers the times in its journal.
TIMES = {"seconds", "runtime", "tokens_per_second", "peak_memory_bytes", "resumes", "digest"}


def command(recipe: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "layerlab", "train", str(recipe), "--out", str(out), "--quiet"]


def folder_of(out: Path) -> Path | None:
    return next((file.parent for file in out.glob("**/events.jsonl")), None)


def events(folder: Path | None) -> list[dict[str, Any]]:
    if folder is None:
        return []
    lines = (folder / "events.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def plain(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in TIMES}


def killed(recipe: Path, out: Path, goal: int, delay: float) -> bool:
    """Start the command, kill it at an update of its journal, and say whether it still ran.

    Without a checkpoint it would begin anew, and nothing of a resume would be seen.
    """
    process = subprocess.Popen(
        command(recipe, out), start_new_session=True, stdout=subprocess.DEVNULL
    )
    while process.poll() is None:
        reached = max((one["update"] for one in events(folder_of(out))), default=0)
        if reached >= goal and any(out.glob("**/checkpoints/step-*")):
            time.sleep(delay)
            break
        time.sleep(0.02)
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return alive


def differing_bits(left: Path, right: Path) -> int:
    first, second = load_file(left), load_file(right)
    if first.keys() != second.keys():
        raise SystemExit("the two models do not have the same weights")
    return sum(
        (int.from_bytes(first[name].tobytes()) ^ int.from_bytes(second[name].tobytes())).bit_count()
        for name in first
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        recipe, whole, broken = (Path(place) / name for name in ("recipe.toml", "whole", "broken"))
        recipe.write_text(RECIPE.replace("{device}", options.device))
        subprocess.run(command(recipe, whole), check=True, stdout=subprocess.DEVNULL)
        goals = sorted(chance.sample(range(UPDATES - 10), options.kills))
        kills = sum(killed(recipe, broken, goal, chance.uniform(0, 0.2)) for goal in goals)
        subprocess.run(command(recipe, broken), check=True, stdout=subprocess.DEVNULL)
        report(folder_of(whole), folder_of(broken), kills)
        if kills < options.kills:
            # The run was over before the last of them: what they would have done is not known.
            raise SystemExit(f"{kills} of {options.kills} kills; type another --seed")


def report(whole: Path | None, broken: Path | None, kills: int) -> None:
    assert whole is not None and broken is not None
    results = [json.loads((one / "result.json").read_text()) for one in (whole, broken)]
    told = [
        [plain(event) for event in events(one) if event["kind"] != "note"]
        for one in (whole, broken)
    ]
    bits = differing_bits(whole / "model/model.safetensors", broken / "model/model.safetensors")
    print(f"kills                     {kills}")
    print(f"resumes from a checkpoint {results[1]['resumes']}")
    print(f"differing bits of weights {bits}")
    print(
        f"differing events          {sum(a != b for a, b in zip(*told, strict=False))}"
        f" of {len(told[0])} and {len(told[1])}"
    )
    print(f"the same result           {plain(results[0]) == plain(results[1])}")
    if bits or told[0] != told[1]:
        raise SystemExit(1)
    if not results[1]["resumes"]:
        raise SystemExit("the run never went on from a checkpoint: nothing was tried")


if __name__ == "__main__":
    main()
