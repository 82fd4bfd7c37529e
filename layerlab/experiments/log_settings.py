"""Settings in which the arms of somebody's logs differ, read off the files beside the logs."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from layerlab.errors import UserError
from layerlab.logs.training_log import TrainingLog
from layerlab.records.settings import matches

# What names a run, and decides nothing of it.
NAMES = (
    *("seed", "*.seed", "data_seed", "*run_name", "name", "exp_name", "experiment_name"),
    *("_name_or_path", "report_to", "*wandb*", "*run_id", "*uuid", "*timestamp", "*start_time"),
    *("host", "*hostname", "*_port", "port", "pid", "*job_id"),
    # Where a run writes to; where it reads from decides a lot.
    *("*output_dir", "*out_dir", "*logging_dir", "*log_dir", "*save_dir", "*run_dir"),
    *("*checkpoint_dir", "*work_dir", "*cache_dir"),
)
# Of runs of layerlab: what an arm is, and what follows from that where nobody sets it.
VARIANT, FOLLOWING = "model.variant", "model.inner"
MOST = 6  # settings that a verdict names


def find_unlike(
    logs: Sequence[TrainingLog], names: Sequence[str], allowed: Sequence[str]
) -> dict[str, list[str]]:
    """Return, by arm, the settings in which it differs from the first, beside those allowed.

    A setting that takes the same values in the runs of both is equal; one that each seed has its
    own value of, the same in all arms, belongs to the seed.
    """
    by_arm: dict[str, list[TrainingLog]] = {name: [] for name in names}
    for one in logs:
        by_arm[one.arm].append(one)
    values = {name: _values(own) for name, own in by_arm.items()}
    configured = {name: all(one.config for one in own) for name, own in by_arm.items()}
    base = values[names[0]]
    ours = all(one.finished is not None for one in logs)

    @cache
    def follows_seed(path: str) -> bool:
        return _follows_seed(logs, path)

    def differs(path: str, own: Mapping[str, frozenset[str]]) -> bool:
        if own.get(path) == base.get(path):
            return False
        # Of runs of layerlab: settings in which an arm differs as it is another variant.
        variant = ours and own.get(VARIANT) != base.get(VARIANT)
        following = (VARIANT, FOLLOWING) if variant else ()
        return not matches(path, [*NAMES, *allowed, *following]) and not follows_seed(path)

    return {
        name: [path for path in {**base, **values[name]} if differs(path, values[name])]
        for name in names
        if configured[names[0]] and configured[name]
    }


def describe_unlike(unlike: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """Return remarks on arms that differ in settings, and on those nothing is known of."""
    told = [
        f"{name} differs from {names[0]} in {_several(paths)}"
        for name, paths in unlike.items()
        if paths
    ]
    unknown = [name for name in names if name not in unlike]
    if unknown:
        told.append(
            "no configuration of their own lies beside the logs of all arms, so that what else "
            f"differs is not known: {', '.join(unknown)}"
        )
    return told


def refuse_unlike(unlike: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
    """Refuse arms that differ in what is not allowed.

    Raises:
        UserError: some do.
    """
    for name, paths in unlike.items():
        if paths:
            raise UserError(
                f"{name} differs from {names[0]} in {_several(paths)}; type --allow "
                f"{paths[0]} for each that is compared on purpose, or leave out --strict"
            )
    lacking = [name for name in names if name not in unlike]
    if lacking:
        raise UserError(
            f"no configuration of their own lies beside the logs of {', '.join(lacking)}, so that "
            "--strict cannot be kept; put each log with its config.json or args.json into a folder "
            "of its own, or leave --strict out"
        )


def _values(logs: Sequence[TrainingLog]) -> dict[str, frozenset[str]]:
    """Return the values that each setting takes in the runs of an arm."""
    found: dict[str, set[str]] = {}
    for one in logs:
        for path, value in one.config.items():
            found.setdefault(path, set()).add(repr(value))
    return {path: frozenset(values) for path, values in found.items()}


def _follows_seed(logs: Sequence[TrainingLog], path: str) -> bool:
    """Return whether every seed has a value of its own, which runs of other arms share."""
    found = [(one.seed, repr(one.config[path])) for one in logs if path in one.config]
    if any(isinstance(one.config.get(path), float) for one in logs):
        return False  # a measure of something, as a learning rate is
    seeds, values = ({pair[place] for pair in found} for place in (0, 1))
    known = None not in seeds and len(found) == len(logs)
    return known and len(seeds) == len(values) == len(set(found)) < len(found)


def _several(paths: Sequence[Any]) -> str:
    more = f" and {len(paths) - MOST} more" if len(paths) > MOST else ""
    return f"{', '.join(map(str, paths[:MOST]))}{more}"
