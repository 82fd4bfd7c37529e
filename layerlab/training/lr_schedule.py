"""The learning rate schedule: a warm-up from 0, then one of four ways to decay."""

import math

from layerlab.recipes.training_sections import TrainSection, warmup_of


def lr_at(update: int, updates: int, train: TrainSection) -> float:
    """Return the learning rate of an update, counted from 0.

    It rises in a straight line over the warm-up. Then, with s the share of the rest that is done
    and f the final share of the rate,

        cosine      f + (1 - f) (1 + cos(pi s)) / 2
        linear      1 - (1 - f) s
        constant    1
        wsd         1, and over the cool-down at the end a straight line to f

    Args:
        update: that is about to be made.
        updates: of the whole run.

    Example:
        >>> train = TrainSection(max_steps=10, learning_rate=1.0, warmup_steps=2)
        >>> train = train.model_copy(update={"min_lr_ratio": 0.0, "lr_scheduler_type": "linear"})
        >>> [round(lr_at(update, 10, train), 3) for update in (0, 1, 2, 6, 9)]
        [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    warm = warmup_of(updates, train)
    if update < warm:
        return train.learning_rate * (update + 1) / warm
    return train.learning_rate * _share(update - warm, updates - warm, train)


def _share(done: int, rest: int, train: TrainSection) -> float:
    """Return the factor of the peak rate after the warm-up."""
    part = done / max(1, rest)
    if train.lr_scheduler_type == "cosine":
        return train.min_lr_ratio + (1 - train.min_lr_ratio) * (1 + math.cos(math.pi * part)) / 2
    if train.lr_scheduler_type == "linear":
        return 1 - (1 - train.min_lr_ratio) * part
    if train.lr_scheduler_type == "constant":
        return 1.0
    left = (1 - part) / train.decay_ratio
    return 1.0 if left >= 1 else train.min_lr_ratio + (1 - train.min_lr_ratio) * left
