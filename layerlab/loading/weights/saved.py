"""Finds, checks and reads a saved model: from a folder or the Hub, safetensors only."""

import atexit
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from layerlab.console.tables import printable
from layerlab.errors import UserError
from layerlab.loading import options
from layerlab.loading.folder_checks import check_weights
from layerlab.loading.packed.packing import find_packing
from layerlab.loading.weights.weightless import (
    Outline,
    auto_class,
    check_method,
    check_number,
    is_quantized,
)
from layerlab.observe.architecture.packed_weights import decompress, read_parameters
from layerlab.records.parse import one_line, read_json
from layerlab.system.logs import listen, quiet_libraries
from layerlab.system.offload import find_quantized, is_offloaded
from layerlab.system.untrusted import trust
from layerlab.system.write_errors import explain_temporary, make_temporary
from layerlab.tokenization.load import load_folder
from layerlab.validation import short_repr

LABELS = 100_000  # more than any model has
# What transformers says of rotary positions whose numbers do not fit, or are not used.
ROPE = {"rope_type": "type"}  # what it was called before
REMARKS = ("`rope_parameters`", "Unrecognized keys")
_REMARKED: set[tuple[str, str]] = set()  # what was said of a folder, which is read several times
_LOG = logging.getLogger("layerlab")
# How transformers writes numbers that JSON does not have.
FLOAT, INFINITE = "__float__", ("NaN", "Infinity", "-Infinity")


def summary(card: str) -> str:
    """Return the first paragraph of a model card, without its front matter and title."""
    body = card.split("---\n", 2)[-1]
    paragraphs = [part for part in body.split("\n\n") if part.strip() and part.strip()[0] != "#"]
    return " ".join(paragraphs[0].split()) if paragraphs else ""


def configuration(folder: Path) -> Any:
    """Return the configuration in a folder.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    source = str(folder)
    try:
        config = read_json(folder / "config.json")
        _check_fields(config, str(folder / "config.json"))
        with _repeat_remarks(source):
            found = trust.load_pretrained(AutoConfig, source, local_files_only=True)
        _check_names(config, found, source)
        if (packing := find_packing(folder)) is None:
            check_method(found, source)
        else:
            packing.check_known(source)
            found.quantization_config = None  # it is unpacked before it is read
        if getattr(found, "transformers_weights", None) is not None:
            raise UserError(
                f"config.json in {source!r} names other weights (transformers_weights) than the "
                "*.safetensors beside it; put those there as model.safetensors, and leave the "
                "field out"
            )
        _remark_own_code(found, source)
        found.return_dict = True  # how an output is wrapped is no part of a model
        return found
    except UserError:
        raise
    except Exception as error:  # of a file whose fields may be of any type
        raise UserError(f"config.json in {source!r} cannot be read: {one_line(error)}") from error


def _check_fields(config: Any, file: str) -> None:
    """Refuse code on the Hub, other configurations, and numbers that no model has."""
    if isinstance(config, dict) and "configuration_files" in config:
        raise UserError(
            f"{file!r} names other configurations than itself (configuration_files); leave "
            "the field out, or put the one that is meant in its place"
        )
    for path, value in _values(config):
        name = path[-1]
        if isinstance(value, str):
            for one in path:
                if one.endswith("_implementation"):
                    trust.check_kernel(one, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if name == "num_labels" and value > LABELS:
                raise UserError(
                    f"num_labels is {short_repr(value)} in {file!r}; expected at most {LABELS:,}"
                )
            if "label2id" not in path:
                check_number(path, value, file)


def _check_names(config: Any, found: Any, source: str) -> None:
    """Refuse a field that stands there under two names with two values: one of them is not used."""
    pairs = [(name, own) for name, own in found.attribute_map.items() if name != own]
    for name, own in [*pairs, ("torch_dtype", "dtype")]:
        if name in config and own in config and config[name] != config[own]:
            raise UserError(
                f"{name} is {short_repr(config[name])} and {own} is {short_repr(config[own])} in "
                f"config.json in {source!r}, which are two names of one; leave one out"
            )
    _check_rope(config, getattr(found, "rope_parameters", None), source)
    for name in found.sub_configs:
        if isinstance(inner := config.get(name), dict) and hasattr(found, name):
            _check_names(inner, getattr(found, name), source)


def _check_rope(config: Mapping[str, Any], used: Any, source: str) -> None:
    """Refuse numbers of rotary positions that stand in two places and differ."""
    given = [config, config.get("rope_scaling"), config.get("rope_parameters"), used]
    # The kind is called otherwise where it is used.
    for name, places in (("rope_theta", given), ("factor", given), ("rope_type", given[1:3])):
        held = [one for one in places if isinstance(one, dict)]
        values = [one.get(name, one.get(ROPE.get(name))) for one in held]
        values = [one for one in values if one is not None]
        if any(one != values[0] for one in values):
            raise UserError(
                f"{name} is {' and '.join(map(short_repr, values))} in config.json in {source!r}; "
                "expected one: write it into rope_parameters alone"
            )


@contextmanager
def _repeat_remarks(source: str) -> Iterator[None]:
    """Say what transformers remarks on rotary positions, such as keys that it does not use."""
    with listen("transformers.modeling_rope_utils") as remarks:
        yield
    for one in remarks:
        if one.startswith(REMARKS):
            remark(source, one)


def _remark_own_code(config: Any, source: str) -> None:
    """Say that transformers' own model is read where a folder names another of its own."""
    mapped = getattr(config, "auto_map", None)
    own = mapped.get("AutoModelForCausalLM") if isinstance(mapped, dict) else None
    replaced = type(config).__module__.startswith("transformers.")  # ours is the one named
    if own is not None and replaced and "trust_remote_code" not in trust.granted_options():
        remark(
            source,
            f"it names a model of its own, {own}, which is not run: the {config.model_type} of "
            "transformers is read; --trust-remote-code runs it",
        )


