"""What goes into an image beside the packages that it holds already."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "images" / "beside_installed.py"
specification = importlib.util.spec_from_file_location("beside_installed", SCRIPT)
assert specification is not None and specification.loader is not None
script = importlib.util.module_from_spec(specification)
specification.loader.exec_module(script)

HELD = {"torch": "2.10.0+cpu", "torch-npu": "2.10.0.post4", "ray": "2.48.0", "aiohttp": "3.13.0"}


def test_the_images_torch_is_not_asked_for_but_rljobs_ray_is() -> None:
    needed = ["torch>=2.10,<2.15", "ray[default]==2.60.0", "aiohttp", "plotly"]

    assert script.requirements(needed, HELD) == ["ray[default]==2.60.0", "aiohttp", "plotly"]


def test_an_image_without_torch_gets_it() -> None:
    assert script.requirements(["torch>=2.10,<2.15"], {}) == ["torch>=2.10,<2.15"]


def test_the_images_torch_stays_and_what_is_added_has_the_projects_versions() -> None:
    needed = ["torch>=2.10,<2.15", "ray[default]==2.60.0", "plotly"]
    pins = ["# uv export", "contourpy==1.4.0", "plotly==7.1.0", "ray==2.60.0", "torch==2.13.0"]

    assert script.constraints(needed, pins, HELD) == [
        "torch==2.10.0+cpu",
        "torch-npu==2.10.0.post4",
        "plotly==7.1.0",
    ]


def test_a_package_is_known_by_every_spelling() -> None:
    assert script.package("Torch_NPU==2.10 ; python_version > '3'") == "torch-npu"
    assert script.package("ray[default]==2.60.0") == "ray"
