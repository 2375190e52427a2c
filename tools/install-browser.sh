#!/usr/bin/env bash
# Install Chromium and fonts where they are missing, as root or by sudo, with apt-get (Debian, Ubuntu).
# Elsewhere it says what is missing: tests of the pages skip without Chromium, and without the fonts of a
# script its letters are boxes on the pictures.
set -euo pipefail

missing=()
command -v chromium >/dev/null || missing+=(chromium)
if command -v fc-list >/dev/null; then
  for needed in hi:fonts-noto-core zh:fonts-noto-cjk und-zsye:fonts-noto-color-emoji; do
    [ -n "$(fc-list ":lang=${needed%%:*}")" ] || missing+=("${needed#*:}")
  done
elif command -v apt-get >/dev/null; then
  missing+=(fontconfig fonts-noto-core fonts-noto-cjk fonts-noto-color-emoji)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "packline: no ${missing[*]} here, and no apt-get to install it: install it by hand" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "packline: installing ${missing[*]} needs root or sudo" >&2; exit 1; }
  as_root=(sudo)
fi
echo "packline: installing ${missing[*]} with apt-get"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get -qq update
"${as_root[@]}" apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
