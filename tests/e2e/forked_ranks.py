"""Starts a module in two ranks as torchrun does: python forked_ranks.py -m MODULE ARGS…

They are forked once torch is imported: torchrun and each of its ranks would import it.
"""

import os
import runpy
import socket
import sys
from importlib import import_module

import_module("torch._dynamo")  # what the first optimizer would import

with socket.create_server(("127.0.0.1", 0)) as free:
    port = str(free.getsockname()[1])
os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
ranks = []
for rank in ("0", "1"):
    ranks.append(os.fork())
    if not ranks[-1]:
        os.environ.update(RANK=rank, LOCAL_RANK=rank)
        sys.argv = sys.argv[2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        sys.exit()
sys.exit(max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in ranks))
