"""Running a study by name: settings, batches that outlive an interruption, a folder."""

import platform
import re
import shlex
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from layerlab.console.inspection import InspectionBar
from layerlab.errors import NotApplicable, UserError
from layerlab.known_names import unknown_study
from layerlab.known_options import check_settings
from layerlab.loading.text_input import sample
from layerlab.report.i18n.language import ENGLISH, language
from layerlab.report.results.folder import check_folder
from layerlab.studies.engine.code_hash import fingerprint
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.given_models import (
    GivenModel,
    describe_low,
    describe_policies,
    describe_scale,
    describe_settings,
    describe_unit,
    load_given,
)
from layerlab.studies.engine.record import StudyResult, load_record
from layerlab.studies.engine.sampling import RUNS, StudyContext, cores, digest
from layerlab.studies.engine.scale import PASSAGES, with_scale
from layerlab.studies.engine.study import Outcome, Study, nothing
from layerlab.studies.engine.time_log import Clock
from layerlab.system.files import check_link, check_links
from layerlab.system.hardware import explain_memory
from layerlab.system.locks import lock_folder, name_neighbour
from layerlab.system.torch_settings import evaluation_mode, usual_arithmetic
from layerlab.validation import short_repr
from layerlab.version import VERSION

LESS = "name a smaller model with --model, type --device auto, or fewer --threads"
# Where models in memory, and a text that was read as it came, are from.
_UNNAMED = {"memory", "standard input"}
LIBRARIES = ("torch", "numpy", "pandas")
# Batches and their time, and what is left of one that was being written.
_KEPT = re.compile(r"[0-9a-f]{32}\.(npz|json)|\.[0-9a-f]{32}\..+\.partial")


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """A study that is ready to run: everything the user gave, checked.

    Attributes:
        given: models that the user named, by their names.
        out: folder for the result.
        runs: where training runs lie, and are added where they are missing.
        fast: whether nothing may be trained.
        restart: whether to forget what an earlier run has finished.
        lang: language of the page.
    """

    study: Study
    draws: int
    seed: int
    threads: int
    options: Mapping[str, Any]
    given: Mapping[str, GivenModel] = field(default_factory=dict)
    out: Path | None = None
    runs: Path = RUNS
    fast: bool = False
    restart: bool = False
    lang: str = ENGLISH

    @cached_property
    def code(self) -> str:
        """Return a hash of the code that the numbers come from.

        A study may import nothing of what loads and builds the models that a user names.
        """
        return fingerprint(self.study.run.__module__, *[GivenModel.__module__] * bool(self.given))

    @property
    def settings(self) -> dict[str, Any]:
        """Return all that the numbers depend on besides the code."""
        return {"draws": self.draws, "seed": self.seed, **self.options}

    @property
    def states(self) -> list[Any]:
        """Return what the numbers depend on of models that the user named; empty without them."""
        return [[name, one.state] for name, one in self.given.items()]

    @property
    def key(self) -> str:
        """Return the key of these settings under this code, beside the existing runs.

        The mode is a part of it: what was judged without training does not stand for training.
        """
        inputs = self.study.inputs(self.runs)
        return digest([self.study.name, self.settings, self.fast, self.code, inputs, *self.states])

    @property
    def command(self) -> str:
        """Return what to type for these numbers; nothing where a model or text has no name."""
        if any(_UNNAMED & {one.subject.source, one.text.source} for one in self.given.values()):
            return ""
        mode = self.study.fast if self.fast else {}
        usual = {"draws": self.study.draws, "seed": 0, **self.study.options, **mode}
        argv = ["layerlab", "study", self.study.name, *["--fast"] * self.fast]
        for name, value in self.settings.items():
            if value != usual[name]:
                own = name in ("draws", "seed")
                argv += [f"--{name}", f"{value}"] if own else ["--option", f"{name}={value}"]
        for one in self.given.values():
            argv += ["--model", one.subject.source]
        for one in [*self.given.values()][:1]:
            argv += [] if one.text.source == sample().source else ["--text", one.text.source]
            argv += [] if one.device is None else ["--device", one.device]
            argv += [] if one.dtype is None else ["--dtype", one.dtype]
        if self.study.inputs is not nothing and self.runs != RUNS:
            argv += ["--runs", str(self.runs)]
        return shlex.join(argv)

    @property
    def sessions(self) -> Path | None:
        """Return the file that keeps the time of all finished batches, however many they are."""
        settings = {"seed": self.seed, **self.options}
        name = digest([self.study.name, settings, self.code, *self.states])
        return None if self.store is None else self.store / f"{name}.json"

    @property
    def store(self) -> Path | None:
        """Return the folder of finished batches, a hidden neighbour of the result."""
        return None if self.out is None else name_neighbour(self.out.resolve(), "batches")


