#!/usr/bin/env python3
"""Builds and runs the program of the README in the ways that users take ferry: pkgconfig, cmake, meson (a subproject).

The first two use what `meson install` installs from the build directory, moved to a temporary prefix.
Kinds whose tool is missing are skipped and said so.
"""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KINDS = ["pkgconfig", "cmake", "meson"]
OPTIONS = None


def readme_program():
    """The first C++ text of the README."""
    return re.search(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL).group(1)


def command(*words, **options):
    """Runs a command; its output is shown when it fails."""
    run = subprocess.run(
        [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, **options
    )
    if run.returncode != 0:
        raise AssertionError(f"{shlex.join(str(word) for word in words)} ended with {run.returncode}:\n{run.stdout[-6000:]}")
    return run.stdout


class Consumers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.work = pathlib.Path(cls.folder.name)
        cls.addClassCleanup(cls.folder.cleanup)
        if {"pkgconfig", "cmake"} & set(OPTIONS.kinds):
            command("meson", "install", "-C", OPTIONS.build, "--no-rebuild", "--quiet", "--destdir", cls.work / "root")
            package = next((cls.work / "root").rglob("ferry.pc"))
            cls.libraries = package.parent.parent
            prefix_line = next(line for line in package.read_text().splitlines() if line.startswith("prefix="))
            cls.prefix = pathlib.Path(f"{cls.work}/root{prefix_line.removeprefix('prefix=')}")

    def wanted(self, kind, *tools):
        if kind not in OPTIONS.kinds:
            self.skipTest(f"{kind} was not asked for")
        for tool in tools:
            if not shutil.which(tool):
                self.skipTest(f"{tool} is not installed")
        folder = self.work / kind
        folder.mkdir()
        (folder / "consumer.cpp").write_text(readme_program(), encoding="utf-8")
        return folder

    def run_program(self, program, libraries=None):
        environment = dict(os.environ)
        if libraries:
            environment["LD_LIBRARY_PATH"] = str(libraries)
        launcher = OPTIONS.build / "tools" / "ferry-run" / "ferry-run"
        output = command(launcher, "-n", "2", program, env=environment, timeout=60)
        self.assertEqual(output, "[0] dot = 11, sum = 12\n")

    def test_pkgconfig(self):
        folder = self.wanted("pkgconfig", "pkg-config")
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.libraries / "pkgconfig")}
        flags = command(
            "pkg-config", f"--define-variable=prefix={self.prefix}", "--cflags", "--libs", "ferry", env=environment
        )
        self.assertIn("-DCEREAL_THREAD_SAFE=1", flags.split())
        program = folder / "consumer"
        command(*OPTIONS.cxx, "-std=c++20", folder / "consumer.cpp", "-o", program, *flags.split())
        self.run_program(program, self.libraries)

    def test_installed_test_kit(self):
        """The transport of an example, built and tested with nothing but what is installed (and doctest)."""
        if "pkgconfig" not in OPTIONS.kinds or not shutil.which("pkg-config"):
            self.skipTest("pkgconfig was not asked for, or is not installed")
        folder = self.work / "test_kit"
        folder.mkdir()
        example = ROOT / "examples" / "07_own_backend"
        sources = [*example.glob("packet_*pp"), ROOT / "tests" / "test_kit" / "own_transport_test.cpp"]
        for source in sources:
            shutil.copy(source, folder)
        probe = [*OPTIONS.cxx, "-E", "-x", "c++", "-include", "doctest/doctest.h", os.devnull, "-o", os.devnull]
        if subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("doctest is not installed")
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.libraries / "pkgconfig")}
        flags = command(
            "pkg-config", f"--define-variable=prefix={self.prefix}", "--cflags", "--libs", "ferry", env=environment
        ).split()
        program = folder / "own_transport_test"
        units = sorted(folder.glob("*.cpp"))
        command(*OPTIONS.cxx, "-std=c++20", "-pthread", *units, "-o", program, *flags)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.libraries)}
        output = command(program, env=environment, timeout=150)
        self.assertIn("Status: SUCCESS", output)

    def test_cmake(self):
        folder = self.wanted("cmake", "cmake")
        environment = {**os.environ, "CXX": " ".join(OPTIONS.cxx)}
        shutil.copy(HERE / "cmake" / "CMakeLists.txt", folder)
        command("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}", env=environment)
        command("cmake", "--build", folder / "build")
        self.run_program(folder / "build" / "consumer")
        wrong = self.work / "wrong"
        wrong.mkdir()
        (wrong / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(wrong CXX)\nfind_package(ferry 99 REQUIRED)\n", encoding="utf-8"
        )
        with self.assertRaisesRegex(AssertionError, "99"):
            command("cmake", "-S", wrong, "-B", wrong / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}", env=environment)

    def test_meson(self):
        folder = self.wanted("meson", "meson", "git")
        shutil.copy(HERE / "meson" / "meson.build", folder)
        copy = folder / "subprojects" / "ferry"
        for name in command("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard").splitlines():
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy / name)
        build = folder / "build"
        environment = {**os.environ, "CXX": " ".join(OPTIONS.cxx)}
        parts = [f"-Dferry:{part}=false" for part in ("tests", "examples", "benchmarks", "tools")]
        command("meson", "setup", build, folder, "-Doptimization=0", "-Ddebug=false", *parts, env=environment)
        command("ninja", "-C", build)
        self.run_program(build / "consumer")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, type=pathlib.Path, help="a build directory with everything built")
    parser.add_argument("--cxx", default=os.environ.get("CXX", "c++"), type=shlex.split)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=" ".join(KINDS))
    OPTIONS = parser.parse_args()
    OPTIONS.build = OPTIONS.build.resolve()
    OPTIONS.kinds = OPTIONS.kinds or KINDS
    for kind in OPTIONS.kinds:
        if kind not in KINDS:
            parser.error(f"unknown kind '{kind}'; known: {' '.join(KINDS)}")
    unittest.main(argv=[sys.argv[0], "-v"])
