"""Settings that stand in the rows of a table, or in its lines, beside what was measured."""

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from layerlab.logs.formats.line_words import read_common_words
from layerlab.logs.training_log import PARTS, TEXTS

if TYPE_CHECKING:
    import pyarrow as pa

# How trackers call a column of a setting, and how those who write a table themselves do.
SECTION = re.compile(r"(params|config|hparams|hyperparameters|args)[./]", re.IGNORECASE)
USUAL = re.compile(
    r"(base_|max_|peak_|initial_)?(lr|learning_rate)|(\w+_)?batch_size|bsz?|weight_decay|wd"
    r"|warmup(_\w+)?|optim(izer)?|(lr_)?scheduler(_type)?|\w*dropout|beta_?[12]|adam_\w+"
    r"|(max|total|num)_steps|(num_)?(train_)?epochs|grad(ient)?_accumulation(_steps)?|grad_clip"
    r"|max_grad_norm|context(_length)?|seq(uence)?_len(gth)?|block_size|width|depth|d_model"
    r"|hidden_(size|dim)|(n|num)_(hidden_)?(layers?|heads?|params|parameters)|params|parameters"
    r"|model_size|vocab_size|precision|dtype|git_(sha|commit)|commit",
    re.IGNORECASE,
)


def read_settings(table: "pa.Table", used: Collection[str | None]) -> dict[str, Any]:
    """Return what a table says of a run's start: columns of one value, and what its lines say.

    Args:
        table: rows of one run.
        used: columns that say something else.
    """
    from pyarrow import types

    named = [one.name for one in table.schema if is_setting(one.name) and one.name not in used]
    plain = [name for name in named if not types.is_nested(table.schema.field(name).type)]
    values = {name: table[name].drop_null().unique().to_pylist() for name in plain}
    return {name: one[0] for name, one in values.items() if len(one) == 1} | read_common_words(
        table
    )


def is_setting(name: str) -> bool:
    """Tell by its name whether a column may be of a setting.

    Example:
        >>> [is_setting(one) for one in ("lr", "params.seq_len", "train/batch_size", "val_loss")]
        [True, True, True, False]
    """
    if name.lower() in PARTS or name.lower().removeprefix("is_") in TEXTS:
        return True  # which text rows are of
    return bool(SECTION.match(name) or USUAL.fullmatch(name.rpartition("/")[2].strip()))
