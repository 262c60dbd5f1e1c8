#!/usr/bin/env python3
"""Runs a command beside a Redis server of its own: with_redis.py COMMAND...

REDIS is replaced in its words, and is set in its environment, by the path of the server's socket. Without a redis-server the
exit status is 77: skipped.
"""

import os
import shutil
import subprocess
import sys
import tempfile


def main():
    server = shutil.which("redis-server")
    if not server:
        print("there is no redis-server")
        return 77
    with tempfile.TemporaryDirectory(prefix="ferry-redis-") as folder:
        socket = os.path.join(folder, "socket")
        words = [server, "--port", "0", "--unixsocket", socket, "--dir", folder, "--save", "", "--logfile", ""]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as running:
            try:
                said = []
                for line in running.stdout:
                    said.append(line)
                    if "ready to accept connections at" in line.lower():
                        break
                else:
                    print("redis-server has not started:", "".join(said))
                    return 1
                words = [word.replace("REDIS", socket) for word in sys.argv[1:]]
                return subprocess.run(words, env={**os.environ, "REDIS": socket}, check=False).returncode
            finally:
                running.kill()


if __name__ == "__main__":
    sys.exit(main())
