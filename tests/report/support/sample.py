"""A synthetic report, shaped like a real one: the page can be tested without a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.report.support.declared import DECLARED

HOSTILE = "</script><img src=x onerror=window.__pwned=1>"
WORDS = [
    "the",
    " King",
    " of",
    "\n",
    " England",
    ":",
    " speak",
    "\t",
    " thou",
    HOSTILE,
    "\u202eabc",
]

_PLACES = {"place": ["stream", "attention", "ffn"], "sublayer": ["attention", "ffn"]}
_FIRST_IS_EMBEDDING = {"diversity", "dimension", "stream", "lipschitz"}


def sample(
    names: Sequence[str] = ("pre-norm", "post-norm", "llama"),
    *,
    layers: int | Sequence[int] = 6,
    heads: int = 4,
    sequences: int = 4,
    tokens: int = 40,
    steps: Sequence[int | None] | None = None,
    findings: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """A whole report dict; numbers are drawn, relations between columns hold."""
    generator = np.random.default_rng(seed)
    depth = [layers] * len(names) if isinstance(layers, int) else list(layers)
    models = [_model(name, index, depth[index], heads, steps) for index, name in enumerate(names)]
    measures = [_measure(name) for name in DECLARED]
    frames = {m["name"]: _frame(m, models, sequences, generator) for m in measures}
    report = {
        "schema": 2,
        "layerlab": "0.1.0",
        "created": "2026-11-20T12:00:00Z",
        "options": {"measures": None, "context": tokens},
        "versions": {"torch": "2.13.0", "transformers": "5.23.0", "python": "3.11.7"},
        "machine": {"cpu": "x86_64", "cores": 2, "gpu": None},
        "models": models,
        "text": {
            "source": "built-in sample",
            "hash": "blake2b:5f3a9c1e",
            "hashed": "the whole text",
            "sequences": [
                {"index": i, "tokens": tokens, "excerpt": "The King of England:\nspeak, thou ..."}
                for i in range(sequences)
            ],
        },
        "measures": measures,
        "frames": frames,
        "findings": [],
        "details": {},
        "notes": [
            {
                "title": "The contraction factor may exceed 1",
                "text": "The source says that lambda is usually below 1. For causal attention "
                "this is not guaranteed: a head that sends all rows to one token reaches sqrt(n).",
                "source": "pangu23, section 3.2",
            },
            {
                "title": "The pre-norm bound holds without a mask only",
                "text": "As printed it assumes n keys in every row. Row i of a causal mask has i.",
                "source": "spectral25, section 2.2",
            },
        ],
    }
    if findings:
        _find(report, tokens, generator)
    return report


def entry(measure: Any, notes: Sequence[str] = ()) -> dict[str, Any]:
    """A measure as a report lists it, off its own declaration."""
    told = ("name", "title", "unit", "source", "about", "equation", "better")
    return {
        **{name: getattr(measure, name) for name in told},
        "per": list(measure.per),
        "columns": dict(measure.columns),
        "plot": list(measure.plot),
        "bounds": [],
        "band": None,
        "not_applicable": [],
        "notes": list(notes),
    }


def attention_detail(model: str, tokens: Sequence[str], seed: int = 0) -> dict[str, Any]:
    """The attention of one head: every query, weights scaled to 0..255."""
    generator = np.random.default_rng(seed)
    rows = []
    for index in range(len(tokens)):
        logits = generator.normal(size=index + 1) * 1.5
        logits[0] += 3
        weight = np.exp(logits - logits.max())
        rows.append(np.round(255 * weight / weight.sum()).astype(int).tolist())
    return {
        "kind": "attention",
        "model": model,
        "layer": 1,
        "head": 2,
        "sequence": 0,
        "tokens": list(tokens),
        "queries": list(range(len(tokens))),
        "weights": rows,
    }


def _model(
    name: str, index: int, layers: int, heads: int, steps: Sequence[int | None] | None
) -> dict[str, Any]:
    family = ("gpt2", "openai-gpt", "llama")[index % 3]
    return {
        "name": name,
        "source": f"built-in:{name}",
        "revision": None,
        "weights_hash": "blake2b:0123456789abcdef",
        "family": family,
        "class": "GPT2LMHeadModel",
        "parameters": 812_544,
        "layers": layers,
        "attention_layers": layers,
        "width": 16 * heads,
        "heads": heads,
        "kv_heads": heads,
        "head_width": 16,
        "vocab": 512,
        "context": 256,
        "dtype": "float32",
        "device": "cpu",
        "attention": "sdpa",
        "step": None if steps is None else steps[index],
        "loss_nats": 1.62 + 0.07 * index,
        "card": "Trained by this project on TinyShakespeare: 2000 steps, batch 16 x 256.",
    }


def _measure(name: str) -> dict[str, Any]:
    return {
        "bounds": [],
        "not_applicable": [],
        "notes": [],
        **DECLARED[name],
        "name": name,
    }


def _frame(
    measure: dict[str, Any],
    models: list[dict[str, Any]],
    sequences: int,
    generator: np.random.Generator,
) -> dict[str, Any]:
    per, name = measure["per"], measure["name"]
    keys: list[tuple[Any, ...]] = []
    for index, model in enumerate(models):
        count = model["layers"] + (name in _FIRST_IS_EMBEDDING)
        axes = {
            "sequence": range(sequences),
            "layer": range(model["layers"] - count, model["layers"]),
            "head": range(model["heads"]),
            **_PLACES,
        }
        shape = [list(axes[axis]) for axis in per]
        keys += [(index, *key) for key in _product(shape)]
    model_index = np.array([key[0] for key in keys])
    axis = {a: [key[1 + i] for key in keys] for i, a in enumerate(per)}
    layer = np.array(axis["layer"], dtype=float)
    place = np.array([_stable(key[1:]) for key in keys])
    values = {
        column: _column(name, column, layer, model_index, place, generator)
        for column in measure["columns"]
    }
    _relate(name, values)
    data = {"model": [models[i]["name"] for i in model_index.tolist()], **axis}
    data |= {c: [round(float(v), 9) for v in value] for c, value in values.items()}
    return {"columns": list(data), "data": data}


def _stable(key: tuple[Any, ...]) -> float:
    """A stable number in 0..1 for a key (`hash` of text is salted)."""
    return (sum(ord(c) * (i + 7) for i, c in enumerate(str(key))) % 97) / 97


def _product(shape: list[list[Any]]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = [()]
    for axis in shape:
        rows = [(*row, value) for row in rows for value in axis]
    return rows


def _column(
    measure: str,
    column: str,
    layer: np.ndarray,
    model: np.ndarray,
    place: np.ndarray,
    generator: np.random.Generator,
) -> np.ndarray:
    noise = np.exp(0.06 * generator.normal(size=layer.shape))
    grown = 1 + 0.25 * layer * (1 + 0.4 * model)
    if column in {"entropy", "sink_mass", "cosine", "relative_residual"}:
        return np.clip((0.25 + 0.5 * place) * noise + 0.02 * layer, 0.01, 0.99)
    if column in {"massive", "violated"}:
        return (place > 0.97).astype(float)
    if column in {"condition", "weights"}:
        return 10 ** (1 + 2 * place) * noise * grown
    if column == "residual":
        return 0.05 * place * noise
    if measure == "dimension":
        return (24 - 1.6 * layer + 3 * model).clip(2) * noise
    return (0.8 + 0.9 * place) * grown * noise


def _relate(name: str, values: dict[str, np.ndarray]) -> None:
    if name == "spectrum":
        values["norm"] = 1 + 0.5 * values["norm"]
        values["lower"], values["upper"] = values["norm"] * 0.99999, values["norm"] * 1.00001
        values["column_bound"] = values["norm"] * 1.2
        values["token_bound"] = np.full_like(values["norm"], np.sqrt(256.0))
        values["row_sum_min"] = np.ones_like(values["norm"])
        values["row_lower"] = values["norm"] * 0.8
    if name == "gain":
        values["bound"] = values["measured"] * 3
        values["sharp"] = values["measured"] * 1.5
        values["tightness"] = values["bound"] / values["measured"]


def _find(report: dict[str, Any], tokens: int, generator: np.random.Generator) -> None:
    first = report["models"][0]["name"]
    words = [WORDS[i % len(WORDS)] for i in range(tokens)]
    report["details"]["head"] = attention_detail(first, words)
    report["details"]["channels"] = {
        "kind": "channels",
        "model": first,
        "layer": 2,
        "sequence": 0,
        "channels": [
            {"channel": 7 * i, "token_index": i, "token": words[i], "value": float(v)}
            for i, v in enumerate(-(10 ** generator.uniform(0, 3, size=8)))
        ],
    }
    base = {"layer": 1, "head": None, "sequence": 0, "detail": None}
    report["findings"] = [
        base
        | {
            "id": "f1",
            "severity": "error",
            "model": first,
            "measure": "attention",
            "head": 2,
            "value": 131.2,
            "threshold": 100.0,
            "source": "kimi25",
            "sentence": f"{first}, layer 1 head 2: the largest score is 131, above 100.",
            "advice": "QK-norm or QK-clip bounds it; float16 overflows at 65504.",
            "detail": "head",
        },
        base
        | {
            "id": "f2",
            "severity": "warning",
            "model": report["models"][-1]["name"],
            "measure": "dimension",
            "sequence": None,
            "layer": None,
            "value": 160.0,
            "threshold": 640.0,
            "source": "pangu23",
            "sentence": "Only 160 tokens for a width of 64: the effective dimension is too small.",
            "advice": "Measure on more text (--samples 16).",
        },
        base
        | {
            "id": "f3",
            "severity": "warning",
            "model": first,
            "measure": "stream",
            "layer": 2,
            "value": 912.4,
            "threshold": 100.0,
            "source": "sun24",
            "sentence": f"{first}, layer 2: channel 7 reaches 912, over 1000 times the median.",
            "advice": "Keep this layer in bfloat16 or float32; quantize with the channel apart.",
            "detail": "channels",
        },
        base
        | {
            "id": "f4",
            "severity": "info",
            "model": first,
            "measure": "gain",
            "layer": None,
            "value": 0.33,
            "threshold": 1.0,
            "source": "pangu23",
            "sentence": "The factor of Theorem 2 is below 1 in 33 % of the layers, not 'usually'.",
            "advice": "Nothing to do: the theorem's factor does not decide about collapse here.",
        },
    ]
