"""Finds evaluations that say what each question came to, and reads the answers of each model.

Two kinds: what lm-eval writes with `--log_samples --output_path`, a folder of a model with
samples_TASK_DATE.jsonl for each task and results_DATE.json beside; and a folder that
`layerlab evaluate` writes, whose results.json names the file of each task in samples/.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from layerlab.errors import UserError
from layerlab.evaluation.harness.cache import LEAVES, ResultCache
from layerlab.evaluation.harness.task_result import is_number
from layerlab.evaluation.paired.answers import (
    BESIDE,
    OWN,
    TaskAnswers,
    explain_line,
    parse_answer,
    read_lines,
    read_samples,
)
from layerlab.evaluation.paired.harness_results import (
    check_answers,
    describe_marking,
    list_result_tasks,
    pick_directions,
    read_results,
)
from layerlab.evaluation.paired.one_model import list_settings, list_unlike_settings
from layerlab.evaluation.results.folder import PARTS, RESULTS
from layerlab.evaluation.results.result import load_result
from layerlab.logs.formats import own_run, tensorboard, trainer_state
from layerlab.records.json_values import Record
from layerlab.records.parse import read_json
from layerlab.validation import expand_home, short_repr

SAMPLES = re.compile(
    r"samples_(?P<task>.+?)(?:_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?))?\.jsonl"
)
# Files of runs: a folder that holds one is judged by its logs, whatever was evaluated beside.
RUNS = (own_run.MANIFEST, trainer_state.NAME, tensorboard.PATTERN)
# How answers are made and marked, as a result keeps it beside prompts.
_MANNER = ("answers", "marking", "version")


@dataclass(frozen=True, kw_only=True)
class AnsweredModel:
    """One model, and where its answers lie.

    Attributes:
        name: what it is called in a verdict.
        given: the path that led to it.
        folder: of its answers.
        files: of lm-eval, the latest of each task.
        again: tasks of which there are several dates.
        records: of `layerlab evaluate`, by task.
        groups: tasks of each group that was asked for, whatever lies between.
        results: of lm-eval, what lies beside the answers to each task, and where it would.
        missing: tasks that results tell of, and to which a folder holds no answers.
        unlike: settings in which its tasks were asked in more than one way.
        settings: with which it was loaded and asked last; of `layerlab evaluate` its dtype.
    """

    name: str
    given: str
    folder: Path
    files: Mapping[str, Path] = field(default_factory=dict)
    again: Sequence[str] = ()
    records: Mapping[str, Record] = field(default_factory=dict)
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)
    results: Mapping[str, tuple[Path, Record]] = field(default_factory=dict)
    missing: Sequence[str] = ()
    unlike: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def tasks(self) -> list[str]:
        """The tasks that it was asked, in the order of their names."""
        return sorted(self.files or self.records)

    def read(self, task: str, documents: Sequence[str]) -> TaskAnswers:
        """Read its answers to a task.

        Raises:
            UserError: they are damaged, twice or not there.
        """
        if task in self.files:
            path = self.files[task]
            beside, results = self.results[task]
            found = read_samples(path, documents, pick_directions(results, task))
            check_answers(task, found, results, beside)
            return replace(found, marking={**found.marking, **describe_marking(task, results)})
        return _read_own(self.folder, self.records[task], documents)


def find_evaluations(given: Sequence[str]) -> list[AnsweredModel]:
    """Return the models whose answers lie at these paths; none where all hold something else.

    Raises:
        UserError: some of the paths hold answers and others do not, or one is given twice.
    """
    found = [(one, list(_find(one))) for one in given]
    if not any(models for _, models in found):
        return []
    if bare := [one for one, models in found if not models]:
        raise UserError(
            f"{short_repr(bare[0])} holds no answers of an evaluation, and others do; expected a "
            "folder with samples_TASK_DATE.jsonl of lm-eval, or one of layerlab evaluate"
        )
    models = [one for _, each in found for one in each]
    short = [one.name for one in models]
    if len(set(short)) < len(short):
        models = [_rename(one) for one in models]
    names = [one.name for one in models]
    if len(names) < 2:
        raise UserError(
            f"{short_repr(given[0])} holds the answers of one model; name two or more, each in a "
            "folder of its own"
        )
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise UserError(f"the answers of {short_repr(twice)} are given twice; name each once")
    return models


def _rename(model: AnsweredModel) -> AnsweredModel:
    tail = "" if not model.records else f", {model.name}"
    return AnsweredModel(**{**vars(model), "name": f"{model.folder.as_posix()}{tail}"})


def _find(given: str) -> Iterator[AnsweredModel]:
    path = expand_home(given)
    if path.is_file():
        if SAMPLES.fullmatch(path.name):
            yield _group(given, path.parent, [path], path.resolve().parent.name)
        elif path.name == RESULTS:
            yield from _list_own(given, path.parent)
        return
    if not path.is_dir() or any(next(path.rglob(one), None) for one in RUNS):
        return
    groups: dict[Path, list[Path]] = {}
    for file in sorted(path.rglob("samples_*.jsonl")):
        if SAMPLES.fullmatch(file.name) and file.is_file():
            groups.setdefault(file.parent, []).append(file)
    for folder, files in groups.items():
        name = path.resolve().name if len(groups) == 1 else folder.relative_to(path).as_posix()
        yield _group(given, folder, files, name)
    if not groups:
        for file in sorted(path.rglob(RESULTS)):
            yield from _list_own(given, file.parent)


def _group(given: str, folder: Path, files: Sequence[Path], name: str) -> AnsweredModel:
    dated: dict[str, list[tuple[str, Path]]] = {}
    for file in files:
        fits = SAMPLES.fullmatch(file.name)
        assert fits is not None
        dated.setdefault(fits["task"], []).append((fits["date"] or "", file))
    latest = {task: max(each) for task, each in dated.items()}
    results = _read_results(folder, {date for each in dated.values() for date, _ in each})
    tasks = set[str]().union(*(list_result_tasks(one) for _, one in results.values()))
    used = {date: results[date] for date, _ in sorted(latest.values())}
    if expand_home(given).is_dir():
        _refuse_newer(folder, {task: date for task, (date, _) in latest.items()})
    return AnsweredModel(
        name=name,
        given=given,
        folder=folder,
        files={task: file for task, (_, file) in latest.items()},
        again=[task for task, each in dated.items() if len(each) > 1],
        groups=_list_groups(one for _, one in results.values()),
        results={task: results[date] for task, (date, _) in latest.items()},
        # Whoever names a file does not ask for those beside it.
        missing=sorted(tasks - latest.keys()) if expand_home(given).is_dir() else (),
        unlike=list_unlike_settings(list(used.values())),
        settings=list_settings(list(used.values())[-1][1]),
    )


def _refuse_newer(folder: Path, dates: Mapping[str, str]) -> None:
    """Refuse answers of which the results are newer, as those of an evaluation without answers.

    Args:
        dates: of the latest answers to each task.

    Raises:
        UserError: there are some.
    """
    for path in sorted(folder.glob("results_*.json")):
        date = path.stem.partition("_")[2]
        if date <= min(dates.values()):
            continue
        tasks = list_result_tasks(read_results(path))
        if newer := sorted(task for task, own in dates.items() if task in tasks and own < date):
            raise UserError(
                f"{path} is newer than the answers to {short_repr(newer[0])} beside it, which are "
                "of an earlier evaluation; evaluate again with --log_samples, or move the newer "
                "results away"
            )


def _read_results(folder: Path, dates: Collection[str]) -> dict[str, tuple[Path, Record]]:
    """Return the results of lm-eval beside answers, by date, and where they would lie.

    Raises:
        UserError: they are there and cannot be read.
    """
    places = {one: folder / f"results{f'_{one}' if one else ''}.json" for one in sorted(dates)}
    return {date: (path, read_results(path)) for date, path in places.items()}


def _list_groups(results: Iterable[Record]) -> dict[str, frozenset[str]]:
    """Return the tasks of each group, as results name them."""
    parts: dict[str, list[str]] = {}
    for one in results:
        members = one.get("group_subtasks")
        for name, own in members.items() if isinstance(members, dict) else ():
            if isinstance(own, list) and own:
                parts[str(name)] = list(map(str, own))
    return {name: frozenset(_list_leaves(name, parts, set())) for name in parts}


def _list_leaves(name: str, parts: Mapping[str, Sequence[str]], seen: set[str]) -> Iterator[str]:
    """Yield the tasks of a group and of the groups in it, each once."""
    if name in seen:
        return
    seen.add(name)
    if name not in parts:
        yield name
    for one in parts.get(name, ()):
        yield from _list_leaves(one, parts, seen)


def _list_own(given: str, folder: Path) -> Iterator[AnsweredModel]:
    """Yield the models of a results.json of `layerlab evaluate`; of another program's none."""
    try:
        ours = set(read_json(folder / RESULTS)) >= PARTS
    except (OSError, ValueError, TypeError):
        ours = False
    if not ours:
        return
    content = load_result(folder).content
    records: dict[str, dict[str, Record]] = {}
    for one in (*content["subjects"], *content.get("tasks", ())):
        records.setdefault(str(one["arm"]), {})[str(one["task"])] = one
    dtypes = {
        str(one["arm"]): one.get("precision") or f"torch.{one['dtype']}"
        for one in content["arms"]
        if "dtype" in one
    }
    for arm, own in records.items():
        yield AnsweredModel(
            name=folder.resolve().name if len(records) == 1 else arm,
            given=given,
            folder=folder,
            records=own,
            groups=_own_groups(own),
            settings={"model_dtype": dtypes[arm]} if arm in dtypes else {},
        )


