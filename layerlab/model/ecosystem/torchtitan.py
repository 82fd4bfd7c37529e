"""layerlab's models in torchtitan: its trainer and checkpoints, data parallel by FSDP2.

torchtitan's own backend for Hugging Face looks classes up in transformers alone, and draws weights
with a deviation of 1. What it takes from anywhere is a module, such as this one.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import TORCH_DTYPE_MAP, ParallelismConfig
from torchtitan.distributed.fsdp import get_fsdp_reshard_after_forward_policy
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.protocols.model import BaseModel
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.protocols.state_dict_adapter import StateDictAdapter
from torchtitan.trainer import Trainer

from layerlab.errors import UserError
from layerlab.model.build import compile_layers
from layerlab.model.config import LabConfig
from layerlab.model.cost.cost import account
from layerlab.model.modeling import LabForCausalLM
from layerlab.records.parse import read_json
from layerlab.variants.registry import require

BACKEND = "partial_dtensor"
ONE = ("tensor", "context", "pipeline", "expert")


class TitanModel(BaseModel):
    """A model as torchtitan builds, shards and calls it."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseModel.Config):
        """The configuration that lies in the folder of `hf_assets_path`."""

        folder: str = ""

        def update_from_config(self, *, config: Any, **_: Any) -> None:
            """Take the folder of a run, and refuse settings that the model cannot be trained by.

            Raises:
                UserError: no model of layerlab lies in the folder, or one whose code is not
                    loaded; more tokens than its context, muP, or other than data parallelism.
            """
            self.folder = config.hf_assets_path
            _check_folder(Path(self.folder))
            held = LabConfig.from_pretrained(self.folder)
            require(held.files or {}, self.folder)
            _check(held, config.training, config.parallelism)

        def get_nparams_and_flops(self, model: Any, seq_len: int) -> tuple[int, int]:
            """Return the number of parameters, and the FLOPs of a token's update."""
            config = model.model.config
            counted = account(config.parse_spec(), replace(config.shape(), context=seq_len))
            parameters = sum(one.numel() for one in model.parameters())
            return parameters, counted.forward + counted.backward

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = LabForCausalLM(LabConfig.from_pretrained(config.folder))

    @property
    def layers(self) -> Any:
        """Return the layers, which torchtitan compiles and recomputes one by one."""
        return self.model.model.layers

    def get_submodule(self, target: str) -> Any:
        """Return a module by its name, the layers also by that under which torchtitan asks."""
        return self.layers if target == "layers" else super().get_submodule(target)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the logits; where positions start anew, so does a document."""
        logits: Tensor = self.model(tokens, position_ids=positions, use_cache=False).logits
        return logits

    def init_states(self, *, buffer_device: torch.device | None = None) -> None:
        """Draw all weights as `build` does; each process keeps its part."""
        self.model.initialize_weights()
        self.model.tie_weights()
        for module in self.modules():  # weights may lie on the CPU between updates; these do not
            for name, held in module.named_buffers(recurse=False):
                setattr(module, name, held.to(buffer_device))

    def verify_module_protocol(self) -> None:
        """Let modules be that are none of torchtitan's."""


class TitanAdapter(StateDictAdapter):
    """The names of weights in torchtitan, and in the files that `from_pretrained` reads."""

    def __init__(self, model_config: Any, hf_assets_path: str | None) -> None:
        super().__init__(model_config, hf_assets_path)
        with torch.device("meta"):
            model = LabForCausalLM(LabConfig.from_pretrained(model_config.folder))
        self.tied: dict[str, str] = model.all_tied_weights_keys

    def to_hf(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the weights of a file: each once."""
        named = {name.removeprefix("model."): held for name, held in state_dict.items()}
        return {name: held for name, held in named.items() if name not in self.tied}

    def from_hf(self, hf_state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the weights of a model: each under all of its names."""
        tied = {name: hf_state_dict[source] for name, source in self.tied.items()}
        return {f"model.{name}": held for name, held in {**hf_state_dict, **tied}.items()}


def shard_layers(
    model: TitanModel,
    *,
    parallel_dims: Any,
    training: Any,
    parallelism: Any,
    compile_config: Any,
    ac_config: Any,
    dump_folder: str,
) -> TitanModel:
    """Recompute, compile and share out the layers as the settings of a run say."""
    if ac_config is not None:
        ac_config.build(dump_folder=dump_folder).apply(model)
    if compile_config.enable and "model" in compile_config.components:
        compile_layers(model.layers, backend=compile_config.backend, fullgraph=True)
    copies = ["dp_replicate"] if parallel_dims.dp_replicate_enabled else []
    settings: dict[str, Any] = {
        "mesh": parallel_dims.get_mesh([*copies, "fsdp"]),
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=TORCH_DTYPE_MAP[training.mixed_precision_param],
            reduce_dtype=TORCH_DTYPE_MAP[training.mixed_precision_reduce],
            cast_forward_inputs=False,
        ),
        "reshard_after_forward": get_fsdp_reshard_after_forward_policy(
            parallelism.fsdp_reshard_after_forward, pp_enabled=False
        ),
    }
    if training.enable_cpu_offload:
        settings["offload_policy"] = CPUOffloadPolicy()
    borrowed = model.model.model._tied_weights_keys  # by layers that cannot be shared out apart
    for part in (*(() if borrowed else model.layers), model):
        sharded: Any = fully_shard(part, **settings)
        # Gradients are added up: the loss was divided by the tokens of all processes.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    return model


def _check_folder(folder: Path) -> None:
    try:
        kind = read_json(folder / "config.json")["model_type"]
    except (OSError, ValueError, LookupError, TypeError):
        kind = None
    if kind != LabConfig.model_type:
        raise UserError(
            f"--hf_assets_path is {str(folder)!r}, where no model of layerlab lies; type "
            "--hf_assets_path FOLDER, of what save_pretrained wrote, with a tokenizer beside it"
        )


def _check(config: LabConfig, training: Any, parallelism: Any) -> None:
    if training.seq_len > config.max_position_embeddings:
        raise UserError(
            f"--training.seq_len is {training.seq_len}, and the model has a context of "
            f"{config.max_position_embeddings}; type --training.seq_len "
            f"{config.max_position_embeddings}, or build it with context={training.seq_len}"
        )
    if config.mup_base_width is not None:
        raise UserError(
            "the model is parametrized by muP, and torchtitan's optimizer moves all matrices at "
            "one rate; build it without, or type: layerlab train"
        )
    for name in ONE:
        degree = getattr(parallelism, f"{name}_parallel_degree")
        if degree != 1:
            raise UserError(
                f"--parallelism.{name}_parallel_degree is {degree}; a model of layerlab trains "
                "data parallel alone there: leave it at 1"
            )
    if parallelism.spmd_backend != BACKEND:
        raise UserError(
            f"--parallelism.spmd_backend is {parallelism.spmd_backend}; expected {BACKEND}, as "
            "in the configuration that --config pretrain names"
        )


def pretrain() -> Trainer.Config:
    """Return the configuration that `--config pretrain` names."""
    return Trainer.Config(
        model_spec=ModelSpec(
            name="layerlab",
            flavor="",
            model=TitanModel.Config(),
            parallelize_fn=shard_layers,
            pipelining_fn=None,
            post_optimizer_build_fn=None,
            state_dict_adapter=TitanAdapter,
        ),
        loss=CrossEntropyLoss.Config(),
        optimizer=default_adamw(lr=8e-4),
        parallelism=ParallelismConfig(spmd_backend=BACKEND),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
    )
