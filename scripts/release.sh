#!/usr/bin/env bash
# release.sh X.Y.Z: make all files of a release in dist/, and print the commands that publish it. Publishes nothing.
#   NAMES="operator runtime"   images to build, of images/build.sh and with its variables; NAMES= leaves them out
#   UV=.venv/bin/uv            what builds the packages and runs the maker of the SBOM
# Refuses a tree with changes, a version that is not the code's, and one that CHANGELOG.md does not tell of.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?name the version: make release VERSION=X.Y.Z}
names=${NAMES-operator runtime device-plugin}
uv=${UV:-.venv/bin/uv}
sbom_tool=cyclonedx-bom==7.3.0

refuse() {
  echo "no release: $1" >&2
  exit 1
}

# says FILE LINE REMEDY: the file has exactly this line, else the release is refused.
says() {
  grep -qxF -- "$2" "$1" || refuse "$1 has no line '$2'; $3"
}

[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || refuse "'$version' is no version; write X.Y.Z"
[ -z "$(git status --porcelain)" ] || refuse "the tree has changes; commit or stash them: $(git status --porcelain | head -3)"
says pyproject.toml "version = \"$version\"" "set the version there, in a commit of its own"
says helm/rljob/Chart.yaml "version: $version" "set it with the package's"
says helm/rljob/Chart.yaml "appVersion: \"$version\"" "set it with the package's"
grep -qE "^## ${version//./\\.}( |$)" CHANGELOG.md ||
  refuse "CHANGELOG.md has no section '## $version'; rename '## Unreleased', and say what an upgrade needs"
tagged=$(git rev-parse -q --verify "refs/tags/v$version^{commit}" || true)
[ "${tagged:-$(git rev-parse HEAD)}" = "$(git rev-parse HEAD)" ] || refuse "there is a tag v$version already, of ${tagged:0:8}"
command -v helm >/dev/null || refuse "there is no helm on PATH, which packs the chart"

rm -rf dist
"$uv" build -q --out-dir dist
rm -f dist/.gitignore
helm package helm/rljob --destination dist >/dev/null
# What images and environments are made of: the pinned versions, and torch, which setup.sh takes from another index.
{ cat constraints.txt && sed -n 's/^torch_version=/torch==/p' scripts/setup.sh; } | PYTHONWARNINGS=ignore \
  "$uv" tool run -q --from "$sbom_tool" cyclonedx-py requirements - --pyproject pyproject.toml \
  --output-reproducible --output-format JSON --output-file "dist/rljob-$version.cdx.json"
images=()
if [ -n "$names" ]; then
  # Names are words.
  # shellcheck disable=SC2086
  TAG=$version images/build.sh $names >dist/images.txt
  mapfile -t images <dist/images.txt
fi
(cd dist && sha256sum -- * >SHA256SUMS)

echo "dist/ has the release $version of $(git rev-parse --short HEAD); to publish it:"
echo "  git tag -a v$version -m 'rljob $version' && git push origin v$version"
echo "  $uv publish dist/rljob-$version.tar.gz dist/rljob-$version-py3-none-any.whl"
echo "  helm push dist/rljob-$version.tgz oci://ghcr.io/rljob/charts"
docker info >/dev/null 2>&1 && builder=docker || builder=buildah
for image in ${images[@]+"${images[@]}"}; do
  name=${image##*/rljob-}
  if [ "$builder" = docker ]; then
    echo "  docker tag $image ghcr.io/rljob/$name && docker push ghcr.io/rljob/$name"
  else
    echo "  buildah push $image docker://ghcr.io/rljob/$name"
  fi
done
