"""A GPU workload learns its devices: variables for programs, flags for podman, the same after adoption."""

from pathlib import Path

import msgspec
import pytest
from build.objects import a_workload

from lattice.agent.host.runtime_protocol import InstanceId, RunSpec
from lattice.agent.order_codec import decode_assignment
from lattice.agent.plan import Assignment, run_spec
from lattice.agent.runtimes.gpu_devices import container_gpu_environment, gpu_environment, podman_gpu_flags
from lattice.agent.runtimes.preflight import process_environment
from lattice.kinds.container import Container
from lattice.kinds.workload import DesiredRun
from lattice.server.agents.codec import encode_assignment
from lattice.wire import agent_pb2 as pb


def a_spec(*gpus: int, milli: int = 0, **env: str) -> RunSpec:
    return RunSpec(
        id=InstanceId("u", "r", "main"),
        workload="default/train",
        container=Container(command=("train",), env=env),
        gpus=gpus,
        gpu_milli=milli,
    )


def test_variables_name_the_gpus_in_the_order_of_the_scheduler() -> None:
    assert gpu_environment(a_spec(3, 1)) == {
        "LATTICE_GPUS": "3,1",
        "CUDA_VISIBLE_DEVICES": "3,1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "3,1",
    }
    assert gpu_environment(a_spec(0, milli=250))["LATTICE_GPU_MILLI"] == "250"
    assert gpu_environment(a_spec()) == {}


def test_cuda_numbers_the_gpus_of_a_container_from_zero(tmp_path: Path) -> None:
    """CUDA counts the devices that it sees: the toolkit gives a container its own GPUs only."""
    assert container_gpu_environment(a_spec(3, 1), tmp_path)["CUDA_VISIBLE_DEVICES"] == "3,1"
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/nvidia.yaml").write_text("kind: nvidia.com/gpu")
    variables = container_gpu_environment(a_spec(3, 1), tmp_path)
    assert (variables["LATTICE_GPUS"], variables["CUDA_VISIBLE_DEVICES"]) == ("3,1", "0,1")
    assert container_gpu_environment(a_spec(), tmp_path) == {}


def test_variables_of_the_container_win(tmp_path: Path) -> None:
    env = process_environment(a_spec(1, CUDA_VISIBLE_DEVICES="none"), tmp_path, {}, "tag")
    assert (env["LATTICE_GPUS"], env["CUDA_VISIBLE_DEVICES"]) == ("1", "none")


@pytest.mark.parametrize(
    ("request_", "milli"),
    [
        pytest.param("2", 0, id="whole GPUs"),
        pytest.param("250m", 250, id="a part of one GPU"),
        pytest.param("1500m", 0, id="more than one GPU is rounded up to whole ones"),
    ],
)
def test_gpus_reach_the_agent(request_: str, milli: int) -> None:
    main = {"command": ["train"], "resources": {"requests": {"gpu": request_}}}
    workload = a_workload("train", containers={"main": main}, status={"allocatedGpus": [3, 1]})
    message = encode_assignment("default/train", workload, DesiredRun("Running", "r", 1), {})
    spec = run_spec(decode_assignment(pb.Assignment.FromString(message.SerializeToString()), 1), "main")
    assert (spec.gpus, spec.gpu_milli) == ((3, 1), milli)
    # An agent keeps the specification in its state file, from which the next agent adopts the instance.
    kept = msgspec.json.decode(msgspec.json.encode(spec), type=RunSpec)
    assert gpu_environment(kept) == gpu_environment(spec)


def test_state_of_an_earlier_agent_has_no_gpus() -> None:
    stored = b'{"workload": "default/web", "uid": "u", "revision": "r"}'
    assert msgspec.json.decode(stored, type=Assignment).gpus == ()


@pytest.mark.parametrize(
    ("files", "gpus", "flags", "reason"),
    [
        pytest.param(
            {"etc/cdi/nvidia.yaml": "kind: nvidia.com/gpu"},
            (3, 1),
            ["--device=nvidia.com/gpu=3", "--device=nvidia.com/gpu=1"],
            "",
            id="devices that the NVIDIA toolkit describes",
        ),
        pytest.param(
            {"dev/kfd": "", "dev/dri": ""},
            (0,),
            ["--device=/dev/kfd", "--device=/dev/dri"],
            "",
            id="AMD devices",
        ),
        pytest.param(
            {"etc/cdi/other.json": "{}"},
            (0,),
            [],
            "install the NVIDIA container toolkit",
            id="nothing described",
        ),
        pytest.param({"etc/cdi/nvidia.yaml": "kind: nvidia.com/gpu"}, (), [], "", id="no GPU requested"),
    ],
)
def test_podman_flags(
    files: dict[str, str], gpus: tuple[int, ...], flags: list[str], reason: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found, why = podman_gpu_flags(gpus, tmp_path)
    assert found == flags
    assert reason in why
    assert bool(why) is bool(gpus and not flags)
