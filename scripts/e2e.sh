#!/usr/bin/env bash
# Run the end-to-end tests: on the cluster of KUBECONFIG, or on a kind cluster that is made for them and removed.
# Called by `make e2e`; arguments go to pytest. docs/e2e.md has the variables.
set -euo pipefail
cd "$(dirname "$0")/.."
kuberay=1.6.2

if [ -z "${KUBECONFIG:-}" ]; then
  for program in kind docker helm kubectl; do
    command -v $program >/dev/null || {
      echo "make e2e: set KUBECONFIG to a cluster with KubeRay, or install kind, docker, helm and kubectl ($program is missing)" >&2
      exit 2
    }
  done
  folder=$(mktemp -d)
  trap 'kind delete cluster --name rljob-e2e; rm -rf "$folder"' EXIT
  export KUBECONFIG=$folder/kubeconfig
  mkdir -p /tmp/rljob-e2e
  kind create cluster --name rljob-e2e --config e2e/kind.yaml --wait 120s
  helm install kuberay-operator kuberay-operator --repo https://ray-project.github.io/kuberay-helm/ \
    --version $kuberay --wait --timeout 180s
  export RLJOB_E2E_LOAD="kind load image-archive --name rljob-e2e"
  export RLJOB_E2E_KILL_NODE="docker pause" RLJOB_E2E_START_NODE="docker unpause"
fi
[ $# -gt 0 ] || set -- -m "not nightly" e2e
.venv/bin/pytest -o timeout=1500 --durations=15 --repeat-failed "${REPEAT_FAILED:-0}" "$@"