def _own_groups(records: Mapping[str, Record]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for task, one in records.items():
        for group in one.get("groups") or ():
            found.setdefault(str(group), set()).add(task)
    return {name: frozenset(tasks) for name, tasks in found.items()}


def _read_own(folder: Path, record: Record, documents: Sequence[str]) -> TaskAnswers:
    task, worth = str(record["task"]), str(record.get("worth") or "score")
    path = folder / str(record.get("samples"))
    if not path.is_file():
        raise UserError(
            f"the prompts of {task} are not beside {folder / RESULTS}; evaluate again with --out"
        )
    kept = None
    with suppress(UserError):  # which names the digest, and not what was changed
        kept = ResultCache(folder).load(path.stem)
    keys = ("scores", "metrics")
    if kept is None or [kept.get(one) for one in keys] != [record.get(one) for one in keys]:
        raise UserError(
            f"{path} is not what {RESULTS} was made from: it was changed, or {LEAVES}/{path.stem}"
            ".json, which has its digest, is missing or another's; copy the whole folder again, or "
            "evaluate again"
        )
    asked = record.get("asked") or {}
    settings = f"{record['scoring']} {[asked.get(one) for one in _MANNER]}"
    scores = {key.partition(":")[0]: float(one) for key, one in record["scores"].items()}
    unfit = {key.partition(":")[0] for key, left in (record.get("cut") or {}).items() if left < 0}
    answers, fields = {}, list[str]()
    for number, row in read_lines(path):
        key = str(row["doc_id"])
        doc = row.get("doc")
        fields = fields or (list(doc) if isinstance(doc, dict) else [])
        with explain_line(number, path):
            found = parse_answer(row, documents, settings)
        # What is written after logits that are no numbers is kept as nothing.
        silent = bool(record.get("unsound")) and not (row["options"] or found.said)
        answers[key] = replace(found, fits=key not in unfit, sound=found.sound and not silent)
        beside = {name: float(row[name]) for name in row.keys() - BESIDE if is_number(row[name])}
        own = {worth: scores[key]} if key in scores else {}  # none of what was not asked
        answers[key].scores.update({**beside, **own})
    higher = {row["metric"]: row["higher_is_better"] for row in record.get("measured", ())}
    return TaskAnswers(
        path=path,
        answers=answers,
        higher={name: one for name, one in higher.items() if isinstance(one, bool)},
        fields=fields,
        program=OWN,
        limited=record.get("limited"),
    )
