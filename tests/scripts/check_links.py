"""What documents name exists. Every relative link names a file and, with a fragment, a heading of it; in code a path or a source file is
one of the repository, a --flag, an iv_name and an INVAR_VARIABLE stand in its sources. Usage: check_links.py [SOURCE_DIR]"""

import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SKIPPED = {"build", "shared", "node_modules"}
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)
SPAN = re.compile(r"`([^`\n]+)`")
INDENTED = re.compile(r"^ {4}[^ -].*$", re.M)
SOURCES = {".c", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt", ".html", ".js", ".toml", ".service", ""}
FOLDERS = "src|apps|include|tests|docs|bench|python|examples|models|deploy|fuzz|cmake"
PATH = re.compile(rf"(?<![\w/.*-])(?:(?:{FOLDERS})/[\w./*-]*|[\w./*-]+\.(?:c|h|cu|cuh|py|sh))(?![\w/{{(])")
NAME = re.compile(r"(?<![\w-])(?:(?:iv|IV|INVAR)_\w*[A-Za-z0-9](?![\w*])|--[a-z][a-z0-9-]*[a-z0-9](?![\w*-]))")
# Of other projects, of packages, or of the reader.
FOREIGN = {"batch_invariant_ops.py", "tree_based_matmul.py", "src/tbik", "test_deterministic.py", "types/beta/message_create_params.py",
           "--cap-drop", "--read-only", "models/stories15m", "families_quant.py", "hello.c"}
MADE = "bench/peer/"  # by a script


def listed(root):
    """Paths of the repository's files; a release has no repository."""
    try:
        found = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True,
                               text=True).stdout.splitlines()
        return sorted(name for name in found if (root / name).is_file())
    except (OSError, subprocess.CalledProcessError):
        found = []
        for folder, folders, files in os.walk(root):
            folders[:] = [f for f in folders if f not in SKIPPED and not f.startswith((".", "build"))]
            found += [str((pathlib.Path(folder) / name).relative_to(root)) for name in files]
        return sorted(found)


def anchors(text):
    """GitHub's names of the headings; the second of the same name ends in -1."""
    found = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = 0
        while (name if not count else f"{name}-{count}") in found:
            count += 1
        found.add(name if not count else f"{name}-{count}")
    return found


def wrong_links(root, texts):
    """Yields for every link (document, link, None or what is wrong)."""
    names = {path: anchors(text) for path, text in texts.items()}
    for path, text in texts.items():
        for link in LINK.findall(SPAN.sub("", FENCE.sub("", text))):
            if re.match(r"[a-z]+:", link):
                continue
            file, _, fragment = link.partition("#")
            target = pathlib.Path(os.path.normpath(path.parent / file)) if file else path
            reason = None
            if not target.exists():
                reason = "no such file"
            elif fragment and fragment not in names.get(target, ()):
                reason = f"no heading #{fragment}"
            yield path, link, reason


def words_of(root, files):
    """Every name of the sources; of a flag also --name where a table has it as "name"."""
    words = set()
    for name in files:
        path = root / name
        if path.suffix in SOURCES and not name.startswith("tests/data/") and path.stat().st_size < 1 << 20:
            text = path.read_text(errors="replace")
            words.update(re.findall(r"(?:iv|IV|INVAR)_\w+|--[a-z][a-z0-9-]*", text))
            words.update("--" + word.replace("_", "-") for word in re.findall(r"[\"']([a-z][a-z0-9_-]*)[\"']", text))
    return words


def is_path(name, document, files, folders):
    """A path from the root, from the document's folder, or the end of a path; a folder; with * any of these."""
    name = name.rstrip("/").removeprefix("./")
    near = os.path.normpath(os.path.join(document, name))
    if name in folders or near in folders:
        return True
    return any(fnmatch.fnmatchcase(file, pattern) for file in files for pattern in (name, near, "*/" + name)) if "*" in name else (
        name in files or near in files or any(file.endswith("/" + name) for file in files))


def wrong_names(root, texts, files):
    """Yields for every path and name in code (document, name, None or what is wrong)."""
    known = set(files)
    folders = {str(parent) for file in files for parent in pathlib.PurePath(file).parents} - {"."}
    words = words_of(root, files)
    for path, text in texts.items():
        document = str(path.parent.relative_to(root))
        for span in SPAN.findall(FENCE.sub("", text)) + FENCE.findall(text) + INDENTED.findall(text):
            for name in PATH.findall(span):
                if name not in FOREIGN and not name.startswith(MADE) and "//" not in name:
                    yield path, name, None if is_path(name, document, known, folders) else "no such file"
            for name in NAME.findall(span):
                if name not in FOREIGN:
                    yield path, name, None if name in words else "in no source"


def check(root):
    """(checked, the lines of what is wrong)"""
    files = listed(root)
    texts = {root / name: (root / name).read_text() for name in files if name.endswith(".md")}
    checked, wrong = 0, []
    for path, name, reason in [*wrong_links(root, texts), *wrong_names(root, texts, files)]:
        checked += 1
        if reason:
            wrong.append(f"{path.relative_to(root)}: {name}: {reason}")
    return checked, len(texts), wrong


def self_test():
    """One planted error of each kind is found; what exists is not."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for name, text in {"src/base/file.c": "int iv_here(void); // --there INVAR_SET\n",
                           "docs/a.md": "# A b\n[x](#a-b) [x](b.md) [x](#c) `src/base/file.c`, `base/file.c`, `file.*`, `src/gone.c`, `gone.h`,\n"
                                        "`iv_here(n)`, `iv_gone`, `--there 3`, `--gone=1`, `INVAR_SET`, `INVAR_GONE`, `config.json`, `src/base/`\n"
                                        "```\n[x](none.md) `iv_none`\n```\n"}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = sorted(line.split(": ")[1] for line in check(root)[2])
        wanted = sorted(["b.md", "#c", "src/gone.c", "gone.h", "iv_gone", "--gone", "INVAR_GONE", "iv_none"])
        assert found == wanted, f"wanted the planted errors {wanted}, found {found}"


def main():
    self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    if not root.is_dir():
        sys.exit(f"check_links.py: wanted a folder, found {root}")
    checked, documents, wrong = check(root)
    print("\n".join(wrong + [f"{checked} links and names of {documents} documents, {len(wrong)} wrong"]))
    if not checked:
        print(f"wanted links in the documents of {root}, found none")
    return 1 if wrong or not checked else 0


sys.exit(main())
