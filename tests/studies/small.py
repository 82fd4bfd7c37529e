"""Small random models that studies are asked about, as a user names them, and what is drawn."""

import json

import torch

from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.given_models import load_given
from layerlab.studies.engine.sampling import RUNS, Sampler, StudyContext

QUICK = {"fast": True, "progress": False, "threads": 1}
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
GPT = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}
FAMILIES = {
    "gpt2": GPT,
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen3": {**LLAMA, "head_dim": 8},
    "gptj": {**GPT, "rotary_dim": 4},
    "openai-gpt": {**GPT, "n_layer": 2},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    # Held out: no study was written with one of these at hand.
    **dict.fromkeys(("qwen2", "phi", "olmo2"), LLAMA),
    "gemma2": {**LLAMA, "head_dim": 8},
    "gpt_neox": {name: value for name, value in LLAMA.items() if "key_value" not in name},
}


def made(family, **changes):
    """A random model of a family, with as many entries as the built-in tokenizer has."""
    from transformers import AutoConfig, AutoModelForCausalLM

    options = {"vocab_size": 512, "bos_token_id": 0, "eos_token_id": 0, **FAMILIES[family]}
    config = AutoConfig.for_model(family, **{**options, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


def drawing(count=1, seed=0, **given):
    """So many draws, the first of a seed, of models by their names."""
    return Sampler(count=count, generator=torch.Generator().manual_seed(seed), given=given)


def context(runs=RUNS, **changes):
    """What a study computes in, where nothing but what is given matters."""
    plain = {"study": "x", "draws": 2, "seed": 0, "options": {}, "threads": 1, "code": ""}
    return StudyContext(runs=runs, **{**plain, **changes})


def given_of(name, **given):
    found = studies()[name]
    return load_given(found, {**found.options, **found.fast}, **given)


def change_json(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
