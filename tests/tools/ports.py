"""Ports for servers that a test starts later. The same rules, range and claims as tests/support/ports.hpp."""

import os
import socket

FIRST, END = 30000, 32768

_next = FIRST + os.getpid() * 31 % (END - FIRST)
_claims = []


def _claimed(port):
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0ferry-test-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def _has_no_listener(port):
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
        return True


def free_port():
    """A TCP port without listener, below the kernel's ephemeral range; no other test process gets it
    while this one runs."""
    global _next
    for _ in range(END - FIRST):
        port = _next
        _next = FIRST if port + 1 == END else port + 1
        if _claimed(port) and _has_no_listener(port):
            return port
    raise RuntimeError(f"no free port between {FIRST} and {END}")
