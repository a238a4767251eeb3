#!/usr/bin/env bash
# Install the Debian packages that some tests need, where their commands are missing. Needs root.
# Without them those tests skip and say so.
set -euo pipefail

# need COMMAND PACKAGE...
need() {
  if command -v "$1" >/dev/null; then
    return
  fi
  if ! command -v apt-get >/dev/null; then
    echo "$1 is missing, and there is no apt-get to install ${*:2} with" >&2
    return
  fi
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${@:2}"
}
need npm nodejs npm                  # real tokenizers
need bwrap bubblewrap libseccomp2    # the sandbox
need chromium chromium               # the browser
need podman podman crun busybox      # containers
