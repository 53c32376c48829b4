# The operator: rljob_api and rljob_operator with the packages of the extra `operator`; no torch, no Ray.
#   images/build.sh operator
ARG BASE_IMAGE=docker.io/library/python:3.11-slim

FROM ${BASE_IMAGE} AS build
# Certificates, where a proxy has its own.
ARG PIP_CERT
ARG SSL_CERT_FILE
WORKDIR /src
COPY pyproject.toml constraints.txt images/requirements.py ./
RUN python3 -m venv /opt/rljob && /opt/rljob/bin/pip install -q --no-cache-dir -c constraints.txt uv
RUN /opt/rljob/bin/python requirements.py operator > requirements.txt \
    && /opt/rljob/bin/uv pip install -q --no-config --link-mode copy --compile-bytecode -p /opt/rljob \
        -c constraints.txt -r requirements.txt
COPY README.md LICENSE ./
COPY crds/rljob_api crds/rljob_api
COPY operator/rljob_operator operator/rljob_operator
RUN mkdir -p crds/rljob_plan runtime/rljob_runtime operator/rljob_device_plugin \
    && /opt/rljob/bin/uv pip install -q --no-config --no-deps --compile-bytecode -p /opt/rljob . \
    && /opt/rljob/bin/uv pip uninstall -q -p /opt/rljob uv pip setuptools

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="rljob-operator" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/rljob /opt/rljob
ENV PATH=/opt/rljob/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python", "-m", "rljob_operator"]
