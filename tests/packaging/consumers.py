#!/usr/bin/env python3
"""Builds and runs small projects that use ferry in the ways that users take it.

onefile           the program of the README with src/ferry.cpp: a Makefile; CMake's target_sources (compiles the library)
pkgconfig, cmake  the program of the README; the installed test kit
cxx23             the same program as C++23, with every compiler that is here
parts             a library, static or shared, and a program that both use ferry
static            a static libferry without CUDA devices, and a plug-in of a program that has it
meson             the program of the README, with ferry as a subproject (static, which also serves the kind static)

The kinds onefile, static and meson compile the library; the others use what `meson install` installs from the build directory, moved to a temporary prefix.
With --prefix DIR (and --static-prefix) trees that are installed already are used; then meson is left out.
If that is possible (root), CMake's projects are built where no CUDA Toolkit can be seen.
Kinds whose tool is missing are skipped and said so.
"""

import argparse
import concurrent.futures
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
KINDS = ["onefile", "pkgconfig", "cmake", "cxx23", "parts", "static", "meson"]
OWN_BUILD = {"onefile", "static", "meson"}
OPTIONS = None
TORCH_SUM = "[0] 12\n"  # what libtorch/tensors.cpp prints
GRADIENTS = "[0] 2 4\n"  # what cmake/gradients.cpp prints


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


