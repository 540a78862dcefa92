"""Validation of image names."""

import pytest

from lattice.kinds.container import image_problem


@pytest.mark.parametrize(
    "text",
    [
        "nginx",
        "nginx:1.27",
        "library/nginx:1-alpine",
        "registry.example/team/web_1__x:v1.2.3",
        "localhost:5000/a/b:latest",
        "[::1]:5000/a",
        "Registry.Example:443/a--b/c.d",
        f"web@sha256:{'0a' * 32}",
        f"web:1@sha256:{'0a' * 32}",
        "scratch_image:_tag",
    ],
)
def test_image_name_is_valid(text: str) -> None:
    assert image_problem(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("--privileged", id="a flag"),
        pytest.param("-v/:/host", id="a short flag"),
        pytest.param("../../etc", id="a path"),
        pytest.param("/etc/passwd", id="a path from the root"),
        pytest.param("a//b", id="an empty part"),
        pytest.param("docker-archive:/tmp/x.tar", id="a file, by its transport"),
        pytest.param("docker://nginx", id="another transport"),
        pytest.param("dir:/", id="a folder, by its transport"),
        pytest.param("$(reboot)", id="a command"),
        pytest.param("a b", id="two words"),
        pytest.param("a\n", id="a line end"),
        pytest.param("a\0b", id="a NUL"),
        pytest.param("NGINX", id="upper case"),
        pytest.param("nginx:", id="no tag"),
        pytest.param("nginx@sha256:12", id="a digest that is none"),
        pytest.param("a" * 600, id="too long"),
        pytest.param("а", id="a letter of another script"),
    ],
)
def test_bad_image_name_is_refused(text: str) -> None:
    assert "must be the name of an image" in image_problem(text)
