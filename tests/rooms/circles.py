"""Files of one folder call each other in one direction. Usage: circles.py SOURCE_DIR NM CC OBJECT...

A file uses another if its object needs a symbol that the other's object defines. Files of one folder that reach each
other form a cycle. Cycles of the folders in HELD are errors; those of other folders are listed only."""

import collections
import os
import re
import subprocess
import sys
import tempfile

HELD = ["src/engine", "src/kv", "src/sample", "src/sched"]


def source_of(root, path):
    """The source file of an object in CMake's layout: .../NAME.dir/SOURCE.o"""
    at = re.search(r"\.dir/((?:src|apps)/.*)\.o$", os.path.normpath(path))
    return at and os.path.exists(os.path.join(root, at[1])) and at[1]


def symbols(nm, paths):
    """{path: (the global symbols that the object defines, those that it needs)}"""
    found = {path: (set(), set()) for path in paths}
    lines = subprocess.run([nm, "-A", "-g", "-P", *paths], check=True, capture_output=True, text=True).stdout
    for line in lines.splitlines():
        path, rest = line.split(": ", 1)
        name, kind = rest.split()[:2]
        found[path][kind in "Uvw"].add(name)
    return found


def edges(objects):
    """{file: the files of its folder that it uses}, of {file: (defined, needed)}"""
    home = {(os.path.dirname(file), name): file for file, (defined, _) in objects.items() for name in defined}
    uses = collections.defaultdict(set)
    for file, (_, needed) in objects.items():
        for name in needed:
            other = home.get((os.path.dirname(file), name))
            if other and other != file:
                uses[file].add(other)
    return uses


def reachable(uses, start):
    seen, todo = set(), [start]
    while todo:
        for other in uses[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return seen


def cycles(objects):
    """Sets of two or more files that reach each other."""
    uses = edges(objects)
    reach = {file: reachable(uses, file) for file in objects}
    found = {frozenset(b for b in reach[a] if a in reach[b]) for a in objects if a in reach[a]}
    return sorted(sorted(group) for group in found)


def planted():
    """A cycle of three and a pair are found; calls in one direction, and between folders, are none."""
    objects = {
        "src/a/1.c": ({"one"}, {"two"}),
        "src/a/2.c": ({"two"}, {"three", "last"}),
        "src/a/3.c": ({"three"}, {"one"}),
        "src/a/4.c": ({"last"}, {"elsewhere", "malloc"}),
        "src/b/1.c": ({"elsewhere"}, {"last"}),
        "src/b/2.c": ({"pair"}, {"other"}),
        "src/b/3.c": ({"other"}, {"pair"}),
    }
    want = [["src/a/1.c", "src/a/2.c", "src/a/3.c"], ["src/b/2.c", "src/b/3.c"]]
    return cycles(objects) == want


def planted_objects(nm, compiler):
    """The same from compiled files."""
    with tempfile.TemporaryDirectory() as folder:
        sources = {}
        for name, other in (("ping", "pong"), ("pong", "ping")):
            path = os.path.join(folder, name)
            with open(path + ".c", "w", encoding="ascii") as f:
                f.write(f"int {other}(int);\nint {name}(int n) {{ return n ? {other}(n - 1) : 0; }}\n")
            subprocess.run([compiler, "-c", path + ".c", "-o", path + ".o"], check=True)
            sources[path + ".o"] = f"src/c/{name}.c"
        objects = {sources[path]: both for path, both in symbols(nm, list(sources)).items()}
        return cycles(objects) == [["src/c/ping.c", "src/c/pong.c"]]


def main():
    root, nm, compiler, paths = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    if not planted() or not planted_objects(nm, compiler):
        sys.exit("circles: the planted cycles were not found")
    sources = {path: source for path in paths if (source := source_of(root, path))}
    objects = {sources[path]: both for path, both in symbols(nm, list(sources)).items()}
    missing = [folder for folder in HELD if not any(os.path.dirname(file) == folder for file in objects)]
    if missing:
        sys.exit(f"circles: no objects of {', '.join(missing)}")
    wrong = 0
    for group in cycles(objects):
        folder = os.path.dirname(group[0])
        held = folder in HELD
        wrong += held
        print(f"{'FAILED' if held else 'known'}: {folder}: {', '.join(os.path.basename(f) for f in group)}")
    if wrong:
        sys.exit(f"circles: {wrong} cycles in folders that have none")
    print(f"circles: {len(objects)} files, none in {', '.join(HELD)}")


main()
