"""Estimates the disk space of runs: in progress, finished, and of their page."""

from layerlab.recipes.training import TrainingRecipe
from layerlab.training.run_spec import count_costs, design_model

# Bytes of a parameter in a file: float32 weights, and AdamW's two moments.
WEIGHT, MOMENTS = 4, 8
# Bytes as they were counted: of a page without its numbers (nearly all of it draws pictures), of
# the code beside a model's weights, of a token in a tokenizer's file, of a run's recipe, manifest,
# result and log, of a line of a journal, and of what a monitor writes for a head.
PAGE, CODE, TOKEN, PAPERS, LINE, HEAD = 760_000, 120_000, 45, 6_000, 165, 490
TEXT = 4  # bytes of a token in a sample
TABLES = 2  # times the journals: a page and the tables beside it hold their numbers again


def checkpoint_bytes(recipe: TrainingRecipe) -> int:
    """Return the most bytes that a run's checkpoints take while it is in progress.

    A new one is whole before the oldest goes; a finished run keeps none.

    Unit: bytes.
    """
    updates = recipe.train.max_steps or 0
    every = recipe.run.save_steps or max(1, updates // 10)
    held = min(recipe.run.save_total_limit + 1, max(0, updates - 1) // every)
    return held * (WEIGHT * count_costs(recipe).parameters + moment_bytes(recipe))


def moment_bytes(recipe: TrainingRecipe) -> int:
    """Return the bytes that the optimizer keeps: Muon has one number of a weight in place of two.

    Unit: bytes.
    """
    cost = count_costs(recipe)
    single = cost.blocks if recipe.train.optimizer == "muon" else 0
    return MOMENTS * cost.parameters - MOMENTS // 2 * single


def kept_bytes(recipe: TrainingRecipe) -> int:
    """Return the bytes that a finished run keeps: journal, manifest, result and perhaps model.

    Unit: bytes.
    """
    return PAPERS + journal_bytes(recipe) + (_model(recipe) if recipe.run.save_model else 0)


def journal_bytes(recipe: TrainingRecipe) -> int:
    """Return the bytes of a run's journal: losses, evaluations, samples and readings.

    Unit: bytes.
    """
    updates, shape = recipe.train.max_steps or 0, design_model(recipe).shape
    losses = updates // max(1, updates // recipe.run.log_points)
    evaluations = 1 + -(-updates // (recipe.evaluate.eval_steps or max(1, updates)))
    sample = LINE // 2 + TEXT * recipe.evaluate.max_new_tokens
    every = recipe.monitor.interval
    readings = 1 + (updates - 1) // every if every else 0
    return (
        LINE * losses
        + evaluations * (LINE + sample * len(recipe.evaluate.prompts))
        + HEAD * readings * shape.layers * shape.heads
    )


def _model(recipe: TrainingRecipe) -> int:
    shape = design_model(recipe).shape
    return WEIGHT * count_costs(recipe).parameters + CODE + TOKEN * shape.vocab


def page_bytes(journals: int) -> int:
    """Return the bytes of a report and its files, by the bytes of the runs' journals.

    Unit: bytes.
    """
    return PAGE + TABLES * journals
