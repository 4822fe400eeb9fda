"""Every relative link of every document names a file that exists and, with a fragment, a heading of it. Usage: check_links.py SOURCE_DIR"""

import os
import pathlib
import re
import subprocess
import sys

SKIPPED = {"build", "shared", "node_modules"}
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)


def documents(root):
    try:
        listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.md"], check=True,
                                capture_output=True, text=True).stdout.splitlines()
        return sorted(root / name for name in listed if (root / name).exists())
    except (OSError, subprocess.CalledProcessError):  # a release has no repository
        found = []
        for folder, folders, files in os.walk(root):
            folders[:] = [f for f in folders if f not in SKIPPED and not f.startswith((".", "build"))]
            found += [pathlib.Path(folder) / name for name in files if name.endswith(".md")]
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


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    texts = {path: path.read_text() for path in documents(root)}
    names = {path: anchors(text) for path, text in texts.items()}
    checked = wrong = 0
    for path, text in texts.items():
        for link in LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))):
            if re.match(r"[a-z]+:", link):
                continue
            checked += 1
            file, _, fragment = link.partition("#")
            target = pathlib.Path(os.path.normpath(path.parent / file)) if file else path
            if not target.exists():
                reason = "no such file"
            elif fragment and fragment not in names.get(target, ()):
                reason = f"no heading #{fragment}"
            else:
                continue
            wrong += 1
            print(f"{path.relative_to(root)}: {link}: {reason}")
    if not checked:
        print(f"wanted links in the documents of {root}, found none")
    print(f"{checked} links of {len(texts)} documents, {wrong} wrong")
    return 1 if wrong or not checked else 0


sys.exit(main())
