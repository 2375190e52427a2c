#!/usr/bin/env bash
# Run a command with its temporary files in memory, if there is room for those of all tests (6 GB), else as it
# is. Every store is synchronized many times; what matters to tests is the calls, not the wait for a disk.
#
#   tools/in-memory.sh COMMAND...
set -euo pipefail

room=$(df --output=avail -B 1G /dev/shm 2>/dev/null | tail -n 1) || room=0
memory=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null) || memory=0
if [ "${room:-0}" -ge 8 ] && [ "${memory:-0}" -ge 14 ]; then
  folder=$(mktemp -d /dev/shm/packline-XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  if cp /bin/true "$folder/program" && "$folder/program" 2>/dev/null; then # some systems run no programs there
    rm "$folder/program"
    export TMPDIR=$folder
  fi
fi
"$@"
