#!/bin/sh
# For Slurm's Epilog (slurm.conf), which runs as root on each node when a job ends.
#
# Slurm kills all processes of the job, conductor and watcher too. What they set is undone here, by
# the journal that they left; runs of other jobs on this node are left alone. Should the driver
# refuse or hang, the epilog fails, and Slurm drains the node: its GPUs still have clocks that a job
# set. What users left in folders of their own never fails it.
#
# What slurm-prolog.sh wrote is taken away first, so that no lease of the job's user begins anew.
# No command of the job's environment is found: the paths are these.
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin  # Slurm gives none
underclock=/opt/underclock/bin/underclock
owners=/run/underclock-owners

for gpu in $(echo "${SLURM_JOB_GPUS:-}" | tr ',' ' '); do
  case $gpu in *[!0-9]*) continue ;; esac
  # A GPU that fell off the bus has no UUID any more; its file then goes by the next job or boot.
  uuid=$(timeout 20 nvidia-smi -i "$gpu" --query-gpu=uuid --format=csv,noheader) || continue
  case $uuid in GPU-*[!0-9a-zA-Z-]* | [!G]*) continue ;; esac
  rm -f "$owners/$uuid"
done
exec env -i PATH="$PATH" timeout --kill-after=10 60 "$underclock" restore --all