@explain_memory(LESS)
@usual_arithmetic()
def study(
    name: str,
    *,
    draws: Any = None,
    seed: Any = 0,
    out: Any = None,
    runs: Any = RUNS,
    threads: Any = None,
    fast: bool = False,
    restart: bool = False,
    progress: bool = True,
    lang: str = ENGLISH,
    model: Any = None,
    tokenizer: Any = None,
    text: Any = None,
    device: str | None = None,
    dtype: str | None = None,
    **options: Any,
) -> StudyResult:
    """Reproduce one figure, table or claim of a source, and judge it.

    With `out`, finished batches are kept beside that folder until the result stands in it: after an
    interruption the same call goes on where it was, and after the end it gives what it gave.

    Args:
        name: as `layerlab study` lists them.
        draws: random initialisations, or what the study draws instead; as many as the source had
            if left out.
        seed: of all draws.
        out: folder for page, tables and settings; nothing is written if left out.
        runs: folder of training runs; a study of trained models adds those that are missing.
        threads: batches computed at once; one per physical core if left out.
        fast: take few draws, so that it is over in seconds; run no recipe, and judge what is there.
        restart: forget what an earlier call has finished.
        progress: show a live bar on standard error.
        lang: language of the page, "en" or "zh"; study.json and tables/ stay English.
        model: a Hub id, a folder, a built-in name, a variant or preset with a colon behind it
            for random weights, a loaded model, or several of them, to read in place of the
            built-in ones; docs/studies.md says which studies take them.
        tokenizer: for loaded models; others bring their own.
        text: path of the text that they read; the built-in one if left out.
        device: where they are loaded, as of `inspect`.
        dtype: precision that they are loaded in; as stored if left out.
        options: of that study.

    Raises:
        UserError: an unknown study or option, a value that it does not take, a folder that cannot
            be written, or one that another run is writing to; there is no page in this language.

    Example:
        >>> record = study("rounding-input", draws=20, progress=False)
        >>> record.frame().columns[:3].tolist()
        ['norm', 'statistic', 'mean']
    """
    language(lang)  # an unknown one is refused before the work is done
    found = find_study(name)
    usual = {"draws": found.draws, **(found.fast if fast else {})}
    few = usual.pop("draws")
    if fast and found.few and any(one is not None for one in (model, text, device, dtype)):
        few = found.few
    if device is not None and "device" in found.options:
        options["device"], device = device, None
    settled = found.settled({**usual, **options})
    counted = few if draws is None else _draw(found, draws)
    checked = _check("seed", seed), _check("threads", cores() if threads is None else threads)
    plan = StudyRequest(
        study=found,
        draws=counted,
        seed=checked[0],
        threads=checked[1],
        options=settled,
        given=load_given(
            found,
            settled,
            model=model,
            tokenizer=tokenizer,
            text=text,
            device=device,
            dtype=dtype,
        ),
        out=None if out is None else _folder("out", out),
        runs=_folder("runs", runs),
        fast=fast,
        restart=restart,
        lang=lang,
    )
    return run_study(plan, progress=progress)


def find_study(name: str) -> Study:
    """Find the study of this name.

    Raises:
        UserError: there is none.
    """
    every = studies()
    if name in every:
        return every[name]
    raise unknown_study(name, every)


def run_study(plan: StudyRequest, *, progress: bool = True) -> StudyResult:
    """Do what is left of a plan, and write it.

    Raises:
        UserError: the folder cannot be written, or another run is writing to it.
    """
    if plan.out is not None:
        check_folder(plan.out, "study")
    # What stands there needs no lock, and another run may have written it before this one got it.
    if (earlier := _finish(plan)) is not None:
        return earlier
    with nullcontext() if plan.out is None else lock_folder(plan.out):
        return _finish(plan) or _compute(plan, progress)


