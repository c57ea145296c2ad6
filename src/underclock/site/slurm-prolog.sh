#!/bin/sh
# For Slurm's Prolog (slurm.conf; PrologFlags=Alloc), which runs as root on each node before a job.
#
# It undoes what an earlier job may have left, and says whose the job's GPUs are, for
# `underclock serve` under policy = "file" (/etc/underclock/serve.toml). GPUs must not be shared by
# jobs of several users (no shards, no MPS). Where it fails, Slurm drains the node.
#
# No command of the job's environment is found: the paths are these.
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin  # Slurm gives none
underclock=/opt/underclock/bin/underclock
owners=/run/underclock-owners

env -i PATH="$PATH" timeout --kill-after=10 60 "$underclock" restore --all

case ${SLURM_JOB_UID:-} in '' | *[!0-9]*) echo "no SLURM_JOB_UID" >&2; exit 1 ;; esac
(umask 022; mkdir -p "$owners")
for gpu in $(echo "${SLURM_JOB_GPUS:-}" | tr ',' ' '); do
  case $gpu in *[!0-9]*) echo "SLURM_JOB_GPUS names $gpu" >&2; exit 1 ;; esac
  uuid=$(timeout 20 nvidia-smi -i "$gpu" --query-gpu=uuid --format=csv,noheader)
  case $uuid in GPU-*[!0-9a-zA-Z-]* | [!G]*) echo "GPU $gpu has no UUID: $uuid" >&2; exit 1 ;; esac
  # Whole or not at all, for the service may read it meanwhile.
  (umask 022; echo "$SLURM_JOB_UID" > "$owners/.$uuid")
  mv -f "$owners/.$uuid" "$owners/$uuid"
done
