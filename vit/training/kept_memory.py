"""Memory that a training step frees and the next step takes again."""

import ctypes

# Options of glibc's mallopt.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST = 2**30  # bytes


def keep_freed_memory() -> bool:
    """Let this process keep what tensors free, up to 1 GiB a tensor; return whether its allocator can.

    glibc gives large tensors back to the system, which clears each page before it hands it out again, in every step of
    a training on a CPU. The process keeps its memory until it ends. Other allocators stay as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST)) and bool(mallopt(TRIM_THRESHOLD, LARGEST))
