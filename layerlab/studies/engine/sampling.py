"""The work of a study: seeded batches of draws, in threads, each kept as soon as it is finished.

A batch is named by the hash of all it depends on: the study, its options, the case, the seed, the
number of the batch and of its draws, and the code that computes. What was stored by an interrupted
run is therefore found again, also with more draws, and never taken for something else.
"""

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from layerlab.console.progress import Progress
from layerlab.errors import NotApplicable, UserError
from layerlab.records.kept import warn_of_damage
from layerlab.studies.engine.time_log import Clock
from layerlab.system.files import check_regular, write_file
from layerlab.system.hardware import with_threads

Arrays = dict[str, np.ndarray]
StudyCase = Mapping[str, Any]
# Models by the names that a report has for them: values of `studies.engine.given_models`.
GivenModels = Mapping[str, Any]
RUNS = Path("layerlab-runs")
# Bytes of a SHA-256.
SEAL = hashlib.sha256().digest_size


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """One batch: how many draws, and the numbers that belong to it and to no other.

    Attributes:
        given: models that the user named, in place of built-in ones.
    """

    count: int
    generator: torch.Generator
    given: GivenModels = field(default_factory=dict)

    @property
    def built_in(self) -> "Sampler":
        """Return the same draw, of built-in models whatever the user named."""
        return replace(self, given={})

    def normal(self, *shape: int, mean: float = 0.0, deviation: float = 1.0) -> Tensor:
        """Draw float64 numbers from a normal distribution, one set per draw."""
        drawn = torch.randn(
            self.count, *shape, generator=self.generator, dtype=torch.float64, device="cpu"
        )
        return drawn.mul_(deviation).add_(mean)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draw float64 numbers uniformly between two ends, one set per draw."""
        drawn = torch.rand(
            self.count, *shape, generator=self.generator, dtype=torch.float64, device="cpu"
        )
        return drawn.mul_(high - low).add_(low)


StudyPart = Callable[..., Mapping[str, Tensor]]


@dataclass(kw_only=True)
class StudyContext:
    """The context that a study computes in.

    Attributes:
        study: its name.
        code: a hash of the code that computes.
        store: where finished batches lie until the result is written.
        runs: where training runs lie, a folder for each recipe.
        fast: whether it must be over in seconds: nothing is trained then, and runs that lie there
            are judged.
        kept: how many batches an earlier run had finished.
        clock: keeps the time beside the batches.
        models: names of the models that are read, as the study or the user has them.
        given: those of them that the user named; all others are built-in.
        judged: of trainings whose runs are judged: how many, how long, where, and their recipe.
    """

    study: str
    draws: int
    seed: int
    options: Mapping[str, Any]
    threads: int
    code: str
    store: Path | None = None
    runs: Path = RUNS
    fast: bool = False
    models: tuple[str, ...] = ()
    given: GivenModels = field(default_factory=dict)
    watcher: Progress | None = None
    done: int = 0
    kept: int = 0
    clock: Clock = field(default_factory=Clock)
    judged: Mapping[str, Any] = field(default_factory=dict)

    def describe(self, name: str) -> str:
        """Return what a sentence calls a model."""
        return name if name in self.given else f"the built-in {name}"

    def describe_all(self) -> str:
        """Return what a sentence calls the models, one after the other."""
        return " and ".join(map(self.describe, self.models))

    def sample(
        self, part: StudyPart, cases: Sequence[StudyCase] = ({},), batch: int = 64
    ) -> list[Arrays]:
        """Sample all draws of each case, computed by `part(draw, **case)`, one row per draw.

        The same numbers are drawn in every case, so that cases are compared draw by draw.
        """
        sizes = [min(batch, self.draws - start) for start in range(0, self.draws, batch)]
        jobs = [(case, number) for case in range(len(cases)) for number in range(len(sizes))]
        if self.watcher is not None:
            self.watcher.begin(self.study, len(jobs))
        found: dict[tuple[int, int], Arrays] = {}

        def one(job: tuple[int, int]) -> Arrays:
            return self._batch(part, cases[job[0]], job[1], sizes[job[1]])

        for job, arrays in _compute(one, jobs, self.threads):
            found[job] = arrays
            self.done += 1
            self.clock.keep()
            if self.watcher is not None:
                self.watcher.step(f"batch {len(found)} of {len(jobs)}")
        return [
            _join([found[case, number] for number in range(len(sizes))])
            for case in range(len(cases))
        ]

    def sample_models(
        self, part: StudyPart, names: Sequence[str] = (), batch: int = 64
    ) -> dict[str, Arrays]:
        """Sample all draws of models by their names; those of the study where none is named."""
        names = names or self.models
        found = self.sample(part, [{"name": name} for name in names], batch)
        return dict(zip(names, found, strict=True))

    def _batch(self, part: StudyPart, case: StudyCase, number: int, count: int) -> Arrays:
        given = {name: one.state for name, one in self.given.items()}
        key = digest(
            {
                "study": self.study,
                "part": part.__name__,
                "options": self.options,
                "case": case,
                "seed": self.seed,
                "batch": number,
                "count": count,
                "code": self.code,
                **({"given": given} if given else {}),
            }
        )
        stored = None if self.store is None else self.store / f"{key}.npz"
        if stored is not None and (arrays := _read(stored, count)) is not None:
            self.kept += 1
            return arrays
        generator = torch.Generator().manual_seed(int(digest([self.seed, number])[:15], 16))
        try:
            made = part(Sampler(count=count, generator=generator, given=self.given), **case)
        except NotApplicable as reason:
            named = [one for one in case.values() if isinstance(one, str) and one in self.given]
            raise NotApplicable(f"{', '.join(named or self.given)}: {reason}") from reason
        arrays = {name: tensor.cpu().numpy() for name, tensor in made.items()}
        if stored is not None:
            _write(stored, arrays)
        return arrays


def digest(content: Any) -> str:
    """Return a hash of JSON values that is the same in every process."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def cores() -> int:
    """Return how many batches are computed at once: OMP_NUM_THREADS, else one per physical core."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) else psutil.cpu_count(logical=False) or 1


def _compute(
    one: Callable[[tuple[int, int]], Arrays], jobs: Sequence[tuple[int, int]], threads: int
) -> Iterator[tuple[tuple[int, int], Arrays]]:
    """Yield the results of the jobs as they come.

    An interruption waits for the batches under way, and no more.
    """
    # Batches side by side instead of threads inside of each: their tensors fit a core's cache.
    with with_threads(1):
        pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        # As a context the pool would finish all that was submitted before an interruption.
        try:
            pending = {pool.submit(one, job): job for job in jobs}
            for future in as_completed(list(pending)):
                yield pending.pop(future), future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _join(parts: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _read(file: Path, count: int) -> Arrays | None:
    """Read a batch that an earlier run stored, or None where there is none; a damaged one is none.

    What was written is followed by its SHA-256, and nothing else is unpacked.
    """
    try:
        check_regular(file)
        content = file.read_bytes()
        body, seal = content[:-SEAL], content[-SEAL:]
        if seal != _seal(file, body):
            raise ValueError
        with np.load(io.BytesIO(body), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        if not arrays or any(one.shape[:1] != (count,) for one in arrays.values()):
            raise ValueError
    except FileNotFoundError:
        return None
    # Of many kinds: what was sealed anew may hold anything.
    except (OSError, ValueError, EOFError, LookupError, zipfile.BadZipFile, UserError):
        # Without its name: however many there are, one line says it.
        warn_of_damage(f"a batch in {file.parent} is not what was written, and is computed again")
        return None
    return arrays


def _write(file: Path, arrays: Arrays) -> None:
    """Write a batch and its SHA-256, whole or not at all."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    body = stream.getvalue()
    write_file(file, body + _seal(file, body))


def _seal(file: Path, body: bytes) -> bytes:
    return hashlib.sha256(file.name.encode() + body).digest()
