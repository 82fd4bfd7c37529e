"""Map a result of a model's code to an operation of a profile."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from layerlab.numerics.emulation.op_site import NUMBER, OpSite, attends
from layerlab.numerics.emulation.quantized_weights import is_matrix, is_router
from layerlab.system.hooks import temporary_hooks

# What a module is, by a word in the name of its class, in the order in which they are looked for.
WORDS = {"norm": "norm", "rotary": "rotary_tables", "experts": "experts"}
ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activations")
CURVES = frozenset(
    "elu erf exp gelu hardswish leaky_relu mish power relu selu sigmoid silu softplus tanh".split()
)

# What has parameters of its own name in a profile, and what reads others that have.
STORED = ("norm", "embedding", "head", "router")
READING = ("head", "router")

# What a norm of a product's results casts back, by what a norm of the stream does.
CAST_BACK = {"norm": "branch_norm", "norm_inside": "branch_cast"}

# The component that an operation belongs to wherever it is done.
COMPONENTS = {
    **dict.fromkeys(("norm_weights", "norm_inside", "norm_cast", "norm"), "norms"),
    **dict.fromkeys(CAST_BACK.values(), "norms"),
    **dict.fromkeys(("embedding_weights", "embedding"), "embedding"),
    **dict.fromkeys(("rotary_tables", "rotary", "queries", "cache", "scores"), "attention"),
    **dict.fromkeys(("softmax", "attention_weights", "context"), "attention"),
    **dict.fromkeys(("activation_inside", "activation", "gate", "experts"), "feed-forward"),
    "residual": "residual stream",
    **dict.fromkeys(("router_weights", "router_factors", "router"), "router"),
    **dict.fromkeys(("head_weights", "head_factors", "head", "log_softmax"), "LM head"),
}


class OperationResult(NamedTuple):
    """An operation that a profile rounds, and its place in the model."""

    operation: str
    layer: int
    component: str


class OperationIndex:
    """The operations of one model, by place.

    How many results a norm or an activation has is counted whenever it runs, so that the last of
    them is known from the second run on.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = dict(model.named_modules())
        head = getattr(model, "get_output_embeddings", lambda: None)()
        self._kinds = {
            name: "head" if module is head else _kind(name, module, modules)
            for name, module in modules.items()
        }
        table = getattr(model, "get_input_embeddings", lambda: None)()
        weight = getattr(head, "weight", None)
        self._tied = weight is not None and weight is getattr(table, "weight", None)
        self._attending = {name for name, module in modules.items() if attends(module)}
        self._routing = {name for name, module in modules.items() if self._chooses(name, module)}
        self._rotates = "rotary_tables" in self._kinds.values()
        self._lengths: dict[str, int] = {}
        self._passed: Counter[str] = Counter()
        self._stages: defaultdict[str, str] = defaultdict(str)
        self._branched = set[str]()  # norms that read no residual stream

    def _chooses(self, name: str, module: nn.Module) -> bool:
        """Return whether a module is a router, or has one beside its experts."""
        inner = (f"{name}.{one}" for one, _ in module.named_children())
        return self._kinds[name] == "router" or any(
            "expert" in one.rpartition(".")[2] or self._kinds.get(one) == "router" for one in inner
        )

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Know how far the code of each module has come, until the block ends."""
        with temporary_hooks(self._listen(model)):
            yield

    def _listen(self, model: nn.Module) -> Iterator[RemovableHandle]:
        for name, module in model.named_modules():
            yield module.register_forward_pre_hook(self._entering(name), with_kwargs=True)
            yield module.register_forward_hook(self._leaving(name))

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            self._passed[name] = 0
            self._stages[name] = ""
            given = (*args, *kwargs.values())
            on_stream = any(getattr(one, "stream", False) for one in given)
            (self._branched.discard if on_stream else self._branched.add)(name)

        return enter

    def _leaving(self, name: str) -> Callable[..., None]:
        def leave(*call: Any) -> None:
            self._lengths[name] = self._passed[name]

        return leave

    def find_weight(self, site: OpSite, weight: Tensor) -> str:
        """Return the operation that a parameter belongs to."""
        kind = self._kinds[site.module]
        if kind in STORED:
            return f"{kind}_weights"
        return "weights" if is_matrix(site.operation, weight) else "other_weights"

    def find_factors(self, site: OpSite) -> str:
        """Return the operation of what meets a parameter in a product."""
        kind = self._kinds.get(site.module)
        return f"{kind}_factors" if kind in READING else "factors"

    def find_component(self, operation: str, site: OpSite) -> str:
        """Return the component of a model that the result of an operation belongs to."""
        if operation in COMPONENTS:
            return COMPONENTS[operation]
        kind = self._kinds.get(site.module, "other")
        if kind in ("head", "router", "embedding"):
            return COMPONENTS[kind]
        owners = site.module.split(".")
        paths = (".".join(owners[:end]) for end in range(1, len(owners) + 1))
        # The model around its blocks attends as well, by what it hands them.
        if any(one in self._attending and OpSite(one).layer is not None for one in paths):
            return "attention"
        if site.layer is None or kind == "block":
            return "residual stream"
        return "feed-forward"

    def reads_table(self, site: OpSite) -> bool:
        """Return whether a product reads the table of embeddings as its parameter."""
        return self._tied and self._kinds.get(site.module) == "head"

    def routes(self, site: OpSite) -> bool:
        """Return whether what is chosen at a place are experts."""
        return site.module in self._routing

    def is_norm(self, site: OpSite) -> bool:
        """Return whether the code of a norm runs."""
        return self._kinds.get(site.module) == "norm"

    def find(self, site: OpSite, weighted: bool) -> str:
        """Return the operation that the next result belongs to.

        Args:
            site: where it is computed.
            weighted: whether it is a product with a parameter.
        """
        module, operation = site.module, site.operation
        self._passed[module] += 1
        kind = self._kinds.get(module, "other")
        if kind in ("norm", "activation"):
            if kind == "norm" and operation.endswith("_norm") and module in self._branched:
                return "branch_norm"
            last = self._passed[module] == self._lengths.get(module)
            return kind if last else f"{kind}_inside"
        if kind in ("head", "rotary_tables", "router"):
            return kind
        if weighted:
            return "projection"
        if operation in ("scores", "softmax", "context"):
            self._stages[module] = operation
            return operation
        if module in self._attending and site.layer is not None:
            return self._attend(site)
        return _compute(site, kind)

    def find_cast(self, site: OpSite) -> str:
        """Return the operation whose result is narrowed next."""
        found = self.find(site, weighted=False)
        if found in CAST_BACK and site.module in self._branched:
            return CAST_BACK[found]
        if found == "norm_inside":
            return "norm_cast"
        return "softmax" if self._stages[site.module] == "softmax" else found

    def _attend(self, site: OpSite) -> str:
        stage = self._stages[site.module]
        if stage in ("scores", "softmax"):
            return stage
        if stage == "context":
            return "residual" if site.operation == "add" else "other"
        return "rotary" if self._rotates else "other"


def _compute(site: OpSite, kind: str) -> str:
    """Return the operation of what is computed outside attention, without a parameter."""
    if kind == "experts":
        return "gate" if site.operation == "mul" else "experts"
    if site.layer is None:
        return "embedding"
    if site.operation == "add":
        return "residual"
    if site.operation == "mul" and kind != "block":
        return "gate"
    return "activation" if site.operation in CURVES else "other"


def _kind(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> str:
    """Return what a module is, by its class and its name."""
    title = type(module).__name__.lower()
    for word, kind in WORDS.items():
        if word in title:
            return kind
    if isinstance(module, nn.Embedding):
        return "embedding"
    if is_router(name, module, modules):
        return "router"
    owner, _, last = name.rpartition(".")
    if type(module).__module__ in ACTIVATIONS:
        return "activation"
    return "block" if last.isdigit() and isinstance(modules[owner], nn.ModuleList) else "other"


def count_layers(model: nn.Module) -> int:
    """Return the number of blocks, by the numbers in the names of modules."""
    numbers = [NUMBER.search(name) for name, _ in model.named_modules()]
    return 1 + max((int(one.group()) for one in numbers if one), default=-1)
