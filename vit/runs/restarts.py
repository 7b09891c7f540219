"""Restarts by torchrun: processes that are started again meet at a place of their own."""

import os


def meet_anew() -> None:
    """Let processes that torchrun has started again meet at another port than the first ones.

    torchrun's own store outlives a restart, with the addresses of the processes that are gone, which the new ones would
    try to reach (torch 2.14).
    """
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if restarts:
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + restarts)
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # the first process opens the store
