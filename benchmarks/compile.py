#!/usr/bin/env python3
"""The cost of compiling programs that use ferry: processor time of the compiler, and bytes of object code per method.

A translation unit with ferry's header and one call is compared with one that uses cereal's binary archive, vectors, strings
and <chrono>: same compiler, same flags, compiled in turn (A B A B). The compiler and its flags are those of the build
directory, and of it without optimisation.
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = 1.5

BASELINE = """
#include <chrono>
#include <sstream>
#include <string>
#include <vector>
#include <cereal/archives/binary.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>
double call() {
  std::stringstream bytes;
  cereal::BinaryOutputArchive out(bytes);
  out(std::string("dot"), std::vector{1., 2.}, std::vector{3., 4.});
  std::string name;
  std::vector<double> a, b;
  cereal::BinaryInputArchive in(bytes);
  in(name, a, b);
  return a[0] * b[0] + std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
"""
ONE_CALL = """
double dot(const std::vector<double>& a, const std::vector<double>& b) { return a[0] * b[0]; }
double call() { return ferry::rpc_sync<dot>("worker1", std::vector{1., 2.}, std::vector{3., 4.}); }
"""
UNITS = [
    # name, source, whether the target is for it
    ("ferry.hpp, one call", "#include <ferry/ferry.hpp>\n" + ONE_CALL, True),
    ("rpc/call.hpp, one call", "#include <vector>\n#include <ferry/rpc/call.hpp>\n" + ONE_CALL, False),
    ("ferry.hpp alone", "#include <ferry/ferry.hpp>\n", False),
    ("tensor/tensor.hpp alone", "#include <ferry/tensor/tensor.hpp>\n", False),
    ("transport/transport.hpp alone", "#include <ferry/transport/transport.hpp>\n", False),
    ("backend/backend.hpp alone", "#include <ferry/backend/backend.hpp>\n", False),
]
# What the training floors add; the baseline is the unit of ferry.hpp alone.
FERRY_ALONE = "#include <ferry/ferry.hpp>\n"
TRAINING = [
    ("autograd.hpp alone", "#include <ferry/autograd.hpp>\n", False),
    ("ferry.hpp and autograd.hpp", FERRY_ALONE + "#include <ferry/autograd.hpp>\n", True),
    ("ferry.hpp, autograd.hpp, nn.hpp, optim.hpp",
     FERRY_ALONE + "#include <ferry/autograd.hpp>\n#include <ferry/nn.hpp>\n#include <ferry/optim.hpp>\n", False),
]
TRAINING_TARGET = 1.3
# What the adapter adds to libtorch's own headers, where they are installed or $LIBTORCH has them: a file with a function of at::Tensor,
# without and with a call of it.
TORCH_FUNCTION = "at::Tensor twice(const at::Tensor& t) { return t * 2; }\n"
TORCH_ALONE = "#include <torch/torch.h>\n" + TORCH_FUNCTION
TORCH_CALL = """#include <torch/torch.h>
#include <ferry/adapters/libtorch.hpp>
""" + TORCH_FUNCTION + """at::Tensor call(const at::Tensor& t) { return ferry::rpc_sync<twice>("worker1", t); }
"""
TORCH_SECONDS = 2.0  # that it may add
METHODS = {
    "(int, int)": "int method(int a, int b) { return a + b + NUMBER; }|1, 2",
    "(vector, string)": "double method(const std::vector<double>& a, const std::string& b) "
    "{ return a[0] + NUMBER + double(b.size()); }|std::vector{1.}, std::string()",
    "(tensor)": "ferry::tensor method(const ferry::tensor& a) { return a * NUMBER; }|ferry::tensor()",
}


def compiler_of(build):
    """The compiler and its flags for a program that uses ferry, as the build directory has them."""
    with open(build / "compile_commands.json", encoding="utf-8") as file:
        commands = json.load(file)
    entry = next(each for each in commands if each["file"].endswith("benchmarks/rate.cpp"))
    words = shlex.split(entry["command"])
    if pathlib.Path(words[0]).name == "ccache":
        words = words[1:]
    kept, rest = [words[0]], iter(words[1:])
    for word in rest:
        if word in ("-o", "-MF", "-MQ", "-c"):
            next(rest)
        elif word == "-isystem":
            kept += [word, os.path.join(entry["directory"], next(rest))]
        elif word.startswith("-I"):
            kept.append("-I" + os.path.join(entry["directory"], word[2:]))
        elif word.startswith(("-D", "-std=", "-O", "-f", "-m", "-pthread")) and word != "-fdiagnostics-color=always":
            kept.append(word)
    return kept


def libtorch_flags():
    """Those for a program that includes <torch/torch.h>; None where there is none."""
    for root in filter(None, (os.environ.get("LIBTORCH"), "/usr")):
        include = pathlib.Path(root) / "include"
        if (include / "torch/csrc/api/include/torch/torch.h").exists():
            return ["-isystem", str(include / "torch/csrc/api/include"), *([] if root == "/usr" else ["-isystem", str(include)])]
    return None


class Compiler:
    def __init__(self, command, folder):
        self.command, self.folder = command, pathlib.Path(folder)

    def compile(self, source, *flags):
        """Processor seconds; the object file is in unit.o."""
        unit = self.folder / "unit.cpp"
        unit.write_text(source, encoding="utf-8")
        child = subprocess.Popen(
            [*self.command, *flags, "-c", str(unit), "-o", str(self.folder / "unit.o")],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        child.stdout.close()
        if child.returncode != 0:
            raise SystemExit(f"the compiler refused a unit:\n{output[:3000]}")
        return usage.ru_utime + usage.ru_stime

    def in_turn(self, source, baseline, repeats, *flags):
        """(seconds, baseline's seconds, range of the seconds) of the repeat whose ratio is the median."""
        self.compile(source, *flags)
        self.compile(baseline, *flags)
        pairs = [(self.compile(source, *flags), self.compile(baseline, *flags)) for _ in range(repeats)]
        times = [value for value, _ in pairs]
        middle = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
        return *middle, (min(times), max(times))

    def added(self, source, baseline, repeats, *flags):
        """(least seconds, baseline's least seconds, range of the seconds), compiled in turn. Other programs on the machine only ever
        add to a time, and what they add to ten seconds is more than the difference."""
        pairs = [(self.compile(source, *flags), self.compile(baseline, *flags)) for _ in range(repeats)]
        times = [value for value, _ in pairs]
        return min(times), min(value for _, value in pairs), (min(times), max(times))

    def object_bytes(self, source):
        """Code and data of a unit, without symbols and debugging information."""
        self.compile(source, "-g0")
        text = subprocess.run(["size", "-B", str(self.folder / "unit.o")], capture_output=True, text=True, check=True).stdout
        return sum(int(number) for number in text.splitlines()[1].split()[:3])


def unit_with_methods(declaration, count):
    function, arguments = declaration.split("|")
    lines = ["#include <string>\n#include <vector>\n#include <ferry/ferry.hpp>\n"]
    for number in range(count):
        name = f"method{number}"
        lines.append(function.replace("method", name).replace("NUMBER", str(number)))
        lines.append(f"void call{number}() {{ (void)ferry::rpc_sync<{name}>(1, {arguments}); }}")
    return "\n".join(lines) + "\n"


class Report:
    def __init__(self, as_json):
        self.json = as_json

    def section(self, title):
        if not self.json:
            print(f"\n{title}")

    def add(self, name, value, unit, baseline, baseline_value, count, spread=None, target=None, seconds=None):
        """`target` is one of the ratio, `seconds` one of the difference."""
        ratio = value / baseline_value if baseline_value else None
        if self.json:
            figure = {
                "name": f"compile/{name}", "value": round(value, 6), "unit": unit, "baseline": baseline,
                "baseline_value": round(baseline_value, 6) if baseline_value else None,
                "ratio": round(ratio, 4) if ratio else None, "n": count,
            }
            print(json.dumps(figure, separators=(",", ":")), flush=True)
            return
        line = f"  {name:<44} {value:>9.3f} {unit:<6}" if unit == "s" else f"  {name:<44} {value:>9.0f} {unit:<6}"
        line += f" [{spread[0]:.2f} .. {spread[1]:.2f}]" if spread else " " * 15
        line += f"  {baseline} {baseline_value:.3f} s  ratio {ratio:.2f}" if ratio else ""
        if target:
            line += f"  target {target:.2f} {'met' if ratio <= target else 'MISSED'}"
        if seconds:
            added = value - baseline_value
            line += f"  added {added:.2f} s, target {seconds:.2f} s {'met' if added <= seconds else 'MISSED'}"
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(prog="dev bench compile", description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a configured build directory with the benchmarks")
    parser.add_argument("--cxx", type=shlex.split, help="another compiler, with the flags of the build")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--filter", default="", help="only figures whose name has this text")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    command = compiler_of(options.build)
    if options.cxx:
        command = options.cxx + command[1:]
    report = Report(options.json)
    if not options.json:
        version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        print(f"{version}; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
        print(shlex.join(word for word in command[1:] if not word.startswith(("-I", "-isystem", "/"))))
    with tempfile.TemporaryDirectory() as folder:
        compiler = Compiler(command, folder)
        for level, flags in (("optimised", []), ("-O0", ["-O0"])):
            report.section(f"processor time of the compiler, {level}; baseline: cereal's binary archive, vector, string, chrono")
            for name, source, aimed in UNITS:
                name = f"{level}/{name}"
                if options.filter not in name:
                    continue
                value, baseline, spread = compiler.in_turn(source, BASELINE, repeats, *flags)
                report.add(name, value, "s", "cereal", baseline, repeats, spread, TARGET if aimed else None)
            report.section(f"what the training floors add, {level}; baseline: ferry.hpp alone")
            for name, source, aimed in TRAINING:
                name = f"{level}/{name}"
                if options.filter not in name:
                    continue
                value, baseline, spread = compiler.in_turn(source, FERRY_ALONE, repeats, *flags)
                report.add(name, value, "s", "ferry.hpp", baseline, repeats, spread, TRAINING_TARGET if aimed else None)
        torch = libtorch_flags()
        if torch is None and not options.json:
            print("\nwhat the adapter adds to libtorch's headers: left out, there is no <torch/torch.h> (Debian: libtorch-dev; or set LIBTORCH)")
        if torch is not None:
            report.section("what adapters/libtorch.hpp and one call add to libtorch's headers")
            for level, flags in (("optimised", []), ("-O0", ["-O0"])):
                name = f"{level}/torch.h, adapters/libtorch.hpp, one call"
                if options.filter not in name:
                    continue
                value, baseline, spread = compiler.added(TORCH_CALL, TORCH_ALONE, repeats, *torch, *flags)
                report.add(name, value, "s", "torch.h", baseline, repeats, spread, seconds=TORCH_SECONDS)
        report.section("code and data that one more method adds to a unit, its call and its handler")
        for signature, declaration in METHODS.items():
            name = f"object/{signature}"
            if options.filter not in name:
                continue
            few, many = 32, 64  # small units inline more
            sizes = [compiler.object_bytes(unit_with_methods(declaration, count)) for count in (few, many)]
            report.add(name, (sizes[1] - sizes[0]) / (many - few), "bytes", None, None, many - few)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)
