"""The victim's process, its group, and what is measured of them."""

import os
import random
import re
import resource
import subprocess
import tempfile
import threading
import time

import session
import wire

# The bounds that victim.cpp sets.
MIB = 1 << 20
MOST_CONNECTIONS = 128
MOST_HANDSHAKES = 64
HANDSHAKE_SECONDS = 2
MESSAGE_BYTES = 8 * MIB
FAIR_CALLS, FAIR_BYTES = 16, MIB  # of a bound per worker, for each peer
SERVED_CALLS, SERVED_CALLS_OF_ALL = 64, 256
SERVED_BYTES, SERVED_BYTES_OF_ALL = 4 * MIB, 16 * MIB
UNWRITTEN_BYTES, UNWRITTEN_BYTES_OF_ALL = 4 * MIB, 16 * MIB
CALLS, CALLS_OF_ALL = 64, 160
QUEUED_CALLS, QUEUED_CALLS_OF_ALL = 128, 320
QUEUED_BYTES, QUEUED_BYTES_OF_ALL = 2 * MIB, 5 * MIB
HANDLERS, BLOCKED_HANDLERS = 4, 32
STORE_BYTES = 16 * MIB
STORE_CLIENTS = 64
STORE_SECONDS = 2
STORE_HANDSHAKE_SECONDS = 1
MOST_DESCRIPTORS = 512
LONGEST_HONEST_CALL = 2.0  # seconds
# What docs/security.md promises.
LOG_LINES = 20
LOG_SECONDS = 5
CONNECTIONS_OF_A_MEMBER = 8  # for calls, and as many for control
STORE_STRANGERS = 64

SIGNATURES = {
    "add": "i32(i32, i32)",
    "echo": "string(string)",
    "shapes": "u64(vector<tensor>)",
    "tensor_back": "tensor(tensor)",
    "zeros": "tensor(i64)",
    "take_everything": "u64(variant<map<string,vector<optional<f64>>>,vector<string>,vector<bool>,array<pair<i32,bool>,2>,"
                       "f64>)",
    "hold": "i32(string)",
    "release": "u64()",
    "ask_number": "string(string, i64)",
    "ask_text": "string(string, i64)",
    "ask_tensor": "string(string, i64)",
    "ask_reference": "string(string, i64)",
    "ask_often": "string(string, i64, u64, u64)",
    "figures": "map<string,string>()",
}


def named(name, signature=None, flavour=""):
    """The fields of a request that say which method it is for."""
    return {"method": wire.fingerprint(f"{flavour}name:{name}"),
            "signature": wire.fingerprint(signature or SIGNATURES[name])}


class Violation(AssertionError):
    """The victim did what it must not do."""


