"""Memory of a training on Linux: freed blocks stay in the process, on large pages."""

import ctypes
import mmap
import platform
import re
from pathlib import Path

# Options of glibc's mallopt (malloc.h).
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT = 2**30  # bytes
LARGE_PAGE = 2**21


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next step; return whether it does, which glibc alone can.

    A step frees its activations, and the next one needs as much again. By default, glibc returns large blocks to the
    system, which fills every page with zeros when it comes back. Now blocks below 1 GiB stay in the heap of the
    process, and the next GiB of it consists of pages of 2 MiB. Results are the same, bit for bit.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD):
        libc.mallopt(option, KEPT)
    _ask_for_large_pages(libc)
    return True


def _ask_for_large_pages(libc: ctypes.CDLL) -> None:
    """Grow the heap by ``KEPT`` bytes, and ask for large pages in it; the system is free to refuse."""
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.free(libc.malloc(2 * LARGE_PAGE))
    maps = Path("/proc/self/maps")
    heap = re.search(r"^(\w+)-(\w+) .*\[heap\]$", maps.read_text(), re.MULTILINE) if maps.exists() else None
    if heap is None:
        return
    start, end = (int(address, 16) // LARGE_PAGE * LARGE_PAGE for address in heap.groups())
    start += LARGE_PAGE
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.madvise(start, end - start, mmap.MADV_HUGEPAGE)
