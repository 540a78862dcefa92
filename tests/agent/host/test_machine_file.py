"""The machine file: what it may state, and how a mistake is named."""

import pytest

from lattice.agent.host.machine_file import MachineFacts, machine_facts
from lattice.errors import Invalid


def test_all_fields() -> None:
    document = {
        "extended": {"example.com/dongle": 2, "hugepages-2Mi": "1Gi"},
        "licences": ["matlab"],
        "machineImage": "golden-7",
        "labels": {"rack": "a3"},
    }
    assert machine_facts(document, "box.yaml") == MachineFacts(
        {"example.com/dongle": "2", "hugepages-2Mi": "1Gi"}, ("matlab",), "golden-7", {"rack": "a3"}
    )
    assert machine_facts(None, "empty.yaml") == MachineFacts()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param([], "must be an object", id="a list"),
        pytest.param({"extend": {}}, "unknown field 'extend'", id="a misspelt field"),
        pytest.param({"licences": "matlab"}, "licences must be a list of names", id="one licence as text"),
        pytest.param({"licences": [7]}, "licences must be a list of names", id="a number as licence"),
        pytest.param({"machineImage": 7}, "machineImage must be a name", id="a number as image"),
        pytest.param({"extended": {"a": True}}, "extended must map names to values", id="a yes as amount"),
        pytest.param({"labels": ["a"]}, "labels must map names to values", id="labels as a list"),
    ],
)
def test_mistakes(document: object, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        machine_facts(document, "box.yaml")