class World:
    def __init__(self, victim, secret, seed, patience, memory_factor):
        self.secret = secret
        self.seed = seed
        self.random = random.Random(seed)
        self.patience = patience
        self.memory_factor = memory_factor
        self.member_number = 0
        self.signatures = {}
        self.bounds = []  # what was measured: of what, the limit, the measured value, the unit
        self.log_path = tempfile.NamedTemporaryFile(prefix="hostile-", suffix=".log", delete=False).name
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FERRY_")}
        environment["FERRY_LOG"] = "warning"
        # Memory that is free is to count as free: the address sanitizer would hold on to 256 MiB of it.
        environment["ASAN_OPTIONS"] = "quarantine_size_mb=4:allocator_release_to_os_interval_ms=100:" + os.environ.get(
            "ASAN_OPTIONS", "")
        if secret:
            environment["FERRY_SECRET"] = secret.decode()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [victim], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS, MOST_DESCRIPTORS)))
        line = self.process.stdout.readline()
        if not line:
            raise Violation(f"the victim did not start: {self.log()}")
        self.store_port = int(line)
        self.store = self.open_store()
        self.group = self.store.get("ferry/dynamic/group").decode()
        record = self.store.get("ferry/dynamic/log/1").decode()
        lines = record.split("\n")
        self.victim = (int(lines[0].split(" ")[1]), int(lines[2], 16))  # its life: id and incarnation
        host, port = next(re.fullmatch(r"tcp://(.*):(\d+)", each) for each in lines if each.startswith("tcp:")).groups()
        self.victim_address = (host, int(port))
        self.log_index = 1
        self.honest = session.Member(self)
        self.honest_connection = self.honest.connect()
        self.peak = Peak(self.process.pid)
        self.load = Load(self.process.pid)

    # ------------------------------------------------------------ the group

    def open_store(self, **changes):
        return session.Store(self.store_port, self.secret, **{"patience": self.patience, **changes})

    def next_member(self):
        self.member_number += 1
        return self.member_number

    def append(self, entry):
        """Writes an entry of the group's log; returns its index."""
        while True:
            index = self.log_index + 1
            there = self.store.compare_set(f"ferry/dynamic/log/{index}", "", entry)
            self.log_index = index
            if there == (entry if isinstance(entry, bytes) else entry.encode()):
                self.store.set("ferry/dynamic/tail", str(index))
                return index

    def named(self, name, flavour=""):
        """As named() above, of a method whose signature names types of the victim: it says it to those who have another."""
        key = flavour + name
        if key not in self.signatures:
            fields = {"method": wire.fingerprint(f"{flavour}name:{name}"), "signature": 1}
            self.signatures[key] = self.honest_connection.call(fields).text()
        return named(name, self.signatures[key], flavour)

    # ------------------------------------------------------------ what must hold

    def log(self):
        with open(self.log_path, errors="replace") as log:
            return log.read()

    def must(self, truth, what):
        if not truth:
            raise Violation(what)

    def must_live(self):
        if self.process.poll() is not None:
            raise Violation(f"the victim ended with status {self.process.returncode}:\n{self.log()[-6000:]}")

    def must_serve(self):
        """Calls of a member that does nothing wrong are answered."""
        self.must_live()
        began = time.monotonic()
        try:
            frame = self.honest_connection.call(named("add"), wire.i32(20) + wire.i32(22))
        except (session.Closed, session.Silent) as error:
            self.must_live()
            raise Violation(f"an honest member's call was not answered: {error!r}\n{self.log()[-3000:]}") from error
        self.must(frame.kind == wire.REPLY and frame.payload == wire.i32(42), f"20 + 22 = {frame.payload!r}")
        return time.monotonic() - began

    def must_close(self, connection, data=b"", what=""):
        """The victim closes a connection on which this comes."""
        try:
            connection.send(data)
        except session.Closed:
            return
        self.must(connection.is_closed(), f"the connection stays open after {what or data[:80]!r}")

    def must_close_or_wait(self, connection, data, what):
        """The victim closes a connection on which this comes, or waits for the rest of a message that may be right."""
        try:
            connection.send(data)
            connection.sock.shutdown(1)
        except (session.Closed, OSError):
            return
        self.must(connection.is_closed(), f"the connection stays open after {what}")

    def must_serve_or_close(self, connection, patience=None):
        """After something that may end the connection: it serves the next call, or is closed. It is not left hanging."""
        try:
            connection.sock.settimeout(patience or self.patience)
            frame = connection.call(named("add"), wire.i32(5) + wire.i32(6), patience, call=0x5E47E)
            self.must(frame.payload == wire.i32(11), f"5 + 6 = {frame.payload!r}")
        except session.Closed:
            self.must_live()
        except session.Silent as error:
            self.must_live()
            if connection.is_closed():  # in the middle of what was still being sent to it
                return
            raise Violation("the connection neither serves nor ends") from error

    def must_fail(self, connection, data, codes, what):
        """A call with this message is answered by a failure with one of these codes, and the connection goes on."""
        connection.send(data)
        try:
            frame = connection.receive()
        except (session.Closed, session.Silent) as error:
            self.must_live()
            raise Violation(f"{what}: no answer, {error!r}") from error
        self.must(frame.kind == wire.FAILURE and frame.code in codes,
                  f"{what}: a frame of kind {frame.kind} with code {frame.code} "
                  f"({frame.text() if frame.kind == wire.FAILURE else frame.payload[:60]!r}), not {codes}")
        frame = connection.call(named("add"), wire.i32(1) + wire.i32(2))
        self.must(frame.payload == wire.i32(3), f"{what}: the connection's next call failed")

    def must_not_hang(self, sock, what):
        """The victim closes this connection, with or without a word."""
        sock.settimeout(self.patience + HANDSHAKE_SECONDS)
        try:
            while sock.recv(1 << 16):
                pass
        except TimeoutError as error:
            raise Violation(f"{what}: the connection stays open") from error
        except OSError:
            pass  # reset: closed as well

    def connect_honest(self):
        """A further connection of the honest member."""
        return self.honest.connect()

    def eventually(self, condition, what):
        until = time.monotonic() + self.patience
        while not condition():
            self.must(time.monotonic() < until, f"not in {self.patience} s: {what}")
            self.must_live()
            time.sleep(0.02)

    def figure(self, name):
        """One of worker::debug_info()."""
        frame = self.honest_connection.call(named("figures"))
        texts, at = [], 8
        for _ in range(2 * int.from_bytes(frame.payload[:8], "little")):
            size = int.from_bytes(frame.payload[at:at + 8], "little")
            texts.append(frame.payload[at + 8:at + 8 + size].decode())
            at += 8 + size
        return int(dict(zip(texts[::2], texts[1::2]))[name])

    def bound(self, what, limit, seen, unit="", exactly=False):
        """A row of the table. Memory may exceed its limit by 30 % and what the allocator keeps; time, by what other programs
        take of the machine."""
        self.bounds.append((what, limit, seen, unit))
        allowed = limit if exactly else limit * 1.3
        if unit == "s":
            allowed *= self.load.slowdown()
        self.must(seen <= allowed, f"{what}: {seen} {unit}, the limit is {limit}, allowed are {allowed}")

    def end(self):
        """Ends the victim as its user would; it must leave in time and without a complaint of a sanitizer."""
        self.peak.stop()
        self.honest_connection.close()
        self.process.stdin.close()
        try:
            status = self.process.wait(timeout=60 * max(1, self.memory_factor))
        except subprocess.TimeoutExpired as error:
            self.process.kill()
            raise Violation("the victim did not leave: " + self.log()[-3000:]) from error
        self.must(status == 0, f"the victim ended with status {status}:\n{self.log()[-6000:]}")
        os.unlink(self.log_path)


