"""Whether an image's Megatron Core and MindSpeed fit each other, told without a device."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_runtime.update.update_megatron.core import ADAPTOR, CALLS, VERSIONS

ROOT = Path(__file__).parents[2]
specification = importlib.util.spec_from_file_location(
    "megatron_fits", ROOT / "images/megatron_fits.py"
)
assert specification is not None and specification.loader is not None
script = importlib.util.module_from_spec(specification)
specification.loader.exec_module(script)

CORE = script.installed("megatron-core")
needs_core = pytest.mark.skipif(CORE == "none", reason="no megatron-core")
# As torch_npu fails where there is no CANN.
WITHOUT_DEVICE = "import ctypes\nctypes.CDLL('libhccl.so')\n"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for MindSpeed's sources, as the image has one."""
    (tmp_path / "mindspeed").mkdir()
    (tmp_path / "mindspeed/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("mindspeed", ADAPTOR):
        sys.modules.pop(name, None)


def lay(sources: Path, branch: str, adaptor: str) -> None:
    (sources / "REVISION").write_text(f"{branch} 0123456789\n")
    (sources / "mindspeed/megatron_adaptor.py").write_text(adaptor)


@needs_core
@pytest.mark.filterwarnings("ignore::Warning:megatron")
def test_the_installed_megatron_core_has_all_that_the_engine_calls() -> None:
    seen, wrong = script.look("megatron")

    assert wrong == []
    assert f"megatron-core {CORE}" in seen
    assert {name for line in seen if line.startswith("imported") for name in line.split()[2:]} == {
        *CALLS
    }


@needs_core
@pytest.mark.filterwarnings("ignore::Warning:megatron")
def test_an_adaptor_that_only_lacks_a_device_is_told_and_fits(sources: Path) -> None:
    lay(sources, f"1.0_core_r{CORE}", WITHOUT_DEVICE)

    seen, wrong = script.look("mindspeed")

    assert wrong == []
    (told,) = (line for line in seen if line.startswith("not imported without a device"))
    assert ADAPTOR in told
    assert "libhccl.so" in told


@needs_core
@pytest.mark.filterwarnings("ignore::Warning:megatron")
def test_another_megatron_core_and_a_missing_package_do_not_fit(sources: Path) -> None:
    lay(sources, "1.0_core_r0.1", "import no_such_package")

    _, wrong = script.look("mindspeed")

    assert wrong == [
        f"MindSpeed 1.0_core_r0.1 0123456789 does not adapt Megatron Core {CORE}",
        f"{ADAPTOR}: ModuleNotFoundError: No module named 'no_such_package'",
    ]


def test_without_mindspeed_its_engine_does_not_fit() -> None:
    _, wrong = script.look("mindspeed")

    assert f"MindSpeed none does not adapt Megatron Core {CORE}" in wrong


def test_the_image_takes_a_mindspeed_for_a_megatron_core_that_the_engine_covers() -> None:
    dockerfile = (ROOT / "images/runtime-ascend.Dockerfile").read_text()
    (branch,) = re.findall(r"^ARG MINDSPEED_BRANCH=(\S+)$", dockerfile, re.MULTILINE)

    assert branch.rpartition("core_r")[2].startswith(VERSIONS)
    assert f"`{branch}`" in (ROOT / "docs/ascend.md").read_text()
