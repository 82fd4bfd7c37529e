"""Lets Python that models and recipes bring along run only where the user asked for it.

transformers asks on standard input where it is told nothing, and whatever is piped there answers.
So every model, configuration and tokenizer is loaded here, and nothing is ever asked. The files
that a recipe names run where the user has named them too, byte for byte.
"""

import hashlib
import inspect
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from layerlab.errors import UserError
from layerlab.system.files import check_regular, check_size
from layerlab.validation import short_repr

# What a process that carries out a run may do, from the one that started it.
GRANTS = "LAYERLAB_GRANTS"
WEIGHTS = (".safetensors", ".gguf")  # files of any size
_TRUSTED: ContextVar[bool] = ContextVar("trusted", default=False)
_RECIPE: ContextVar[bool] = ContextVar("recipe", default=False)
_UNUSED: ContextVar[bool] = ContextVar("unused", default=False)
_TASKS: ContextVar[bool] = ContextVar("tasks", default=False)
_ALLOWED: set[str] = set()  # SHA-256 of the files that the user has named to this process
UNUSED = Annotated[
    bool,
    typer.Option(
        "--allow-unused", help="Ignore stored weights that the configuration has no place for."
    ),
]
REMOTE = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run Python that a model or tokenizer brings along."),
]


@contextmanager
def trust(
    trust_remote_code: bool,
    trust_recipe: bool = False,
    allow_unused: bool = False,
    trust_tasks: bool = False,
) -> Iterator[None]:
    """Grant what is asked for until the block ends.

    Args:
        trust_remote_code: code of models and tokenizers runs.
        trust_recipe: the files that a recipe names run.
        allow_unused: weights that a model's configuration has no place for are left out.
        trust_tasks: Python that a task of lm-eval names runs.
    """
    given = {
        _TRUSTED: trust_remote_code,
        _RECIPE: trust_recipe,
        _UNUSED: allow_unused,
        _TASKS: trust_tasks,
    }
    before = {one: one.set(value or one.get()) for one, value in given.items()}
    try:
        yield
    finally:
        for one, token in before.items():
            one.reset(token)


def allows_unused() -> bool:
    """Return whether a model may be loaded without some of the weights that are stored."""
    return _UNUSED.get()


def allows_tasks() -> bool:
    """Return whether a task of lm-eval may run Python that it names; a recipe may name the task."""
    return _TASKS.get() or _RECIPE.get()


def granted_options() -> dict[str, bool]:
    """Return the options by which the user has granted something, each with True."""
    grants = {"trust_remote_code": _TRUSTED, "allow_unused": _UNUSED, "trust_tasks": _TASKS}
    return {name: True for name, given in grants.items() if given.get()}


def allow_file(source: bytes) -> None:
    """Note that the user has named a file with these bytes."""
    _ALLOWED.add(_sha256(source))


def check_allowed(path: str, source: bytes) -> None:
    """Refuse a file that a recipe wants to run and the user has not named.

    Raises:
        UserError: says what to type.
    """
    if _RECIPE.get():
        allow_file(source)
    elif _sha256(source) not in _ALLOWED:
        raise UserError(
            f"the recipe runs the Python file {path!r}, and nothing runs unasked; read it, and "
            f"where you trust it type --load {shlex.quote(path)}, or --trust-recipe for all of its "
            f"files (in Python layerlab.load({path!r}), or trust_recipe=True)"
        )


def check_command(name: str, argv: Sequence[str]) -> None:
    """Refuse to run a command of a recipe, unless the user trusts its code.

    Raises:
        UserError: says what to type.
    """
    if not _RECIPE.get():
        raise UserError(
            f"the recipe runs the command {name!r}, {short_repr(shlex.join(argv))}, and nothing "
            "runs unasked; read it, and where you trust it type --trust-recipe (in Python "
            "trust_recipe=True)"
        )


def list_grants() -> str:
    """Return this process's grants for the processes it starts."""
    return json.dumps({"remote_code": _TRUSTED.get(), "files": sorted(_ALLOWED)})


def take_grants() -> None:
    """Take over the grants of the parent process."""
    given = json.loads(os.environ.get(GRANTS, "{}"))
    _TRUSTED.set(_TRUSTED.get() or given.get("remote_code") is True)
    _ALLOWED.update(str(one) for one in given.get("files", ()))


def _sha256(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def trustable(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that loads a model `--trust-remote-code` and `--allow-unused`."""
    options = {"trust_remote_code": (REMOTE, False), "allow_unused": (UNUSED, False)}
    return add_options(command, trust, options)


def add_options(
    command: Callable[..., Any],
    around: Callable[..., AbstractContextManager[None]],
    options: Mapping[str, tuple[Any, Any]],
) -> Callable[..., Any]:
    """Give a command further options.

    Args:
        around: is entered with their values while the command runs.
        options: annotation and default by name.
    """

    @wraps(command)
    def run(*args: Any, **given: Any) -> Any:
        own = {name: given.pop(name, default) for name, (_, default) in options.items()}
        with around(**own):
            return command(*args, **given)

    parameter, before = inspect.Parameter, inspect.signature(command)
    new = [
        parameter(name, parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    run.__signature__ = before.replace(  # type: ignore[attr-defined]
        parameters=[*before.parameters.values(), *new]
    )
    run.__annotations__ = command.__annotations__ | {one.name: one.annotation for one in new}
    return run


def load_pretrained(kind: Any, source: Any, **options: Any) -> Any:
    """Load what `kind.from_pretrained(place)` loads.

    Raises:
        UserError: it needs code of its own, and nobody has asked for that; or a file of its folder
            is none, or larger than any of its kind.
    """
    for file in Path(source).iterdir() if Path(source).is_dir() else ():
        (check_regular if file.suffix in WEIGHTS else check_size)(file)
    return _load(source, kind.from_pretrained, source, **options)


def check_kernel(name: str, value: str) -> None:
    """Refuse the name of code on the Hub where a configuration asks for an implementation.

    Raises:
        UserError: it is one, and nobody has asked for remote code.
    """
    if "/" in value and not _TRUSTED.get():
        raise UserError(
            f"{name} is {short_repr(value)} in config.json, which is code on the Hub; type "
            '--trust-remote-code to run it, or write for example "sdpa"'
        )


def build_configured(kind: Any, config: Any, **options: Any) -> Any:
    """Build what `kind.from_config(config)` builds.

    Raises:
        UserError: it needs code of its own, and nobody has asked for that.
    """
    return _load(config._name_or_path, kind.from_config, config, **options)


@contextmanager
def _suppress_prompts() -> Iterator[None]:
    """Keep transformers from asking where a model or tokenizer loads another one inside of it.

    What is inside is loaded without our answer; with no time for one it is refused, as on its CI.
    """
    from transformers import dynamic_module_utils as place  # late: most commands load nothing

    before, place.TIME_OUT_REMOTE_CODE = place.TIME_OUT_REMOTE_CODE, 0
    try:
        yield
    finally:
        place.TIME_OUT_REMOTE_CODE = before


def _load(name: Any, load: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        with _suppress_prompts():
            return load(*args, trust_remote_code=_TRUSTED.get(), **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise UserError(
            f"{str(name)!r} needs Python that it brings along, which is not run unasked; read it, "
            "and where you trust it type --trust-remote-code (in Python trust_remote_code=True)"
        ) from None
