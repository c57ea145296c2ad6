#!/bin/sh
# For Slurm's Epilog (slurm.conf), which runs as root on each node when a job ends.
#
# Slurm kills all processes of the job, conductor and watcher too. What they set is undone here, by
# the journal that they left; runs of other jobs on this node are left alone. Should the driver
# refuse or hang, the epilog fails, and Slurm drains the node: its GPUs still have clocks that a job
# set. What users left in folders of their own never fails it.
#
# The environment is the job's, and root takes no word of that.
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  timeout --kill-after=10 60 /opt/underclock/bin/underclock restore --all
