#!/usr/bin/env bash
# Run the wire contract against a real SGLang server: test.sh PYTHON [pytest arguments]
#
# PYTHON is rollhook's interpreter. The server is installed in $SGLANG_VENV (default .venv-sglang) if it is not
# there, started on the default small model at $SGLANG_PORT (default 30123), and stopped at the end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${1:?usage: test.sh PYTHON [pytest arguments]}
shift
venv=${SGLANG_VENV:-$root/.venv-sglang}
port=${SGLANG_PORT:-30123}
log=$(mktemp)

"$here/install.sh" "$venv"
model=$("$python" -c 'from rollhook.embedded import resolve_model; print(resolve_model())')

"$here/launch.sh" "$venv" "$model" "$port" >"$log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -f "$log"' EXIT

ready() {
  "$python" -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/health', timeout=30)" 2>/dev/null
}
deadline=$((SECONDS + 600))
until ready; do
  if ! kill -0 "$server" 2>/dev/null || [ "$SECONDS" -ge "$deadline" ]; then
    tail -n 40 "$log" >&2
    echo "the SGLang server did not become ready; its last lines are above" >&2
    exit 1
  fi
  sleep 1
done
export ROLLHOOK_SGLANG_URL="http://127.0.0.1:$port" ROLLHOOK_SGLANG_PYTHON="$venv/bin/python"
"$python" -m pytest -m sglang "$@" "$root/tests/contracts" "$root/tests/adapters/test_real_sglang.py" "$root/tests/slime/test_real_sglang.py"
"$python" -m pytest "$root/tests/exactness"
