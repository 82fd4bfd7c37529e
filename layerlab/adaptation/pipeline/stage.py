"""One stage of an adaptation: its settings, its folder, and whether it is finished."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.file_digests import check_hashes, hash_folder
from layerlab.records.parse import one_line, read_json, seal, unseal
from layerlab.system.files import force_to_disk, write_file
from layerlab.version import VERSION

FILE, MODEL, WORDS = "stage.json", "model", "words"
PROCESSOR = "processor_seconds"  # of the first process of a stage, which the plan foretells
SCHEMA = 1
UNSEALED = "checkpoint-*"  # these have seals of their own, and go
GIVEN = "model"  # the setting of a base that was given by name, and lies elsewhere
# In the order in which they are carried out; contamination belongs to clean.
KINDS = (
    *("base", "clean", "contamination", "vocabulary", "embedding"),
    *("pretrain", "tune", "evaluate"),
)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage to run.

    Attributes:
        kind: one of `KINDS`.
        settings: all that decides what comes out, beside the stages before it.
        needs: keys of stages before it, by what they give: text, model, words.
        arms: that have it in common.
        after: of an evaluation, the stage whose model is asked.
        seed: of a stage that is carried out with several.
    """

    kind: str
    settings: Mapping[str, Any]
    needs: Mapping[str, str] = field(default_factory=dict)
    arms: tuple[str, ...] = ()
    after: str = ""
    seed: int | None = None

    @property
    def key(self) -> str:
        """The name of its folder, different for different settings."""
        return _key(self.kind, self.settings, self.needs)

    def title(self, every: int) -> str:
        """Return the title in words, with the arms where not all of them have the stage.

        Args:
            every: arms that there are.
        """
        title = f"{self.kind} after {self.after}" if self.after else self.kind
        title += "" if self.seed is None else f", seed {self.seed}"
        return title if len(self.arms) == every else f"{title} ({', '.join(self.arms)})"


def _key(kind: str, settings: Mapping[str, Any], needs: Mapping[str, str]) -> str:
    content = json.dumps([SCHEMA, kind, settings, needs], sort_keys=True, default=str)
    return f"{kind}-{hashlib.blake2b(content.encode(), digest_size=6).hexdigest()}"


@dataclass(frozen=True)
class StageStore:
    """The folders of all stages of a recipe."""

    folder: Path

    def of(self, key: str) -> Path:
        """Return the folder of a stage."""
        return self.folder / key

    def other_base(self, stages: Iterable[Stage]) -> str:
        """Return, in words, that only stages of another base are finished here; empty if not so.

        Its settings are others, or its files are: a tokenizer's among them.
        """
        bases = {one.key for one in stages if one.kind == "base"}
        finished = {one.parent.name for one in self.folder.glob(f"base-*/{FILE}")}
        if not finished or bases & finished:
            return ""
        return (
            f"the stages that are finished in {self.folder} are of a base with other settings or "
            "other files, and are not used"
        )

    def read(self, key: str) -> dict[str, Any] | None:
        """Read the result of a stage; None if it is not finished.

        Raises:
            UserError: it is there, and is not what was written, or is that of another stage.
        """
        file = self.of(key) / FILE
        try:
            found = unseal(read_json(file))
            if found.get("schema") != SCHEMA:
                raise ValueError("it is of an earlier version")
            if (own := _key(found["kind"], found["settings"], found["needs"])) != key:
                raise ValueError(f"it is that of another stage, {own}")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"cannot read {file}: {error}; delete it and type it again, which carries out this "
                "stage anew"
            ) from None
        return found

    def finish(self, stage: Stage, left: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Write the result of a stage, which marks it as finished."""
        content = seal(
            {
                "schema": SCHEMA,
                "layerlab": VERSION,
                "kind": stage.kind,
                "settings": dict(stage.settings),
                "needs": dict(stage.needs),
                "files": hash_folder(self.of(stage.key), leave=[UNSEALED, FILE]),
                "seconds": seconds,
                **left,
            }
        )
        text = json.dumps(content, ensure_ascii=False, indent=1)
        force_to_disk(write_file(self.of(stage.key) / FILE, text + "\n"))
        force_to_disk(self.of(stage.key))
        return content

    def model(self, key: str) -> str:
        """Return the model of a finished stage: a folder of its own, or the name that was given."""
        return self._place(key, MODEL)

    def words(self, key: str) -> str:
        """Return the tokenizer of a finished stage, as a folder."""
        return self._place(key, WORDS)

    def _place(self, key: str, what: str) -> str:
        kept = self.read(key)
        assert kept is not None, key
        name = str(kept[what])
        if what == MODEL and GIVEN in kept["settings"]:
            return name
        return str(self.check(key) / name)

    def check(self, key: str) -> Path:
        """Return the folder of a finished stage, after checking its files.

        Raises:
            UserError: one is missing, or is another.
        """
        kept = self.read(key) or {}
        files = kept.get("files", {})
        try:
            _check(self.of(key), tuple(sorted(files.items())), _moments(self.of(key), files))
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(
                f"{self.of(key)} is not what its stage wrote: {one_line(error)}; delete it and "
                "type it again, which carries out this stage anew"
            ) from None
        return self.of(key)


@cache
def _check(folder: Path, files: tuple[tuple[str, str], ...], moments: tuple[int, ...]) -> None:
    """Check the files of a stage, once while they stay: a model of 8 billion takes ten seconds."""
    check_hashes(folder, dict(files))


def _moments(folder: Path, files: Iterable[str]) -> tuple[int, ...]:
    """Return when each file that is there was changed last, which no copying sets back."""
    there = (path for name in sorted(files) if (path := folder / name).exists())
    return tuple(path.stat().st_ctime_ns for path in there)