class Load:
    """What other programs take of the machine, since begin(); and what this one and the victim do."""

    def __init__(self, pid):
        self.pid = pid
        self.ticks = os.sysconf("SC_CLK_TCK")
        self.begin()

    def begin(self):
        self.before = self.now()

    def now(self):
        """Seconds of processor time: of the victim, of this program, of everything, with what a hypervisor took."""
        with open(f"/proc/{self.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        with open("/proc/stat") as stat:
            user, nice, system, _, _, irq, softirq, steal = map(int, stat.readline().split()[1:9])
        return (time.monotonic(), (int(fields[11]) + int(fields[12])) / self.ticks, sum(os.times()[:2]),
                (user + nice + system + irq + softirq + steal) / self.ticks)

    def of_victim_and_self(self):
        now = self.now()
        return now[1] - self.before[1], now[2] - self.before[2]

    def slowdown(self):
        """How many times longer something may take because of the others."""
        wall, victim, own, all_of_it = (now - before for now, before in zip(self.now(), self.before))
        others = max(0.0, all_of_it - victim - own) / max(wall * os.cpu_count(), 0.01)
        return 1 / max(1 - others, 0.05)


class Peak:
    """Samples what the victim takes."""

    def __init__(self, pid):
        self.pid = pid
        self.over = threading.Event()
        self.memory = self.descriptors = self.threads = 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def now(self):
        with open(f"/proc/{self.pid}/status") as status:
            text = status.read()
        figure = {name: int(value) for name, value in re.findall(r"^(VmRSS|Threads):\s*(\d+)", text, re.MULTILINE)}
        return (figure.get("VmRSS", 0) * 1024, len(os.listdir(f"/proc/{self.pid}/fd")), figure.get("Threads", 0))

    def begin(self):
        """Forgets the past; returns the memory of now."""
        memory, self.descriptors, self.threads = self.now()
        self.memory = memory
        return memory

    def run(self):
        while not self.over.wait(0.02):
            try:
                memory, descriptors, threads = self.now()
            except OSError:
                return  # the victim has ended
            self.memory = max(self.memory, memory)
            self.descriptors = max(self.descriptors, descriptors)
            self.threads = max(self.threads, threads)

    def stop(self):
        self.over.set()
        self.thread.join()


ATTACKS = []


def attack(name, memory=64):
    """Registers an attack. `memory`: how many MiB the victim may take on for it, beside what it had before."""

    def register(function):
        ATTACKS.append((name, memory * MIB, function))
        return function

    return register
