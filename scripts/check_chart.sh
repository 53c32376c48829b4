#!/usr/bin/env bash
# Lint the chart and hold what it renders against Kubernetes' own schemas. Called by `make check`; does nothing without helm.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.34
chart=(helm/rljob --kube-version "$version.0")

if ! command -v helm >/dev/null; then
  echo "Chart not checked: there is no helm on PATH."
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HELM_CACHE_HOME=$folder HELM_CONFIG_HOME=$folder HELM_DATA_HOME=$folder

check() {  # check NAME [OPTION...]
  local manifests="$folder/$1.yaml"
  shift
  helm lint --quiet --strict "${chart[@]}" "$@"
  helm template rljob "${chart[@]}" --namespace rljob-system "$@" >"$manifests"
  # Only kinds of Kubernetes itself have schemas there; warnings would be about the others.
  .venv/bin/kubernetes-validate --strict --quiet --no-warn -k $version "$manifests"
}

check defaults
check namespaced --set 'watchNamespaces={team-a,team-b},crds.install=false,rbac.users=false'
check everything --values tests/operator/chart/everything.yaml
