"""The allocator of the process gives back what is free."""

import platform
import subprocess
import sys

import pytest

FRAGMENTS = """
import ctypes, os, sys
from qkvflow import allocator

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

allocator.configure_malloc()
pieces = []
for _ in range(200):
    pieces.append((libc.malloc(1 << 20), libc.malloc(5000)))  # The small stay, in between.
    ctypes.memset(pieces[-1][0], 1, 1 << 20)
for large, _ in pieces:
    libc.free(large)
before = resident()
allocator.trim_malloc()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc's allocator")
def test_free_memory_is_given_back():
    """Also from between pieces that are in use, where it would stay for good."""
    done = subprocess.run([sys.executable, "-c", FRAGMENTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 190 << 20
