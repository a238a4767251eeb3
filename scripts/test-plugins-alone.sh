#!/usr/bin/env bash
# Test each plugin alone: a virtual environment with nothing but the core, that plugin and its test dependencies.
#
#     scripts/test-plugins-alone.sh PYTHON plugins/NAME ...
#
# The tests run on a copy outside the repository, so that nothing of the repository's own set-up helps them.
set -euo pipefail

if [ $# -lt 2 ]; then
  echo "usage: $0 PYTHON plugins/NAME ..." >&2
  exit 2
fi
python=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

failed=()
for plugin in "$@"; do
  name=$(basename "$plugin")
  echo "== $name"
  "$python" -m venv "$work/venv"
  "$work/venv/bin/python" -m pip install --quiet "$root" "$root/$plugin[testing]"
  "$work/venv/bin/python" -m rollhook.testing.tokenizers smollm2 qwen3 || true
  cp -r "$root/$plugin" "$work/$name"
  if ! (
    cd "$work/$name"
    "$work/venv/bin/python" -m pytest -c /dev/null --rootdir . --import-mode=importlib \
      -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=function -W error -q -ra tests
  ); then
    failed+=("$name")
  fi
  rm -rf "$work/venv" "${work:?}/$name"
done

if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
