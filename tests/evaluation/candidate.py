"""A tiny model with a tokenizer, and a task of the tests' own, as the engine takes them."""

import copy
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from layerlab.loading.model import LoadedModel
from layerlab.tokenization.train import train_bpe

LEAF = "layerlab_own_a"
READER = """
import json
from pathlib import Path

def load(**_):
    from datasets import Dataset
    rows = json.loads((Path(__file__).parent / "rows.json").read_text("utf-8"))
    return {name: Dataset.from_list(found) for name, found in rows.items()}

def mark(doc, results):
    best = max(range(len(results)), key=lambda place: results[place][0])
    return {"score": float(best == doc["gold"])}

def written(doc, results):
    return {"score": float(doc["prompt"][0] in results[0]), "abstained": float(not results[0])}
"""
COMMON = """
task: {leaf}
custom_dataset: !function reader.load
test_split: test
fewshot_split: dev
fewshot_config: {{sampler: first_n}}
num_fewshot: {shots}
description: "Instruction.\\n\\n"
doc_to_text: prompt
doc_to_target: {target}
target_delimiter: ""
metadata: {{version: 1}}
metric_list:
  - {{metric: score, aggregation: mean, higher_is_better: true}}
"""
CHOICE = """
output_type: multiple_choice
doc_to_choice: choices
process_results: !function reader.mark
"""
WRITTEN = """
  - {metric: abstained, aggregation: mean, higher_is_better: false}
output_type: generate_until
process_results: !function reader.written
generation_kwargs: {until: ["\\n"], do_sample: false, max_gen_toks: 8}
"""


class Writing(NamedTuple):
    """A text to be gone on with."""

    doc_id: int
    args: tuple[str, dict[str, Any]]
    request_type: str = "generate_until"


def writings(prompts: Sequence[str], tokens: int, **options: Any) -> list[Writing]:
    """Texts to be gone on with up to the end of a line, and for so many tokens at most."""
    options = {"until": ["\n"], "do_sample": False, "max_gen_toks": tokens, **options}
    return [Writing(place, (text, dict(options))) for place, text in enumerate(prompts)]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    text = "Which number comes after one? Answer: A. two B. three C. four\n"
    return train_bpe([text] * 3, vocab=300)


def with_begin(template: str = "{name} $A") -> PreTrainedTokenizerFast:
    """The tokenizer, with a token that it puts before every text, or elsewhere."""
    words = copy.deepcopy(tokenizer())
    words.bos_token = words.eos_token
    name, number = str(words.bos_token), words.bos_token_id
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template.format(name=name), special_tokens=[(name, number)]
    )
    return words


def candidate(context: int = 256, **changes: Any) -> LoadedModel:
    """A random Llama, the same each time."""
    sizes = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "initializer_range": 0.2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).eval()
    return LoadedModel(name="tiny", source="memory", model=model, tokenizer=tokenizer())


def question(place: int, *, words: int = 2, options: Sequence[str] = (" A", " B", " C")) -> Any:
    text = " ".join(["number"] * words)
    return {
        "prompt": f"{place}: which {text} comes after {place}? Answer:",
        "choices": list(options),
        "gold": place % len(options),
    }


def task_folder(
    folder: Path,
    rows: Sequence[Any],
    *,
    shots: int = 3,
    kind: str = CHOICE,
) -> Path:
    """A folder with one task: the first five rows are its examples."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"dev": list(rows[:5]), "test": list(rows[5:])}
    (folder / "rows.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "reader.py").write_text(READER, encoding="utf-8")
    target = "gold" if kind is CHOICE else "prompt"
    head = COMMON.format(leaf=LEAF, shots=shots, target=target)
    (folder / "own.yaml").write_text(head + kind, encoding="utf-8")
    return folder
