#!/bin/sh
# A room includes only rooms below it in the table of docs/ARCHITECTURE.md; so do the rooms within a room (src/serve/http),
# above which are its own files. The server includes only base, format and chat; the program includes base, train/run.h and
# three headers of the server. Usage: arrows.sh SOURCE_DIR
set -eu
rooms=$1/docs/ARCHITECTURE.md

# Prints the wrong includes below a folder, one per line.
wrong() {
    (cd "$1" && grep -rnE '^#include "[a-z]+/' src apps) | awk -v rooms="$rooms" '
        BEGIN {
            while ((getline line < rooms) > 0)
                if (match(line, /^\| `(src|apps)\/[a-z]+(\/[a-z]+)?` \|/)) {
                    split(line, part, "`")
                    sub(/^[a-z]*\//, "", part[2])
                    height[part[2]] = ++count
                    if (sub(/\/.*/, "", part[2])) divided[part[2]] = 1
                }
            if (count < 10) print rooms ": wanted a table of rooms, found " count + 0 " rows"
        }
        # The room within a room that has such: "serve/http", or "serve" for its own files.
        function inner(path, room) {
            room = path
            sub(/\/[^\/]*$/, "", room)
            return room
        }
        {
            path = $0
            sub(/:.*/, "", path)
            sub(/^[a-z]+\//, "", path)
            split($0, at, "/")
            split($0, quoted, "\"")
            from = at[2]; to = quoted[2]
            sub(/\/.*/, "", to)
            known = from in height && to in height
            if (from == "invar")
                good = to == "base" || quoted[2] ~ /^(serve\/(server|batch|load)|train\/run)\.h$/
            else if (from == "serve")
                good = to ~ /^(serve|base|format|chat)$/
            else
                good = known && height[to] >= height[from]
            if (good && from == to && from in divided)
                good = inner(path) in height && inner(quoted[2]) in height && height[inner(quoted[2])] >= height[inner(path)]
            if (!good) print
        }'
}

# Self-test: one planted error of each kind is found; a valid include is not.
planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
mkdir -p "$planted/src/base" "$planted/src/serve/http" "$planted/src/serve/api" "$planted/src/model" "$planted/apps/invar"
echo '#include "model/model.h"' > "$planted/src/base/up.c"
echo '#include "serve/api/task.h"' > "$planted/src/serve/http/up.c"
echo '#include "serve/server.h"' > "$planted/src/serve/api/out.c"
echo '#include "serve/http/http.h"' > "$planted/src/serve/api/down.c"
echo '#include "engine/state.h"' > "$planted/src/serve/past.c"
echo '#include "format/json.h"' > "$planted/apps/invar/past.c"
echo '#include "train/data.h"' > "$planted/apps/invar/inner.c"
echo '#include "train/run.h"' > "$planted/apps/invar/train.c"
echo '#include "nowhere/here.h"' > "$planted/src/model/no.c"
echo '#include "base/status.h"' > "$planted/src/model/down.c"
seen=$(wrong "$planted" | wc -l)
if [ "$seen" -ne 7 ]; then
    echo "arrows: wanted the 7 planted errors, found $seen"
    wrong "$planted"
    exit 1
fi

found=$(wrong "$1")
if [ -n "$found" ]; then
    echo "includes that docs/ARCHITECTURE.md forbids:"
    echo "$found"
    exit 1
fi
echo "arrows: $(cd "$1" && grep -rhE '^#include "[a-z]+/' src apps | wc -l) includes checked"
