"""Section 1: resources of nodes and requests of workloads."""

from docs.specification import Row

HAS = "scheduling/table/test_spec003_resources.py::test_node_capacity_limits_requests"
STATES = "scheduling/table/test_spec003_resources.py::test_container_has_request_and_limit"

RESOURCES = (
    Row(
        "node.cpu_capacity",
        "scheduling.table.node_info:NodeInfo",
        f"{HAS}[cpu in thousandths of a core]",
        ("scheduling/table/node_info.py", 'if name != "gpu"}', 'if name != "cpu"}'),
    ),
    Row(
        "node.memory_capacity",
        "kinds.container:BYTE_RESOURCES",
        f"{HAS}[memory in bytes]",
        ("kinds/container.py", 'frozenset({"memory", "storage"', 'frozenset({"storage"'),
    ),
    Row(
        "node.disk_capacity",
        "kinds.container:BYTE_RESOURCES",
        f"{HAS}[disk in bytes]",
        (
            "kinds/container.py",
            '"storage", "disk", "ephemeral-storage"})',
            '"storage", "ephemeral-storage"})',
        ),
    ),
    Row(
        "node.gpu_capacity",
        "scheduling.table.gpu_allocator:GpuAllocator",
        "scheduling/table/test_spec003_resources.py::test_gpus_are_counted_individually",
        (
            "scheduling/table/node_info.py",
            "gpus=tuple((gpu.model, gpu.milli_free) for gpu in status.gpus),",
            "gpus=(),",
        ),
    ),
    Row(
        "container.cpu_request/limit",
        "kinds.container:ContainerResources",
        f"{STATES}[cpu]",
        (
            "kinds/workload.py",
            'total_amounts(self.containers, "limits")',
            'total_amounts(self.containers, "requests")',
        ),
    ),
    Row(
        "container.memory_request/limit",
        "kinds.container:ContainerResources",
        f"{STATES}[memory]",
        (
            "kinds/workload.py",
            'if self.containers_declare("requests")',
            "if False",
        ),
    ),
    Row(
        "allocatable resources",
        "scheduling.table.node_info:allocatable",
        "scheduling/table/test_spec003_resources.py::test_allocatable",
        ("scheduling/table/node_info.py", "amount - status.reserved.get(name, 0)", "amount"),
    ),
    Row(
        "QoS class derivation",
        "kinds.qos:qos_of",
        "scheduling/table/test_spec003_resources.py::test_qos",
        ("kinds/qos.py", "for requests, limits in stated:", "for requests, limits in stated[:1]:"),
    ),
    Row(
        "fits() check",
        "scheduling.table.plain_fit:fits",
        "scheduling/table/test_spec003_resources.py::test_fits",
        ("scheduling/table/plain_fit.py", "amount <= free.get(name, 0)", "amount < free.get(name, 0)"),
    ),
    Row(
        "utilization calculation",
        "scheduling.table.plain_fit:utilisation",
        "scheduling/table/test_spec003_resources.py::test_utilisation",
        ("scheduling/table/plain_fit.py", "max(shares, default=0.0)", "min(shares, default=0.0)"),
    ),
    Row(
        "ephemeral_storage_capacity",
        "kinds.container:BYTE_RESOURCES",
        f"{HAS}[ephemeral storage in bytes]",
        ("kinds/container.py", '"disk", "ephemeral-storage"})', '"disk"})'),
    ),
    Row(
        "hugepages_capacity",
        "kinds.container:format_amount",
        f"{HAS}[hugepages of any size in bytes]",
        (
            "kinds/container.py",
            'if resource in BYTE_RESOURCES or resource.startswith("hugepages-"):',
            "if resource in BYTE_RESOURCES:",
        ),
    ),
    Row(
        "Extended resources",
        "kinds.container:resource_parser",
        f"{HAS}[an extended resource such as FPGAs by its count]",
        ("kinds/container.py", "else parse_count", "else parse_cores"),
    ),
    Row(
        "Pod-level aggregation",
        "kinds.container:total_amounts",
        "scheduling/table/test_spec003_resources.py::test_workload_requests_are_sum_of_containers",
        (
            "kinds/container.py",
            "sum(container_amounts.get(name, 0) for container_amounts in amounts)",
            "max(container_amounts.get(name, 0) for container_amounts in amounts)",
        ),
    ),
    Row(
        "Resource compressibility markers",
        "kinds.qos:is_compressible",
        "scheduling/table/test_spec003_resources.py::test_compressible_resources",
        (
            "kinds/qos.py",
            'COMPRESSIBLE = frozenset({"cpu", "ephemeral-storage"})',
            'COMPRESSIBLE = frozenset({"cpu", "memory"})',
        ),
    ),
)
