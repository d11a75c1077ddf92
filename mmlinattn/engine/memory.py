"""Memory of the C library: kept instead of given back after each operation."""

import ctypes
import platform

# Numbers of mallopt(3).
TRIM_THRESHOLD, MMAP_MAX = -1, -4
NEVER = -1


def keep_freed_memory() -> bool:
    """Makes glibc keep memory that tensors on the CPU leave, for the next ones.

    By default it returns what is larger than 32 MiB to the system at once, and the system clears
    each page again when it is next touched: on large maps that takes longer than to compute. The
    process keeps its peak of memory until it ends. ``MALLOC_MMAP_MAX_=0
    MALLOC_TRIM_THRESHOLD_=2147483647`` in the environment does the same for any program, up to
    2 GiB.

    Returns:
        whether it could; False with another C library.

    Example:
        >>> keep_freed_memory() == (platform.libc_ver()[0] == 'glibc')
        True
    """
    if platform.libc_ver()[0] != 'glibc':
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, NEVER))
