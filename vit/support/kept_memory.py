"""Memory that one pass frees and the next pass takes again."""

import ctypes

# Options of glibc's mallopt.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST = 2**30  # bytes


def keep_freed_memory() -> bool:
    """Let this process keep what tensors free, up to 1 GiB a tensor; return whether its allocator can.

    On CPUs, this makes passes over large batches faster, in any library. glibc gives the memory of large tensors back
    to the system when they are freed, and the system clears each page before it hands it out again. The process keeps
    its memory until it ends. Other allocators stay as they are.

    >>> import vit
    >>> is_kept = vit.keep_freed_memory()  # True on Linux with glibc
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST)) and bool(mallopt(TRIM_THRESHOLD, LARGEST))
