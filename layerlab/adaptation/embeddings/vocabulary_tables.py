"""Finds what else in a model has a row for each token, and checks that a resize left none behind.

Some families keep more tables by token ids than embedding and head: one for every layer, one that
routes tokens to experts, a bias of the logits. A family itself says which: those that are longer
in a model that is built with one token more. What goes by ids in another way, as a hash of them
does, is found by its effect: the logits of tokens that both tokenizers have.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from layerlab.adaptation.embeddings.special_tokens import list_ids
from layerlab.errors import UserError
from layerlab.loading.batching import SLACK
from layerlab.observe.architecture.structure import context_length
from layerlab.records.parse import one_line
from layerlab.system.logs import quiet_libraries
from layerlab.system.offload import running_device
from layerlab.system.rng import keep_device_state
from layerlab.system.torch_settings import evaluation_mode

# Tokens of the text whose logits are compared.
TOKENS = 24
# What else a configuration calls the number of tokens, besides names that begin with it.
_COUNTS = ("decoder_vocab_size", "output_vocab_size", "unpadded_vocab_size")


class TokenTable(NamedTuple):
    """A tensor with an entry for each token.

    Attributes:
        path: of the module that holds it.
        module: itself.
        key: its name there.
        values: before any resize.
        dim: along which the tokens lie.
    """

    path: str
    module: Any
    key: str
    values: Tensor
    dim: int


def set_vocabulary(config: Any, rows: int, before: int) -> None:
    """Write the number of rows into a configuration, wherever it says how many there are."""
    inner = config.get_text_config()
    inner.vocab_size = rows
    for one in (config, inner):
        for name, value in list(vars(one).items()):
            counts = name.startswith("vocab_size") or name in _COUNTS
            if counts and isinstance(value, int) and (one is inner or value == before):
                setattr(one, name, rows)


def find_tables(model: Any, rows: int) -> list[TokenTable]:
    """Return all tables by token ids, embedding and head among them.

    Args:
        rows: of the embedding.

    Raises:
        UserError: the model's configuration alone does not build it.
    """
    config = copy.deepcopy(model.config)
    set_vocabulary(config, rows + 1, rows)
    try:
        with quiet_libraries(), keep_device_state(), torch.device("meta"):
            longer = type(model)(config).state_dict()
    except Exception as error:  # whatever a family does with what stands there
        raise _refusal(model, f"its configuration does not build it: {one_line(error)}") from error
    found = []
    for path, module in model.named_modules():
        for key, values in [*module._parameters.items(), *module._buffers.items()]:
            other = longer.get(f"{path}.{key}" if path else key)
            if values is None or other is None or other.dim() != values.dim():
                continue
            grown = [one - two for one, two in zip(other.shape, values.shape, strict=True)]
            if sorted(grown) == [0] * (len(grown) - 1) + [1]:
                found.append(TokenTable(path, module, key, values, grown.index(1)))
    return found


def swap(model: Any, old: Tensor, new: Tensor) -> None:
    """Put a tensor into the place of another, wherever a model holds that one."""
    if isinstance(old, nn.Parameter):
        new = nn.Parameter(new, requires_grad=old.requires_grad)
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for key in [key for key, one in held.items() if one is old]:
                held[key] = new
                if isinstance(module, nn.Embedding):
                    module.num_embeddings = len(new)


class KeptLogits:
    """The logits of tokens that two tokenizers have, before a model is given the other one."""

    def __init__(self, model: Any, kept: Sequence[int], tables: Sequence[TokenTable]) -> None:
        """Read a few of the tokens.

        Args:
            kept: the old id of each token of the new tokenizer; -1 where it has none.
            tables: that will be moved.

        Raises:
            UserError: the model cannot read them.
        """
        known = torch.tensor([(new, old) for new, old in enumerate(kept) if old >= 0])
        self.model, (self.now, self.kept) = model, known.T
        self.moved = {table.path for table in tables}
        special = list_ids(model)
        plain = [place for place, old in enumerate(self.kept.tolist()) if old not in special]
        plain = plain or [*range(len(self.kept))]
        most = min(TOKENS, context_length(model) or TOKENS)
        read = plain[:: -(-len(plain) // most)]
        self.tokens = self.now[read]
        self.before, self.looked_up = self._read(model, self.kept[read])

    def check(self) -> None:
        """Check that logits are what they were, also in the model as it would be saved.

        Raises:
            UserError: they are not, or the model can no longer be called, or not be loaded.
        """
        models = {"": self.model}
        # There is no second one of what lies on a disk or on several devices.
        places = {weight.device for weight in self.model.parameters()}
        if len(places) == 1:
            models["saved and loaded again, "] = _reload(self.model)
        for state, model in models.items():
            logits, looked_up = self._read(model, self.tokens)
            apart = self._distance(logits)
            if apart > SLACK.get(self.model.dtype, 2**-4):
                moved = [
                    name
                    for name, ids in self.looked_up.items()
                    if not torch.equal(ids, looked_up.get(name, ids[:0]))
                ]
                raise _refusal(
                    self.model,
                    f"{state}its logits for tokens that both tokenizers have would be off by "
                    f"{apart:.1%} of their spread, for {' and '.join(moved) or 'something in it'} "
                    "goes by token ids in a way that no moved row makes good",
                )

    def _distance(self, logits: Tensor) -> float:
        """Return how far logits are from those before, as a share of the spread of all before."""
        before, now = (
            torch.where(one.isfinite(), one, 0).double().cpu() for one in (self.before, logits)
        )
        apart = (now[:, self.now] - before[:, self.kept]).square().mean().sqrt()
        spread = (before - before.mean(-1, keepdim=True)).square().mean().sqrt()
        return float(apart / spread) if spread else float(apart > 0)

    @torch.no_grad()
    def _read(self, model: Any, tokens: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the logits of tokens, and what was looked up in tables that are not moved."""
        looked_up: dict[str, Tensor] = {}
        hooks = []
        for name, module in model.named_modules():
            if isinstance(module, nn.Embedding) and name not in self.moved:

                def keep(module: Any, args: Any, name: str = name) -> None:
                    if args and isinstance(args[0], Tensor):
                        looked_up[name] = args[0].detach().cpu()

                hooks.append(module.register_forward_pre_hook(keep))
        try:
            with quiet_libraries(), keep_device_state(), evaluation_mode(model):
                torch.manual_seed(0)  # some families hash at random
                ids = tokens[None].to(running_device(model))
                return model(input_ids=ids, use_cache=False).logits[0], looked_up
        except Exception as error:  # whatever a family does with these tokens
            raise _refusal(model, f"it cannot be called: {one_line(error)}") from error
        finally:
            for hook in hooks:
                hook.remove()


