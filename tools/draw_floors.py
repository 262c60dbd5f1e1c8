#!/usr/bin/env python3
"""Draws the floors and rooms of the source tree as they are: docs/floors.svg, and the tables in docs/architecture.md.

What is drawn comes from tools/house.py (order and sentences) and from the includes of the files (which floor uses which, which
room uses which). --check says whether the committed picture and tables still say what the tree says; --write brings them up to date.
Exit status: 0 if they do, 1 otherwise.
"""

import argparse
import pathlib
import sys
from html import escape

import check_floors
from house import FLOORS, ROOMS

BEGIN, END = "<!-- begin: tools/draw_floors.py -->", "<!-- end -->"
ROW, LEFT, CELL, NAME, ROOM_TOP = 58, 20, 26, 130, 30
FONT = "font-family='system-ui, sans-serif'"


def floors_used(root):
    """{floor: floors that its files include}, {(floor, room): rooms of the same floor that it includes}."""
    floors, rooms = {}, {}
    for path in check_floors.project_files(root):
        here = check_floors.floor_of(root, path)
        if here not in check_floors.LEVEL:
            continue
        floors.setdefault(here, set())
        room = check_floors.room_of(root, path)
        if room:
            rooms.setdefault((here, room), set())
        for _, target in check_floors.includes_of(root, path):
            if isinstance(target, str):
                continue
            there = check_floors.floor_of(root, target)
            if there in check_floors.LEVEL and there != here:
                floors[here].add(there)
            other = check_floors.room_of(root, target)
            if there == here and room and other and other != room:
                rooms[(here, room)].add(other)
    return floors, rooms


def picture(used):
    """An SVG: a row for each floor that exists, its rooms, and a dot below each floor that it includes."""
    names = [name for entries in FLOORS for name, _ in entries if name in used]
    column = {name: index for index, name in enumerate(names)}
    rooms_left = LEFT + NAME
    widest = max((sum(len(room) * 7.2 + 26 for room, _ in ROOMS.get(name, [])) for name in names), default=0)
    dots_left = int(rooms_left + widest + 30)
    width, height = dots_left + CELL * len(names) + 60, 96 + ROW * len(names)
    out = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' {FONT} "
           "role='img' aria-label='The floors of ferry, their rooms, and which floors each one includes'>",
           f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
           f"<text x='{LEFT}' y='30' font-size='17' font-weight='600' fill='#1b2733'>Floors and rooms</text>",
           f"<text x='{LEFT}' y='50' font-size='12' fill='#5a6b7b'>A floor includes only floors above it (dots: those that it does). Rooms stand from the inside "
           "out.</text>"]
    for name, index in column.items():
        x = dots_left + CELL * index + CELL / 2
        out.append(f"<text transform='translate({x + 4:.0f},76) rotate(-45)' font-size='11' fill='#5a6b7b'>{escape(name)}</text>")
    for name, index in column.items():
        y = 84 + ROW * index
        out.append(f"<rect x='{LEFT}' y='{y}' width='{dots_left - LEFT - 12}' height='{ROW - 10}' rx='6' fill='#eef3f8' "
                   "stroke='#c3d0dd'/>")
        out.append(f"<text x='{LEFT + 12}' y='{y + 29}' font-size='14' font-weight='600' fill='#1b2733'>{escape(name)}/</text>")
        x = rooms_left
        for room, _ in ROOMS.get(name, []):
            wide = len(room) * 7.2 + 16
            out.append(f"<rect x='{x:.0f}' y='{y + 11}' width='{wide:.0f}' height='26' rx='4' fill='#ffffff' stroke='#c3d0dd'/>")
            out.append(f"<text x='{x + wide / 2:.0f}' y='{y + 28}' font-size='12' text-anchor='middle' fill='#1b2733'>"
                       f"{escape(room)}</text>")
            x += wide + 10
        for other, at in column.items():
            cx, cy = dots_left + CELL * at + CELL / 2, y + (ROW - 10) / 2
            if other == name:
                out.append(f"<rect x='{cx - 5:.0f}' y='{cy - 5:.0f}' width='10' height='10' fill='#c3d0dd'/>")
            elif other in used[name]:
                out.append(f"<circle cx='{cx:.0f}' cy='{cy:.0f}' r='6' fill='#2f6fab'/>")
            else:
                out.append(f"<circle cx='{cx:.0f}' cy='{cy:.0f}' r='1.5' fill='#c3d0dd'/>")
    out.append("</svg>")
    return "\n".join(out) + "\n"


def tables(used, rooms):
    """The text between the marks of docs/architecture.md."""
    lines = ["| floor | holds |", "|---|---|"]
    for entries in FLOORS:
        for name, sentence in entries:
            lines.append(f"| `{name}/` | {sentence}{'' if name in used else ' (to come)'} |")
    lines += ["", "The rooms of `src/`, each with the rooms of its floor that it includes:", "", "```", "src/"]
    for entries in FLOORS:
        for name, _ in entries:
            if not ROOMS.get(name):
                continue
            lines.append(f"  {name}/")
            for room, sentence in ROOMS[name]:
                uses = [other for other, _ in ROOMS[name] if other in rooms.get((name, room), ())]
                lines.append(f"    {room + '/':<22} {sentence}" + (f" (uses {', '.join(uses)})" if uses else ""))
    lines += ["```"]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    options = parser.parse_args()
    root = options.root.resolve()
    used, rooms = floors_used(root)
    page = root / "docs" / "architecture.md"
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or END not in text.split(BEGIN)[1]:
        print(f"docs/architecture.md has no '{BEGIN}' ... '{END}'")
        return 1
    before, rest = text.split(BEGIN)
    wanted = {
        root / "docs" / "floors.svg": picture(used),
        page: f"{before}{BEGIN}\n{tables(used, rooms)}\n{END}{rest.split(END, 1)[1]}",
    }
    stale = [path for path, content in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != content]
    for path in stale:
        if options.write:
            path.write_text(wanted[path], encoding="utf-8")
        print(f"{path.relative_to(root)}: {'written' if options.write else 'out of date; run tools/draw_floors.py --write'}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