def _finish(plan: StudyRequest) -> StudyResult | None:
    """Return what an earlier run wrote with the same settings and code, in this language."""
    if plan.out is None or plan.restart:
        return None
    earlier = load_record(plan.out, sealed=True)
    if earlier is None or earlier.to_dict().get("key") != plan.key:
        return None
    earlier.translate(plan.lang)
    return earlier


def _compute(plan: StudyRequest, progress: bool) -> StudyResult:
    if plan.store is not None:
        check_link(plan.store, plan.store.parent)
        check_links(plan.store)
        if plan.restart:
            _remove_batches(plan.store)
    context = StudyContext(
        study=plan.study.name,
        draws=plan.draws,
        seed=plan.seed,
        options=plan.options,
        threads=plan.threads,
        store=plan.store,
        runs=plan.runs,
        fast=plan.fast,
        models=tuple(plan.given) or plan.study.models,
        given=plan.given,
        code=plan.code,
        clock=Clock(plan.sessions),
    )
    with ExitStack() as stack:
        for given in plan.given.values():
            # One in memory may be in training: dropout would be measured as if it were its own.
            stack.enter_context(evaluation_mode(given.subject.model))
        if progress:
            context.watcher = bar = stack.enter_context(InspectionBar())
        try:
            outcome = plan.study.run(context)
        except NotApplicable as reason:
            raise UserError(
                f"study {context.study} does not apply to {reason}; "
                f"{describe_low(plan.given) or 'give another model'}"
            ) from reason
        if progress:
            bar.end(context.study)
    record = _record(plan, context, outcome)
    if plan.out is not None:
        record.save(plan.out, lang=plan.lang)
        if plan.store is not None:
            _remove_batches(plan.store)
    return record


def _remove_batches(store: Path) -> None:
    """Remove what a study keeps until it is finished, and its folder unless more lies in it."""
    for one in store.glob("*"):
        if _KEPT.fullmatch(one.name):
            one.unlink(missing_ok=True)
    with suppress(OSError):  # there is none, or it is not empty
        store.rmdir()


def _record(plan: StudyRequest, context: StudyContext, outcome: Outcome) -> StudyResult:
    content: dict[str, Any] = {
        "study": plan.study.name,
        **{name: getattr(plan.study, name) for name in ("title", "source", "claim")},
        "layerlab": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "key": plan.key,
        "settings": {**plan.settings, **describe_settings(plan.given), **outcome.used},
        "unit": plan.study.unit,
        "fast": plan.fast,
        "command": plan.command,
        "time": context.clock.seconds_spent(),
        "batches": {"all": context.done, "kept from an earlier run": context.kept},
        "versions": {
            "python": platform.python_version(),
            **{library: version(library) for library in LIBRARIES},
        },
        "machine": {"system": platform.platform(), "threads": plan.threads},
        "pictures": [vars(picture) for picture in outcome.pictures],
        "remarks": list(outcome.remarks),
        **context.judged,
    }
    if plan.given:
        content["given"] = {
            "scale": describe_scale(plan.given),
            "unit": describe_unit(plan.given),
        }
        content["unit"] = content["unit"].replace(PASSAGES, content["given"]["unit"])
        content["remarks"] += describe_policies(plan.given)
        # Of these models, and not of the built-in ones.
        content["claim"] = outcome.verdicts[0].claim
    content["verdicts"] = [with_scale(vars(one), content, plan.study) for one in outcome.verdicts]
    return StudyResult(content, outcome.frames)


def _folder(name: str, given: Any) -> Path:
    if not isinstance(given, str | PathLike):
        raise UserError(
            f"{name} is {short_repr(given)}; expected the path of a folder: "
            f"type for example {name}='result'"
        )
    return Path(given)


def _draw(found: Study, draws: Any) -> int:
    if found.fixed and draws != found.draws:
        raise UserError(
            f"study {found.name} has {found.draws} {found.unit}, and draws is {short_repr(draws)}; "
            "leave draws out"
        )
    count = draws if found.fixed else _check("draws", draws)
    if found.most and count > found.most:
        raise UserError(
            f"study {found.name} has {found.most} different {found.unit.partition(',')[0]}, and "
            f"draws is {count}: type --draws {found.most}, or fewer"
        )
    return count


def _check(name: str, value: Any) -> int:
    check_settings(**{name: value})
    return int(value)