def _reload(model: Any) -> Any:
    """Return a model as it would be saved and loaded, with the same numbers in the same memory.

    Raises:
        UserError: it could not be loaded.
    """
    weights = model.state_dict()
    # Of a shape and a format alone, and nearly without memory, on whatever device the others are.
    blank = {
        name: torch.zeros((), dtype=one.dtype).expand(one.shape) for name, one in weights.items()
    }
    try:
        with quiet_libraries(), keep_device_state():
            found, report = type(model).from_pretrained(
                None,
                config=copy.deepcopy(model.config),
                state_dict=blank,
                dtype=model.dtype,
                attn_implementation=model.config._attn_implementation,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # whatever a family does with what stands in its configuration
        raise _refusal(model, f"it could not be loaded again: {one_line(error)}") from error
    for name, shape, other in report["mismatched_keys"]:
        raise _refusal(
            model,
            f"it could not be loaded again: {name} has the shape {tuple(shape)}, and by its "
            f"configuration {tuple(other)}",
        )
    found.load_state_dict(weights, strict=False, assign=True)
    return found.to(model.device)


def _refusal(model: Any, why: str) -> UserError:
    return UserError(
        f"{type(model).__name__} cannot be given this tokenizer: {why}; expected a tokenizer that "
        "keeps the ids of its tokens, or a model whose tables by token ids can be moved"
    )
