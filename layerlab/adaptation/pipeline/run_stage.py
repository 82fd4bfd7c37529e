"""Runs each stage, from the folders of earlier stages to its own."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerlab.adaptation.embeddings.compare_inits import embed
from layerlab.adaptation.pipeline.plan import check_inputs
from layerlab.adaptation.pipeline.stage import MODEL, WORDS, Stage, StageStore
from layerlab.adaptation.pipeline.texts import (
    clean_texts,
    contamination_of,
    halves,
    materials,
    read_held_out,
    rows_of,
    texts_of,
)
from layerlab.adaptation.pretraining.replay import ReplayData
from layerlab.adaptation.pretraining.train import pretrain
from layerlab.adaptation.sft.chat_template import add_plain_template
from layerlab.adaptation.sft.generate import answers
from layerlab.adaptation.sft.train import tune
from layerlab.adaptation.trainer.bits_per_byte import bits_per_byte
from layerlab.adaptation.trainer.resume import write_model
from layerlab.console.progress import ProgressCallback
from layerlab.errors import UserError
from layerlab.loading.model import LoadedModel, load_model
from layerlab.recipes.adaptation import AdaptationRecipe
from layerlab.recipes.adaptation_sections import EmbeddingSection
from layerlab.records.events import read
from layerlab.records.json_values import Json
from layerlab.system.files import OnlyOwn, write_folder
from layerlab.system.hardware import peak_memory, reset_peak_memory
from layerlab.system.logs import quiet_libraries
from layerlab.tokenization.convert import load_or_convert
from layerlab.tokenization.vocabulary.change import PROOF, Texts, remake

# Of held-out text that each way to begin new rows is tried on, in bytes.
TRIED = 50_000


@dataclass(frozen=True)
class StageContext:
    """Recipe, folders and progress of a stage.

    Attributes:
        tell: is told what is done, and the share of it.
        load: Python files with the variant of the model.
        rank: of this process, where several carry out the stage.
    """

    recipe: AdaptationRecipe
    stage: Stage
    store: StageStore
    tell: ProgressCallback
    load: tuple[str, ...] = ()
    rank: int | None = None

    @property
    def folder(self) -> Path:
        """The folder of the stage."""
        return self.store.of(self.stage.key)

    @property
    def text(self) -> Path:
        """The folder of the cleaned texts."""
        return self.store.check(self.stage.needs["text"])

    @property
    def device(self) -> str:
        """The device that a model is loaded on; one that is shared out goes on from the CPU."""
        run = self.recipe.run
        if self.rank is None or run.device == "cpu":
            return run.device
        return "cpu" if run.sharding == "fsdp" else f"{run.device}:{self.rank}"

    def model(self, dtype: str | None = None) -> LoadedModel:
        """Return the model so far, with weights as the recipe says where no dtype is given."""
        name = self.store.model(self.stage.needs["model"])
        own = dtype or self.recipe.base.dtype
        return load_model(name, device=self.device, dtype=own)

    def words(self, need: str = "model") -> Any:
        """Return the tokenizer of an earlier stage."""
        return load_or_convert(self.store.words(self.stage.needs[need]))


def clean(context: StageContext) -> Json:
    """Read and clean all texts."""
    found = clean_texts(context.recipe, context.folder, context.tell)
    check_inputs(context.recipe, context.stage)
    return {"result": found}


def contamination(context: StageContext) -> Json:
    """Look for the questions of benchmarks in the texts."""
    found = contamination_of(context.recipe, context.text)
    check_inputs(context.recipe, context.stage)
    return {"result": found}


def vocabulary(context: StageContext) -> Json:
    """Extend or prune the tokenizer on the domain's training text, and verify it on all texts."""
    section = context.recipe.vocabulary
    assert section is not None
    with halves(context.recipe, context.text) as parts:
        learned = (
            text
            for (kind, _), (store, _) in parts.items()
            if kind == "domain"
            for text in texts_of(store)
        )
        proved: dict[str, Any] = {}
        for (kind, name), (store, held) in parts.items():
            proved[f"{name} ({kind})"] = texts_of(store)
            proved[f"{name} ({kind}, held out)"] = texts_of(held)
        texts = Texts(learned=learned, proved=proved, jec_qa=section.jec_qa)
        made = remake(
            context.words("words"), section.size, texts, lambda line: context.tell(line, 0.5)
        )
    report = made.check.to_dict()

    def fill(empty: Path) -> None:
        made.words.save_pretrained(empty)
        text = json.dumps({**report, "kept": made.kept}, ensure_ascii=False, indent=1)
        (empty / PROOF).write_text(text + "\n", encoding="utf-8")

    write_folder(context.folder / WORDS, fill, "tokenizer", like=OnlyOwn())
    return {"words": WORDS, "result": report}


