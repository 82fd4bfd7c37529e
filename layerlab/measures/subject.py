"""The model under inspection: found, checked, loaded, and described.

A name is a built-in model, a folder, or a Hub id. Weights are read from safetensors only. A model
that does not fit into memory is spread by accelerate over what there is, disk included.
"""

import atexit
import hashlib
import logging
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate import init_empty_weights
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from layerlab import UserError, builtin
from layerlab.measures.anatomy import Anatomy, anatomy, text_config
from layerlab.measures.measure import NotApplicable
from layerlab.measures.series import step
from layerlab.measures.storage import skeleton

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
MEMORY_SHARE = 0.8


@dataclass(kw_only=True)
class Subject:
    """One loaded model, its tokenizer, and what a report says about it.

    Attributes:
        name: how the report calls it.
        source: where it came from: a folder, a Hub id, or "memory".
        stored: the weights are left on disk, and only measures of weights can be read.
        stack: the parts that a trace listens to, or the reason why there are none.
    """

    name: str
    source: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    folder: Path | None = None
    revision: str | None = None
    card: str | None = None
    stored: bool = False
    stack: Anatomy | str = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.stack = anatomy(self.model)
        except NotApplicable as reason:
            self.stack = str(reason)

    @property
    def config(self) -> Any:
        return text_config(self.model)

    @property
    def context(self) -> int | None:
        """The longest input in tokens, None where positions have no end."""
        for name in ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length"):
            if isinstance(length := getattr(self.config, name, None), int) and length > 0:
                return length
        return None

    @property
    def place(self) -> str:
        """Where the weights are."""
        if self.stored:
            return "disk"
        return "offloaded" if self.offloaded else str(self.model.device)

    @property
    def entries(self) -> int:
        """How many tokens the input embedding knows."""
        embedding: Any = self.model.get_input_embeddings()
        return int(embedding.weight.shape[0])

    @property
    def offloaded(self) -> bool:
        """Whether some weights lie outside the device that computes."""
        places = getattr(self.model, "hf_device_map", {}).values()
        return any(str(place) in ("cpu", "disk") for place in places) and len(set(places)) > 1

    def facts(self) -> dict[str, Any]:
        """What the report's card says."""
        config, model = self.config, self.model
        heads = getattr(config, "num_attention_heads", None)
        width = getattr(config, "hidden_size", None)
        known = not isinstance(self.stack, str)
        return {
            "name": self.name,
            "source": self.source,
            "revision": self.revision,
            "weights_hash": weights_hash(self),
            "family": model.config.model_type,
            "class": type(model).__name__,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "layers": len(self.stack.blocks) if known else None,  # type: ignore[union-attr]
            "attention_layers": len(self.stack.attentions) if known else 0,  # type: ignore[union-attr]
            "width": width,
            "heads": heads,
            "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
            "head_width": getattr(config, "head_dim", None)
            or (width // heads if width and heads else None),
            "vocab": getattr(config, "vocab_size", None),
            "context": self.context,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": self.place,
            "attention": model.config._attn_implementation,
            "step": step(self.source),
            "card": self.card,
        }


def subject(
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    weights_only: bool = False,
) -> Subject:
    """Load what the user named.

    Args:
        weights_only: a model that does not fit into memory may stay on disk.

    Source: Own.

    Raises:
        UserError: nothing by that name, no safe weights, not a causal language model, ...
    """
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if isinstance(model, PreTrainedModel):
        return _loaded(model, tokenizer, device, dtype)
    if not isinstance(model, (str, Path)):
        raise UserError(
            f"model is a {type(model).__name__}; expected a Hub id, a folder, a built-in name "
            f"({', '.join(builtin.NAMES)}) or a transformers PreTrainedModel"
        )
    return _named(str(model), tokenizer, device, dtype, weights_only)


def _loaded(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    device: str | None,
    dtype: str | None,
) -> Subject:
    """A model that the caller holds; moving or casting it would change what is theirs."""
    if device is not None or dtype is not None:
        raise UserError(
            "device= and dtype= load a model; this one is loaded: call model.to(...) before"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise UserError(
            f"{type(model).__name__} is an encoder-decoder, which needs two texts; give "
            "its decoder as a causal language model, or another decoder"
        )
    name = model.config._name_or_path or type(model).__name__
    return Subject(name=Path(name).name, source="memory", model=model, tokenizer=tokenizer)


def _named(
    name: str,
    tokenizer: PreTrainedTokenizerBase | None,
    device: str | None,
    dtype: str | None,
    weights_only: bool,
) -> Subject:
    built_in = name in builtin.NAMES and not Path(name).is_dir()
    place = str(builtin.path(name)) if built_in else name
    folder = Path(place) if Path(place).is_dir() else None
    if folder is None and Path(place).exists():
        raise UserError(f"{place!r} is a file; expected the folder that holds config.json")
    if folder is not None:
        _check_weights(folder)
    with _quiet():
        config = _config(place, folder)
        _check_causal(config, name)
        kind = _dtype(config, dtype)
        stored = weights_only and folder is not None and not _fits(config, kind)
        model = skeleton(folder) if folder and stored else _weights(place, config, device, kind)
        words = tokenizer if tokenizer is not None else _tokenizer(place)
    card = _summary((folder / "README.md").read_text("utf-8")) if built_in and folder else None
    return Subject(
        name=name if folder is None or built_in else folder.resolve().name,
        source=name if built_in else place,
        model=model,
        tokenizer=words,
        folder=folder,
        revision=getattr(model.config, "_commit_hash", None),
        card=card,
        stored=stored,
    )


def _summary(card: str) -> str:
    """The first paragraph of a model card, without its front matter and title."""
    body = card.split("---\n", 2)[-1]
    paragraphs = [part for part in body.split("\n\n") if part.strip() and part.strip()[0] != "#"]
    return " ".join(paragraphs[0].split()) if paragraphs else ""


def _check_weights(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise UserError(f"{str(folder)!r} has no config.json; expected a saved transformers model")
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"{str(folder)!r} has only pickled weights ({pickles[0]}), which can run code when "
            "read; save them with model.save_pretrained(FOLDER) in a place that you trust"
        )
    raise UserError(
        f"{str(folder)!r} has a config.json but no weights; expected *.safetensors beside it"
    )


def _config(place: str, folder: Path | None) -> Any:
    try:
        return AutoConfig.from_pretrained(place)
    except (OSError, ValueError) as error:
        if folder is not None:
            line = " ".join(str(error).split())[:200]
            raise UserError(f"config.json in {place!r} cannot be read: {line}") from error
        raise UserError(
            f"{place!r} is neither a folder, nor a built-in model "
            f"({', '.join(builtin.NAMES)}), nor could it be fetched from the Hub; "
            "check the spelling and the network, or give a local folder"
        ) from error


def _check_causal(config: Any, name: str) -> None:
    kinds = config.architectures or []
    causal = type(config) in AutoModelForCausalLM._model_mapping or "AutoModelForCausalLM" in (
        getattr(config, "auto_map", None) or {}
    )
    other = [kind for kind in kinds if not re.search("CausalLM|LMHead|ForConditional", kind)]
    if causal and not (kinds and len(other) == len(kinds)):
        return
    what = kinds[0] if kinds else config.model_type
    raise UserError(
        f"{name!r} is a {what}, not a causal language model; expected a decoder "
        "such as GPT-2, Llama or Qwen"
    )


def _dtype(config: Any, asked: str | None) -> torch.dtype | str:
    """As asked, else as stored; no CPU computes well in float16."""
    if asked is not None:
        return DTYPES[asked]
    return torch.float32 if config.dtype == torch.float16 else "auto"


def _weights(
    place: str, config: Any, device: str | None, dtype: torch.dtype | str
) -> PreTrainedModel:
    options: dict[str, Any] = {"use_safetensors": True, "dtype": dtype}
    if device == "auto" or (device is None and not _fits(config, dtype)):
        options["device_map"] = "auto"
        options["offload_folder"] = _scratch()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place, config=config, output_loading_info=True, **options
        )
        model, loading = loaded
    except OSError as error:
        line = " ".join(str(error).split())[:200]
        raise UserError(f"no safetensors weights for {place!r} could be read: {line}") from error
    except SafetensorError as error:
        raise UserError(
            f"the weights of {place!r} are damaged ({error}); copy them anew"
        ) from error
    except (RuntimeError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise UserError(f"the weights of {place!r} do not fit its config.json: {line}") from error
    if missing := sorted(loading["missing_keys"]):
        raise UserError(
            f"the weights of {place!r} lack {len(missing)} tensors of {type(model).__name__} "
            f"(first: {missing[0]}); they would be random"
        )
    if device not in (None, "auto"):
        model.to(_device(device))
    return model.eval()


def _scratch() -> str:
    """A folder for weights that do not fit, gone when the program ends."""
    folder = tempfile.TemporaryDirectory(prefix="layerlab-offload-")
    atexit.register(folder.cleanup)
    return folder.name


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device {name!r} is not here; expected cpu, cuda, cuda:N, mps or auto"
        ) from error
    return device


def _fits(config: Any, dtype: torch.dtype | str) -> bool:
    """Whether the weights take less than most of the free memory."""
    with init_empty_weights():
        empty = AutoModelForCausalLM.from_config(config)
    kind = dtype if isinstance(dtype, torch.dtype) else (config.dtype or torch.float32)
    needed = sum(parameter.numel() for parameter in empty.parameters()) * kind.itemsize
    return needed < MEMORY_SHARE * psutil.virtual_memory().available


def _tokenizer(place: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside the model; a missing one matters only when text has to be read."""
    try:
        return AutoTokenizer.from_pretrained(place)
    except Exception:  # every tokenizer library raises its own kind
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Loading without transformers' own bars and warnings: ours say what matters."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def weights_hash(subject: Subject) -> str | None:
    """sha256 of the weights: of the files in order of name, or of the tensors in memory.

    Source: Own.
    """
    digest = hashlib.sha256()
    if subject.folder is not None:
        for path in sorted(subject.folder.glob("*.safetensors")):
            with path.open("rb") as file:
                while block := file.read(1 << 22):
                    digest.update(block)
        return f"sha256:files:{digest.hexdigest()}"
    if subject.offloaded:
        return None
    for name, tensor in sorted(subject.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return f"sha256:tensors:{digest.hexdigest()}"
