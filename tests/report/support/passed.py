"""The content of an adaptation, shaped like a real one: its page can be tested without a model."""

from typing import Any

import numpy as np

ARMS = ("replay", "no replay")


def passed(arms: tuple[str, ...] = ARMS, seeds: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """Every part of it; numbers are drawn."""
    draw = np.random.default_rng(0)
    sizes = {"texts": 9, "tokens": 300, "tokens_per_character": 0.7}
    text = {"name": "law (domain)", "ratio": 0.8, "base": sizes, "new": sizes}
    counts = {"back": 9, "broken": 0, "changed": 8, "longer": 0, "coarser": 9}
    change = {"value": 0.1, "low": 0.05, "high": 0.15, "units": 9, "per": "document"}
    runs = [
        {
            "arm": arm,
            "seed": seed,
            "curves": {
                "update": [0, 5, 10],
                "tokens": [0, 500, 1000],
                "domain": draw.uniform(1, 2, 3).tolist(),
                "general": draw.uniform(1, 2, 3).tolist(),
            },
            "before": {"domain": 2.0, "general": 1.0},
            "after": {"domain": 1.0, "general": 1.1},
            "change": {"domain": change, "general": change},
            "sources": [{"source": "law", "kind": "domain", "tokens": 500, "passes": 0.5}],
        }
        for arm in arms
        for seed in seeds
    ]
    rows = {"rows": 9, "held": 1, "turns": 9, "tokens": 99, "answers": 50, "passes": 2.0}
    cells = [{"score": 0.25, "error": 0.02, "n": 100}, None]
    spans = [{"score": 0.0, "error": 0.0, "low": 0.0, "high": 0.049, "n": 75, "too_long": 2}, None]
    alone = [{"score": 2.5, "error": None, "n": 1}, {"score": 2.6, "error": None, "n": 1}]
    return {
        "name": "lessons",
        "about": "What was tried.",
        "inferred": "All of it.",
        "layerlab": "0.1.0",
        "recipe": {"name": "lessons", "pretrain": {"tokens": 1000}},
        "arms": list(arms),
        "stages": [
            {
                "stage": f"pretrain, seed {seed} ({arm})",
                "kind": "pretrain",
                "key": f"pretrain-{arm}-{seed}",
                "finished": True,
                "seconds": 61.5,
            }
            for arm in arms
            for seed in seeds
        ],
        "base": [{"arms": list(arms), "parameters": 1_411_336}],
        "texts": [
            {
                "name": "law",
                "kind": "domain",
                "documents": 10,
                "bytes": 1000,
                "kept": 9,
                "kept_bytes": 900,
                "removed": {"too short": {"documents": 1}},
            }
        ],
        "contamination": [
            {"benchmarks": {"law": {"questions": 9, "short": 1, "touched": 2, "held": 1}}}
        ],
        "vocabulary": [
            {
                "holds": True,
                "entries_base": 280,
                "entries": 288,
                "added": 8,
                "removed": 0,
                "unreachable": [],
                "unused": 1,
                "partial": [],
                "texts": [{**text, **counts}],
            }
        ],
        "embedding": [
            {
                "before": {"domain": {"bits_per_byte": 2.0}},
                "ways": [
                    {"input": "mean", "head": "mean", "bits": {"domain": {"bits_per_byte": 2.1}}}
                ],
            }
        ],
        "pretrain": runs,
        "changes": [
            {
                "arm": arm,
                "kind": "general",
                "against": "before",
                "before": 1.0,
                "after": 1.1,
                "value": 0.1,
                "low": 0.05,
                "high": 0.15,
                "n": len(seeds),
                "over": "seeds",
            }
            for arm in arms
        ],
        "tune": [
            {"arms": [arm], "sources": {"rows": rows}, "before": {"rows": 3.0}, "after": {}}
            for arm in arms
        ],
        "table": {
            "columns": ["base", "tune (replay)"],
            "rows": [
                {
                    "title": "LawBench",
                    "kind": "domain",
                    "unit": "score",
                    "chance": None,
                    "cells": cells,
                },
                {
                    "title": "C-Eval",
                    "kind": "general",
                    "unit": "score",
                    "chance": 0.25,
                    "cells": spans,
                },
                {
                    "title": "general text",
                    "kind": "general",
                    "unit": "bits per byte",
                    "chance": None,
                    "cells": alone,
                },
            ],
        },
        "scores": [{"title": "LawBench", "after": "base", "arms": list(arms), "score": 0.25}],
        "differences": [
            {
                "title": "LawBench",
                "after": "tune",
                "arms": list(arms),
                "difference": 0.01,
                "error": 0.02,
                "n": 100,
            },
            {
                "title": "C-Eval",
                "after": "tune",
                "arms": list(arms),
                "difference": 0.0,
                "error": 0.0,
                "n": 75,
            },
        ],
        "samples": [
            {"after": "base", "arms": list(arms), "prompt": "What?", "answer": "That."},
            {"after": "tune", "arms": list(arms), "prompt": "What?", "answer": " "},
        ],
        "left_out": [{"what": "FinEval", "why": "it is not here"}],
        "remarks": ["tuning goes on from the first seed"],
    }
