"""Memory of the C library: when freed memory goes back to the system."""

import ctypes
import platform

# Numbers of mallopt(3).
TRIM_THRESHOLD, MMAP_MAX = -1, -4
NEVER = -1


def keep_freed_memory() -> bool:
    """Make glibc keep memory that tensors on the CPU leave, for the next ones.

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


def release_freed_memory() -> bool:
    """Return freed memory to the system, which glibc keeps in small pieces between large ones.

    This takes tens of milliseconds. It is for a process that waits after its work.

    Returns:
        True if it could; False with another C library.

    Example:
        >>> release_freed_memory() == (platform.libc_ver()[0] == 'glibc')
        True
    """
    if platform.libc_ver()[0] != 'glibc':
        return False
    ctypes.CDLL(None).malloc_trim(0)
    return True
