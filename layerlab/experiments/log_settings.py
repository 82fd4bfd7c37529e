"""Settings in which the arms of somebody's logs differ, read off them and the files beside them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class UnlikeSettings:
    """Settings in which arms differ from the first.

    Attributes:
        by_arm: those that are known of, for each arm.
        unknown: arms beside whose logs no configuration lies, so that there may be others.
    """

    by_arm: Mapping[str, Sequence[str]]
    unknown: Sequence[str]


def find_unlike(
    logs: Sequence[TrainingLog], names: Sequence[str], allowed: Sequence[str]
) -> UnlikeSettings:
    """Return the settings in which each arm differs from the first, beside those allowed.

    A setting that takes the same values in the runs of both is equal; one that each seed has its
    own value of, the same in all arms, belongs to the seed.
    """
    by_arm: dict[str, list[TrainingLog]] = {name: [] for name in names}
    for one in logs:
        by_arm[one.arm].append(one)
    bare = [name for name in names if not all(one.config for one in by_arm[name])]
    unknown = list(names) if names[0] in bare else bare
    ours = all(one.finished is not None and one.config for one in logs)
    columns = _list_columns(logs)

    @cache
    def follows_seed(path: str) -> bool:
        return _follows_seed(logs, path)

    def list_paths(name: str) -> list[str]:
        whole = name not in unknown
        base, own = (_values(by_arm[one], columns, whole=whole) for one in (names[0], name))
        # Of runs of layerlab: settings in which an arm differs as it is another variant.
        variant = ours and own.get(VARIANT) != base.get(VARIANT)
        passed = [*NAMES, *allowed, *((VARIANT, FOLLOWING) if variant else ())]
        unlike = (path for path in {**base, **own} if own.get(path) != base.get(path))
        return [one for one in unlike if not matches(one, passed) and not follows_seed(one)]

    return UnlikeSettings(by_arm={name: list_paths(name) for name in names}, unknown=unknown)


def describe_unlike(unlike: UnlikeSettings, names: Sequence[str]) -> list[str]:
    """Return remarks on arms that differ in settings, and on those of which not all are known."""
    remarks = [
        f"{name} differs from {names[0]} in {_several(paths)}"
        for name, paths in unlike.by_arm.items()
        if paths
    ]
    if unlike.unknown:
        remarks.append(
            "no configuration of their own lies beside the logs of all arms, so that what else "
            f"differs is not known: {', '.join(unlike.unknown)}"
        )
    return remarks


def refuse_unlike(unlike: UnlikeSettings, names: Sequence[str]) -> None:
    """Refuse arms that differ in what is not allowed.

    Raises:
        UserError: some do.
    """
    for name, paths in unlike.by_arm.items():
        if paths:
            raise UserError(
                f"{name} differs from {names[0]} in {_several(paths)}; type --allow "
                f"{paths[0]} for each that is compared on purpose, or leave out --strict"
            )
    if unlike.unknown:
        raise UserError(
            f"no configuration of their own lies beside the logs of {', '.join(unlike.unknown)}, "
            "so that --strict cannot be kept; put each log with its config.json or args.json into "
            "a folder of its own, or leave --strict out"
        )


def _list_columns(logs: Sequence[TrainingLog]) -> list[str]:
    """Return the settings that the tables of all runs have, but for what an arm is called by."""
    return [
        path
        for path in logs[0].settings
        if all(path in one.settings for one in logs)
        and any(str(one.settings[path]) != one.arm for one in logs)
    ]


def _values(
    logs: Sequence[TrainingLog], columns: Collection[str], *, whole: bool
) -> dict[str, frozenset[str]]:
    """Return the values that each setting takes in the runs of an arm.

    Args:
        columns: settings that stand in their tables.
        whole: their configurations are known, and count.
    """
    found: dict[str, set[str]] = {}
    for one in logs:
        settings = {path: one.settings[path] for path in columns}
        for path, value in {**settings, **(one.config if whole else {})}.items():
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