def remark(source: str, text: str) -> None:
    """Remark on a configuration, once: it is read several times."""
    if (source, text) not in _REMARKED:
        _LOG.warning("config.json in %s: %s", printable(source), printable(text))
    _REMARKED.add((source, text))


def _values(config: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every text, number and truth value of a configuration, with the fields around it."""
    waiting: list[tuple[tuple[str, ...], Any]] = [(("config.json",), config)]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, dict) and part.keys() == {FLOAT} and part[FLOAT] in INFINITE:
            yield path, float(part[FLOAT])
        elif isinstance(part, dict):
            waiting += (((*path, name), value) for name, value in part.items())
        elif isinstance(part, list):
            waiting += ((path, value) for value in part)
        else:
            yield path, part


def weights(
    place: str, config: Any, device: str | None, dtype: torch.dtype | str, room: bool
) -> PreTrainedModel:
    """Load a model with its weights, spread over memory and disk where it does not fit.

    Args:
        room: whether it fits into memory.

    Raises:
        UserError: they are damaged, incomplete, or of another model.
    """
    # Sizes that differ are named below, and not by transformers.
    options: dict[str, Any] = {
        "use_safetensors": True,
        "dtype": dtype,
        "ignore_mismatched_sizes": True,
    }
    if dtype == torch.float64:  # the fused kernel of mixtures of experts knows no float64
        options["experts_implementation"] = "eager"
    if device == "auto" or (device is None and not room):
        options["device_map"] = "auto"
        options["offload_folder"] = _scratch()
    elif device is not None:  # straight from the files, without a copy in memory
        options["device_map"] = torch.device(device)
    scratch = options.get("offload_folder")
    try:
        with explain_temporary(scratch) if scratch else nullcontext():
            model, loading = trust.load_pretrained(
                auto_class(config), place, config=config, output_loading_info=True, **options
            )
    except OSError as error:
        message = f"no safetensors weights for {place!r} could be read: {one_line(error)}"
        raise UserError(message) from error
    except SafetensorError as error:
        raise UserError(
            f"the weights of {place!r} are damaged ({error}); copy them anew"
        ) from error
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever stands in the files beside the weights
        message = f"the weights of {place!r} do not fit its config.json: {one_line(error)}"
        # A method of quantization may want a package, or a GPU.
        if isinstance(error, ImportError) or is_quantized(config):
            package = error.name if isinstance(error, ImportError) else None
            install = f"; type pip install {package.partition('.')[0]}" if package else ""
            message = f"{place!r} cannot be loaded here: {one_line(error)}{install}"
        raise UserError(message) from error
    _check_loaded(loading, f"the weights of {place!r}", type(model).__name__)
    _check_tied(model, place)
    if not is_offloaded(model):
        decompress(model)
    if is_quantized(config) and not hasattr(model, "hf_quantizer"):
        model._weight_conversions = None  # else it would be saved as if it were packed again
    return model.eval()


def check_stored(bare: PreTrainedModel, place: str, stored: Mapping[str, Outline]) -> None:
    """Refuse weights that stay on the disk and are not those of the model; none is read.

    What transformers renames and joins while it loads is renamed and joined here too.

    Args:
        bare: the model without weights, on the meta device.

    Raises:
        UserError: they lack tensors, have others, or other sizes.
    """
    outlines = {name: torch.empty(one.shape, device="meta") for name, one in stored.items()}
    try:
        loaded: Any = type(bare).from_pretrained(
            None,
            config=bare.config,
            state_dict=outlines,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # whatever stands in the files beside the weights
        message = f"the weights of {place!r} do not fit its config.json: {one_line(error)}"
        raise UserError(message) from error
    _check_loaded(loaded[1], f"the weights of {place!r}", type(bare).__name__)


def check_plain(config: Any, source: str) -> None:
    """Refuse to read weights from the disk that are not the numbers which the model computes with.

    Raises:
        UserError: they are quantized.
    """
    if is_quantized(config):
        raise UserError(
            f"the weights of {source!r} are quantized, and what lies on the disk is not what the "
            "model computes with; expected enough memory to load it, or a model in floating point"
        )


def load_saved(folder: Path, dtype: torch.dtype | str = "auto") -> PreTrainedModel:
    """Return a model that was saved in a folder, by default in the precision that it names.

    Raises:
        UserError: it has no weights that are safe to read, or they are damaged, incomplete, or of
            another model.
    """
    check_weights(folder)
    with quiet_libraries():
        return weights(str(folder), configuration(folder), None, dtype, room=True)


def check_changeable(model: PreTrainedModel) -> None:
    """Refuse to change a model that is quantized, or whose weights are not all numbers.

    Raises:
        UserError: it is such a model.
    """
    quantizer, found = getattr(model, "hf_quantizer", None), find_quantized(model)
    if quantizer is not None:
        found = str.__str__(quantizer.quantization_config.quant_method)
    if found is not None:
        raise UserError(
            f"{type(model).__name__} is quantized ({found}), and packed weights cannot be changed;"
            " expected a model in floating point, as that which it was made from"
        )
    check_finite(model)


@torch.no_grad()  # a weight that was made in the inference mode takes part in nothing else
def check_finite(model: PreTrainedModel) -> None:
    """Refuse a model whose weights are not all numbers; one of them spoils every output.

    Raises:
        UserError: names the first tensor that holds NaN or an infinite number.
    """
    for name, tensor in read_parameters(model):
        if not tensor.is_floating_point():
            continue
        # PyTorch does not look at numbers of 8 bits.
        sound = torch.isfinite(tensor.float() if tensor.dtype.itemsize == 1 else tensor)
        if not bool(sound.all()):
            count = int((~sound).sum())
            raise UserError(
                f"the weight {name} holds {count:,} of {tensor.numel():,} numbers that are NaN or "
                "infinite, so that every output would be; expected a model whose weights are all "
                "finite: copy it anew, or take an earlier checkpoint"
            )


def _check_loaded(loading: Mapping[str, Any], what: str, kind: str) -> None:
    """Refuse a model whose weights are not all those stored."""
    if missing := sorted(loading["missing_keys"]):
        raise UserError(
            f"{what} lack {len(missing)} tensors of {kind} (first: {missing[0]}); they would be "
            "random"
        )
    if differ := sorted(loading["mismatched_keys"]):
        name, stored, asked = differ[0]
        mend = ""
        if name.endswith("weight_zero_point"):  # compressed-tensors asks for unpacked ones
            mend = '; write "dequantize": true into the quantization_config'
        raise UserError(
            f"{what} do not fit its config.json: {name} is stored as {tuple(stored)}, and "
            f"{tuple(asked)} is asked for ({len(differ)} tensors differ){mend}"
        )
    if (left := sorted(loading["unexpected_keys"])) and not trust.allows_unused():
        raise UserError(
            f"{what} hold {len(left)} tensors that its config.json has no place for (first: "
            f"{left[0]}), so another model would be looked at than was stored; mend config.json, "
            "or type --allow-unused (in Python allow_unused=True)"
        )


def _check_tied(model: PreTrainedModel, source: str) -> None:
    """Refuse two stored weights that differ where the configuration says that they are one."""
    left = model.get_expanded_tied_weights_keys(all_submodels=True)
    for name in left.keys() - model.all_tied_weights_keys.keys():
        raise refuse_tied(name, left[name], source)


def refuse_tied(one: str, other: str, source: str) -> UserError:
    """Return the refusal of two stored weights that are one in the configuration."""
    return UserError(
        f"{one} and {other} are one weight in config.json of {source!r} and two that "
        "differ among its weights; expected both to say the same: write tie_word_embeddings = "
        "false to use both as they are stored, or take the first out of the file"
    )


def _scratch() -> str:
    """Return a temporary folder for weights that do not fit into memory."""
    folder = make_temporary(partial(tempfile.TemporaryDirectory, prefix="layerlab-offload-"))
    atexit.register(folder.cleanup)
    return folder.name


def check_present(device: str | None) -> None:
    """Refuse a device that holds no number.

    Raises:
        UserError: it is not here, full or busy.
    """
    if device in (None, "auto"):
        return
    try:
        torch.zeros(1, device=device).item()  # meta devices hold no numbers
    except (RuntimeError, AssertionError) as error:
        raise options.refuse_device(device, error) from error


def tokenizer_of(source: str) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer beside the model, or None: it matters only when text is read."""
    try:
        found: PreTrainedTokenizerBase = load_folder(Path(source), source)
        return found
    except UserError:
        raise
    except Exception:  # every tokenizer library raises its own kind
        return None
