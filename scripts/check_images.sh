#!/usr/bin/env bash
# Lint the Dockerfiles and the scripts of images/. Called by `make check`; does nothing without hadolint.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! hadolint=$(command -v hadolint || command -v .venv/bin/hadolint); then
  echo "Dockerfiles not checked: there is no hadolint on PATH."
  exit 0
fi
# DL3008: versions of system packages are the base image's business.
"$hadolint" --ignore DL3008 images/*.Dockerfile
