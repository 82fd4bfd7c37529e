"""The text and the model of a run."""

from collections.abc import Mapping

import torch

from layerlab import plugins
from layerlab.corpus.corpus import Corpus, prepare
from layerlab.errors import UserError
from layerlab.model.build import assemble, compile_layers
from layerlab.model.modeling import LabForCausalLM
from layerlab.system.hardware import keep_compiled_code
from layerlab.training.run_spec import RunSpec, design_model
from layerlab.variants.registry import code_beside


def load_corpus(run: RunSpec) -> Corpus:
    """Load the corpus that a run was planned on.

    Raises:
        UserError: the text has changed since.
    """
    corpus = prepare(run.recipe.data)
    if corpus.digest != run.digest:
        raise UserError(
            f"the text of {run.name} is no longer what it was planned on; "
            "put the text back, or type the command that planned it again"
        )
    return corpus


def build_model(run: RunSpec, device: torch.device) -> LabForCausalLM:
    """Build the model of a run, with its first weights."""
    plugins.load_named(run.recipe.model.load)
    found = design_model(run.recipe)
    _check_code(run, code_beside(found.spec))
    model = assemble(found.variant.name, found.spec, found.shape, seed=run.seed, base=found.base)
    torch.nn.Module.to(model, device)
    train = run.recipe.train
    if train.torch_compile or train.attn_implementation == "flex_attention":
        keep_compiled_code()
    set_attention(model, train.attn_implementation)
    if train.torch_compile:
        compile_layers(model.model.layers)
    return model.train()


def _check_code(run: RunSpec, code: Mapping[str, str]) -> None:
    """Refuse to train with other code than a run was planned with.

    Raises:
        UserError: a plug-in, or a module that one of the recipe's files imports, has changed.
    """
    names = {*run.code, *code}
    changed = sorted(name for name in names if run.code.get(name) != code.get(name))
    if changed:
        raise UserError(
            f"the code of {run.name} is no longer what it was planned with ({', '.join(changed)}); "
            "put it back, or type the command that planned it again"
        )


def set_attention(model: LabForCausalLM, name: str) -> None:
    """Set the attention implementation that a recipe asks for.

    Raises:
        UserError: what it needs is not installed.
    """
    try:
        model.set_attn_implementation(name)
    except (ImportError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"train.attn_implementation is {name!r}, which cannot be had here: {reason}; "
            'write attn_implementation = "sdpa"'
        ) from error
