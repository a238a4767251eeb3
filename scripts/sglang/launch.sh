#!/usr/bin/env bash
# Start the real SGLang server on a CPU: launch.sh VENV MODEL_DIR PORT [more SGLang flags]
#
# Ready after about half a minute: poll GET /health. Stays in the foreground; SIGTERM stops it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -lt 3 ]; then
  echo "usage: launch.sh VENV MODEL_DIR PORT [more SGLang flags]" >&2
  exit 2
fi
venv=$1 model=$2 port=$3
shift 3

# PYTHONPATH: the stubs stand in for torchvision and for the vLLM kernels of SGLang's CPU path
export PYTHONPATH="$here/stubs" PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
exec "$venv/bin/python" -m sglang.launch_server \
  --model-path "$model" --host 127.0.0.1 --port "$port" \
  --device cpu --dtype bfloat16 \
  --attention-backend torch_native --sampling-backend pytorch --grammar-backend xgrammar \
  --disable-overlap-schedule --mem-fraction-static 0.3 --max-total-tokens 16384 --max-running-requests 16 \
  "$@"
