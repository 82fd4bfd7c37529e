"""Readings of a healthy model, drawn so that no rule has a reason to speak."""

import json
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from layerlab.records.layer_names import EMBEDDING
from layerlab.report.findings.find import find
from layerlab.report.results.report import Report
from layerlab.report.results.source_notes import notes

LAYERS, HEADS, SEQUENCES, TOKENS, WIDTH = 6, 4, 2, 256, 64
Frames = dict[str, pd.DataFrame]
Draw = Callable[[pd.DataFrame, np.random.Generator], dict[str, Any]]

BOUNDS = {
    "spectrum": [
        {"column": "norm", "limit": "column_bound", "side": "upper", "source": "spectral25"},
        {"column": "norm", "limit": "lower", "side": "lower", "source": "golub13"},
    ],
    "gain": [{"column": "measured", "limit": "bound", "side": "upper", "source": "pangu23"}],
}


def card(name: str = "healthy", **changes: Any) -> dict[str, Any]:
    """A model's entry."""
    entry = {
        "name": name,
        "class": "GPT2LMHeadModel",
        "parameters": 480_000,
        "layers": LAYERS,
        "heads": HEADS,
        "width": WIDTH,
        "head_width": WIDTH // HEADS,
        "vocab": 512,
        "loss_nats": 2.5,
        "dtype": "float32",
        "device": "cpu",
        "faults": [],
    }
    return {**entry, **changes}


def measures(**not_applicable: str) -> list[dict[str, Any]]:
    """The declarations of every measure."""
    return [
        {
            "name": name,
            "title": name.title(),
            "unit": "none",
            "source": "Own",
            "about": "One sentence. And another.",
            "equation": "x = x",
            "per": list(per),
            "columns": {column: f"the {column}" for column in columns},
            "plot": columns[:1],
            "better": None,
            "bounds": BOUNDS.get(name, []),
            "not_applicable": [
                {"model": "healthy", "reason": reason}
                for measure, reason in not_applicable.items()
                if measure == name
            ],
            "notes": [],
        }
        for name, (per, columns) in _declared().items()
    ]


@cache
def _declared() -> dict[str, tuple[tuple[str, ...], list[str]]]:
    """The axes and the columns of every measure."""
    tables = frames()
    return {
        name: (per, [str(one) for one in tables[name] if one not in ("model", *per)])
        for name, (per, _) in _HEALTHY.items()
    }


def content(*cards: dict[str, Any], tokens: int = TOKENS, **changes: Any) -> dict[str, Any]:
    """A report's dict without readings."""
    entry = {
        "layerlab": "0.1.0",
        "created": "2026-01-01T00:00:00Z",
        "options": {"samples": SEQUENCES},
        "versions": {"torch": "2.13.0"},
        "machine": {"cores": 2},
        "models": list(cards) or [card()],
        "text": {
            "source": "a text",
            "hash": "0",
            "sequences": [
                {"index": index, "tokens": tokens, "excerpt": "To be"} for index in range(SEQUENCES)
            ],
        },
        "measures": measures(),
        "findings": [],
        "details": {},
        "notes": [],
    }
    return {**entry, **changes}


def report(only: Collection[str] = (), **changes: Any) -> Report:
    """A small report with a finding and notes.

    Args:
        only: the measures that it has, all unless some are named; what a folder does with a report
            takes no more than a few.
    """
    only = only or tuple(_HEALTHY)
    heard = {name: changes[name] for name in ("models", "measures", "text") if name in changes}
    tables, said = _judged(tuple(only), json.dumps(heard))
    taken = [one for one in measures() if one["name"] in only]
    whole = content(**{"measures": taken, **changes})
    return Report({**whole, **said}, tables)


@cache
def _judged(only: tuple[str, ...], heard: str) -> tuple[Frames, dict[str, Any]]:
    """The tables of a report and what is said of them, which takes longer than all the rest."""
    tables = frames()
    attention = tables["attention"].copy()
    attention.loc[3, "logit_max"] = 131.0
    tables = {name: {**tables, "attention": attention}[name] for name in only}
    whole = content(**json.loads(heard))
    return tables, {"findings": find(whole, tables), "notes": notes(tables, whole["models"])}


def frames(*names: str, seed: int = 0) -> Frames:
    """Healthy readings of each model."""
    return dict(_frames(names or ("healthy",), seed))


@cache
def _frames(names: tuple[str, ...], seed: int) -> Frames:
    generator = np.random.default_rng(seed)
    drawn = [_model(name, generator) for name in names]
    return {name: pd.concat([one[name] for one in drawn], ignore_index=True) for name in _HEALTHY}


def _model(name: str, generator: np.random.Generator) -> Frames:
    made = {}
    for frame, (per, draw) in _HEALTHY.items():
        whole = ("diversity", "dimension", "stream", "rounding", "saliency")
        rows = _rows(per, first=EMBEDDING if frame in whole else 0)
        made[frame] = rows.assign(**draw(rows, generator))
        made[frame].insert(0, "model", name)
    return made


