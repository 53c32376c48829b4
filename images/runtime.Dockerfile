# The runtime on CPU: head, workers and warehouses of a job on emulated devices.
#   images/build.sh runtime
# torch comes from TORCH_WHEELS (a folder mounted into the build), PyTorch's index of CPU builds or the
# default index, whichever answers first: scripts/setup.sh.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim

FROM ${BASE_IMAGE} AS build
# Certificates, where a proxy has its own.
ARG PIP_CERT
ARG SSL_CERT_FILE
ARG TORCH_WHEELS=/wheels
WORKDIR /opt/rljob
RUN command -v cc >/dev/null || (apt-get update -q \
    && apt-get install -qy --no-install-recommends gcc libc6-dev \
    && if [ "$(command -v python3)" = /usr/bin/python3 ]; then apt-get install -qy --no-install-recommends python3-dev; fi)
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY scripts/setup.sh scripts/setup.sh
RUN mkdir crds operator runtime \
    && TORCH_WHEELS=${TORCH_WHEELS} UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 scripts/setup.sh megatron s3 tensorboard textarena wandb

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="rljob-runtime" \
      org.opencontainers.image.licenses="Apache-2.0"
# KubeRay's probes and start command need bash and wget.
RUN command -v wget >/dev/null || (apt-get update -q \
    && apt-get install -qy --no-install-recommends wget && rm -rf /var/lib/apt/lists/*)
COPY --from=build /opt/rljob /opt/rljob
COPY crds/rljob_api /opt/rljob/crds/rljob_api
COPY crds/rljob_plan /opt/rljob/crds/rljob_plan
COPY runtime/rljob_runtime /opt/rljob/runtime/rljob_runtime
RUN /opt/rljob/.venv/bin/python -m compileall -q /opt/rljob/crds /opt/rljob/runtime
ENV PATH=/opt/rljob/.venv/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /tmp
