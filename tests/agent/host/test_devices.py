"""Detection of GPUs and huge pages, from the files and programs of drivers."""

from pathlib import Path

import pytest

from lattice.agent.host.devices import detect_gpus, detect_huge_pages, parse_nvidia_smi

SMI = "1, Tesla T4\n0, NVIDIA A100-SXM4-40GB\n2, NVIDIA GeForce RTX 3090\n"
BY_INDEX = ("nvidia-a100-sxm4-40gb", "nvidia-t4", "nvidia-rtx-3090")


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


NVIDIA = {
    "dev/nvidia0": "",
    "dev/nvidia1": "",
    "dev/nvidiactl": "",
    "dev/nvidia-uvm": "",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t Tesla T4\nIRQ: 3\n",
}
AMD = {
    "dev/kfd": "",
    "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 8\nsimd_count 0\n",
    "sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 304\ngfx_target_version 90010\n",
}


@pytest.mark.parametrize(
    ("output", "files", "models"),
    [
        pytest.param(SMI, NVIDIA, BY_INDEX, id="nvidia-smi names all, by index"),
        pytest.param("", NVIDIA, ("nvidia-t4", "nvidia-gpu"), id="device nodes, where nvidia-smi is missing"),
        pytest.param("", AMD, ("amd-gfx90010",), id="compute nodes of the AMD driver, without CPUs"),
        pytest.param("", {"sys/class/kfd/kfd/topology/nodes/0/properties": "simd_count 4\n"}, (), id="no AMD device"),
        pytest.param("No devices were found\n", {}, (), id="nvidia-smi without a GPU"),
        pytest.param("", {}, (), id="nothing"),
    ],
)  # fmt: skip
def test_gpus(output: str, files: dict[str, str], models: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, files)
    assert detect_gpus(tmp_path, lambda: output) == models


def test_models_are_label_values_whatever_the_driver_says() -> None:
    (model,) = parse_nvidia_smi(f"0, NVIDIA  {'Long Name ' * 20}(TM)\n")
    assert len(model) <= 63


def test_huge_pages(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512\n",
            "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
            "sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages": "16\n",
        },
    )
    assert detect_huge_pages(tmp_path) == {"hugepages-2Mi": 1 << 30, "hugepages-64Ki": 1 << 20}
    assert detect_huge_pages(tmp_path / "nowhere") == {}