def without_cuda():
    """Words before a command that make it see no CUDA Toolkit, or none where that is not possible."""
    hidden = 'for folder in /usr/local/cuda*; do [ ! -d "$folder" ] || mount -t tmpfs none "$folder" || exit; done; exec "$@"'
    words = ["env", "-u", "CUDA_PATH", "-u", "CUDACXX", "unshare", "--mount", "sh", "-c", hidden, "sh"]
    if not shutil.which("unshare"):
        return []
    works = subprocess.run([*words, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    return words if works else []


def compilers():
    """The compiler of the build directory, and the others that ferry is tested with."""
    found = {OPTIONS.cxx[-1]: OPTIONS.cxx}
    for name in ("g++", "clang++-16", "clang++-19", "clang++"):
        if shutil.which(name) and not (name == "clang++" and len(found) > 1):
            found.setdefault(name, [name])
    return found


class Installed:
    """An installed tree."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.package = next(prefix.rglob("ferry.pc"))
        self.libraries = self.package.parent.parent

    @classmethod
    def of_build(cls, build, place):
        """What `meson install` installs, in another place than the build directory was configured for."""
        command("meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", place)
        package = next(place.rglob("ferry.pc"))
        prefix = next(line for line in package.read_text().splitlines() if line.startswith("prefix="))
        return cls(pathlib.Path(f"{place}{prefix.removeprefix('prefix=')}"))

    def flags(self, *words, package="ferry"):
        path = [str(self.libraries / "pkgconfig"), os.environ.get("PKG_CONFIG_PATH", "")]
        environment = {**os.environ, "PKG_CONFIG_PATH": ":".join(filter(None, path))}
        words = [f"--define-variable=prefix={self.prefix}", "--cflags", "--libs", *words, package]
        return command("pkg-config", *words, env=environment).split()

    def cmake(self, folder, *options):
        """Builds the project in a folder and returns its build directory."""
        build = folder / "build"
        environment = {**os.environ, "CXX": " ".join(OPTIONS.cxx)}
        if not shutil.which("make"):
            environment.setdefault("CMAKE_GENERATOR", "Ninja")
        words = [*without_cuda(), "cmake"]
        command(*words, "-S", folder, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}", *options, env=environment)
        command(*words, "--build", build)
        return build


class Consumers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.work = pathlib.Path(cls.folder.name)
        cls.addClassCleanup(cls.folder.cleanup)
        if OPTIONS.prefix:
            cls.installed = Installed(OPTIONS.prefix)
            cls.launcher = OPTIONS.prefix / "bin" / "ferry-run"
        else:
            cls.launcher = OPTIONS.build / "tools" / "ferry-run" / "ferry-run"
            if set(OPTIONS.kinds) - OWN_BUILD:
                cls.installed = Installed.of_build(OPTIONS.build, cls.work / "root")

    def wanted(self, kind, *tools, project=None):
        """A folder with a project of tests/packaging/ and the program of the README."""
        if kind not in OPTIONS.kinds:
            self.skipTest(f"{kind} was not asked for")
        for tool in tools:
            if not shutil.which(tool):
                self.skipTest(f"{tool} is not installed")
        folder = self.work / self.id().split("_", 1)[1]
        if project:
            shutil.copytree(HERE / project, folder)
        else:
            folder.mkdir()
        (folder / "consumer.cpp").write_text(readme_program(), encoding="utf-8")
        return folder

    @staticmethod
    def finding(libraries):
        """An environment in which programs find the libraries in that folder, and those that they found before."""
        path = [str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, path))}

    def run_program(self, program, libraries=None, workers=2, expected="[0] dot = 11, sum = 12\n", arguments=()):
        environment = self.finding(libraries) if libraries else None
        output = command(self.launcher, "-n", workers, program, *arguments, env=environment, timeout=60)
        self.assertEqual(output, expected)

    def test_pkgconfig(self):
        folder = self.wanted("pkgconfig", "pkg-config")
        flags = self.installed.flags()
        self.assertIn("-DCEREAL_THREAD_SAFE=1", flags)
        program = folder / "consumer"
        command(*OPTIONS.cxx, "-std=c++20", folder / "consumer.cpp", "-o", program, *flags)
        self.run_program(program, self.installed.libraries)

    def test_cxx23(self):
        folder = self.wanted("cxx23", "pkg-config")
        warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        for name, compiler in compilers().items():
            with self.subTest(name):
                program = folder / pathlib.Path(name).name
                command(
                    *compiler, "-std=c++2b", *warnings, folder / "consumer.cpp", "-o", program, *self.installed.flags()
                )
                self.run_program(program, self.installed.libraries)

    def test_installed_test_kit(self):
        """The transport of an example, built and tested with nothing but what is installed (and doctest)."""
        folder = self.wanted("pkgconfig", "pkg-config")
        (folder / "consumer.cpp").unlink()
        example = ROOT / "examples" / "07_own_backend"
        sources = [*example.glob("packet_*pp"), ROOT / "tests" / "test_kit" / "own_transport_test.cpp"]
        for source in sources:
            shutil.copy(source, folder)
        probe = [*OPTIONS.cxx, "-E", "-x", "c++", "-include", "doctest/doctest.h", os.devnull, "-o", os.devnull]
        if subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("doctest is not installed")
        program = folder / "own_transport_test"
        units = sorted(folder.glob("*.cpp"))
        command(*OPTIONS.cxx, "-std=c++20", "-pthread", *units, "-o", program, *self.installed.flags())
        output = command(program, env=self.finding(self.installed.libraries), timeout=150)
        self.assertIn("Status: SUCCESS", output)

    def test_installed_fault_injector(self):
        folder = self.wanted("pkgconfig", "pkg-config")
        program = folder / "faults"
        command(*OPTIONS.cxx, "-std=c++20", HERE / "cmake" / "faults.cpp", "-o", program,
                *self.installed.flags(package="ferry-testing"))
        self.run_program(program, self.installed.libraries, workers=1, expected="")

    def test_installed_gradients(self):
        folder = self.wanted("pkgconfig", "pkg-config")
        program = folder / "gradients"
        command(*OPTIONS.cxx, "-std=c++20", HERE / "cmake" / "gradients.cpp", "-o", program,
                *self.installed.flags(package="ferry-autograd"))
        self.run_program(program, self.installed.libraries, workers=1, expected=GRADIENTS)

    def test_installed_libtorch(self):
        """With libtorch, where ferry was built with it: by pkg-config and by CMake."""
        folder = self.wanted("pkgconfig", "pkg-config")
        if not list(self.installed.prefix.rglob("ferry-libtorch.pc")):
            self.skipTest("ferry was built without libtorch")
        program = folder / "tensors"
        command(*OPTIONS.cxx, "-std=c++20", HERE / "libtorch" / "tensors.cpp", "-o", program,
                *self.installed.flags(package="ferry-libtorch"))
        self.run_program(program, self.installed.libraries, workers=1, expected=TORCH_SUM)
        if shutil.which("cmake"):
            project = self.work / "libtorch"
            shutil.copytree(HERE / "libtorch", project)
            self.run_program(self.installed.cmake(project) / "tensors", workers=1, expected=TORCH_SUM)

    def test_cmake(self):
        folder = self.wanted("cmake", "cmake", project="cmake")
        build = self.installed.cmake(folder)
        self.run_program(build / "consumer")
        self.run_program(build / "faults", workers=1, expected="")
        self.run_program(build / "gradients", workers=1, expected=GRADIENTS)
        wrong = self.work / "wrong"
        wrong.mkdir()
        (wrong / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(wrong CXX)\nfind_package(ferry 99 REQUIRED)\n", encoding="utf-8"
        )
        with self.assertRaisesRegex(AssertionError, "99"):
            self.installed.cmake(wrong)

    def test_nothing_of_cuda_is_needed(self):
        """A shared libferry takes what it needs of CUDA along."""
        self.wanted("cmake", "readelf", "pkg-config")
        library = self.installed.libraries / "libferry.so"
        if not library.exists():
            self.skipTest("the library is static")
        self.assertNotRegex(command("readelf", "-d", library), r"NEEDED.*cuda")
        self.assertNotIn("cuda", " ".join(self.installed.flags()))
        config = self.installed.libraries / "cmake" / "ferry" / "ferryConfig.cmake"
        self.assertIn('set(_ferry_cuda "OFF")', config.read_text())

    def test_parts(self):
        """One process has one table of methods, whether the library is static or shared."""
        folder = self.wanted("parts", "cmake")
        for name, options in {"static": [], "shared": ["-DBUILD_SHARED_LIBS=ON", "-DCMAKE_CXX_STANDARD=23"]}.items():
            with self.subTest(name):
                shutil.copytree(HERE / "parts", folder / name)
                build = self.installed.cmake(folder / name, *options)
                self.run_program(build / "program", expected="[0] tripled 6, added 13, both 203\n")

    def onefile_project(self, name):
        """A project with a copy of ferry's headers and sources, and nothing else of it."""
        folder = self.work / f"onefile_{name}"
        shutil.copytree(HERE / "onefile", folder)
        (folder / "consumer.cpp").write_text(readme_program(), encoding="utf-8")
        shutil.copy(HERE / "cmake" / "gradients.cpp", folder)
        for part in ("include", "src"):
            shutil.copytree(ROOT / part, folder / "ferry" / part)
        return folder

    def test_onefile(self):
        self.wanted("onefile", "make", "cmake")
        plain, proven = self.onefile_project("make"), self.onefile_project("cmake")
        environment = {**os.environ, "CXX": shlex.join(OPTIONS.cxx), "CXXFLAGS": "-O0"}  # whether it builds, not how fast
        with concurrent.futures.ThreadPoolExecutor() as pool:
            builds = [
                pool.submit(command, "make", "-C", plain, env=environment),
                pool.submit(lambda: [
                    command("cmake", "-S", proven, "-B", proven / "build", env=environment),
                    command("cmake", "--build", proven / "build"),
                ]),
            ]
            for build in builds:
                build.result()
        self.run_program(plain / "gradients", workers=1, expected=GRADIENTS)
        # ferry-run makes a secret for its workers. A program without authentication does without it, but refuses one that
        # the user demands, and says how to get authentication.
        self.run_program(plain / "consumer")
        self.run_program(proven / "build" / "consumer")
        # A mark that was inherited with another secret does not make this one optional.
        demanded = {**os.environ, "FERRY_SECRET": "of this test", "FERRY_SECRET_OPTIONAL": "of an outer ferry-run"}
        self.assertEqual(command(self.launcher, "-n", 2, proven / "build" / "consumer", env=demanded, timeout=60),
                         "[0] dot = 11, sum = 12\n")
        with self.assertRaisesRegex(AssertionError, "-DFERRY_WITH_AUTHENTICATION=1 and -lcrypto"):
            command(self.launcher, "-n", 2, plain / "consumer", env=demanded, timeout=60)

    def test_macros_of_config(self):
        """Wrong combinations of the macros are errors in words."""
        self.wanted("onefile")
        for flags, text in {
            ("-DFERRY_WITH_CUDA=2",): "FERRY_WITH_CUDA must be 0 or 1",
            ("-DFERRY_WITH_CPU_KERNELS=2",): "FERRY_WITH_CPU_KERNELS must be 0 or 1",
            ("-DFERRY_WITH_AUTHENTICATION=",): "FERRY_WITH_AUTHENTICATION must be 0 or 1",
            ("-DFERRY_WITH_CUDA_KERNELS",): "FERRY_WITH_CUDA_KERNELS=1 needs FERRY_WITH_CUDA=1",
            ("-DCEREAL_THREAD_SAFE=0",): "ferry needs CEREAL_THREAD_SAFE=1",
            ("-include", "cereal/cereal.hpp"): "include ferry before cereal",
            ("-std=c++17",): "ferry needs C\\+\\+20",
        }.items():
            with self.subTest(text), self.assertRaisesRegex(AssertionError, text):
                command(*OPTIONS.cxx, "-std=c++20", *flags, "-I", ROOT / "include", "-fsyntax-only", "-x", "c++",
                        ROOT / "include" / "ferry" / "config.hpp")

    def test_static(self):
        folder = self.wanted("static", "cmake", "pkg-config", project="plug_in")
        if OPTIONS.static_prefix:
            installed = Installed(OPTIONS.static_prefix)
        else:
            installed = Installed.of_build(self.subproject_build(), self.work / "static_root")
        self.assertEqual(list(installed.libraries.glob("libferry.so*")), [])
        program = folder / "consumer"
        command(*OPTIONS.cxx, "-std=c++20", folder / "consumer.cpp", "-o", program, *installed.flags("--static"))
        self.run_program(program)

        parts = folder / "parts"
        shutil.copytree(HERE / "parts", parts)
        self.run_program(installed.cmake(parts) / "program", expected="[0] tripled 6, added 13, both 203\n")

        projects = installed.cmake(folder)
        plug_in, copy = projects / "libplug_in.so", projects / "libcopy.so"
        self.run_program(projects / "host", expected="[0] half 4.5, negative -3\n", arguments=[plug_in])
        for program, library, complaint in (
            ("host", copy, "has another libferry than the program"),
            ("closed", copy, "has another libferry than the program"),
            ("closed", plug_in, "let it show its names"),
        ):
            with self.subTest(f"{program} {library.name}"):
                with self.assertRaisesRegex(AssertionError, complaint):
                    command(projects / program, library)

    @classmethod
    def subproject_build(cls):
        """A build of the README's program with ferry as a subproject, static and without CUDA; made once."""
        folder = cls.work / "subproject"
        if (folder / "build" / "done").exists():
            return folder / "build"
        shutil.copytree(HERE / "meson", folder)
        (folder / "consumer.cpp").write_text(readme_program(), encoding="utf-8")
        copy = folder / "subprojects" / "ferry"
        for name in command("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard").splitlines():
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy / name)
        build = folder / "build"
        environment = {**os.environ, "CXX": " ".join(OPTIONS.cxx)}
        parts = [f"-Dferry:{part}=false" for part in ("tests", "examples", "benchmarks", "tools")]
        command("meson", "setup", build, folder, "-Doptimization=0", "-Ddebug=false", "-Ddefault_library=static",
                "-Dferry:cuda=disabled", *parts, env=environment)
        command("ninja", "-C", build)
        (build / "done").touch()
        return build

    def test_meson(self):
        self.wanted("meson", "meson", "git")
        self.run_program(self.subproject_build() / "consumer")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, help="a build directory with everything built")
    parser.add_argument("--prefix", type=pathlib.Path, help="an installed tree instead")
    parser.add_argument("--static-prefix", type=pathlib.Path, help="one with a static library")
    parser.add_argument("--cxx", default=os.environ.get("CXX", "c++"), type=shlex.split)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=" ".join(KINDS))
    OPTIONS = parser.parse_args()
    if (OPTIONS.build is None) == (OPTIONS.prefix is None):
        parser.error("name a build directory or an installed tree")
    for folder in ("build", "prefix", "static_prefix"):
        if getattr(OPTIONS, folder):
            setattr(OPTIONS, folder, getattr(OPTIONS, folder).resolve())
    OPTIONS.kinds = OPTIONS.kinds or [kind for kind in KINDS if OPTIONS.build or kind not in OWN_BUILD]
    for kind in OPTIONS.kinds:
        if kind not in KINDS:
            parser.error(f"unknown kind '{kind}'; known: {' '.join(KINDS)}")
    unittest.main(argv=[sys.argv[0], "-v"])
