"""C files of one folder call each other in one direction. Usage: circles.py SOURCE_DIR NM CC OBJECT...

A file uses another if its object needs a symbol that the other's object defines. Files of one folder that reach each
other form a cycle: an error, unless the cycle is in RECURSIVE."""

import collections
import os
import re
import subprocess
import sys
import tempfile

# Cycles that have to be, with the reason.
RECURSIVE = {
    ("src/text/jinja/eval.c", "src/text/jinja/exec.c"):
        "an expression calls a macro, whose body is statements, which contain expressions",
}

# Folders whose files are compiled only with CUDA, with MPI, or on x86.
OPTIONAL = {"src/comm/mpi", "src/device/cuda", "src/kernels/cpu/x86", "src/kernels/cuda", "src/model/cuda",
            "src/ops/cuda", "src/train/cuda"}


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


def folders(root):
    """The folders below src and apps that have C files."""
    walks = (walk for top in ("src", "apps") for walk in os.walk(os.path.join(root, top)))
    return {os.path.relpath(path, root) for path, _, files in walks if any(file.endswith(".c") for file in files)}


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
    missing = folders(root) - OPTIONAL - {os.path.dirname(file) for file in objects}
    if missing:
        sys.exit(f"circles: no objects of {', '.join(sorted(missing))}")
    found = {tuple(group) for group in cycles(objects)}
    for group in sorted(found - set(RECURSIVE)):
        print("FAILED:", ", ".join(group))
    for group in sorted(set(RECURSIVE) - found):
        print("FAILED: RECURSIVE has a cycle that is gone:", ", ".join(group))
    if found != set(RECURSIVE):
        sys.exit("circles: files of one folder call each other in one direction")
    print(f"circles: {len(objects)} files, no cycles but {len(RECURSIVE)} named")


main()