def embedding(context: StageContext) -> Json:
    """Give the model the new tokenizer."""
    recipe, found = (
        context.recipe,
        context.model("float32"),
    )  # rows are drawn from sums over all others
    texts = {
        kind: read_held_out(recipe, context.text, kind, TRIED) for kind in ("domain", "general")
    }
    done = embed(
        found.model,
        context.words(),
        new := context.words("words"),
        {kind: each for kind, each in texts.items() if each},
        recipe.embedding or EmbeddingSection(),
        lambda text: context.tell(text, 0.5),
    )
    with quiet_libraries():
        write_model(context.folder, found.model, new)
    return {"model": MODEL, "words": MODEL, "result": done.to_dict()}


def pretraining(context: StageContext) -> Json:
    """Continue pretraining with replay, or resume an earlier session."""
    recipe, section = context.recipe, context.recipe.pretrain
    assert section is not None and context.stage.seed is not None
    reset_peak_memory()
    done = pretrain(
        context.model().model,
        context.words(),
        ReplayData(
            domain=materials(recipe, context.text, "domain"),
            general=materials(recipe, context.text, "general") or None,
            validation=recipe.data.validation_fraction,
        ),
        section=section,
        seed=context.stage.seed,
        merge=True,
        sharding=recipe.run.sharding,
        out=context.folder,
        progress=context.tell,
        use_cpu=recipe.run.device == "cpu",
    )
    result = done.to_dict() | _peak(context)
    for one in result["sources"]:
        one["source"] = _source(context, one["source"])
    events = [one for one in read(context.folder) if one["kind"] in ("train", "evaluate")]
    return {"model": MODEL, "words": MODEL, "result": result, "events": events}


def tuning(context: StageContext) -> Json:
    """Tune on conversations, or resume an earlier session."""
    section = context.recipe.sft
    assert section is not None
    weights = {one.name: one.weight for one in section.sources if one.weight is not None}
    rows = {one.name: rows_of(one) for one in section.sources}
    check_inputs(context.recipe, context.stage)
    reset_peak_memory()
    done = tune(
        context.model().model,
        context.words(),
        rows,
        section=section,
        weights=weights or None,
        merge=True,
        sharding=context.recipe.run.sharding,
        out=context.folder,
        progress=context.tell,
        use_cpu=context.recipe.run.device == "cpu",
    )
    return {"model": MODEL, "words": MODEL, "result": done.to_dict() | _peak(context)}


def measure_texts(context: StageContext, left_out: list[Json]) -> Json:
    """Measure bits per byte of held-out text, and generate answers."""
    section = context.recipe.evaluate
    assert section is not None
    found, tokenizer = context.model(), context.words()
    scores: Json = {"bits": {}, "answers": []}
    with quiet_libraries():
        for kind in (
            ("domain", "general") if section.text_bytes and "text" in context.stage.needs else ()
        ):
            texts = read_held_out(context.recipe, context.text, kind, section.text_bytes)
            if texts:
                context.tell(f"reading {kind} text", 0.0)
                scores["bits"][kind] = bits_per_byte(found.model, tokenizer, texts).to_dict()
    if section.prompts:
        context.tell("answering prompts", 0.0)
        add_plain_template(tokenizer)
    for prompt in section.prompts:
        try:
            (answer,) = answers(found.model, tokenizer, [prompt], new=section.max_new_tokens)
        except UserError as error:
            left_out.append({"what": "an answer", "why": str(error)})
            continue
        scores["answers"].append({"prompt": prompt, "answer": answer})
    return scores


STEPS: dict[str, Callable[[StageContext], Json]] = {
    "clean": clean,
    "contamination": contamination,
    "vocabulary": vocabulary,
    "embedding": embedding,
    "pretrain": pretraining,
    "tune": tuning,
}


def _peak(context: StageContext) -> Json:
    """Return the most memory that this process took in the stage; the plan foretells it."""
    return {"peak_memory_bytes": peak_memory(context.recipe.run.device)}


def _source(context: StageContext, file: str) -> str:
    """Return the source that a cleaned text was made from."""
    kept = context.store.read(context.stage.needs["text"])
    names = {one["place"]: one["name"] for one in kept["result"]["sources"]} if kept else {}
    return str(names.get(Path(file).parent.name, file))
