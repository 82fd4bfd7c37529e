"""A simulated comparison, shaped like a real one: the page can be tested without training."""

import json
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from layerlab.records.run_files import COLUMNS

ARMS = ("llama", *(f"history-{n}" for n in range(1, 8)))
GAINS = (0.0, -0.032, -0.009, 0.004, 0.028, -0.017, 0.041, -0.004)
BATCH = 2048
MEASURES = {"score": 6.0, "attention_norm": 1.4, "diversity": 0.7, "growth": 3.0, "gradient": 0.2}
Rows = list[dict[str, Any]]


def race(
    arms: Sequence[str] = ARMS,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    rates: Sequence[float] = (0.003,),
    updates: int = 400,
    every: int = 5,
    layers: int = 4,
    heads: int = 2,
) -> dict[str, Any]:
    """A whole comparison: curves that fall as a power, arms that differ by a little, seeds less."""
    draw = np.random.default_rng(0)
    runs, train, evaluation, monitor = [], [], [], []
    for arm, seed, rate in product(range(len(arms)), seeds, rates):
        whole = _run(arms[arm], arm, seed, rate, updates, every, draw)
        runs.append(whole["run"])
        train += whole["train"]
        evaluation += whole["evaluation"]
        monitor += _monitor(whole["run"], arm, updates, layers, heads, draw)
    rows = _rows(arms, runs, seeds)
    best = {row["arm"]: row["rate"] for row in rows}
    for run in runs:
        run["chosen"] = run["rate"] == best[run["arm"]]
    return {
        "schema": 1,
        "layerlab": "0.1.0",
        "created": "2026-11-20T12:00:00Z",
        "name": "eight-residuals-twin",
        "about": "Eight residual schemes at a size for two CPU cores, on equal terms.",
        "inferred": "The source states neither its width nor its depth; both are inferred.",
        "baseline": arms[0],
        "metric": "nats",
        "confidence": 0.95,
        "power": 0.8,
        "seeds": list(seeds),
        "match": "parameters",
        "arms": list(arms),
        "rows": rows,
        "runs": runs,
        "curves": [_curves(run, train, evaluation) for run in runs],
        "paired": _paired(arms, evaluation, best, seeds),
        "monitor": monitor,
        "gradients": [_gradients(run, layers) for run in runs],
        "remarks": ["three seeds decide only large differences"],
        "recipe": _recipe(arms, seeds, rates, updates),
        "manifests": {run["run"]: _manifest(run) for run in runs},
    }


def single(**changes: Any) -> dict[str, Any]:
    """One run, as `layerlab train` leaves it."""
    content = race(("llama",), seeds=(1,), **changes)
    content["rows"], content["paired"] = [], []
    run = content["runs"][0]
    content["samples"] = [
        {
            "run": run["run"],
            "arm": run["arm"],
            "seed": 1,
            "update": update,
            "prompt": "The jury said",
            "text": text,
        }
        for update, text in ((200, " the the of a\n"), (400, " that the county had been fair."))
    ]
    return content


