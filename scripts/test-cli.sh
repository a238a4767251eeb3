#!/bin/sh
# Run the Claude Code, Codex, opencode and qwen-code command lines, unmodified, through the adapters.
# usage: scripts/test-cli.sh PYTHON
#
# Run it at the root of the repository. Installs the four from npm, once, into $ROLLHOOK_CACHE (default
# ~/.cache/rollhook), and claude-agent-sdk from PyPI.
set -eu

python=$1
directory=${ROLLHOOK_CACHE:-$HOME/.cache/rollhook}/command-lines
packages="@anthropic-ai/claude-code@2.1 @openai/codex@0.171 opencode-ai@1.18 @qwen-code/qwen-code@0.15"

mkdir -p "$directory"
if [ "$(cat "$directory/installed" 2>/dev/null)" != "$packages" ]; then
    # shellcheck disable=SC2086  the packages are words
    npm install --prefix "$directory" --no-audit --no-fund --loglevel=error $packages
    echo "$packages" >"$directory/installed"
fi

"$python" -m pip install --quiet --disable-pip-version-check "claude-agent-sdk>=0.2.189"

ROLLHOOK_COMMAND_LINES=$directory/node_modules/.bin "$python" -m pytest -v -s tests/adapters/test_command_lines.py tests/adapters/test_agent_sdks.py
