#!/usr/bin/env bash
# Build rljob's images with docker or buildah: images/build.sh [NAME...]   (default: all but runtime-ascend)
#   TAG=dev REGISTRY=localhost   the images are $REGISTRY/rljob-NAME:$TAG
#   BASE_IMAGE=...               what they start from, instead of the public slim image of Python
#   TORCH_WHEELS=DIR             torch from a folder of wheels (buildah only; else from PyTorch's index)
set -euo pipefail
cd "$(dirname "$0")/.."
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(operator runtime device-plugin)

arguments=(${BASE_IMAGE:+--build-arg "BASE_IMAGE=$BASE_IMAGE"})
if docker info >/dev/null 2>&1; then
  build=(docker build -q "${arguments[@]}")
else
  # chroot needs no privileges beyond root's. The machine's certificates and uv's cache serve the build.
  cache=${UV_CACHE_DIR:-$HOME/.cache/uv}
  mkdir -p "$cache"
  build=(buildah build -q --isolation chroot --layers "${arguments[@]}" --volume "$cache:/root/.cache/uv"
         --volume /etc/ssl/certs:/etc/ssl/certs:ro)
  for variable in PIP_CERT SSL_CERT_FILE; do
    [ -z "${!variable:-}" ] || build+=(--build-arg "$variable=${!variable}")
  done
  for folder in ${TORCH_WHEELS:-} ../shared/wheels; do
    [ -d "$folder" ] && build+=(--volume "$(realpath "$folder"):/wheels:ro") && break
  done
fi
for name in "${names[@]}"; do
  tag=${REGISTRY:-localhost}/rljob-$name:${TAG:-dev}
  echo "building $tag" >&2
  "${build[@]}" -f "images/$name.Dockerfile" -t "$tag" . >&2
  echo "$tag"
done
