# The runtime on Ascend NPUs: a vllm-ascend image with Ray and rljob beside what it holds (docs/ascend.md).
#   images/build.sh runtime-ascend                                                              Atlas A2
#   BASE_IMAGE=quay.io/ascend/vllm-ascend:v0.23.0-a3 images/build.sh runtime-ascend             Atlas A3
# Nothing of the base image is changed: an environment of rljob's own sees the image's packages and adds
# only those that it lacks, and Ray.
ARG BASE_IMAGE=quay.io/ascend/vllm-ascend:v0.23.0
# A branch or tag, which names the Megatron Core that it adapts. Empty: neither of them.
ARG MINDSPEED_BRANCH=26.2.0_core_r0.12.1

FROM ${BASE_IMAGE} AS mindspeed
# Sources alone: MindSpeed's setup.py would install other versions.
ARG MINDSPEED_REPOSITORY=https://gitcode.com/Ascend/MindSpeed.git
ARG MINDSPEED_BRANCH
WORKDIR /src
RUN mkdir -p /opt/mindspeed && if [ -n "${MINDSPEED_BRANCH}" ]; then \
      git clone -q --depth 1 -b "${MINDSPEED_BRANCH}" "${MINDSPEED_REPOSITORY}" . \
      && cp -r mindspeed requirements.txt LICENSE /opt/mindspeed/ \
      && echo "${MINDSPEED_BRANCH} $(git rev-parse HEAD)" > /opt/mindspeed/REVISION; fi

FROM ${BASE_IMAGE} AS build
# Certificates, where a proxy has its own, and an index in place of the one that the base image names.
ARG PIP_CERT
ARG SSL_CERT_FILE
ARG PIP_INDEX_URL
# A machine that builds images has no driver for torch to find.
ENV TORCH_DEVICE_BACKEND_AUTOLOAD=0
WORKDIR /src
RUN python3 -m venv --system-site-packages /opt/rljob \
    && echo /opt/mindspeed > "$(/opt/rljob/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/mindspeed.pth"
COPY pyproject.toml constraints.txt images/beside_installed.py ./
RUN /opt/rljob/bin/python beside_installed.py requirements > requirements.txt \
    && /opt/rljob/bin/python beside_installed.py constraints > beside.txt \
    && /opt/rljob/bin/pip install -q --no-cache-dir -c beside.txt -r requirements.txt
# Of Megatron Core's requirements, libraries of CUDA among them, its layers import two.
ARG MINDSPEED_BRANCH
COPY --from=mindspeed /opt/mindspeed /opt/mindspeed
RUN if [ -n "${MINDSPEED_BRANCH}" ]; then \
      /opt/rljob/bin/pip install -q --no-cache-dir -c beside.txt -r /opt/mindspeed/requirements.txt einops packaging \
      && /opt/rljob/bin/pip install -q --no-cache-dir --no-deps "megatron-core==${MINDSPEED_BRANCH##*core_r}"; fi
COPY README.md LICENSE ./
COPY crds/rljob_api crds/rljob_api
COPY crds/rljob_plan crds/rljob_plan
COPY runtime/rljob_runtime runtime/rljob_runtime
RUN mkdir -p operator/rljob_operator operator/rljob_device_plugin \
    && /opt/rljob/bin/pip install -q --no-cache-dir --no-deps . \
    && /opt/rljob/bin/rljob --help > /dev/null

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="rljob-runtime-ascend" \
      org.opencontainers.image.licenses="Apache-2.0"
# KubeRay's probes and start command need bash and wget. Drivers give /dev/davinci* to the group HwHiAiUser,
# whose number is 1000 wherever nobody chose another.
RUN command -v bash && command -v wget \
    && (getent group 1000 || groupadd -g 1000 HwHiAiUser) \
    && (getent passwd 1000 || useradd -u 1000 -g 1000 -d /tmp -M HwHiAiUser)
COPY --from=mindspeed /opt/mindspeed /opt/mindspeed
COPY --from=build /opt/rljob /opt/rljob
COPY images/ascend-environment.sh images/megatron_fits.py /opt/rljob/
ENV PATH=/opt/rljob/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 BASH_ENV=/opt/rljob/ascend-environment.sh
# In CANN's environment, with its stubs in place of the driver's libraries.
RUN if [ -e /opt/mindspeed/REVISION ]; then \
      stubs=$(find /usr/local/Ascend -path '*devlib*' -name libascend_hal.so -printf %h -quit) \
      && LD_LIBRARY_PATH=${stubs} TORCH_DEVICE_BACKEND_AUTOLOAD=0 \
         bash -c 'python /opt/rljob/megatron_fits.py mindspeed'; fi
USER 1000:1000
WORKDIR /tmp
