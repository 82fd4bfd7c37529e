"""Lines of text that may tell a loss on held-out text, in whatever form it stands there."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from layerlab.errors import UserError
from layerlab.logs.loss_names import HELD_OUT, HELD_WORD, LOSS_WORD, may_be_held_out
from layerlab.validation import short_repr

# Between the parts of a line, each with its own number.
PART = re.compile(r"[|,;]|\s{2,}")
# Words of a text, each alone or with a loss, as val/cross_entropy; eval_iters is a setting.
TEXT = re.compile(
    rf"(?<![-_\w])(?:best[_ ]|avg[_ ]|mean[_ ])?(?:{HELD_WORD}(?:ing|ating)?(?![-\w])"
    rf"|{HELD_WORD}[_/-]?(?:\w+[_/-])?{LOSS_WORD}|v{LOSS_WORD}|loss[_/-]?{HELD_WORD})"
    rf"|(?<![-_\w]){HELD_WORD}[_/-]\w+\s*[:=]?\s*\d+\.\d"
)
# One of these stands in all that TEXT finds; nearly all lines have none, and need no longer look.
HINT = re.compile(rf"val|test|dev|cv|ood|h[eo]ld|v{LOSS_WORD}")
DECIMAL = re.compile(r"\d\.\d|\d+e[-+]?\d|(?<![a-z])(?:nan|inf)(?![a-z])")
# Of these no loss is told: what else was measured there, and settings.
OTHERS = re.compile(
    r"(?<![a-z])(?:acc|accuracy|f1|bleu|rouge|em|time|took|secs?|seconds|s|ms|min|hours?|lr|tokens"
    r"|tok|fraction|frac|ratio|share|split|size|interval|every|dropout|temperature)(?![a-z])"
)
KINDS = re.compile(rf"(?<![^\W_]){LOSS_WORD}(?![a-z])")
PLAIN = re.compile(r"(?<![^\W_])loss\W+\d")


def refuse_unread(read: Sequence[tuple[str, Mapping[str, float]]], path: Path) -> None:
    """Refuse a loss in training where lines may have one on held-out text that is not read.

    Args:
        read: each line with the step and the losses that were found in it, by their names.

    Raises:
        UserError: they may.
    """
    names = list(dict.fromkeys(name for _, row in read for name in row if name != "step"))
    if any(name in HELD_OUT for name in names):
        return
    before = ""
    for line, row in read:
        # A heading, and below it a loss of which no text is told.
        below = (
            row.keys() <= {"step", "loss"}
            and bool(PLAIN.search(line.lower()))
            and is_heading(before)
        )
        if (may_hold_held_out(line) or below) and not any(map(may_be_held_out, row)):
            raise UserError(
                f"{path} has lines that may be of held-out text and are not read, as "
                f"{short_repr(line)}; type --loss {names[0]} if they are not, or --line with what "
                r"stands there, as 'val.*step (?P<step>\d+).*loss (?P<loss>\S+)'"
            )
        before = line if line.strip() else before


def is_heading(line: str) -> bool:
    """Return whether a line names a held-out text, and no number of it."""
    return bool(HINT.search(line.lower()) and TEXT.search(line.lower())) and not DECIMAL.search(
        line.lower()
    )


def may_hold_held_out(line: str) -> bool:
    """Return whether a line may tell a loss on held-out text, wherever its words stand.

    Example:
        >>> may_hold_held_out("validation loss at iteration 100 | lm loss value: 4.1E+00")
        True
        >>> may_hold_held_out("step 5 loss 3.2 | test acc 0.4"), may_hold_held_out("eval_iters=200")
        (False, False)
    """
    if HINT.search(line.lower()) is None:
        return False
    parts = [
        one
        for one in PART.split(line.lower())
        if KINDS.search(one) or not (TEXT.search(one) and OTHERS.search(one))
    ]
    kept = " | ".join(parts)
    return bool(TEXT.search(kept) and DECIMAL.search(kept))
