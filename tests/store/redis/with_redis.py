#!/usr/bin/env python3
"""Runs a command beside a Redis server of its own: with_redis.py COMMAND...

REDIS is replaced in its words, and is set in its environment, by the path of the server's socket. Without a redis-server the
exit status is 77: skipped.
"""

import os
import shutil
import socket as socket_module
import subprocess
import sys
import tempfile
import time



def listens(path):
    with socket_module.socket(socket_module.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            time.sleep(0.01)
            return False
    return True


def main():
    # One program under two names: Debian's package of the former starts a service, that of the latter does not.
    server = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if not server:
        print("there is no redis-server")
        return 77
    with tempfile.TemporaryDirectory(prefix="ferry-redis-") as folder:
        socket = os.path.join(folder, "socket")
        words = ["redis-server", "--port", "0", "--unixsocket", socket, "--dir", folder, "--save", "", "--logfile", os.path.join(folder, "log")]
        with subprocess.Popen(words, executable=server, stdin=subprocess.DEVNULL) as running:
            try:
                while not listens(socket):
                    if running.poll() is not None:
                        print("redis-server has not started")
                        return 1
                words = [word.replace("REDIS", socket) for word in sys.argv[1:]]
                return subprocess.run(words, env={**os.environ, "REDIS": socket}, check=False).returncode
            finally:
                running.kill()


if __name__ == "__main__":
    sys.exit(main())
