"""Finds training logs and reads each by the reader of its kind."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from layerlab.data.places import list_shown
from layerlab.errors import UserError
from layerlab.logs.columns import split_runs
from layerlab.logs.configuration import read_configuration
from layerlab.logs.formats import own_run, tables, tensorboard, text_log, trainer_state
from layerlab.logs.formats.exports import pick_metric, unpivot
from layerlab.logs.run_names import compile_groups, read_name
from layerlab.logs.training_log import LogColumns, TrainingLog
from layerlab.records.parquet.folded_runs import CURVES, MANIFESTS
from layerlab.records.run_files import BESIDE, COMPARISON
from layerlab.system.files import check_regular
from layerlab.validation import expand_home, short_repr

SHEETS = (".csv", ".tsv")
TABLES = {
    **dict.fromkeys(SHEETS, tables.read_csv),
    ".jsonl": tables.read_jsonl,
    ".ndjson": tables.read_jsonl,
    ".parquet": tables.read_parquet,
}
TEXTS = (".log", ".txt", ".out")
EXPECTED = (
    "a table (.csv, .tsv, .jsonl, .parquet), trainer_state.json, TensorBoard's event files, a "
    "text (.log, .txt, .out), a run of layerlab, or a folder of them"
)


def find_logs(given: Sequence[str], name: str | None = None) -> list[Path]:
    """Return the files and run folders that are meant, each once.

    Args:
        name: regular expression of a path, with groups arm and seed.

    Raises:
        UserError: a path leads to nothing, a folder has no log, or the name is no expression.
    """
    if name is not None:
        compile_groups(name, ("arm",), "--name")
    found: dict[Path, Path] = {}
    if not given:
        raise UserError(f"no log was given; expected {EXPECTED}")
    for one in given:
        path = expand_home(one)
        if not path.exists():
            raise UserError(f"there is no log at {short_repr(one)}; expected {EXPECTED}")
        own = _in_folder(path, name) if path.is_dir() else [path]
        if not own:
            raise UserError(f"no log lies in the folder {short_repr(one)}; expected {EXPECTED}")
        for log in own:
            found.setdefault(log.resolve(), log)
    states = [one for one in found.values() if one.name == trainer_state.NAME]
    latest = set(trainer_state.list_latest(states))
    return [one for one in found.values() if one.name != trainer_state.NAME or one in latest]


def _in_folder(folder: Path, name: str | None) -> list[Path]:
    """Return the logs of a folder, each run's of one kind; what is hidden is left out."""
    files = list_shown(folder)
    pages = {one.parent for one in files if one.name == COMPARISON}  # what was judged before
    own = {page / name for page in pages for name in (*BESIDE, MANIFESTS, CURVES)}
    files = [one for one in files if one not in own and one.parent not in own]
    kinds = (
        sorted(one.parent for one in files if one.name == own_run.MANIFEST),
        trainer_state.list_latest([one for one in files if one.name == trainer_state.NAME]),
        [one for one in files if one.match(tensorboard.PATTERN)],
        [one for one in files if one.suffix.lower() in TABLES],
        [one for one in files if one.suffix.lower() in TEXTS],
    )
    # Trainers leave several kinds of one run: the first of these has most.
    found: list[Path] = []
    runs: set[Path] = set()  # their folders
    above: set[Path] = set()
    named: dict[Path, set[tuple[str, str | None]]] = {}  # what the logs of a folder are called
    for kind in kinds:
        homes = {log: trainer_state.find_run(log) for log in kind}
        kept = [
            log
            for log, home in homes.items()
            if (home not in above and not runs.intersection((home, *home.parents)))
            or _is_another(_name(log, name), named.get(home, set()))
        ]
        if kind is not kinds[-1]:
            _check_beside(homes, above, runs)
        found += kept
        for log in kept:
            named.setdefault(homes[log], set()).add(_name(log, name))
        runs |= {homes[log] for log in kept}
        above |= {one for log in kept for one in homes[log].parents}
    return sorted(found)


def _name(log: Path, pattern: str | None) -> tuple[str, str | None]:
    try:
        return read_name(log, pattern)
    except UserError:  # which whoever reads it tells
        return "", None


def _is_another(name: tuple[str, str | None], beside: set[tuple[str, str | None]]) -> bool:
    """Return whether a log is of a run of its own, beside several of another kind in one folder."""
    return len(beside) > 1 and name[1] is not None and name not in beside


