"""Tasks of lm-eval made from names and files, with their questions read."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import data_files
from datasets.exceptions import DatasetGenerationError

from layerlab.data.fingerprint import fingerprint
from layerlab.errors import UserError
from layerlab.evaluation.lm_eval_tasks.counts import check_counts
from layerlab.evaluation.lm_eval_tasks.declarations import refuse_name
from layerlab.evaluation.lm_eval_tasks.description import describe_task
from layerlab.evaluation.lm_eval_tasks.engine import (
    Entry,
    TaskIndex,
    TaskManager,
    get_aggregation,
    get_metric,
    is_higher_better,
)
from layerlab.evaluation.lm_eval_tasks.files import ENDINGS, read_task_file
from layerlab.evaluation.lm_eval_tasks.names import check_names, find_entries, member_names
from layerlab.evaluation.lm_eval_tasks.request import is_file, split_tasks
from layerlab.evaluation.lm_eval_tasks.right_answers import (
    accept_first_question,
    leave_out_unmarkable,
)
from layerlab.evaluation.lm_eval_tasks.templates import sandbox_templates
from layerlab.evaluation.lm_eval_tasks.trusted import check_trusted, is_local
from layerlab.evaluation.metrics.segmentation import prepare_default
from layerlab.system.hub import hub
from layerlab.system.logs import hush
from layerlab.system.untrusted.limits import check_work
from layerlab.system.untrusted.trust import allows_tasks
from layerlab.validation import expand_home, short_repr

TRIED = 32  # questions whose templates are tried under limits
BOTH = ("acc", "acc_norm")
SPLITS = ("test_split", "validation_split", "training_split", "fewshot_split")


@dataclass(frozen=True)
class LoadedTask:
    """A task with its questions.

    Attributes:
        task: lm-eval's object.
        groups: names of the groups that were asked for and that it belongs to.
        remarks: on questions that are left out, and on those that stand there twice.
    """

    task: Any
    groups: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupMean:
    """Mean over a group, as lm-eval takes it.

    Attributes:
        tasks: names of its members.
        metrics: that are averaged, each with whether tasks weigh by their questions; behind a
            comma the filter that is meant, where one is named.
    """

    name: str
    tasks: tuple[str, ...]
    metrics: Mapping[str, bool]


def load_named(names: str) -> tuple[list[LoadedTask], list[GroupMean]]:
    """Load tasks of lm-eval.

    Args:
        names: names and files, with commas between.

    Raises:
        UserError: there is no such task, it would run code that nobody asked for, or its questions
            cannot be read.
    """
    tasks: dict[str, Any] = {}
    groups: dict[str, GroupMean] = {}
    for word in split_tasks(names):
        found = _load(word)
        if not found["tasks"]:
            raise UserError(f"--tasks {word}: the group lists no task; name one in its line task:")
        means = {name: _mean(name, one) for name, one in found.get("groups", {}).items()}
        _check_alike(word, tasks, found["tasks"], describe_task)
        _check_alike(word, groups, means, repr)
        tasks |= {name: task for name, task in found["tasks"].items() if name not in tasks}
        groups |= means
    loaded = []
    for task in tasks.values():
        inside = tuple(group for group, one in groups.items() if task.task_name in one.tasks)
        with _reword_errors(task.task_name):
            _try(task)
            with hush(), sandbox_templates():
                remarks = tuple(leave_out_unmarkable(task))
        loaded.append(LoadedTask(task, inside, remarks))
    return loaded, [one for one in groups.values() if one.metrics]


def _check_alike(
    word: str, earlier: Mapping[str, Any], found: Mapping[str, Any], describe: Callable[[Any], str]
) -> None:
    """Refuse another task or group of a name that is known: a result has one row for both.

    Raises:
        UserError: there is one.
    """
    for name in found:
        if name in earlier and describe(earlier[name]) != describe(found[name]):
            raise UserError(
                f"--tasks {word}: {short_repr(name)} is the name of another task before it; give "
                "it a name of its own (its line task: or group:), or ask them one after the other"
            )


def _load(word: str) -> Mapping[str, Any]:
    manager = TaskManager(include_defaults=False)
    name = word
    if is_file(word):
        name = _add_file(manager.task_index, Path(word))
    else:
        manager.task_index.update(find_entries([word]))
    if name not in manager.task_index:
        raise refuse_name(word)
    _check_installed(manager.task_index, name)
    entries = _members(manager.task_index, name)
    with (
        _reword_errors(word),
        hush(),
        sandbox_templates(nulls=True),
        accept_first_question(),
        _by_content(),
        _hub_if(entries),
        _name_split(entries),
    ):
        loaded = dict(manager.load([name]))
    prepare_default()
    return loaded


@contextmanager
def _by_content() -> Iterator[None]:
    """Let datasets know files that lie here by their content too, and not by their time alone.

    Its cache gave the questions of an earlier file of the same time, as archives and copies set it.
    """
    plain = data_files._get_single_origin_metadata

    def describe_origin(data_file: str, *args: Any, **options: Any) -> Any:
        found = plain(data_file, *args, **options)
        file = Path(data_file)
        return (*found, fingerprint(file)) if file.is_file() else found

    data_files._get_single_origin_metadata = describe_origin
    try:
        yield
    finally:
        data_files._get_single_origin_metadata = plain


def _add_file(index: dict[str, Any], path: Path) -> str:
    """Add the task of a file to an index, and what a group in it consists of; return its name."""
    config = read_task_file(path)
    check_trusted(config, f"the task file {path}")
    check_counts(config, f"the task file {path}")
    check_names(config, f"the task file {path}")
    name = str(config["group"] if "group" in config else config["task"])
    names = member_names(config)
    siblings = {one: other for one in names if (other := _sibling(path, one)) is not None}
    index.update(find_entries(one for one in names if one not in siblings))
    for file in siblings.values():
        _add_file(index, file)
    kind = TaskIndex._kind_of(config)
    # Where code was asked for lm-eval reads the file itself, else it gets what was checked.
    index[name] = (
        Entry(name=name, kind=kind, yaml_path=expand_home(path).resolve(), cfg=config)
        if allows_tasks()
        else Entry(name=name, kind=kind, yaml_path=None, cfg=config)
    )
    return name


def _sibling(path: Path, name: str) -> Path | None:
    """Return the file beside a group's that is called as one of its tasks."""
    if "/" in name:
        return None
    places = (path.parent / f"{name}{ending}" for ending in ENDINGS)
    return next((one for one in places if one.is_file()), None)


