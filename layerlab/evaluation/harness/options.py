"""Options of an evaluation: one frozen value, checked before anything is loaded."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.spec import Benchmark, Scoring
from layerlab.validation import Constraint, short_repr

SCORINGS: tuple[str, ...] = get_args(Scoring)
AUTO = "auto"
BATCH = Constraint(kind=int, least=1, most=10**6)
DOMAINS = {
    "scoring": Constraint(kind=str, choices=SCORINGS),
    "shots": Constraint(kind=int, least=0, most=1000),
    "limit": Constraint(kind=int, least=1, most=10**9),
    "seed": Constraint(kind=int, least=0, most=2**32 - 1),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options by which questions are put.

    Attributes:
        scoring: "choice_ll": the option whose tokens are likeliest after the prompt; "mean_nll":
            the option with which prompt and option together are likeliest per token; "gen": what
            the model writes is searched for an answer. A benchmark that knows no such scoring is
            asked in its usual one. None: each in its usual one.
        shots: examples before each question; as each benchmark is usually asked where left out.
        cot: examples are shown with their explanations, where a benchmark has them.
        limit: only the first so many questions of every subject.
        chat: prompts as the tokenizer's chat template has them.
        batch_size: prompts that are run at once; "auto": as many as memory allows. Of scores only
            those of written answers depend on it, in 16 bits.
        seed: of examples that are drawn, and of answers that a task samples.

    Raises:
        UserError: a value that is none of those.
    """

    scoring: Any = None
    shots: Any = None
    cot: bool = False
    limit: Any = None
    chat: bool = False
    batch_size: Any = AUTO
    seed: Any = 0

    def __post_init__(self) -> None:
        for name, domain in DOMAINS.items():
            value = getattr(self, name)
            if value is None and name != "seed":
                continue
            if value not in domain:
                raise UserError(f"{name} is {short_repr(value)}; expected {domain}")
        if self.batch_size != AUTO and self.batch_size not in BATCH:
            raise UserError(
                f"batch_size is {short_repr(self.batch_size)}; expected auto, or {BATCH}: type "
                "--batch-size 8"
            )

    def choose_scoring(self, benchmark: Benchmark) -> str:
        """Return the scoring by which a benchmark is asked; with reasoning it is "gen"."""
        if self.shows_explanations(benchmark):
            return "gen"
        usual = benchmark.scorings[0]
        return str(self.scoring) if self.scoring in benchmark.scorings else usual

    def shows_explanations(self, benchmark: Benchmark) -> bool:
        """Return whether the examples of a benchmark are shown with explanations."""
        return self.cot and benchmark.explained

    def way(self, benchmark: Benchmark) -> str:
        """Return in which way its tasks are asked, as `task_configs` names it.

        Example:
            >>> from layerlab.evaluation.benchmarks.catalog import find_benchmark
            >>> ceval = find_benchmark("ceval")
            >>> Options(cot=True).way(ceval), Options(scoring="gen").way(ceval)
            ('cot', 'gen')
        """
        if self.shows_explanations(benchmark):
            return "cot"
        return "gen" if self.choose_scoring(benchmark) == "gen" != benchmark.scorings[0] else ""

    def inside(self, benchmark: Benchmark) -> int:
        """Return how many examples stand in the benchmark's own files, uncounted by the engine."""
        return min(self.shots or 0, 1) if "one_shot" in benchmark.files else 0

    def changes(self, benchmark: Benchmark) -> dict[str, Any]:
        """Return what the reader of a benchmark's questions has to know."""
        found: dict[str, Any] = {}
        if self.choose_scoring(benchmark) == "mean_nll":
            found["scoring"] = "mean_nll"
        if self.chat:
            found["chat"] = True
        if self.inside(benchmark):
            found["shots"] = self.inside(benchmark)
        return found

    def deviations(self, benchmarks: Sequence[Benchmark], tasks: Sequence[str] = ()) -> list[str]:
        """Describe in words what is asked in another way than was wished.

        Args:
            tasks: names of tasks of lm-eval, which are asked as they are declared.
        """
        found = []
        if tasks and (self.scoring is not None or self.cot):
            found.append(f"{', '.join(tasks)}: asked as lm-eval declares them")
        other = [
            one.title for one in benchmarks if self.scoring not in (None, self.choose_scoring(one))
        ]
        if other:
            found.append(f"{', '.join(other)}: not scored by {self.scoring}")
        plain = [one.title for one in benchmarks if self.cot and not one.explained]
        if plain:
            found.append(f"{', '.join(plain)}: no explanations are there to show")
        bare = [one.title for one in benchmarks if (self.shots or 0) > self._most(one)]
        if bare:
            few = "no example is" if self.shots == 1 else f"fewer than {self.shots} examples are"
            found.append(f"{', '.join(bare)}: {few} there")
        return found

    def examples(self, benchmark: Benchmark) -> int | None:
        """Return how many examples the engine is to show; None as the task declares."""
        return None if self.shots is None else min(self.shots, benchmark.most_shots)

    def _most(self, benchmark: Benchmark) -> int:
        return 1 if "one_shot" in benchmark.files else benchmark.most_shots

    def to_dict(self) -> dict[str, Any]:
        """Return the options as results keep them."""
        return asdict(self)


def describe_added(name: str, tokens: str) -> str:
    """Describe why perplexities of a model are not those of lm-eval.

    Args:
        tokens: that its tokenizer puts around every text.
    """
    return (
        f"{name}: perplexities are of the tokens of a text alone; lm-eval also counts {tokens}, "
        "which the tokenizer puts around a text, so that its numbers are others"
    )


def describe_appended(name: str, tokens: str) -> str:
    """Describe why a question is put otherwise than by lm-eval.

    Args:
        tokens: that its tokenizer puts behind every text.
    """
    return (
        f"{name}: its tokenizer puts {tokens} behind every text, which is left off here: an answer "
        "goes on from its question; lm-eval leaves it between the two, so that its numbers are "
        "others"
    )


def describe_dropped(name: str) -> str:
    """Describe a chat template that leaves out what tasks put into the system turn."""
    return (
        f"{name}: its chat template does not write the system turn, where tasks have their "
        "instructions: no prompt holds one"
    )


def describe_alone(name: str) -> str:
    """Describe why prompts are run one at a time in an arithmetic.

    Example:
        >>> describe_alone("int4").split(",")[0]
        'int4: one scale holds for a whole batch'
    """
    return (
        f"{name}: one scale holds for a whole batch, so that prompts are run one at a time; no "
        "score depends on --batch-size"
    )
