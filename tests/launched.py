"""Two ranks of one command, with the variables that torchrun gives, without loading PyTorch twice.

A launcher of PyTorch's takes as long to start as a rank does; one test of each kind starts one.
"""

import sys

_LAUNCH = """
import os, socket, subprocess, sys
with socket.create_server(("localhost", 0)) as free:
    at = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
at |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
command = [sys.executable, *sys.argv[1:]]
ranks = [
    subprocess.Popen(command, env=os.environ | at | {"RANK": rank, "LOCAL_RANK": rank})
    for rank in "01"
]
sys.exit(max(rank.wait() for rank in ranks))
"""
TWO_RANKS = (sys.executable, "-S", "-c", _LAUNCH)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
