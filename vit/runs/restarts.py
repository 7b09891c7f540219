"""Restarts by torchrun: restarted processes connect at a new port."""

import os


def use_new_port() -> None:
    """Let processes that torchrun has restarted connect at another port than the first ones.

    torchrun's own store outlives a restart. It keeps the addresses of the old processes, which the new ones would try
    to reach (torch 2.14).
    """
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if restarts:
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + restarts)
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # the first process opens the store