def _check_installed(index: Mapping[str, Any], name: str) -> None:
    for one in _members(index, name):
        if one.yaml_path is not None and not allows_tasks():
            check_trusted(read_task_file(one.yaml_path), f"lm-eval's {one.name}", installed=True)


def _members(index: Mapping[str, Any], name: str) -> list[Any]:
    """Return the entries that a name stands for, itself included."""
    found: dict[str, Any] = {}
    waiting = [name]
    while waiting:
        entry = index.get(waiting.pop())
        if entry is None or entry.name in found:
            continue
        found[entry.name] = entry
        waiting += [*member_names(entry.cfg or {}), *sorted(entry.tags & set(index))]
    return [one for one in found.values() if one.kind.name != "TAG"]


@contextmanager
def _hub_if(entries: Sequence[Any]) -> Iterator[None]:
    """Ask the Hub where the questions of a task are there, and say why where it does not answer."""
    afar = [str((one.cfg or {}).get("dataset_path")) for one in entries if not _is_here(one)]
    with hub() if afar else nullcontext("") as why:
        try:
            yield
        except Exception as error:
            if not afar or isinstance(error, UserError) or not (why or _is_of_network(error)):
                raise
            raise UserError(
                f"its questions are not here: cannot get {', '.join(dict.fromkeys(afar))} from the "
                f"Hub: {why or _shorten_error(error)}; fetch it once where there is a connection, "
                "or name a task file whose data is here (dataset_path: json)"
            ) from None


