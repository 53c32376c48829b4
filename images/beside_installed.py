"""Print what rljob needs beside the packages of an image: `beside_installed.py requirements|constraints`.

Called by runtime-ascend.Dockerfile, whose base image holds versions of torch, torch_npu, vLLM and
transformers that belong together: those stay as they are, whatever rljob would prefer. Other installed
packages stay where they suffice. What rljob itself names has its version of constraints.txt; what that
needs in turn is left to pip, since the versions there were chosen beside a newer numpy.
"""

import re
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

STACK = {
    "torch", "torch-npu", "torchvision", "torchaudio", "triton", "triton-ascend", "vllm", "vllm-ascend",
    "transformers", "tokenizers", "safetensors", "huggingface-hub", "compressed-tensors", "xgrammar", "numpy",
}  # fmt: skip


def package(line: str) -> str:
    """The package that a requirement is about, as indexes spell it."""
    found = re.match(r"[A-Za-z0-9._-]+", line)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def requirements(needed: list[str], installed: dict[str, str]) -> list[str]:
    """All but the installed part of the stack."""
    return [line for line in needed if package(line) not in STACK & installed.keys()]


def constraints(needed: list[str], pins: list[str], installed: dict[str, str]) -> list[str]:
    """The installed part of the stack, and the pins of what is needed and not installed at all."""
    kept = [f"{name}=={installed[name]}" for name in sorted(STACK & installed.keys())]
    added = {package(line) for line in needed} - installed.keys()
    return kept + [line for line in pins if package(line) in added]


def _installed() -> dict[str, str]:
    found = distributions()
    return {package(held.metadata["Name"]): held.version for held in found if held.metadata["Name"]}


if __name__ == "__main__":
    dependencies = tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
    if sys.argv[1] == "requirements":
        lines = requirements(dependencies, _installed())
    else:
        pins = Path("constraints.txt").read_text().splitlines()
        lines = constraints(dependencies, pins, _installed())
    sys.stdout.write("\n".join(lines) + "\n")
