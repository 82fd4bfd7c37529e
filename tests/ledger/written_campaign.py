"""A campaign with every verdict, as a page shows it."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import layerlab
from layerlab.records.parse import read_json

GAINS = {"wide": 0.05, "same": 0.0, "worse": -0.05, "deep": 0.05}


def write_campaign(folder: Path, says: str = "wider feed-forward layers") -> Path:
    """Write a ledger of five ideas, one of which is confirmed and one not judged."""
    layerlab.create_ledger(folder / "own", baseline="plain")
    draw = np.random.default_rng(3)
    for idea, gain in GAINS.items():
        layerlab.add_idea(folder / "own", idea, says=says, seeds=[1, 2, 3, 4])
        _judge(folder, idea, gain, range(1, 5), draw)
    layerlab.add_idea(folder / "own", "wide", seeds=range(11, 17), confirm=True)
    _judge(folder, "wide", GAINS["wide"], range(11, 17), draw)
    layerlab.add_idea(folder / "own", "deep", seeds=range(21, 27), confirm=True)
    layerlab.add_idea(folder / "own", "next", says=says, seeds=[1, 2])
    return folder / "own"


def _judge(folder: Path, idea: str, gain: float, seeds: range, draw: np.random.Generator) -> None:
    rows = ["arm,seed,step,loss"]
    for seed in seeds:
        rows.append(f"plain,{seed},9,{3 + draw.normal(0, 0.005)}")
        rows.append(f"{idea},{seed},9,{3 - gain + draw.normal(0, 0.005)}")
    (folder / "log.csv").write_text("\n".join(rows) + "\n")
    layerlab.judge_idea(folder / "own", idea, folder / "log.csv")


def campaign_sample(says: str = "wider feed-forward layers") -> dict[str, Any]:
    """What campaign.json holds of it."""
    with tempfile.TemporaryDirectory() as name:
        place = write_campaign(Path(name), says)
        layerlab.read_ledger(place, out=Path(name, "page"))
        content: dict[str, Any] = read_json(Path(name, "page", "campaign.json"))
    return content