def _rows(per: tuple[str, ...], first: int) -> pd.DataFrame:
    values = {
        "sequence": range(SEQUENCES),
        "layer": range(first, LAYERS),
        "head": range(HEADS),
        "place": ("stream", "attention", "ffn"),
        "sublayer": ("attention", "ffn"),
        "format": ("bf16", "fp16"),
        "mode": ("as-run", "flat"),
        "by": ("component",),
        "matrix": ("attn.c_proj", "mlp.c_fc"),
        "component": ("head", "attention", "ffn"),
        "position": range(8),
        "token": ("word",),
        "part": ("residual stream", "attn:scores", "mlp.act", "weights (stored)", "ln_1"),
    }
    index = pd.MultiIndex.from_product([values[name] for name in per], names=per)
    return index.to_frame(index=False)


def _between(low: float, high: float, rows: pd.DataFrame, draw: np.random.Generator) -> np.ndarray:
    return draw.uniform(low, high, len(rows))


def _diversity(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    residual = _between(0.8, 0.95, rows, draw)
    return {
        "diversity": 10 * residual,
        "relative_residual": residual,
        "cosine": 1 - residual**2,
    }


def _dimension(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    return {
        "effective_dimension": draw.integers(20, 30, len(rows)),
        "effective_rank": _between(30, 50, rows, draw),
        "tokens": SEQUENCES * TOKENS,
    }


def _stream(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    return {
        "norm": 4.0 + 2 * (rows["layer"] + 1),
        "attention_share": _between(0.1, 0.6, rows, draw),
        "ffn_share": _between(0.1, 0.6, rows, draw),
        "largest": _between(5, 9, rows, draw),
        "largest_token": draw.integers(0, TOKENS, len(rows)),
        "largest_channel": draw.integers(0, WIDTH, len(rows)),
        "median": 0.5,
        "massive": 0,
        "kurtosis": _between(1.1, 3, rows, draw),
    }


def _spectrum(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    norm = _between(1.5, 2.2, rows, draw)
    return {
        "norm": norm,
        "lower": norm * (1 - 1e-6),
        "upper": norm * (1 + 1e-4),
        "column_bound": 1.3 * norm,
        "token_bound": TOKENS**0.5,
        "row_sum_min": 1.0,
        "uniform_ratio": norm / 1.68,
        "contraction": norm - 0.4,
    }


def _attention(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    return {
        "entropy": _between(0.3, 0.9, rows, draw),
        "sink_mass": _between(0.02, 0.4, rows, draw),
        "logit_max": _between(3, 12, rows, draw),
        "logit_range": _between(5, 15, rows, draw),
    }


def _querykey(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    return {
        "norm": 2.0,
        "smallest": 0.1,
        "condition": 20.0,
        "abs_norm": 2.0 * 0.4 * WIDTH / HEADS,
        "prenorm_bound": 15.9 + _between(0, 0.1, rows, draw),
    }


def _lipschitz(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    return {
        "local": _between(1.5, 4, rows, draw),
        "weights": 1e4,
        "gradient": _between(0.5, 1, rows, draw),
    }


def _gain(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    measured = _between(0.3, 0.9, rows, draw)
    bound = np.where(rows["sublayer"] == "attention", 3 * measured, np.nan)
    ratios = {"bound": bound, "factor": bound, "tightness": bound / measured}
    return {"measured": measured, **ratios, "violated": False}


def _rounding(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    mean = 1e-3 * 1.1 ** (rows["layer"] + 1)
    return {"mean": mean, "predicted": 0.9 * mean, "running": np.inf}


def _logits(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    return {"error": 1e-3, "changed": 0.0, "kl": 1e-6, "loss_change": 1e-4}


def _attribution(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    return {"share": 0.2}


def _saliency(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    return {"l1": _between(0.5, 1, rows, draw), "earlier": 0.0}


def _ablation(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    return {"change": _between(0.05, 0.1, rows, draw), "error": 0.01, "texts": 4}


def _matrices(rows: pd.DataFrame, draw: np.random.Generator) -> dict[str, Any]:
    whole = {"rank": WIDTH, "full_rank": WIDTH, "dead_rows": 0, "dead_columns": 0}
    return {"alpha": _between(2.5, 5, rows, draw), "error": 0.3, "distance": 0.05, **whole}


# Of each measure the axes, and what draws its columns.
_HEALTHY: dict[str, tuple[tuple[str, ...], Draw]] = {
    "diversity": (("sequence", "layer", "place"), _diversity),
    "dimension": (("layer",), _dimension),
    "stream": (("sequence", "layer"), _stream),
    "spectrum": (("sequence", "layer", "head"), _spectrum),
    "attention": (("sequence", "layer", "head"), _attention),
    "querykey": (("layer", "head"), _querykey),
    "lipschitz": (("sequence", "layer"), _lipschitz),
    "gain": (("sequence", "layer", "sublayer"), _gain),
    "rounding": (("sequence", "layer", "format"), _rounding),
    "logits": (("sequence", "format", "mode"), _logits),
    "attribution": (("format", "by", "part"), _attribution),
    "saliency": (("layer", "position", "token"), _saliency),
    "ablation": (("layer", "component", "head"), _ablation),
    "matrices": (("layer", "matrix"), _matrices),
}
