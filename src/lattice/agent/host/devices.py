"""Detect the GPUs and huge pages of the machine.

GPUs are listed in the order of their PCI addresses, as nvidia-smi numbers them: the scheduler gives a workload
GPUs by index in this list.
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index,name", "--format=csv,noheader")
NVIDIA_SMI_TIMEOUT_S = 10.0
# Words of marketing names that say nothing about the model.
_BRANDS = re.compile(r"\b(nvidia|tesla|quadro|geforce)\b", re.IGNORECASE)
_HUGE_PAGE_DIR = re.compile(r"hugepages-(\d+)kB")
_BINARY_UNITS = ((1 << 20, "Gi"), (1 << 10, "Mi"), (1, "Ki"))  # in KiB


def run_nvidia_smi() -> str:
    """The output of nvidia-smi; empty if the program is missing, fails or does not answer in time."""
    if shutil.which(NVIDIA_SMI[0]) is None:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        result = subprocess.run(
            NVIDIA_SMI, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=False
        )
        return result.stdout if result.returncode == 0 else ""
    return ""


def detect_gpus(root: Path = Path("/"), nvidia_smi: Callable[[], str] = run_nvidia_smi) -> tuple[str, ...]:
    """The models of the GPUs: from nvidia-smi, else from the devices of the NVIDIA driver, else from those of
    the AMD driver."""
    return parse_nvidia_smi(nvidia_smi()) or _nvidia_devices(root) or _amd_devices(root)


def parse_nvidia_smi(output: str) -> tuple[str, ...]:
    """The models by index, from lines such as `0, NVIDIA A100-SXM4-40GB`."""
    models: dict[int, str] = {}
    for line in output.splitlines():
        index, comma, name = line.partition(",")
        if comma and index.strip().isdigit():
            models[int(index)] = nvidia_model(name)
    return tuple(models[index] for index in sorted(models))


def nvidia_model(name: str) -> str:
    """The model as manifests name it: `Tesla T4` is nvidia-t4."""
    words = re.sub(r"[^a-z0-9]+", "-", _BRANDS.sub("", name).lower()).strip("-")
    return f"nvidia-{words or 'gpu'}"[:63]


def _nvidia_devices(root: Path) -> tuple[str, ...]:
    """A GPU for every device node; the driver names the models by PCI address."""
    count = sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in (root / "dev").glob("nvidia*"))
    names: list[str] = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            lines = path.read_text().splitlines()
            names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return tuple(nvidia_model(names[index] if index < len(names) else "") for index in range(count))


def _amd_devices(root: Path) -> tuple[str, ...]:
    """A GPU for every node of the AMD compute driver that has compute units; CPUs are nodes without any."""
    if not (root / "dev/kfd").exists():
        return ()
    models: list[str] = []
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
    for path in sorted(nodes, key=lambda path: int(path.parent.name)):
        with suppress(OSError):
            properties = dict(line.split()[:2] for line in path.read_text().splitlines() if " " in line)
            if properties.get("simd_count", "0") != "0":
                version = properties.get("gfx_target_version", "0")
                models.append(f"amd-gfx{version}" if version != "0" else "amd-gpu")
    return tuple(models)


def detect_huge_pages(root: Path = Path("/")) -> dict[str, int]:
    """Bytes of reserved huge pages by resource name, such as hugepages-2Mi; sizes without pages are left
    out."""
    amounts: dict[str, int] = {}
    for folder in sorted((root / "sys/kernel/mm/hugepages").glob("hugepages-*kB")):
        match = _HUGE_PAGE_DIR.fullmatch(folder.name)
        with suppress(OSError, ValueError):
            count = int((folder / "nr_hugepages").read_text())
            if match is not None and count > 0:
                size_kib = int(match[1])
                factor, unit = next(entry for entry in _BINARY_UNITS if size_kib % entry[0] == 0)
                amounts[f"hugepages-{size_kib // factor}{unit}"] = count * size_kib * 1024
    return amounts
