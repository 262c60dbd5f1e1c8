#!/usr/bin/env python3
"""Checks floors and rooms: a file includes only files of its own floor or of earlier ones, within a floor only rooms that come
before its own, and no includes form a circle.

A floor is a folder below include/ferry/ or src/, a room a folder of a floor; tools/house.py lists both in order. Headers directly
in include/ferry/ are umbrellas: they may include floors, but no floor may include them, except config.hpp, which is below all.
The files directly in src/ include every source. A private header is named relative to the file that includes it, so that they
compile without an include path for src/. A violation names both files. The core of calls must not name what attaches to it
(IGNORANT in tools/house.py).
Exit status: 0 if all is well, 1 with the violations on stdout otherwise.
"""

import argparse
import pathlib
import re
import sys

from house import FLOORS, HUB, IGNORANT, ROOMS

LEVEL = {name: level for level, entries in enumerate(FLOORS) for name, _ in entries}
# The highest floor that an umbrella header may reach; the others are open.
UMBRELLA_LIMIT = {"ferry.hpp": LEVEL["group"], "autograd.hpp": LEVEL["autograd"], "nn.hpp": LEVEL["nn"],
                  "optim.hpp": LEVEL["optim"]}
SUFFIXES = {".hpp", ".cpp", ".h", ".cu", ".cuh", ".ipp"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def project_files(root):
    for top in (root / "include" / "ferry", root / "src"):
        for path in sorted(top.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path


def floor_of(root, path):
    """The floor's name, None for an umbrella header, or the unknown folder's name."""
    top = root / "include" / "ferry" if (root / "include" / "ferry") in path.parents else root / "src"
    parts = path.relative_to(top).parts
    return parts[0] if len(parts) > 1 else None


def includes_of(root, path):
    """(line, file) for each project file that `path` includes."""
    text = COMMENT.sub(lambda found: "\n" * found.group().count("\n"), path.read_text(encoding="utf-8"))
    for found in INCLUDE.finditer(text):
        quote, name = found.groups()
        places = [root / "include" / name]
        if quote == '"':
            places.insert(0, path.parent / name)
        for place in places:
            if place.is_file():
                target = place.resolve()
                if (root / "include" / "ferry") in target.parents or (root / "src") in target.parents:
                    yield text.count("\n", 0, found.start()) + 1, target
                break
        else:
            if quote == '"' and (root / "src") in path.parents:
                yield text.count("\n", 0, found.start()) + 1, name


def room_of(root, path):
    """The room of a file below src/, "" for one that lies in its floor's own folder, None for other files."""
    if (root / "src") not in path.parents:
        return None
    parts = path.relative_to(root / "src").parts
    return "/".join(parts[1:-1]) if len(parts) > 1 else None


def check_rooms(root, path, line, target, problems):
    """Within a floor, rooms include those before them."""
    floor, here, there = floor_of(root, path), room_of(root, path), room_of(root, target)
    if floor != floor_of(root, target) or here is None or there is None or not there or here == there:
        return
    order = [name for name, _ in ROOMS.get(floor, [])]
    if there not in order or (here and here not in order):
        return  # reported as unknown
    if here and order.index(there) < order.index(here):
        return
    file, header = path.relative_to(root).as_posix(), target.relative_to(root).as_posix()
    if path.suffix != ".hpp" and header == HUB.get(floor):
        return
    relation = f"room '{there}' comes after room '{here}'" if here else f"a room is included by the floor's own folder '{floor}'"
    problems.append(f"{file}:{line} includes {header}: {relation}")


def check_order(root, path, line, target, problems):
    here, there = floor_of(root, path), floor_of(root, target)
    names = f"{path.relative_to(root)}:{line} includes {target.relative_to(root)}"
    if target.name == "config.hpp" and there is None:
        return
    if there is None and here is not None:
        problems.append(f"{names}: a floor must not include an umbrella header")
    elif here is None:
        limit = UMBRELLA_LIMIT.get(path.name, len(FLOORS))
        if there is not None and LEVEL.get(there, 0) > limit:
            problems.append(f"{names}: {path.name} ends with floor '{FLOORS[limit][0][0]}', '{there}' is above it")
    elif here in LEVEL and there in LEVEL and here != there and LEVEL[there] >= LEVEL[here]:
        relation = "stands beside" if LEVEL[there] == LEVEL[here] else "comes after"
        problems.append(f"{names}: floor '{there}' {relation} floor '{here}'")


def check_ignorance(root, path, problems):
    """The core of calls does not mention references, objects, or their turns."""
    relative = path.relative_to(root).as_posix()
    if not any(relative == place or relative.startswith(place + "/") for place in IGNORANT["places"]):
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = re.search(r"(?<!errc::)(?<!flavour::)\b(?:" + IGNORANT["words"] + r")\b", line)
        if found:
            problems.append(f"{relative}:{number} mentions {found.group()}: the core of calls knows nothing of what attaches to it")


def circles(graph):
    """One path for each circle of includes that a depth-first walk meets."""
    state, stack, found = {}, [], []

    def visit(node):
        state[node] = "open"
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if state.get(target) == "open":
                found.append(stack[stack.index(target):] + [target])
            elif target not in state:
                visit(target)
        stack.pop()
        state[node] = "closed"

    for node in sorted(graph):
        if node not in state:
            visit(node)
    return found


def check(root):
    """The list of problems of the tree at `root`, and the number of files read."""
    root = root.resolve()
    problems, graph = [], {}
    for path in project_files(root):
        floor = floor_of(root, path)
        if floor is not None and floor not in LEVEL:
            problems.append(f"{path.relative_to(root)}: '{floor}' is not a floor; known: {' '.join(LEVEL)}")
        room = room_of(root, path)
        if floor in LEVEL and room and room not in [name for name, _ in ROOMS.get(floor, [])]:
            problems.append(f"{path.relative_to(root)}: '{room}' is not a room of floor '{floor}' (tools/house.py)")
        check_ignorance(root, path, problems)
        graph[path] = set()
        for line, target in includes_of(root, path):
            if isinstance(target, str):
                problems.append(f'{path.relative_to(root)}:{line} includes "{target}", which is not there; a private header is '
                                "named relative to the file that includes it")
                continue
            check_order(root, path, line, target, problems)
            check_rooms(root, path, line, target, problems)
            graph[path].add(target)
    for circle in circles(graph):
        problems.append("circle: " + " -> ".join(str(path.relative_to(root)) for path in circle))
    return problems, len(graph)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    options = parser.parse_args()
    problems, count = check(options.root)
    for problem in problems:
        print(problem)
    if count == 0:
        print(f"no source file below {options.root}")
    print(f"floors: {count} files, {len(problems)} problems")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