def _run(
    name: str, arm: int, seed: int, rate: float, updates: int, every: int, draw: np.random.Generator
) -> dict[str, Any]:
    run = f"{name}-s{seed}-r{rate:g}-{arm:04x}{seed:04x}"
    head = {"run": run, "arm": name, "seed": seed, "rate": rate}
    # Every rate has its price, the middle one none; a seed shifts all arms alike.
    off = 0.05 * math.log(rate / 0.003) ** 2
    shift = GAINS[arm % len(GAINS)] + off + 0.02 * math.sin(seed) + draw.normal(0, 0.004)
    pace = 3.1 * (1 + 0.05 * arm)
    train, evaluation = [], []
    for update in range(every, updates + 1, every):
        place = {
            **head,
            "update": update,
            "tokens": update * BATCH,
            "flops": update * BATCH * 7.3e6 * (1 + 0.02 * arm),
            "seconds": update / pace,
        }
        level = 2.9 + 5.0 * (1 + update / 6) ** -0.6 + shift * (1 - math.exp(-update / 80))
        train.append({**place, "loss": level + draw.normal(0, 0.04)})
        if update % (updates // 10) == 0:
            nats = level + 0.1 + draw.normal(0, 0.002)
            evaluation.append(
                {**place, "nats": nats, "bits_per_byte": nats / 2.6, "accuracy": 0.9 - nats / 6}
            )
    last = evaluation[-1]
    result = {
        **{key: last[key] for key in ("nats", "bits_per_byte", "accuracy", "tokens", "flops")},
        "step0_nats": 7.62,
        "updates": updates,
        "seconds": last["seconds"],
        "tokens_per_second": BATCH * pace,
        "peak_memory_bytes": 612_000_000 + 9_000_000 * arm,
        "parameters": 1_200_000 + 8 * arm,
        "weights": f"{arm}{seed}",
        "resumes": 0,
        "micro_batch": 16,
    }
    return {
        "run": {**head, "finished": True, "diverged": None, **result},
        "train": train,
        "evaluation": evaluation,
    }


def _monitor(
    run: dict[str, Any], arm: int, updates: int, layers: int, heads: int, draw: np.random.Generator
) -> Rows:
    head = {key: run[key] for key in ("run", "arm", "seed")}
    steps = range(updates // 10, updates + 1, updates // 10)
    return [
        {
            **head,
            "update": update,
            "layer": layer,
            "head": number,
            "measure": measure,
            "value": level
            * (1 + 0.3 * layer)
            * (1 + update / updates)
            * (1 + 0.03 * arm)
            * draw.uniform(0.9, 1.1),
        }
        for update, layer, number in product(steps, range(layers), range(heads))
        for measure, level in MEASURES.items()
    ]


def _curves(run: dict[str, Any], train: Rows, evaluation: Rows) -> dict[str, Any]:
    """Column by column, as a comparison keeps them."""
    head = {key: run[key] for key in ("run", "arm", "seed", "rate", "chosen")}
    points = {"train": train, "evaluation": evaluation}
    own = {kind: [p for p in rows if p["run"] == run["run"]] for kind, rows in points.items()}
    columns = {
        kind: {name: [p[name] for p in rows] for name in COLUMNS[kind]}
        for kind, rows in own.items()
    }
    return {**head, **columns}


def _gradients(run: dict[str, Any], layers: int) -> dict[str, Any]:
    """Logarithms that fall from block to block, by less later on in the run."""
    head = {key: run[key] for key in ("run", "arm", "seed")}
    slope = 0.1 + 0.01 * run["seed"] + 0.02 * (len(run["arm"]) % 3)
    start = [-1 - slope * block for block in range(layers)]
    return {**head, "start": start, "mean": [-1 - slope * block / 2 for block in range(layers)]}


def _rows(arms: Sequence[str], runs: Rows, seeds: Sequence[int]) -> Rows:
    return [_row(name, arms[0], runs, seeds, index) for index, name in enumerate(arms)]


def _row(name: str, base: str, runs: Rows, seeds: Sequence[int], index: int) -> dict[str, Any]:
    own, other = _best(name, runs, seeds), _best(base, runs, seeds)
    first = own[0]
    nats = np.array([run["nats"] for run in own])
    difference = nats - np.array([run["nats"] for run in other])
    n = len(own)
    half = math.nan
    if n > 1:
        half = stats.t.ppf(0.975, n - 1) * difference.std(ddof=1) / math.sqrt(n)
    mean = float(difference.mean())
    p = stats.ttest_1samp(difference, 0).pvalue if n > 1 and name != base else math.nan
    holm = min(1.0, p * (len(ARMS) - 1))
    verdict = _verdict(name == base, n, mean, holm)
    tested = {"low": mean - half, "high": mean + half, "p": p, "holm": holm}
    tested |= {"detectable": 1.4 * half, "sd": nats.std(ddof=1) if n > 1 else math.nan}
    if name == base:
        tested = dict.fromkeys(tested, math.nan)
    sums = ("tokens_per_second", "peak_memory_bytes", "parameters", "flops", "rate")
    return {
        "arm": name,
        "n": n,
        "nats": float(nats.mean()),
        "bits_per_byte": float(nats.mean() / 2.6),
        "accuracy": float(0.9 - nats.mean() / 6),
        "difference": mean,
        **{key: float(v) if math.isfinite(v) else None for key, v in tested.items()},
        "paired": True,
        "seeds_needed": 7 if verdict == "not distinguishable" else None,
        **{key: first[key] for key in sums},
        "seconds": first["seconds"],
        "mismatch": 0.05 * index,
        "against": base,
        "differs": None if name == base else _differs(name, first["parameters"], index),
        "verdict": verdict,
        "said": f"{name}: {mean:+.3f} nats against {base}, {n} seeds.",
    }


def _differs(name: str, parameters: int, index: int) -> dict[str, Any]:
    part = {"place": "residual", "option": None, "arm": name, "against": "plain"}
    size = {"place": "size", "option": "inner", "arm": 128 - index, "against": 128}
    count = {"arm": parameters, "against": parameters - 8 * index, "difference": 8 * index}
    flops = {"arm": 7.3e6, "against": 7.3e6, "difference": 0.0, "percent": 0.0}
    return {
        "slots": ["residual"],
        "stack": [],
        "factors": [part, size],
        "parameters": {**count, "percent": 0.01 * index},
        "flops": flops,
    }


def _verdict(base: bool, n: int, mean: float, holm: float) -> str:
    if base:
        return "baseline"
    if n < 2:
        return "too few seeds"
    if holm >= 0.05:
        return "not distinguishable"
    return "better" if mean < 0 else "worse"


def _best(name: str, runs: Rows, seeds: Sequence[int]) -> Rows:
    own = [run for run in runs if run["arm"] == name]
    rates = sorted({run["rate"] for run in own})
    mean = {rate: np.mean([r["nats"] for r in own if r["rate"] == rate]) for rate in rates}
    best = min(rates, key=lambda rate: mean[rate])
    return [next(r for r in own if r["rate"] == best and r["seed"] == seed) for seed in seeds]


def _paired(
    arms: Sequence[str], evaluation: Rows, best: dict[str, float], seeds: Sequence[int]
) -> Rows:
    nats = {
        (row["arm"], row["seed"], row["update"]): row["nats"]
        for row in evaluation
        if row["rate"] == best[row["arm"]]
    }
    updates = sorted({update for _, _, update in nats})
    found = []
    for arm in arms[1:]:
        points = []
        for update in updates:
            each = [nats[arm, seed, update] - nats[arms[0], seed, update] for seed in seeds]
            mean, half = float(np.mean(each)), 2.5 * float(np.std(each))
            ends = {"low": mean - half, "high": mean + half}
            points.append({"tokens": update * BATCH, "n": len(each), "difference": mean, **ends})
        found.append({"arm": arm, "against": arms[0], "by": "tokens", "points": points})
    return found


def _recipe(
    arms: Sequence[str], seeds: Sequence[int], rates: Sequence[float], updates: int
) -> dict[str, Any]:
    return {
        "name": "eight-residuals-twin",
        "about": "Eight residual schemes.",
        "model": {"variant": "llama", "width": 128, "preset": None, "options": {"head": "untied"}},
        "data": {"sources": [{"text": "brown", "weight": 1.0}], "vocab_size": 2048},
        "train": {"max_steps": updates, "batch_size": 16, "learning_rate": 0.003},
        "compare": {
            "arms": list(arms),
            "seeds": list(seeds),
            "learning_rates": list(rates) if len(rates) > 1 else [],
            "match": "parameters",
            "match_by": "ffn",
            "allowed_differences": [],
        },
    }


def _manifest(run: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": 1,
        "run": run["run"],
        "arm": run["arm"],
        "recipe": {
            "model": {"variant": run["arm"], "width": 128, "layers": 6},
            "train": {
                "optimizer": "adamw",
                "parametrization": "standard",
                "batch_size": 16,
                "seed": run["seed"],
                "learning_rate": run["rate"],
            },
        },
        "data": {"digest": "5f3a9c1e", "order": f"o{run['seed']}", "evaluation": "e77"},
        "model": {"parameters": run["parameters"]},
        "machine": {"processor": "x86_64", "device": "cpu", "threads": 1},
        "versions": {"torch": "2.13.0", "layerlab": "0.1.0"},
        "batch_tokens": BATCH,
        "micro_batch": 16,
    }


def write_runs(content: dict[str, Any], folder: Path) -> list[Path]:
    """The folders of the runs, as training leaves them."""
    return [_write_run(content, run, folder / "runs" / run["run"]) for run in content["runs"]]


def _write_run(content: dict[str, Any], run: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True)
    own = next(one for one in content["curves"] if one["run"] == run["run"])
    events = [
        {"kind": kind, **dict(zip(own[kind], point, strict=True))}
        for kind in COLUMNS
        for point in zip(*own[kind].values(), strict=True)
    ]
    readings = [row for row in content["monitor"] if row["run"] == run["run"]]
    for update in sorted({row["update"] for row in readings}):
        keys = ("layer", "head", "measure", "value")
        rows = [{key: r[key] for key in keys} for r in readings if r["update"] == update]
        events.append({"kind": "monitor", "update": update, "readings": rows})
    events.append({"kind": "note", "update": 3, "text": "resumed at update 3"})
    events.append({"kind": "alarm", "update": 9, "text": "scores grow", "layer": 1})
    events.append({"kind": "sample", "update": 9, "prompt": "The jury", "text": " said"})
    text = "".join(json.dumps(event) + "\n" for event in events)
    # The last line was cut off when the process was killed.
    (folder / "events.jsonl").write_text(text + '{"kind":"train","upd')
    parts = {"manifest": content["manifests"][run["run"]], "recipe": content["recipe"]}
    for name, part in {**parts, "result": run}.items():
        (folder / f"{name}.json").write_text(json.dumps(part))
    return folder
