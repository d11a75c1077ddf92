"""Control of when the C library returns freed memory to the system."""

import ctypes
import platform

# Parameter numbers of mallopt(3).
TRIM_THRESHOLD, MMAP_MAX = -1, -4
NEVER = -1


def keep_freed_memory() -> bool:
    """Make glibc keep memory freed by CPU tensors and reuse it.

    By default glibc returns blocks larger than 32 MiB to the system at once. The system then
    clears each page again at its next use, which on large maps takes longer than the computation.
    The process keeps its peak memory until it ends. ``MALLOC_MMAP_MAX_=0
    MALLOC_TRIM_THRESHOLD_=2147483647`` in the environment does the same for any program, up to
    2 GiB.

    Returns:
        True on success; False with another C library.

    Example:
        >>> keep_freed_memory() == (platform.libc_ver()[0] == 'glibc')
        True
    """
    if platform.libc_ver()[0] != 'glibc':
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, NEVER))


def release_freed_memory() -> bool:
    """Return freed memory, which glibc keeps in small pieces between large ones, to the system.

    It takes tens of milliseconds. Use it in a process that waits after its work.

    Returns:
        True on success; False with another C library.

    Example:
        >>> release_freed_memory() == (platform.libc_ver()[0] == 'glibc')
        True
    """
    if platform.libc_ver()[0] != 'glibc':
        return False
    ctypes.CDLL(None).malloc_trim(0)
    return True
