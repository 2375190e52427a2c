#!/usr/bin/env bash
# Install a Slurm controller and node where they are missing, as root with apt-get (Debian, Ubuntu). The tests
# start both for themselves; elsewhere these tests skip.
set -euo pipefail

command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "packline: Slurm is not installed, which needs root and apt-get: its tests skip"
  exit 0
fi
echo "packline: installing Slurm with apt-get"
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends slurmctld slurmd slurm-client >/dev/null
