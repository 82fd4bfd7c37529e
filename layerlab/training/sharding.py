"""One run over several processes: each reads its rows of a batch, all make the same update.

`none` copies the model to every process and adds up gradients (DDP); `fsdp` keeps a part of every
weight, gradient and moment in each (FSDP2). Copies come from accelerate. Sharding is PyTorch's
`fully_shard`: accelerate's own knows no CPUs, keeps norms and sums of gradients in 16 bits, and
fails where layers share weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from layerlab.errors import NotApplicable, UserError
from layerlab.observe.architecture.structure import anatomy
from layerlab.recipes.training_sections import RunSection
from layerlab.training.checkpoints.checkpoint import CheckpointState
from layerlab.training.checkpoints.parts import read_parts
from layerlab.training.optimizer import allocate

COPIES = {
    DistributedType.MULTI_CPU,
    DistributedType.MULTI_GPU,
    DistributedType.MULTI_NPU,
    DistributedType.MULTI_XPU,
}


def check(accelerator: Accelerator, settings: RunSection) -> None:
    """Stop a run whose processes are not what was asked for.

    Accelerate falls back to one process, or to copies, without a word; the run would then not be
    the one that its manifest names.

    Raises:
        UserError: another number of processes, or another way to share the work.
    """
    wanted, found = settings.num_processes, int(accelerator.num_processes)
    if found != wanted:
        raise UserError(
            f"run.num_processes is {wanted} and this run was started as {found}; "
            f"write num_processes = {found}, or type: torchrun --nproc_per_node {wanted} "
            "-m layerlab.training.worker FOLDER"
        )
    kind = accelerator.distributed_type
    if kind not in _kinds(settings):
        raise UserError(
            f'run.num_processes is {wanted} with run.sharding "{settings.sharding}" on '
            f"{settings.device}, and accelerate set up {kind.value}; unset the variables "
            "ACCELERATE_* of the environment, or give accelerate launch no configuration of its own"
        )


def _kinds(settings: RunSection) -> set[DistributedType]:
    if settings.num_processes == 1:
        return {DistributedType.NO}
    return {DistributedType.MULTI_CPU} if settings.device == "cpu" else COPIES


def wrap_model(model: Any, accelerator: Accelerator, settings: RunSection) -> Any:
    """Wrap the model for several processes; build its optimizer after this."""
    if settings.num_processes == 1:
        return model
    if settings.sharding == "none":
        return accelerator.prepare_model(model)
    return shard_layers(model, model.device.type, settings.num_processes)


def shard_layers(model: Any, device: str, processes: int) -> Any:
    """Share a model out, layer by layer, in place.

    Args:
        device: the kind on which the processes compute.
    """
    mesh = init_device_mesh(device, (processes,))
    for layer in _apart(model):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _apart(model: Any) -> list[nn.Module]:
    """Return the layers that can be sharded one by one: none where two hold the same weight."""
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    try:
        layers = list(anatomy(plain).blocks)
    except NotApplicable:  # it is shared out as a whole
        return []
    weights = [id(one) for layer in layers for one in layer.parameters()]
    return layers if len(set(weights)) == len(weights) else []


def is_sharded(model: nn.Module) -> bool:
    """Return whether each process has a part of the weights."""
    return isinstance(model, FSDPModule)


@contextmanager
def without_sync(model: Any) -> Iterator[None]:
    """Run backward passes without exchanging gradients between processes."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    elif hasattr(model, "no_sync"):
        with model.no_sync():
            yield
    else:
        yield


def any_process(accelerator: Accelerator, wanted: bool) -> bool:
    """Return whether any process wants something, so that all stop after the same update."""
    if accelerator.num_processes == 1:
        return wanted
    flag = torch.tensor(float(wanted), device=accelerator.device)
    return bool(accelerator.reduce(flag, reduction="sum") > 0)


def gather_weights(model: nn.Module, *, keep: bool = True) -> dict[str, Tensor]:
    """Gather sharded weights whole, on the CPU.

    All processes have to ask at once.

    Args:
        keep: what was put together; all processes but the first have no use for it.
    """
    found: dict[int, Tensor] = {}

    def joint(one: Tensor) -> Tensor:
        if not isinstance(one, DTensor):
            return one.detach()
        # What is tied stays tied: it is put together once.
        if id(one) not in found:
            full = full_tensor(one).detach()
            found[id(one)] = full.cpu() if keep else full.new_empty(0)
        return found[id(one)]

    # Weights that are tied are one with `keep_vars` alone.
    return {name: joint(one) for name, one in model.state_dict(keep_vars=True).items()}


def restore_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: CheckpointState, processes: int
) -> None:
    """Restore weights and moments of a checkpoint; every process keeps its own part.

    The number of processes may be another one than it was, and weights that never change may be
    left out of the checkpoint.
    """
    own = model.state_dict()
    kept = {"weights": state.weights, "optimizer": state.optimizer}
    if state.folder is not None:
        allocate(optimizer)
        room = {"weights": own, "optimizer": optimizer.state_dict()}
        kept = read_parts(state.folder, kept, room, processes)
    weights = {name: _part(one, own[name]) for name, one in kept["weights"].items()}
    model.load_state_dict({**own, **weights})
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    moments = {
        number: {name: _part(one, parameters[number]) for name, one in content.items()}
        for number, content in kept["optimizer"]["state"].items()
    }
    optimizer.load_state_dict({**kept["optimizer"], "state": moments})


def _part(value: Any, like: Tensor) -> Any:
    """Return this process's part of a whole tensor; step counts stay whole."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    full = value.to(like.device)
    # Every process has read the whole: none has to send it to another.
    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)


def full_tensor(value: Tensor) -> Tensor:
    """Return the whole value of a number that is sharded, such as a gradient norm."""
    return value.full_tensor() if isinstance(value, DTensor) else value
