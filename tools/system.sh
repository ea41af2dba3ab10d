#!/usr/bin/env bash
# System packages that some tests need: Chromium, bubblewrap. Installs them as root on Debian; elsewhere says what is missing.
set -u
missing=()
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
command -v bwrap >/dev/null || missing+=(bubblewrap)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing ${missing[*]} ..."
    (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}") >/dev/null 2>&1 && exit 0
fi
echo "Not installed: ${missing[*]}. The tests that need them are skipped; to run them, install these packages."
