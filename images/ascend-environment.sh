# CANN's environment for a container whose command is not the base image's entrypoint: KubeRay starts Ray by
# `bash -c`, and bash reads the file that BASH_ENV names. Once a container: what bash starts inherits it.
if [ -z "${RLJOB_CANN:-}" ]; then
  export RLJOB_CANN=1
  for file in /usr/local/Ascend/ascend-toolkit/set_env.sh \
              /usr/local/Ascend/cann*/share/info/ascendnpu-ir/bin/set_env.sh; do
    # shellcheck source=/dev/null
    if [ -r "$file" ]; then . "$file"; fi
  done
  # Without the argument it would import torch to find out.
  # shellcheck source=/dev/null
  if [ -r /usr/local/Ascend/nnal/atb/set_env.sh ]; then . /usr/local/Ascend/nnal/atb/set_env.sh --cxx_abi="${ATB_CXX_ABI:-1}"; fi
fi
