#!/bin/sh
# installed_tree.sh BUILD_FOLDER: installs into a temporary prefix, then builds and runs a small program against the
# installed files: through pkg-config with the shared library, if it was built, and fully static; through CMake's
# find_package with either library.
set -eu

build=$1
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

env -u DESTDIR cmake --install "$build" --prefix "$prefix" >"$prefix/install.log" || {
    cat "$prefix/install.log"
    exit 1
}
pc=$(find "$prefix" -name invar.pc)
lib=$(dirname "$(dirname "$pc")")
PKG_CONFIG_PATH=$lib/pkgconfig
export PKG_CONFIG_PATH

# The .pc file locates the tree relative to itself.
flags() { pkg-config "$@" invar; }

# shellcheck disable=SC2046  # flags are lists of words
${CC:-cc} -std=c11 -Wall -Werror "$here/use_invar.c" -o "$prefix/shared" $(flags --cflags --libs)
LD_LIBRARY_PATH=$lib "$prefix/shared"
[ ! -e "$lib/libinvar.so" ] || LD_LIBRARY_PATH=$lib ldd "$prefix/shared" | grep -q "libinvar.so.1 => $prefix/" || {
    echo "the shared program does not use $lib/libinvar.so.1"
    exit 1
}

# shellcheck disable=SC2046
${CC:-cc} -std=c11 -Wall -Werror -static "$here/use_invar.c" -o "$prefix/static" $(flags --static --cflags --libs)
"$prefix/static"

cmake -S "$here/find_package" -B "$prefix/cmake" -DCMAKE_PREFIX_PATH="$prefix" >"$prefix/cmake.log" 2>&1 &&
    cmake --build "$prefix/cmake" >>"$prefix/cmake.log" 2>&1 || {
    cat "$prefix/cmake.log"
    exit 1
}
"$prefix/cmake/by_invar"
"$prefix/cmake/by_static"

for file in share/invar/models/tiny-math/model.safetensors share/doc/invar/README.md share/doc/invar/LICENSE; do
    [ -s "$prefix/$file" ] || {
        echo "not installed: $file"
        exit 1
    }
done
echo "installed tree: shared and static programs run, by pkg-config and by CMake"
