"""Reads the arm and the seed of a run off its path, where its log has no columns for them."""

import re
from pathlib import Path

from layerlab.errors import UserError
from layerlab.validation import short_repr

# What a path ends in when somebody runs an arm with several seeds: pre-norm-s1, pre_norm/seed_1.
SEEDED = re.compile(r"(?:\bseed|_seed|[-_./ ]s)[-_=]?(?P<seed>\d+)$", re.I)
BETWEEN = "-_./ "  # an arm and its seed
# Files that every run has; its folder has its name.
COMMON = re.compile(
    r"(trainer_(state|log)|events(\.out\.tfevents\..*)?|log(s|_history)?|metrics|history|train(ing)?|val(id(ation)?)?|eval(uation)?|output|progress|results?"
    r"|wandb-history|scalars)$",
    re.I,
)
# Folders that Lightning, W&B and Trainer make in that of a run, or in one of many runs.
MADE = re.compile(
    r"(lightning_logs|version_\d+|wandb|(offline-)?run-\d{8}_\d{6}-\w+|latest-run|files|runs"
    r"|[A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2}_.+)$"
)
# Of files that are read: other ends, as in attn.rope, are of the name.
SUFFIX = re.compile(
    r"(\.(csv|tsv|jsonl|ndjson|parquet|json|log|txt|text|out|err|stdout|stderr))+$", re.I
)
CHECKPOINT = re.compile(r"checkpoint-\d+$")


def compile_groups(given: str, groups: tuple[str, ...], option: str) -> re.Pattern[str]:
    """Compile a regular expression that a user gave.

    Args:
        groups: that it must name.
        option: that it was given with.

    Raises:
        UserError: it is none, or names no such groups.
    """
    try:
        found = re.compile(given)
    except re.error as error:
        raise UserError(
            f"{option} {short_repr(given)} is no regular expression: {error}; type a backslash "
            "before a bracket that stands for itself"
        ) from None
    lacking = [name for name in groups if name not in found.groupindex]
    if lacking:
        usage = " ".join(f"(?P<{name}>...)" for name in groups)
        raise UserError(
            f"{option} {short_repr(given)} has no group named {lacking[0]!r}; expected {usage}"
        )
    return found


def read_name(path: Path, pattern: str | None = None) -> tuple[str, str | None]:
    """Return the arm and the seed that a path names; None for a seed that it does not.

    Args:
        pattern: a regular expression with the groups arm and, if it likes, seed.

    Raises:
        UserError: the pattern does not fit.

    Example:
        >>> read_name(Path("runs/pre-norm-s3/trainer_state.json"))
        ('pre-norm', '3')
        >>> read_name(Path("wide.csv")), read_name(Path("wide/seed_2/log.txt"))
        (('wide', None), ('wide', '2'))
        >>> read_name(Path("wide-s2/lightning_logs/version_0/metrics.csv"))
        ('wide', '2')
        >>> read_name(Path("wide-s2/runs/Nov27_20-01-01_host/events.out.tfevents.1"))
        ('wide', '2')
    """
    if pattern is not None:
        found = compile_groups(pattern, ("arm",), "--name").search(path.as_posix())
        if found is None:
            raise UserError(f"--name {short_repr(pattern)} does not fit {str(path)!r}")
        groups = found.groupdict()
        return groups["arm"] or "", groups.get("seed")
    parts = [*path.parts[:-1], SUFFIX.sub("", path.name)]
    while len(parts) > 1 and (COMMON.match(parts[-1]) or CHECKPOINT.match(parts[-1])):
        parts.pop()
    if len(parts) < len(path.parts) or not SUFFIX.search(path.name):  # a folder, and not a file
        own = [n for n, part in enumerate(parts) if not MADE.match(part) and part != path.anchor]
        parts = parts[: own[-1] + 1] if own else parts
    name = "/".join(parts[-2:])
    seeded = SEEDED.search(name)
    arm = name[: seeded.start()].rstrip(BETWEEN).rpartition("/")[2] if seeded else ""
    return (arm, seeded["seed"]) if seeded and arm else (parts[-1], None)
