"""Drives the real ferry-run; FERRY_RUN is its path."""

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

FERRY_RUN = os.environ["FERRY_RUN"]
WITH_AUTHENTICATION = os.environ.get("FERRY_WITH_AUTHENTICATION") == "1"
TIMEOUT = 60  # seconds; an event that has not happened by then counts as missing

# Under nohup these arrive ignored, which ferry-run would respect.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, signal.SIG_DFL)


def clean_environment(**more):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK",
             "GROUP_WORLD_SIZE")
    return {**{key: value for key, value in os.environ.items() if key not in names}, **more}


def run(*arguments, environment=None, **options):
    return subprocess.run(
        [FERRY_RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        env=environment or clean_environment(),
        **options,
    )


def shell(count, script, *options, **more):
    return run("-n", str(count), *options, "--", "sh", "-c", script, **more)


def wait_for_end(process_id):
    """Waits until a process that is not our child has ended (it may stay as a zombie of its parent)."""
    try:
        descriptor = os.pidfd_open(process_id)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], TIMEOUT)[0])
    finally:
        os.close(descriptor)


def opens_in_time(path):
    """Waits until a process writes to a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return bool(select.select([descriptor], [], [], TIMEOUT)[0])
    finally:
        os.close(descriptor)


class Started:
    """A running ferry-run whose output is read line by line."""

    def __init__(self, count, script, *options, **more):
        self.process = subprocess.Popen(
            [FERRY_RUN, "-n", str(count), *options, "--", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
            **more,
        )

    def lines(self, count):
        return sorted(self.process.stdout.readline().rstrip("\n") for _ in range(count))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(TIMEOUT)
        self.process.stdout.close()
        self.process.stderr.close()


class CommandLine(unittest.TestCase):
    def test_help_and_version(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("usage: ferry-run -n COUNT", result.stdout)
        self.assertRegex(run("--version").stdout, r"^ferry-run \d+\.\d+\.\d+\n$")

    def test_a_wrong_command_line_ends_with_2_and_the_reason(self):
        for arguments, reason in [
            ([], "-n COUNT"),
            (["-n"], "-n needs a value"),
            (["-n", "2"], "name the program"),
            (["-n", "2", "--"], "name the program"),
            (["-n", "0", "true"], "1 to 4096"),
            (["-n", "-1", "true"], "1 to 4096"),
            (["-n", "4097", "true"], "1 to 4096"),
            (["-n", "99999999999999999999", "true"], "1 to 4096"),
            (["-n", "two", "true"], "1 to 4096"),
            (["-n", "2x", "true"], "1 to 4096"),
            (["-n", "1", "--port", "0", "true"], "1 to 65535"),
            (["-n", "1", "--port", "65536", "true"], "1 to 65535"),
            (["-n", "1", "--grace", "-1", "true"], "--grace"),
            (["-n", "1", "--grace", "nan", "true"], "--grace"),
            (["-n", "1", "--addr", "", "true"], "--addr"),
            (["-n", "1", "--help=yes", "true"], "takes no value"),
            (["-n", "1", "--flight-records", "", "true"], "--flight-records must name a directory"),
            (["-n", "1", "--colour", "true"], "unknown option '--colour'"),
            (["-n", "1", "--nnodes", "0", "true"], "--nnodes must be a number of nodes, 1 to 1024"),
            (["-n", "1", "--nnodes", "1:4", "true"], "not '1:4'"),
            (["-n", "1", "--nnodes", "2", "true"], "--rdzv HOST:PORT"),
            (["-n", "1", "--nnodes", "2", "--rdzv", "host", "true"], "--rdzv must be HOST:PORT, not 'host'"),
            (["-n", "1", "--nnodes", "2", "--rdzv", ":1", "true"], "--rdzv must be HOST:PORT"),
            (["-n", "1", "--nnodes", "2", "--rdzv", "host:x", "true"], "the port of --rdzv"),
            (["-n", "1", "--nnodes", "2", "--rdzv", "::1:5", "true"], "in brackets"),
            (["-n", "1", "--nnodes", "2", "--rdzv", "0.0.0.0:5", "true"], "that the other nodes can reach"),
            (["-n", "1", "--nnodes", "2", "--rdzv", "host:5", "--port", "5", "true"], "must differ"),
            (["-n", "1", "--nnodes", "2", "--rdzv", "host:5", "--node-rank", "2", "true"], "--node-rank 2 is not below"),
            (["-n", "1", "--nnodes", "2", "--rdzv", "host:5", "--node-rank", "-1", "true"], "--node-rank must be"),
            (["-n", "1", "--node-rank", "1", "true"], "--node-rank 1 is not below --nnodes 1"),
            (["-n", "1", "--rdzv-id", "a b", "true"], "--rdzv-id"),
            (["-n", "1", "--rdzv-timeout", "soon", "true"], "--rdzv-timeout must be seconds"),
            (["true"], "-n COUNT"),
        ]:
            with self.subTest(arguments=arguments):
                result = run(*arguments)
                self.assertEqual(result.returncode, 2)
                self.assertIn(reason, result.stderr)
                self.assertEqual(result.stdout, "")

    def test_the_spellings_of_options(self):
        for arguments in (["-n2"], ["-n", "2"], ["--workers", "2"], ["--workers=2"], ["--nproc-per-node=2"], ["--nproc_per_node", "2"]):
            with self.subTest(arguments=arguments):
                self.assertEqual(run(*arguments, "sh", "-c", "echo $WORLD_SIZE").stdout.count("2\n"), 2)

    def test_options_after_the_program_are_its_own(self):
        result = run("-n", "1", "echo", "-n", "--help", "x")
        self.assertEqual((result.returncode, result.stdout), (0, "[0] --help x\n"))

    def test_a_program_that_does_not_exist_ends_with_127(self):
        result = run("-n", "3", "no-such-program-anywhere")
        self.assertEqual(result.returncode, 127)
        self.assertEqual(result.stderr, "ferry-run: cannot run 'no-such-program-anywhere': No such file or directory\n")

    def test_a_program_of_the_current_directory_is_named_with_it(self):
        with tempfile.TemporaryDirectory() as place:
            for name, mode in (("here", 0o755), ("text", 0o644)):
                path = os.path.join(place, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write("#!/bin/sh\necho ran\n")
                os.chmod(path, mode)
            result = run("-n", "1", "here", cwd=place)
            self.assertEqual(result.returncode, 127)
            self.assertIn("cannot run 'here': No such file or directory in PATH; did you mean './here'?", result.stderr)
            result = run("-n", "1", "./here", cwd=place)
            self.assertEqual((result.returncode, result.stdout), (0, "[0] ran\n"))
            result = run("-n", "1", "text", cwd=place)
            self.assertEqual(result.returncode, 127)
            self.assertIn("No such file or directory in PATH; ./text exists but is not executable", result.stderr)
            self.assertNotIn("./", run("-n", "1", "neither", cwd=place).stderr)

    def test_a_file_that_is_not_a_program_ends_with_126(self):
        result = run("-n", "3", "/")
        self.assertEqual(result.returncode, 126)
        self.assertIn("cannot run '/': Permission denied", result.stderr)


class Environment(unittest.TestCase):
    def test_every_worker_knows_its_place(self):
        script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT"
        result = shell(3, script)
        self.assertEqual(result.returncode, 0)
        lines = sorted(result.stdout.splitlines())
        ports = {line.split()[-1] for line in lines}
        self.assertEqual(len(ports), 1)
        port = ports.pop()
        self.assertEqual(lines, [f"[{rank}] {rank} {rank} 3 3 127.0.0.1 {port}" for rank in range(3)])

    def test_one_machine_is_node_0_of_1(self):
        script = "echo $NODE_RANK $GROUP_RANK $GROUP_WORLD_SIZE; env | grep TORCHELASTIC"
        given = clean_environment(TORCHELASTIC_USE_AGENT_STORE="True")
        for options in ([], ["--nnodes", "1"], ["--nnodes", "1", "--node-rank", "0", "--rdzv", "nowhere.invalid:1"]):
            result = shell(1, script, *options, environment=given)
            self.assertEqual(result.stdout, "[0] 0 0 1\n")

    def test_the_picked_port_can_be_listened_on(self):
        port = int(shell(1, "echo $MASTER_PORT").stdout.split()[1])
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()

    def test_the_port_and_the_address_come_from_the_option_then_from_the_environment(self):
        script = "echo $MASTER_ADDR:$MASTER_PORT"
        given = clean_environment(MASTER_ADDR="example", MASTER_PORT="4711")
        self.assertEqual(shell(1, script, environment=given).stdout, "[0] example:4711\n")
        result = shell(1, script, "--port", "4712", "--addr=::1", environment=given)
        self.assertEqual(result.stdout, "[0] ::1:4712\n")

    def test_a_run_inside_a_worker_of_another_meets_elsewhere(self):
        script = "echo $MASTER_ADDR:$MASTER_PORT"
        given = clean_environment(RANK="1", WORLD_SIZE="2", MASTER_ADDR="example", MASTER_PORT="4711")
        lines = shell(2, script, environment=given).stdout.splitlines()
        self.assertEqual(len({line[4:] for line in lines}), 1)
        self.assertRegex(lines[0], r"^\[[01]\] 127\.0\.0\.1:\d+$")
        self.assertNotIn("4711", lines[0])
        result = shell(1, script, "--port", "4711", "--addr", "example", environment=given)
        self.assertEqual(result.stdout, "[0] example:4711\n")
        # Both inner runs of an outer one that was given its port.
        result = run("-n", "2", "--port", "4711", FERRY_RUN, "-n", "1", "sh", "-c", script)
        self.assertEqual(len(result.stdout.splitlines()), 2)
        self.assertNotIn("4711", result.stdout)

    def test_a_wrong_port_in_the_environment_is_a_usage_error(self):
        result = shell(1, "true", environment=clean_environment(MASTER_PORT="http"))
        self.assertEqual(result.returncode, 2)
        self.assertIn("MASTER_PORT in the environment must be a port", result.stderr)

    def test_workers_of_one_machine_get_a_secret_unless_there_is_one(self):
        names = ("FERRY_SECRET", "FERRY_SECRET_FILE", "FERRY_ALLOW_UNAUTHENTICATED")
        none = {key: value for key, value in clean_environment().items() if key not in names}

        def secrets(count, **more):
            output = shell(count, "echo ${FERRY_SECRET-none}", environment={**none, **more}).stdout
            return [line.split(maxsplit=1)[1] for line in output.splitlines()]

        made = secrets(3) + secrets(1)
        if WITH_AUTHENTICATION:
            self.assertEqual(len(set(made[:3])), 1)
            self.assertEqual(len(set(made)), 2)  # another run, another secret
            for each in made:
                self.assertRegex(each, "^[0-9a-f]{64}$")
            command_lines = shell(1, "cat /proc/$PPID/cmdline /proc/$$/cmdline | tr '\\0' ' '", environment=none).stdout
            self.assertNotRegex(command_lines, "[0-9a-f]{64}")
        else:
            self.assertEqual(made[0], "none")
        self.assertEqual(secrets(1, FERRY_SECRET="mine"), ["mine"])
        self.assertEqual(secrets(1, FERRY_SECRET_FILE="/a/file"), ["none"])
        for allowed in ("1", "true"):
            self.assertEqual(secrets(1, FERRY_ALLOW_UNAUTHENTICATED=allowed), ["none"])
        for refused in ("", "0", "false"):
            self.assertEqual(secrets(1, FERRY_ALLOW_UNAUTHENTICATED=refused)[0] == "none", not WITH_AUTHENTICATION)
        result = shell(1, "echo ran", environment={**none, "FERRY_ALLOW_UNAUTHENTICATED": "yes"})
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("FERRY_ALLOW_UNAUTHENTICATED is 'yes'; it must be 1 or 0 (true or false)", result.stderr)

    def test_variables_of_an_outer_run_are_replaced(self):
        result = run("-n", "1", FERRY_RUN, "-n", "2", "sh", "-c", "echo $RANK of $WORLD_SIZE")
        self.assertEqual(sorted(result.stdout.splitlines()), ["[0] [0] 0 of 2", "[0] [1] 1 of 2"])

    def test_workers_read_nothing(self):
        result = shell(2, "wc -c", input="unread text")
        self.assertEqual(sorted(result.stdout.splitlines()), ["[0] 0", "[1] 0"])

    def test_workers_get_the_signal_state_that_ferry_run_got(self):
        script = "sed -n 's/^Sig\\(Blk\\|Ign\\).*\\t//p' /proc/self/status"
        direct = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual([line.split()[1] for line in shell(1, script).stdout.splitlines()], direct)

    def test_workers_hold_no_descriptor_of_ferry_run(self):
        script = "for n in $(seq 3 20); do if [ -e /proc/$$/fd/$n ]; then echo $n; fi; done"
        self.assertEqual(shell(3, script).stdout, "")


class FlightRecords(unittest.TestCase):
    def test_workers_get_the_directory_which_is_made(self):
        with tempfile.TemporaryDirectory() as place:
            result = shell(2, "test -d $FERRY_FLIGHT_DIRECTORY && cd / && echo $FERRY_FLIGHT_DIRECTORY", "--flight-records", "a/b", cwd=place)
            self.assertEqual(sorted(result.stdout.splitlines()), [f"[{rank}] {os.path.realpath(place)}/a/b" for rank in range(2)])
            self.assertEqual((result.returncode, result.stderr), (0, ""))
        given = clean_environment(FERRY_FLIGHT_DIRECTORY="/given")
        self.assertEqual(shell(1, "echo $FERRY_FLIGHT_DIRECTORY", environment=given).stdout, "[0] /given\n")

    def test_a_directory_that_cannot_be_made_ends_with_125(self):
        result = shell(1, "echo ran", "--flight-records", "/dev/null/records")
        self.assertEqual((result.returncode, result.stdout), (125, ""))
        self.assertIn("ferry-run: cannot make the directory /dev/null/records: Not a directory", result.stderr)
        result = shell(1, "echo ran", "--flight-records", "/dev/null")
        self.assertEqual((result.returncode, result.stdout), (125, ""))

    def test_a_worker_that_a_signal_ends_has_its_files_named(self):
        with tempfile.TemporaryDirectory() as place:
            script = ("cd $FERRY_FLIGHT_DIRECTORY; touch -d '2 hours ago' ferry-old-$$.flight; : > ferry-w:$RANK-x-$$.flight; "
                      ": > ferry-w-$$.12.flight; : > ferry-w-$$-12.flight; : > ferry-w-1$$.flight; : > ferry-w-$$.json; "
                      ": > ferry-w-$$x.2.flight; : > ferry-w-$$.x.flight; : > ferry-w-$$.2.3.flight; : > ferry-w-$$..flight; "
                      "if [ $RANK = 1 ]; then kill -KILL $$; fi; exec tail -f /dev/null")
            result = shell(2, script, "--flight-records", place)
            self.assertEqual(result.returncode, 128 + signal.SIGKILL)
            lines = result.stderr.splitlines()
            self.assertRegex(lines[0], r"^ferry-run: worker 1 \(process \d+\) was ended by signal 9")
            process = re.search(r"process (\d+)", lines[0]).group(1)
            told = "ferry-run: worker 1 has left a flight record: ferry-top --post-mortem "
            self.assertEqual(lines[1:], [f"{told}{place}/ferry-w-{process}.12.flight", f"{told}{place}/ferry-w:1-x-{process}.flight"])

    def make_ready_pipes(self, place):
        """Through which workers 1 and 2 tell worker 0 that they are there."""
        for name in ("ready1", "ready2"):
            os.mkfifo(os.path.join(place, name))

    def test_a_worker_that_has_to_be_killed_has_its_file_named_others_do_not(self):
        with tempfile.TemporaryDirectory() as place:
            script = ("cd $FERRY_FLIGHT_DIRECTORY; : > ferry-w$RANK-$$.flight; "
                      "case $RANK in 0) read _ < ready1; read _ < ready2; exit 3;; 1) trap '' TERM;; esac; "
                      "echo > ready$RANK; exec tail -f /dev/null")
            self.make_ready_pipes(place)
            result = shell(3, script, "--grace", "2", "--flight-records", place)
            self.assertEqual(result.returncode, 3)
            named = [line for line in result.stderr.splitlines() if "post-mortem" in line]
            self.assertEqual(len(named), 1)
            self.assertIn("worker 1 has left a flight record", named[0])

    def test_a_worker_that_crashes_while_it_ends_has_its_file_named(self):
        with tempfile.TemporaryDirectory() as place:
            script = ("cd $FERRY_FLIGHT_DIRECTORY; : > ferry-w$RANK-$$.flight; "
                      "case $RANK in 0) read _ < ready1; read _ < ready2; exit 3;; "
                      "1) trap 'kill -SEGV $$' TERM;; esac; "
                      "echo > ready$RANK; tail -f /dev/null & wait")
            self.make_ready_pipes(place)
            result = shell(3, script, "--grace", "60", "--flight-records", place)
            self.assertEqual(result.returncode, 3)
            named = [line for line in result.stderr.splitlines() if "post-mortem" in line]
            self.assertEqual(len(named), 1, result.stderr)
            self.assertIn("worker 1 has left a flight record", named[0])


class Output(unittest.TestCase):
    def test_each_stream_goes_to_its_own_with_the_rank_before_each_line(self):
        result = shell(2, "echo out; echo err >&2; echo; echo more")
        self.assertEqual(sorted(result.stdout.splitlines()), sorted(["[0] out", "[0] ", "[0] more", "[1] out", "[1] ", "[1] more"]))
        self.assertEqual(sorted(result.stderr.splitlines()), ["[0] err", "[1] err"])

    def test_a_last_line_without_a_line_break_gets_one(self):
        result = shell(2, "printf 'a\\nb'; printf c >&2")
        self.assertEqual(sorted(result.stdout.splitlines()), ["[0] a", "[0] b", "[1] a", "[1] b"])
        self.assertEqual(sorted(result.stderr.splitlines()), ["[0] c", "[1] c"])

    def test_big_output_of_several_workers_stays_whole_lines_in_order(self):
        result = shell(4, "seq 200000 | sed \"s/$/ of worker $RANK/\"")
        self.assertEqual(result.returncode, 0)
        seen = [0] * 4
        for line in result.stdout.splitlines():
            match = re.fullmatch(r"\[(\d)\] (\d+) of worker (\d)", line)
            self.assertIsNotNone(match, line)
            rank = int(match.group(1))
            self.assertEqual(match.group(3), match.group(1))
            seen[rank] += 1
            self.assertEqual(int(match.group(2)), seen[rank])
        self.assertEqual(seen, [200000] * 4)

    def test_lines_of_both_streams_do_not_mix_in_one_pipe(self):
        script = "for i in $(seq 300); do printf '%06000d\\n' 1; printf '%06000d\\n' 2 >&2; done"
        run_both = subprocess.run(
            [FERRY_RUN, "-n", "2", "sh", "-c", script],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT, check=True, env=clean_environment(),
        )
        lines = run_both.stdout.splitlines()
        self.assertEqual(len(lines), 1200)
        self.assertEqual({line[4:] for line in lines}, {"0" * 5999 + "1", "0" * 5999 + "2"})

    def test_a_long_line_stays_one_line(self):
        result = shell(2, "head -c 900000 /dev/zero | tr '\\0' x; echo")
        self.assertEqual(sorted(result.stdout.splitlines()), [f"[{rank}] " + "x" * 900000 for rank in range(2)])

    def test_an_endless_line_comes_in_pieces(self):
        result = shell(1, "head -c 5000000 /dev/zero | tr '\\0' x")
        pieces = result.stdout.splitlines()
        self.assertGreater(len(pieces), 2)
        self.assertEqual("".join(piece[len("[0] "):] for piece in pieces), "x" * 5000000)

    def test_output_of_a_worker_that_fails_is_complete(self):
        result = shell(1, "seq 50000; echo last; exit 5")
        self.assertEqual(result.returncode, 5)
        self.assertEqual(len(result.stdout.splitlines()), 50001)
        self.assertTrue(result.stdout.endswith("[0] last\n"))

    def test_bytes_that_are_no_text_pass_unchanged(self):
        result = subprocess.run(
            [FERRY_RUN, "-n", "1", "sh", "-c", "printf 'a\\000b\\377\\r\\n'"],
            stdout=subprocess.PIPE, timeout=TIMEOUT, check=True, env=clean_environment(),
        )
        self.assertEqual(result.stdout, b"[0] a\0b\xff\r\n")

    def test_lines_appear_while_the_workers_run(self):
        with Started(2, "echo here; exec tail -f /dev/null") as job:
            self.assertEqual(job.lines(2), ["[0] here", "[1] here"])
            self.assertIsNone(job.process.poll())

    def test_the_end_of_the_reader_ends_the_run(self):
        with Started(2, "while echo line; do :; done") as job:
            job.lines(1)
            job.process.stdout.close()
            self.assertEqual(job.process.wait(TIMEOUT), 128 + signal.SIGPIPE)

    def test_a_stopped_terminal_blocks_only_the_output(self):
        keeper, terminal = pty.openpty()
        with tempfile.TemporaryDirectory() as directory:
            written, ended = (os.path.join(directory, name) for name in ("written", "ended"))
            os.mkfifo(written)
            os.mkfifo(ended)
            # More than the terminal and the pipe between worker and ferry-run hold.
            script = f"trap 'echo > {ended}; exit 0' TERM; yes | head -c 400000; echo > {written}; tail -f /dev/null & wait"
            process = subprocess.Popen(
                [FERRY_RUN, "-n", "1", "--", "sh", "-c", script],
                stdout=terminal,
                stderr=subprocess.DEVNULL,
                env=clean_environment(),
            )
            os.close(terminal)
            try:
                self.assertTrue(opens_in_time(written))
                process.send_signal(signal.SIGTERM)
                self.assertTrue(opens_in_time(ended))
                text = b""
                while True:
                    try:
                        more = os.read(keeper, 65536)
                    except OSError:  # no process has the terminal any more
                        break
                    if not more:
                        break
                    text += more
                self.assertEqual(process.wait(TIMEOUT), 0)
                self.assertEqual(text.count(b"[0] y\r\n"), 200000)
            finally:
                process.kill()
                process.wait(TIMEOUT)
                os.close(keeper)

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run(
                [FERRY_RUN, "-n", "1", "echo", "x"],
                stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False, env=clean_environment(),
            )
        self.assertEqual(result.returncode, 125)
        self.assertIn("cannot write the output: No space left on device", result.stderr)

    def test_closed_standard_descriptors_do_no_harm(self):
        result = subprocess.run(
            ["sh", "-c", f'exec "{FERRY_RUN}" -n 2 sh -c "echo x; echo y >&2" <&- >&-'],
            stderr=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False, env=clean_environment(),
        )
        self.assertEqual(result.returncode, 0)
        self.assertEqual(sorted(result.stderr.splitlines()), ["[0] y", "[1] y"])


class Endings(unittest.TestCase):
    def test_success_of_all_is_success(self):
        result = shell(4, "exit 0")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_the_status_of_the_one_that_fails_is_returned_and_the_others_are_ended(self):
        result = shell(3, 'if [ $RANK = 1 ]; then exit 42; fi; exec tail -f /dev/null')
        self.assertEqual(result.returncode, 42)
        self.assertRegex(result.stderr, r"worker 1 \(process \d+\) exited with status 42; (ending the other|not starting)")

    def test_a_worker_ended_by_a_signal_counts_as_128_and_its_number(self):
        result = shell(2, 'if [ $RANK = 1 ]; then kill -SEGV $$; fi; exec tail -f /dev/null')
        self.assertEqual(result.returncode, 128 + signal.SIGSEGV)
        self.assertRegex(result.stderr, r"worker 1 .* was ended by signal 11")

    def test_a_worker_that_does_not_end_is_killed_after_the_grace_time(self):
        script = 'trap "" TERM; echo ready; if [ $RANK = 1 ]; then read -r x < "$FIFO"; exit 9; fi; exec tail -f /dev/null'
        fifo = os.path.join(os.environ.get("MESON_BUILD_ROOT", "/tmp"), f"ferry-run-test-{os.getpid()}")
        os.mkfifo(fifo)
        try:
            os.environ["FIFO"] = fifo
            with Started(2, script, "--grace", "0.2") as job:
                self.assertEqual(job.lines(2), ["[0] ready", "[1] ready"])
                with open(fifo, "w", encoding="utf-8") as gate:
                    gate.write("go\n")
                self.assertEqual(job.process.wait(TIMEOUT), 9)
                self.assertIn("killing 1 workers", job.process.stderr.read())
        finally:
            del os.environ["FIFO"]
            os.unlink(fifo)

    def test_signals_are_passed_on(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            name = number.name[3:]
            with self.subTest(signal=name):
                script = f'trap "echo got {name}; exit 7" {name}; echo ready; tail -f /dev/null & while :; do wait; done'
                with Started(2, script) as job:
                    self.assertEqual(job.lines(2), ["[0] ready", "[1] ready"])
                    job.process.send_signal(number)
                    self.assertEqual(job.process.wait(TIMEOUT), 7)
                    if number != signal.SIGUSR1:  # there the first to end ends the other, by SIGTERM
                        self.assertEqual(job.lines(2), [f"[0] got {name}", f"[1] got {name}"])

    def test_workers_that_end_well_after_a_signal_end_the_run_well(self):
        with Started(2, 'trap "exit 0" TERM; echo ready; tail -f /dev/null & while :; do wait; done') as job:
            job.lines(2)
            job.process.terminate()
            self.assertEqual(job.process.wait(TIMEOUT), 0)

    def test_workers_that_a_signal_ends_give_its_status(self):
        with Started(2, "echo ready; exec tail -f /dev/null") as job:
            job.lines(2)
            job.process.terminate()
            self.assertEqual(job.process.wait(TIMEOUT), 128 + signal.SIGTERM)

    def test_a_second_interrupt_kills_at_once(self):
        with Started(2, 'trap "echo again" INT; echo ready; tail -f /dev/null & while :; do wait; done', "--grace", "3600") as job:
            job.lines(2)
            job.process.send_signal(signal.SIGINT)
            self.assertEqual(job.lines(2), ["[0] again", "[1] again"])
            job.process.send_signal(signal.SIGINT)
            self.assertEqual(job.process.wait(TIMEOUT), 128 + signal.SIGKILL)

    def test_an_ignored_hangup_stays_ignored(self):
        script = "echo ready; read -r line < /dev/null; kill -HUP $PPID; echo alive"
        result = subprocess.run(
            ["sh", "-c", f"trap '' HUP; exec \"{FERRY_RUN}\" -n 1 sh -c '{script}'"],
            capture_output=True, text=True, timeout=TIMEOUT, check=False, env=clean_environment(),
        )
        self.assertEqual((result.returncode, result.stdout), (0, "[0] ready\n[0] alive\n"))

    def test_children_of_workers_end_with_the_run(self):
        script = 'tail -f /dev/null & echo $!; if [ $RANK = 0 ]; then read -r x < /dev/null; exit 1; fi; wait'
        result = shell(2, script)
        self.assertEqual(result.returncode, 1)
        for line in result.stdout.splitlines():
            self.assertTrue(wait_for_end(int(line.split()[1])), line)

    def test_processes_left_by_a_successful_worker_end_too(self):
        result = shell(1, "tail -f /dev/null & echo $!")
        self.assertEqual(result.returncode, 0)
        self.assertTrue(wait_for_end(int(result.stdout.split()[1])))

    def test_a_process_that_leaves_its_group_does_not_block_the_run(self):
        result = shell(1, "setsid tail -f /dev/null & echo $!")
        self.assertEqual(result.returncode, 0)
        left = int(result.stdout.split()[1])
        try:
            os.kill(left, signal.SIGKILL)
        except ProcessLookupError:
            pass  # killed with the group before it could leave it

    def test_a_process_that_leaves_its_group_and_writes_for_ever_does_not_block_the_run(self):
        with tempfile.TemporaryDirectory() as directory:
            fifo, writer = (os.path.join(directory, name) for name in ("started", "writer.py"))
            with open(writer, "w", encoding="utf-8") as text:
                text.write("import os, sys\nopen(sys.argv[1], 'w').write('yes\\n')\nwhile os.write(1, b'y\\n' * 4096): pass\n")
            start = "mkfifo {0}; setsid {1} {2} {0} 2>&- & read -r x < {0}; "
            starts = "".join(start.format(f"{fifo}{i}", sys.executable, writer) for i in range(3))
            result = shell(1, starts + "echo end")
        self.assertEqual(result.returncode, 0)
        self.assertIn("[0] end\n", result.stdout)

    def test_workers_and_their_children_do_not_outlive_a_killed_ferry_run(self):
        with Started(3, "tail -f /dev/null & echo $$ $!; wait") as job:
            lines = [line.split() for line in job.lines(3)]
            job.process.kill()
            job.process.wait(TIMEOUT)
            for _, worker, child in lines:
                self.assertTrue(wait_for_end(int(worker)))
                self.assertTrue(wait_for_end(int(child)))

    def test_many_workers(self):
        result = shell(200, "echo $RANK")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(sorted(result.stdout.splitlines()), sorted(f"[{rank}] {rank}" for rank in range(200)))

    # The sanitizer's check of virtual tables opens a pipe and reports every object as damaged when it cannot.
    @unittest.skipIf("undefined" in os.environ.get("FERRY_SANITIZERS", ""), "the sanitizer needs descriptors, too")
    def test_too_few_descriptors_are_a_clear_error(self):
        limit = 'ulimit -n 40; exec "$0" -n 100 sh -c "echo started; exec tail -f /dev/null"'
        result = subprocess.run(
            ["sh", "-c", limit, FERRY_RUN],
            capture_output=True, text=True, timeout=TIMEOUT, check=False, env=clean_environment(),
        )
        self.assertEqual(result.returncode, 125)
        self.assertRegex(result.stderr, r"cannot start worker \d+ of 100: .*Too many open files")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
