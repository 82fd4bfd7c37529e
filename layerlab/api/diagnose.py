"""Diagnoses an installation: versions, devices, threads, kernel, missing extras."""

import os
import platform
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import Any

import torch

from layerlab.numerics.formats.choose_kernel import gpu_kernel
from layerlab.numerics.formats.kernel import compiler, flags, kernel
from layerlab.version import VERSION

LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy", "pandas")
# What makes matrix products fast, and numbers of sixteen bits.
MATTER = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16")
MATTER_ELSEWHERE = ("asimd", "sve", "bf16", "i8mm")
# Extras for those who work on layerlab itself.
OWN = {"dev", "docs"}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The state of one installation; `str` of it is what `layerlab doctor` prints.

    Attributes:
        versions: of layerlab, Python and the libraries; None where one is missing.
        devices: where models can run.
        threads: that torch computes with.
        processors: that this process may use.
        processor: which instructions it has, of those that matter here.
        kernel: of a CPU, "compiled" or "pure torch".
        reason: why there is no compiled kernel, None where there is one.
        kernel_path: where it lies; None where there is none, or the cache cannot be written.
        compiler: that compiles it.
        gpu_kernel: "triton", or "pure torch" and why, or "no GPU".
        extras: what is missing of each optional extra; none where it is complete.
    """

    versions: dict[str, str | None]
    devices: list[str]
    threads: int
    processors: int
    processor: dict[str, bool]
    kernel: str
    reason: str | None
    kernel_path: str | None
    compiler: str | None
    gpu_kernel: str
    extras: dict[str, list[str]]

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        has = [name for name, there in self.processor.items() if there]
        lacks = [name for name, there in self.processor.items() if not there]
        where = self.kernel_path or "not kept: the cache cannot be written"
        rows = [(name, found or "not installed") for name, found in self.versions.items()]
        rows += [("device", device) for device in self.devices]
        rows += [
            ("threads", f"{self.threads} of torch, {self.processors} processors"),
            ("processor", f"{' '.join(has) or 'nothing that matters'}"),
            ("", f"without {' '.join(lacks)}" if lacks else ""),
            ("rounding kernel", f"{self.kernel}: {self.reason or where}"),
            ("compiler", self.compiler or "none"),
            ("kernel on a GPU", self.gpu_kernel),
        ]
        rows += [
            (f"extra {name}", f"lacks {', '.join(lacking)}" if lacking else "complete")
            for name, lacking in self.extras.items()
        ]
        return "\n".join(f"{name:<16} {value}" for name, value in rows if value)


def diagnose() -> Diagnosis:
    """Diagnose the installation; this compiles the rounding kernel if need be.

    Example:
        >>> diagnose().kernel in {"compiled", "pure torch"}
        True
    """
    found = kernel()
    there = flags()
    matter = MATTER if platform.machine().lower() in {"x86_64", "amd64"} else MATTER_ELSEWHERE
    versions = {"layerlab": VERSION, "python": platform.python_version()}
    return Diagnosis(
        versions={**versions, **{name: _version(name) for name in LIBRARIES}},
        devices=_devices(),
        threads=torch.get_num_threads(),
        processors=_processors(),
        processor={name: name in there for name in matter},
        kernel="pure torch" if found.library is None else "compiled",
        reason=found.reason,
        kernel_path=None if found.path is None else str(found.path),
        compiler=compiler(),
        gpu_kernel=_on_gpu(),
        extras=_extras(),
    )


def _on_gpu() -> str:
    if not torch.cuda.is_available():
        return "no GPU"
    found = gpu_kernel()
    return "triton" if found.reason is None else f"pure torch: {found.reason}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processors() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _devices() -> list[str]:
    found = ["cpu"]
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        found.append(f"cuda:{index} ({torch.cuda.get_device_name(index)}, {memory:.0f} GiB)")
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def _extras() -> dict[str, list[str]]:
    """Return the packages of each extra that are not installed."""
    from packaging.requirements import Requirement

    try:
        own = distribution("layerlab")
    except PackageNotFoundError:  # run from its folder, without being installed
        return {}
    wanted = [Requirement(text) for text in own.requires or ()]
    return {
        extra: [one.name for one in wanted if _concerns(one, extra) and _version(one.name) is None]
        for extra in own.metadata.get_all("Provides-Extra") or ()
        if extra not in OWN
    }


def _concerns(requirement: Any, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and "extra" in str(marker)
