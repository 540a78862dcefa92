"""The GPUs that the scheduler gives to a workload: environment variables for the programs, and flags for
podman."""

from collections.abc import Sequence
from pathlib import Path

from lattice.agent.host.runtime_protocol import RunSpec

# Folders in which the NVIDIA container toolkit writes its device descriptions (CDI).
CDI_DIRS = ("etc/cdi", "var/run/cdi", "run/cdi")
# The devices of the AMD driver; a container gets all GPUs of the folder dri.
AMD_DEVICES = ("dev/kfd", "dev/dri")


def gpu_environment(spec: RunSpec) -> dict[str, str]:
    """The variables that name the GPUs of an instance, by index from 0; empty without a GPU.

    A shared GPU has LATTICE_GPU_MILLI, the thousandths of the GPU that the workload requested.
    """
    if not spec.gpus:
        return {}
    indices = ",".join(map(str, spec.gpus))
    shared = {"LATTICE_GPU_MILLI": str(spec.gpu_milli)} if spec.gpu_milli else {}
    return {
        "LATTICE_GPUS": indices,
        "CUDA_VISIBLE_DEVICES": indices,
        # By default CUDA orders GPUs by speed, unlike nvidia-smi and the node.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": indices,
        **shared,
    }


def container_gpu_environment(spec: RunSpec, root: Path = Path("/")) -> dict[str, str]:
    """The variables of an instance in a container.

    A container with the devices of the NVIDIA container toolkit has only its own GPUs, and CUDA numbers them from 0
    there; LATTICE_GPUS holds the numbers of the node.
    """
    variables = gpu_environment(spec)
    if variables and _has_nvidia_descriptions(root):
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(spec.gpus))))
    return variables


def podman_gpu_flags(gpus: Sequence[int], root: Path = Path("/")) -> tuple[list[str], str]:
    """The flags of `podman create` that give a container its GPUs, and why there are none."""
    if not gpus:
        return [], ""
    if _has_nvidia_descriptions(root):
        return [f"--device=nvidia.com/gpu={index}" for index in gpus], ""
    if all((root / device).exists() for device in AMD_DEVICES):
        return [f"--device=/{device}" for device in AMD_DEVICES], ""
    return [], (
        "the host describes no GPU for containers: install the NVIDIA container toolkit and run "
        "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
    )


def _has_nvidia_descriptions(root: Path) -> bool:
    return any(_describes_nvidia(root / folder) for folder in CDI_DIRS)


def _describes_nvidia(folder: Path) -> bool:
    """Whether a file of the folder describes devices of the kind nvidia.com/gpu."""
    for pattern in ("*.yaml", "*.yml", "*.json"):
        for path in folder.glob(pattern):
            try:
                if "nvidia.com/gpu" in path.read_text(errors="replace"):
                    return True
            except OSError:
                continue
    return False
