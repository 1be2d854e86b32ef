"""What this process uses, as the kernel counts it: payload bytes over TCP, and memory. Needs no privileges."""

import ctypes
import os
import resource
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Counters = Mapping[int, tuple[int, int]]  # bytes written, sent yet or not, and bytes received, by the socket's inode

FILES = Path("/proc/self/fd")
INFO_BYTES = 256  # at least of Linux' struct tcp_info (linux/tcp.h), by which it has since 4.19:
COUNTERS = struct.Struct("=128xQ8xI52x2Q")  # tcpi_bytes_received, _notsent_bytes, _bytes_sent and _bytes_retrans
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Usage:
    """What one rank sent and received in some steps, and the most memory that its process has had so far."""

    sent_bytes: int
    received_bytes: int
    peak_memory_bytes: int


def tcp_counters() -> Counters:
    """The counters of the TCP sockets that this process has open."""
    found = {}
    for name in os.listdir(FILES):
        info, size = ctypes.create_string_buffer(INFO_BYTES), ctypes.c_uint(INFO_BYTES)
        refused = _LIBC.getsockopt(int(name), socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(size))
        if not refused and size.value >= COUNTERS.size:
            with suppress(OSError):  # another thread has closed it
                received, unsent, sent, sent_again = COUNTERS.unpack_from(info)
                found[os.fstat(int(name)).st_ino] = sent - sent_again + unsent, received
    return found


def transferred(before: Counters, after: Counters) -> tuple[int, int]:
    """Bytes sent and received between two calls of `tcp_counters`, by sockets that are open at the second one. Pure."""
    pairs = [(before.get(inode, (0, 0)), now) for inode, now in after.items()]
    return sum(now[0] - then[0] for then, now in pairs), sum(now[1] - then[1] for then, now in pairs)


def usage_since(before: Counters) -> Usage:
    """The usage of this process since ``before``."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Usage(*transferred(before, tcp_counters()), peak)
