"""`layerlab.retrofit`: a pretrained model rebuilt as a variant, with its weights."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from layerlab.loading.model import load_model
from layerlab.loading.weights.saved import check_changeable
from layerlab.model.modeling import LabForCausalLM
from layerlab.model.surgery.retrofit import rebuild, step0
from layerlab.plugins import load_files
from layerlab.system.files import File, Standing, write_folder
from layerlab.system.logs import quiet_libraries
from layerlab.system.torch_settings import usual_arithmetic
from layerlab.system.untrusted.trust import trust


@usual_arithmetic()
def retrofit(
    model: Any,
    variant: Any = None,
    *,
    seed: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    shared: bool = False,
    load: File | Iterable[File] = (),
    trust_remote_code: bool = False,
    allow_unused: bool = False,
    **options: Any,
) -> LabForCausalLM:
    """Rebuild a pretrained Llama, Mistral, Qwen, GPT-2 or GPT-1 as a variant, with its weights.

    Variants that start as the identity give the same logits before any training; `Step0` of
    `layerlab.model.surgery.retrofit` says how far others are. Of a variant with a baseline of
    another kind (pangu-pi on GPT-2), only what it changes of that baseline is carried over. Learned
    positions begin at the first token that is not padding; GPT-2 and GPT-1 count padding on the
    left where they are given no position_ids.

    Args:
        model: a Hub id, a local folder, a built-in name, or a loaded `PreTrainedModel`, which stays
            as it is.
        variant: its name; the reference variant with equal logits if left out.
        seed: from which parameters that the model does not have are drawn.
        device: where the model is loaded.
        dtype: of the loaded weights; that of its config.json if left out.
        shared: save memory by sharing weights with a loaded `PreTrainedModel` where nothing has to
            be transposed: training the result then changes that model too.
        load: Python files with variants of your own.
        trust_remote_code: run Python that a model brings along; read it before.
        allow_unused: leave weights out that the model's configuration has no place for.
        options: as `build` takes them.

    Raises:
        UserError: a family that cannot be rebuilt, a variant that does not fit it, weights that
            are not finite, or a loaded model that was changed (an adapter, pruning, layers cut
            off, a hook), so that it computes something else than its configuration says.

    Example:
        >>> retrofit("llama", "as-32").config.variant
        'as-32'
    """
    load_files(load, [] if isinstance(model, PreTrainedModel) else [str(model)])
    with trust(trust_remote_code, allow_unused=allow_unused):
        source = load_model(model, device=device, dtype=dtype).model
    check_changeable(source)
    alone = not isinstance(model, PreTrainedModel)  # nobody else holds what was loaded here
    with quiet_libraries():
        return rebuild(source, variant, options, seed=seed, shared=shared or alone)


def rework(
    model: str,
    variant: str | None,
    options: Mapping[str, Any],
    *,
    out: Path,
    before: Standing | None = None,
    seed: int = 0,
    device: str | None = None,
    dtype: str | None = None,
) -> str:
    """Retrofit a saved model into a folder, with its tokenizer, and say in words what was done.

    Args:
        before: as `write_folder` takes it.

    Raises:
        UserError: as `retrofit`, or the folder cannot be written.
    """
    source = load_model(model, device=device, dtype=dtype)
    check_changeable(source.model)
    with quiet_libraries():
        new = rebuild(source.model, variant, options, seed=seed, shared=True)
        summary = step0(source.model, new)

        def fill(folder: Path) -> None:
            new.save_pretrained(folder)
            if source.tokenizer is not None:
                source.tokenizer.save_pretrained(folder)

        write_folder(out, fill, "model", before=before)
    return summary.summary(source.name, new.config.variant, str(out))
