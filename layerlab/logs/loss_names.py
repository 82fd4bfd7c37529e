"""Find the name of the loss among those in a log."""

import re
from collections.abc import Sequence
from pathlib import Path

from layerlab.errors import UserError
from layerlab.validation import short_repr

# Names under which trainers log, the most telling first; a loss on held-out text before any other.
HELD_OUT = (
    *("eval_loss", "eval/loss", "val_loss", "val/loss", "valid_loss", "valid/loss"),
    *("validation_loss", "validation/loss", "held_out_loss", "test_loss", "test/loss"),
    *("val_loss_epoch", "val/loss_epoch"),  # Lightning's means over a pass
    *("validation_lm_loss", "lm loss validation"),  # Megatron's lines of text, and its events
)
LOSSES = (
    *HELD_OUT,
    *("loss", "train_loss", "train/loss", "train/train_loss", "training_loss"),
    *("lm_loss", "lm loss"),
)
# What else may be a loss on held-out text: eval_wiki_loss, loss/val, validPerplexity, valloss.
HELD_WORD = r"(eval(uation|uate)?|val(i|id|idation|idate)?|test|dev|cv|ood|held(_?out)?|hold_?out)"
LOSS_WORD = (
    r"(loss(es)?|ppl|perplexity|nlls?|bpb|bpc|bpt|nats|bits([ _]per[ _]\w+)?|xent|ce|cross_?entropy"
    r"|entropy|mse)"
)
_TEXT = re.compile(
    rf"(?<![a-z]){HELD_WORD}(?![a-z])|(?<![a-z])(v|{HELD_WORD}){LOSS_WORD}|loss{HELD_WORD}"
)
_KIND = re.compile(rf"{LOSS_WORD}(?![a-z])|loss{HELD_WORD}(?![a-z])|(^|[^a-z]){HELD_WORD}$")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def find_loss(names: Sequence[str], path: Path) -> str | None:
    """Return the name that is usual for a loss; None where there is none.

    Args:
        names: of columns, or of metrics; a column of texts may hold numbers, too.

    Raises:
        UserError: it is that of a loss in training, and one on held-out text may stand beside it.
    """
    lower = {name.lower(): name for name in reversed(names)}
    found = next((lower[name] for name in LOSSES if name in lower), None)
    if found is None or found.lower() in HELD_OUT:
        return found
    held_out = [name for name in names if name != found and may_be_held_out(name)]
    if held_out:
        rest = ", ".join(map(short_repr, held_out[:12]))
        raise UserError(
            f"{path} has {short_repr(found)}, and what may be losses on held-out text: {rest}; say "
            f"which is judged: --loss {held_out[0]}, or --loss {found}"
        )
    return found


def find_beside(judged: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return what else may be a loss beside one that is judged; of held-out text only the like.

    Its perplexity is no other.

    Example:
        >>> find_beside("loss", ["step", "loss", "wikitext_ppl", "eval_c4"])
        ('wikitext_ppl', 'eval_c4')
        >>> find_beside("val_loss", ["val_loss", "val_ppl", "test_loss", "loss", "eval_runtime"])
        ('test_loss',)
    """
    if judged.lower() in HELD_OUT:
        others = (one for one in names if one != judged and may_be_held_out(one))
        return tuple(one for one in others if not re.search("ppl|perplexity", one.lower()))
    spelled = {one: _spell(one) for one in names if one != judged}
    return tuple(
        one for one, words in spelled.items() if _KIND.search(words) or _TEXT.search(words)
    )


def may_be_held_out(name: str) -> bool:
    """Tell by its words whether a name may be that of a loss on held-out text.

    Example:
        >>> [may_be_held_out(one) for one in ("eval_wiki_loss", "loss/val", "validPpl", "valloss")]
        [True, True, True, True]
        >>> [may_be_held_out(one) for one in ("value_loss", "train_loss", "eval_runtime")]
        [False, False, False]
    """
    words = _spell(name)
    if words.startswith(("is_", "has_", "num_")):  # a flag or a count
        return False
    return bool(_TEXT.search(words) and _KIND.search(words))


def _spell(name: str) -> str:
    """Return a name as small words with lines between."""
    return re.sub(r"\W+", "_", _CAPITAL.sub("_", name).lower())
