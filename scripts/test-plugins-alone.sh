#!/usr/bin/env bash
# Test each plugin alone: a virtual environment with nothing but the core, that plugin and its test dependencies.
#
#     scripts/test-plugins-alone.sh PYTHON plugins/NAME ...
#
# Wheels are built once. The core and its test dependencies are installed once, into an environment that each
# plugin's own environment is laid over. The tests run on a copy outside the repository, so that nothing of the
# repository's own set-up helps them.
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

"$python" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet "hatchling>=1.25"
"$work/build/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheels" \
  "$root" "${@/#/$root/}"

"$python" -m venv "$work/core"
core=$work/core/bin/python
"$core" -m pip install --quiet "$(echo "$work"/wheels/rollhook-[0-9]*.whl)[testing]"
"$core" -m rollhook.testing.tokenizers smollm2 qwen3 || true  # without them those tests skip, and say so

failed=()
for plugin in "$@"; do
  name=$(basename "$plugin")
  echo "== $name"
  "$python" -m venv --without-pip "$work/venv"
  alone=$work/venv/bin/python
  "$core" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$("$alone" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/core.pth"
  "$core" -m pip --python "$alone" install --quiet --find-links "$work/wheels" \
    "$(echo "$work"/wheels/rollhook_"${name//-/_}"-*.whl)[testing]"
  cp -r "$root/$plugin" "$work/$name"
  rm -rf "$work/$name/rollhook_${name//-/_}"  # the installed one is tested
  if ! (
    cd "$work/$name"
    timeout 600 "$alone" -m pytest -c /dev/null --rootdir . --import-mode=importlib \
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