@contextmanager
def _name_split(entries: Sequence[Any]) -> Iterator[None]:
    """Say which line of a task names a split that its data does not have."""
    try:
        yield
    except KeyError as error:
        for config in (one.cfg or {} for one in entries):
            line = next((line for line in SPLITS if config.get(line) in error.args), None)
            if line is not None:
                raise UserError(
                    f"its data has no split {short_repr(config[line])}, which its line {line}: "
                    "names; name one that it has, such as a key of data_files"
                ) from None
        raise


def _is_here(entry: Any) -> bool:
    config = entry.cfg or {}
    return isinstance(config.get("task"), list) or is_local(config)


def _is_of_network(error: Exception) -> bool:
    return isinstance(error, OSError) or type(error).__module__.startswith(("datasets", "hugging"))


@contextmanager
def _reword_errors(word: str) -> Iterator[None]:
    """Put what goes wrong inside of lm-eval into one line that names the task."""
    try:
        yield
    except UserError as error:
        raise UserError(f"--tasks {word}: {error}") from None
    except Exception as error:  # of whatever kind a task brings about
        raise UserError(
            f"--tasks {word}: lm-eval cannot load it: {_shorten_error(error)}; mend it, or name "
            "another"
        ) from None


def _shorten_error(error: BaseException) -> str:
    # datasets looks for the first of none; before version 5 it infers what none are like.
    if isinstance(error, StopIteration) or type(error).__name__ == "SchemaInferenceError":
        return "a file of its data holds no rows"
    if isinstance(error, DatasetGenerationError) and error.__cause__ is not None:
        return _shorten_error(error.__cause__)
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}"[:300] if message else type(error).__name__


def _try(task: Any) -> None:
    """Prepare a loaded task: both accuracies, and its templates tried on some of its questions."""
    if getattr(task, "MULTIMODAL", False):
        raise UserError("it shows images or sounds, which no text model takes; name another task")
    _add_metrics(task)
    documents = task.eval_docs
    places = sorted(random.Random().sample(range(len(documents)), min(TRIED, len(documents))))

    def fill() -> None:
        for index in places:
            document = documents[index]
            task.doc_to_text(document)
            task.doc_to_target(document)
            if task.config.doc_to_choice is not None:
                task.doc_to_choice(document)

    with hush(), sandbox_templates():
        check_work(
            fill, f"filling in the templates of {task.task_name}", f"{len(places)} questions"
        )


def _add_metrics(task: Any) -> None:
    """Let a task of choices give acc and acc_norm, whichever of them it lists."""
    plain = task.OUTPUT_TYPE == "multiple_choice" and task.config.process_results is None
    if not plain or task.multiple_input:
        return
    for name in BOTH:
        if name not in task._metric_fn_list:
            task._metric_fn_list[name] = get_metric(name)
            task._metric_fn_kwargs[name] = {}
            task._aggregation_list[name] = get_aggregation("mean")
            task._higher_is_better[name] = is_higher_better(name)


def _mean(name: str, group: Any) -> GroupMean:
    tasks = tuple(task.task_name for task in group.get_all_tasks())
    metrics = {
        ",".join(filter(None, (one.metric, kind))): bool(one.weight_by_size)
        for one in group.aggregate_metric_list or ()
        if one.aggregation == "mean"
        for kind in one.filter_list or [""]
    }
    return GroupMean(name, tasks, metrics)


def load_tasks(
    configs: Sequence[str | Mapping[str, Any]], changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Load tasks with their questions read, by their names.

    Args:
        configs: of each task its configuration, or the YAML file of that.
        changes: of the metadata of every task, which its reader is given.

    Raises:
        UserError: the questions of one cannot be read.
    """
    with hush():
        manager = TaskManager(include_defaults=False, metadata=dict(changes or {}))
        return dict(manager.load(list(configs))["tasks"])