def _check_beside(
    homes: Mapping[Path, Path], above: Collection[Path], runs: Iterable[Path]
) -> None:
    """Refuse logs that lie above several runs of another kind: of one of them they cannot be.

    Raises:
        UserError: there is one.
    """
    for log, home in homes.items():
        below = sorted(one for one in runs if home in one.parents) if home in above else []
        if len(below) > 1:
            raise UserError(
                f"{log} lies beside runs of another kind, as {below[0]}: whether it is one more, or"
                " tells of them, is not known; name the logs that are meant, or move it away"
            )


def read_logs(paths: Sequence[Path], columns: LogColumns) -> Iterator[TrainingLog]:
    """Yield the runs of each log, with what lies beside it of their configuration.

    Beside logs of several arms it does not say in what they differ, and is left out.

    Raises:
        UserError: a log cannot be read, or has no such columns.
    """
    named: dict[str, Path] = {}
    found: list[tuple[Path, TrainingLog]] = []
    arms: dict[Path, set[str]] = {}  # of the logs in a folder
    for group in _group(paths, columns):
        path = group[0]
        if path.is_dir():
            yield own_run.read_own(path, columns.loss)
            continue
        check_regular(path)
        beside, passed = read_configuration(path), _list_passed(path, paths, columns.name)
        for run in _runs(group, columns):
            if run.seed is None and columns.name is None and run.arm == read_name(path)[0]:
                other = named.setdefault(run.arm, path)
                if other != path:
                    raise UserError(
                        f"{other} and {path} are both called {run.arm!r} by their paths, and no "
                        "seed tells them apart; type --name REGEX with groups arm and seed, as in "
                        r"'(?P<arm>[^/]+)/(?P<seed>\d+)/', or leave one out"
                    )
            found.append((path.parent, replace(run, config=beside, passed=passed)))
            arms.setdefault(path.parent, set()).add(run.arm)
    yield from (run if len(arms[at]) == 1 else replace(run, config={}) for at, run in found)


def _list_passed(path: Path, read: Collection[Path], pattern: str | None) -> tuple[str, ...]:
    """Return the logs in a folder that are called as this one is, and are not read."""
    own, kinds = _name(path, pattern), (*TABLES, *TEXTS)
    files = [one for one in path.parent.iterdir() if one.suffix.lower() in kinds]
    return tuple(
        sorted(one.name for one in files if one not in read and _name(one, pattern) == own)
    )


def _group(paths: Sequence[Path], columns: LogColumns) -> list[list[Path]]:
    """Return the files of each run: a resumed one has several event files in its folder."""
    found: dict[object, list[Path]] = {}
    for path in paths:
        events = path.match(tensorboard.PATTERN) and not path.is_dir()
        key = (path.parent, read_name(path, columns.name)) if events else path
        found.setdefault(key, []).append(path)
    return [sorted(group) for group in found.values()]


def _runs(group: Sequence[Path], columns: LogColumns) -> Iterator[TrainingLog]:
    path, cut, planned = group[0], False, None
    suffix = path.suffix.lower()
    if path.match(tensorboard.PATTERN):
        table, cut = tensorboard.read_events(group)
        if all(one.startswith(tensorboard.SUMMARY) for one in table.column_names if one != "step"):
            return  # beside the run's own file, and no run
    elif suffix in TABLES and columns.line is None:
        text_columns = (columns.word_names,) if suffix in SHEETS else ()
        whole = TABLES[suffix](path, *text_columns)
        table = pick_metric(unpivot(whole, columns, path), columns, path)
    elif suffix == ".json":
        table, planned = trainer_state.read_trainer_state(path), trainer_state.read_planned(path)
    elif suffix in TEXTS and columns.line is None and tables.is_sheet(path):  # as Keras logs
        table = tables.read_csv(path, columns.word_names)
    elif suffix in TEXTS and columns.line is None and tables.is_jsonl(path):
        table = tables.read_jsonl(path)
    elif suffix in TEXTS or columns.line is not None:
        table = text_log.read_text(path, columns)
    else:
        raise UserError(f"{short_repr(str(path))} is of no kind that is known; expected {EXPECTED}")
    cut = cut or (suffix in (*TEXTS, *SHEETS) and tables.ends_within(path))
    for run in split_runs(table, path, columns):
        yield replace(run, cut=cut, planned=planned)
