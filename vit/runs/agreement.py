"""What the first process of a training decides for all of them, before Lightning connects them."""

import os
from collections.abc import Callable
from functools import cache
from itertools import count

import torch
from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

NUMBERS = count()  # of decisions, which all processes make in the same order
FOR_CHILDREN = "VIT_DECISION"  # in the environment of the processes that Lightning starts after the first one


def decide_once(decide: Callable[[], str]) -> str:
    """Return what ``decide`` gives on the first process of a training, on all of its processes.

    Processes that look at files by themselves may see different ones: one starts later, on another machine.
    """
    kinds = (TorchElasticEnvironment, SLURMEnvironment)
    environment = next((kind() for kind in kinds if kind.detect()), None)
    if environment is None:
        if os.environ.get("LOCAL_RANK", "0") != "0" and FOR_CHILDREN in os.environ:
            return os.environ[FOR_CHILDREN]
        os.environ[FOR_CHILDREN] = decide()
        return os.environ[FOR_CHILDREN]
    if environment.world_size() == 1:
        return decide()
    os.environ |= {"MASTER_ADDR": environment.main_address, "MASTER_PORT": str(environment.main_port)}
    store, name = _connect(environment.global_rank(), environment.world_size()), f"decision_{next(NUMBERS)}"
    if environment.global_rank() == 0:
        store.set(name, decide())
    return store.get(name).decode()


@cache  # kept open: Lightning connects its processes by the same port, which would be closed in between
def _connect(rank: int, world_size: int) -> torch.distributed.Store:
    store, *_ = next(torch.distributed.rendezvous("env://", rank, world_size))
    return store
