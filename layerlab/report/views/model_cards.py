"""Cards of the models on the page, and how much text each has read."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import Any

from markupsafe import Markup, escape

from layerlab.report.views import text

_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def cards(given: Sequence[Any]) -> dict[str, Any]:
    """Return each card without the sentences that all share, and those sentences once.

    Example:
        >>> cards(["GPT-2. Trained in lockstep.", "Llama. Trained in lockstep."])
        {'own': ['GPT-2.', 'Llama.'], 'shared': 'Trained in lockstep.'}
    """
    written = [_SENTENCE.split(text.prose(str(c), 4000)) if c else [] for c in given]
    first = written[0] if written else []
    shared = [s for s in dict.fromkeys(first) if all(s in w for w in written)]
    own = [" ".join(s for s in w if s not in shared) for w in written]
    return {"own": own, "shared": " ".join(shared)}


def lengths(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many tokens each model has read, or the counts of the text.

    A row is empty where the model has no counts of its own. `samples` is the length of samples cut
    from the beginning of one text, where all models read the same ones.
    """
    own = [[int(n) for n in model.get("tokens") or []] for model in report["models"]]
    known = [counts for counts in own if counts]
    sums = [sum(counts) for counts in known]
    sums = sums or [sum(s["tokens"] for s in report["text"]["sequences"])]
    ends = [f"{n:,}" for n in sorted({min(sums), max(sums)})]
    differ = any(counts != known[0] for counts in known)
    pieces = {s["tokens"] for s in report["text"]["sequences"]}
    alike = len(pieces) == 1 and not differ and report["options"].get("samples")
    return {
        "samples": f"{min(pieces):,}" if alike else "",
        "rows": [runs(counts) for counts in own],
        "total": " to ".join(ends),
        "differ": differ,
    }


def losses(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loss of each model in nats and as a perplexity, and what the text is called.

    Models without a loss have no row.
    """
    rows = [
        {"model": index, "nats": float(loss), "perplexity": _perplexity(float(loss))}
        for index, model in enumerate(report["models"])
        if (loss := model.get("loss_nats")) is not None
    ]
    return {"text": PurePath(str(report["text"]["source"])).name, "rows": rows}


def _perplexity(nats: float) -> float:
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def runs(counts: Sequence[int]) -> str:
    """Write token counts with equal neighbours together.

    Example:
        >>> runs([256, 256, 256, 31])
        '3 × 256, 1 × 31'
    """
    return ", ".join(f"{len(list(same)):,} × {count:,}" for count, same in groupby(counts))


def mark_code(value: Any) -> Markup:
    """Escape text from outside, and set what stands between backticks as code.

    Example:
        >>> mark_code("`a<b` holds")
        Markup('<code>a&lt;b</code> holds')
    """
    parts = text.prose(str(value), text.LONGEST).split("`")
    if len(parts) % 2 == 0:
        return escape("".join(parts))
    pieces = [
        Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(parts)
    ]
    return Markup("").join(pieces)
