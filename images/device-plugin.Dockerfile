# The emulated device plugin: rljob_device_plugin and the packages of the extra `device-plugin`.
#   images/build.sh device-plugin
ARG BASE_IMAGE=docker.io/library/python:3.11-slim

FROM ${BASE_IMAGE} AS build
# Certificates, where a proxy has its own.
ARG PIP_CERT
ARG SSL_CERT_FILE
WORKDIR /src
COPY pyproject.toml constraints.txt images/requirements.py ./
RUN python3 -m venv /opt/rljob && /opt/rljob/bin/pip install -q --no-cache-dir -c constraints.txt uv
RUN /opt/rljob/bin/python requirements.py device-plugin > requirements.txt \
    && /opt/rljob/bin/uv pip install -q --no-config --link-mode copy --compile-bytecode -p /opt/rljob \
        -c constraints.txt -r requirements.txt
COPY README.md LICENSE ./
COPY operator/rljob_device_plugin operator/rljob_device_plugin
COPY operator/rljob_operator/__init__.py operator/rljob_operator/log.py operator/rljob_operator/
RUN mkdir -p crds/rljob_api crds/rljob_plan runtime/rljob_runtime \
    && /opt/rljob/bin/uv pip install -q --no-config --no-deps --compile-bytecode -p /opt/rljob . \
    && /opt/rljob/bin/uv pip uninstall -q -p /opt/rljob uv pip setuptools

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="rljob-device-plugin" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/rljob /opt/rljob
ENV PATH=/opt/rljob/bin:$PATH PYTHONUNBUFFERED=1
# Root, because the kubelet's folder of sockets belongs to root and is closed to others (0750). Nothing else of
# root's is needed: the pod drops all capabilities, and its own file system may be read-only.
# hadolint ignore=DL3002
USER 0:0
ENTRYPOINT ["python", "-m", "rljob_device_plugin"]
