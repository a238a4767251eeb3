#!/usr/bin/env bash
# Install the real SGLang server for a CPU: install.sh VENV   (Python 3.10+; some minutes, 3.3 GB)
#
# It needs a virtual environment of its own: its pins (transformers, openai) exclude rollhook's. SGLang itself
# is installed without its dependencies, most of which are CUDA kernels; what its CPU path imports is listed.
set -euo pipefail
venv=${1:?usage: install.sh VENV}

if "$venv/bin/python" -c 'import sglang, torch, xgrammar' 2>/dev/null; then
  echo "SGLang is installed in $venv"
  exit 0
fi
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"

install() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$@"
}

install torch==2.13.0 transformers==5.19.0
install --no-deps sglang==0.5.23
# the HTTP server and its processes
install aiohttp fastapi uvicorn uvloop orjson pybase64 requests msgspec pyzmq psutil setproctitle \
  prometheus-client python-multipart watchfiles distro easydict
# tokenizers, grammars and the protocols SGLang speaks
install tiktoken sentencepiece==0.2.1 gguf 'mistral_common>=1.11.5' openai==2.8.0 anthropic \
  openai-harmony==0.0.4 partial_json_parser interegular outlines==0.1.11 xgrammar==0.2.7 \
  'llguidance>=1.7.6,<2'
# model loading and what is imported without being used on a CPU
install einops pillow scipy soundfile datasets zstandard xxhash IPython blobfile==3.0.0 numba==0.65.1 \
  compressed-tensors==0.18.0 'kernels>=0.14.1,<0.15' apache-tvm-ffi==0.1.11 torch_memory_saver
