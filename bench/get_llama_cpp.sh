#!/bin/sh
# Downloads and builds llama.cpp, the benchmarks' peer, in bench/peer (git-ignored).
#
# The source comes with llama-cpp-python's distribution on PyPI, pinned by version and SHA-256, so that no
# git host is needed. LLAMA_CPP_SDIST names a local copy. Release, native, OpenMP, no HTTPS;
# only the benchmark tools are built. Installs `bench/peer/bin/llama-bench`; repeated calls are fast.
set -eu

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
archive=llama_cpp_python-$version.tar.gz

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
peer=$here/peer
mkdir -p "$peer"

if [ ! -f "$peer/$archive" ]; then
    if [ -n "${LLAMA_CPP_SDIST:-}" ]; then
        cp -- "$LLAMA_CPP_SDIST" "$peer/$archive"
    else
        "${PYTHON:-python3}" -m pip download --quiet --no-deps --no-binary :all: \
            --dest "$peer" "llama-cpp-python==$version"
    fi
fi
found=$(sha256sum "$peer/$archive" | cut -d' ' -f1)
if [ "$found" != "$sha256" ]; then
    echo "get_llama_cpp: $peer/$archive: wanted SHA-256 $sha256, found $found" >&2
    exit 1
fi

source=$peer/llama_cpp_python-$version/vendor/llama.cpp
[ -d "$source" ] || tar -xzf "$peer/$archive" -C "$peer"

cmake -S "$source" -B "$peer/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_OPENMP=ON \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_TOOLS_INSTALL=OFF > "$peer/configure.log"
nice ninja -C "$peer/build" llama-bench llama-batched-bench > "$peer/build.log" || {
    tail -20 "$peer/build.log" >&2
    exit 1
}
ln -sfn build/bin "$peer/bin"
echo "$peer/bin/llama-bench"
