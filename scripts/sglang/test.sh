#!/usr/bin/env bash
# Run the wire contract against a real SGLang server: test.sh VENV [pytest arguments]
#
# Installs the server if needed, starts it on the default small model, and stops it at the end. PYTHON is
# rollhook's own interpreter (default: python), PORT the server's (default: 30123).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: test.sh VENV [pytest arguments]}
shift
python=${PYTHON:-python}
url="http://127.0.0.1:${PORT:-30123}"
log=$(mktemp)

env -u PYTHON bash "$here/install.sh" "$venv"
model=$("$python" -c 'from rollhook.embedded import resolve_model; print(resolve_model())')
bash "$here/launch.sh" "$venv" "$model" "${url##*:}" >"$log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -f "$log"' EXIT

for _ in $(seq 300); do
  "$python" -c "import urllib.request as u; u.urlopen('$url/health', timeout=5)" 2>/dev/null && break
  if ! kill -0 "$server" 2>/dev/null; then
    tail -n 40 "$log" >&2
    echo "the SGLang server ended before it was ready" >&2
    exit 1
  fi
  sleep 1
done
ROLLHOOK_SGLANG_URL=$url "$python" -m pytest -m sglang "$@" "$here/../../tests/contracts"
