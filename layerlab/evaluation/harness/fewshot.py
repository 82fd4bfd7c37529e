"""Examples before a question: whole ones are dropped until the prompt fits, nothing else is cut.

The engine cuts a prompt that is too long from the left, where the instruction and the first
examples stand. Here the instruction, the question and the answer stay, and fewer examples are
shown; how many is counted, because a score over fewer examples is another score.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Shots:
    """The number of examples in the prompts of a task.

    Attributes:
        asked: number of examples that were asked for.
        mean: over all prompts.
        least: in the prompt that held the fewest.
        shortened: prompts that lost some.
        unfit: questions that do not fit even without examples; they are not asked, and count as
            not answered.
    """

    asked: int = 0
    mean: float = 0.0
    least: int = 0
    shortened: int = 0
    unfit: int = 0

    def summary(self) -> str:
        """Describe the numbers of examples in words, as a table shows them.

        Example:
            >>> Shots(asked=5, mean=3.25, least=2, shortened=7).summary()
            '3.2 of 5 (least 2, 7 shortened)'
        """
        if not self.shortened:
            return str(self.asked) + (f" ({self.unfit} too long)" if self.unfit else "")
        unfit = f", {self.unfit} too long" if self.unfit else ""
        return (
            f"{self.mean:.1f} of {self.asked} (least {self.least}, "
            f"{self.shortened} shortened{unfit})"
        )


def sum_up(asked: int, used: Sequence[int], unfit: int = 0) -> Shots:
    """Sum up the examples in the prompts of a task.

    Args:
        asked: number of examples that were asked for.
        used: number of examples in each prompt.
        unfit: questions that do not fit even without examples.

    Example:
        >>> sum_up(5, [5, 3])
        Shots(asked=5, mean=4.0, least=3, shortened=1, unfit=0)
    """
    return Shots(
        asked=asked,
        mean=fmean(used) if used else 0.0,
        least=min(used, default=0),
        shortened=sum(number < asked for number in used),
        unfit=unfit,
    )


def without_examples(
    shots: int, prompt: Callable[[int], Any], fits: Callable[[Any], bool]
) -> tuple[Any, int]:
    """Find the prompt with the most examples, at most `shots`, that fits.

    Args:
        shots: number of examples that were asked for.
        prompt: makes the prompt with so many examples.
        fits: whether a prompt fits.

    Returns:
        The prompt and its number of examples; where not even the bare question fits, that question.

    Example:
        >>> prompt = lambda number: "shot " * number + "question"
        >>> without_examples(5, prompt, lambda text: len(text) < 20)
        ('shot shot question', 2)
    """
    for number in range(shots, 0, -1):
        found = prompt(number)
        if fits(found):
            return found, number
    return prompt(0), 0


@contextmanager
def fit_examples(task: Any, fits: Callable[[str, tuple[Any, ...]], bool]) -> Iterator[list[int]]:
    """Let the prompts of a task lose whole examples until they fit.

    Args:
        task: makes its prompts with `fewshot_context` and its requests with `construct_requests`.
        fits: whether a request of a kind, with these arguments, fits.

    Yields:
        How many examples each prompt has, in the order in which they are made.
    """
    used: list[int] = []
    write_examples, draws = task.fewshot_context, _Draws(task)

    def prompt(doc: Any, num_fewshot: int = 0, **options: Any) -> Any:
        template = {name: options.get(name) for name in ("apply_chat_template", "chat_template")}
        draws.start()

        def build(number: int) -> Any:
            with draws.repeat():
                return write_examples(doc, number, **options)

        def all_fit(text: Any) -> bool:
            named = (task.task_name, 0, 1)
            made = task.construct_requests(doc=doc, ctx=text, metadata=named, **template)
            requests = made if isinstance(made, list) else [made]
            return all(fits(one.request_type, one.args) for one in requests)

        text, number = without_examples(num_fewshot, build, all_fit)
        draws.end()
        used.append(number)
        return text

    task.fewshot_context = prompt
    try:
        yield used
    finally:
        del task.fewshot_context


class _Draws:
    """The random numbers of a task: a prompt that was tried again takes no more of them."""

    def __init__(self, task: Any) -> None:
        self._random: Any = getattr(getattr(task, "sampler", None), "rnd", None)
        self._before: Any = None
        self._after: Any = None

    def start(self) -> None:
        self._before = self._random.getstate() if self._random is not None else None
        self._after = None

    @contextmanager
    def repeat(self) -> Iterator[None]:
        if self._random is not None:
            self._random.setstate(self._before)
        yield
        if self._random is not None and self._after is None:
            self._after = self._random.getstate()

    def end(self) -> None:
        if self._after is not None:
            self._random.setstate(self._after)
