#!/bin/sh
# check.sh: builds for 64-bit Arm, runs under qemu-user and compares the bits with x86.
#
#     tests/aarch64/check.sh [--short]
#
# Needs gcc-aarch64-linux-gnu, qemu-user, cmake, ninja, and apt-get with a network. Debian's arm64 libraries are unpacked
# below build-aarch64 and never installed: libevent-dev:arm64 would replace the machine's own. --short: the program, the
# law's quick tests and the golden digests of one model (under two minutes). Exits with 77 and prints SKIPPED if something is missing.
set -eu
cd "$(dirname -- "$0")/../.."
short=no
case ${1:-} in
'') ;;
--short) short=yes ;;
*)
    echo "check.sh: wanted nothing or --short, found '$1'" >&2
    exit 2
    ;;
esac

root=$PWD
dir=$root/build-aarch64
skip() {
    echo "SKIPPED: aarch64: $*"
    exit 77
}
for tool in aarch64-linux-gnu-gcc qemu-aarch64 cmake ninja pkg-config apt-get dpkg; do
    command -v "$tool" >/dev/null || skip "$tool is not installed (Debian: gcc-aarch64-linux-gnu qemu-user cmake ninja-build pkg-config)"
done

# Separate package lists for arm64.
fetch_libraries() {
    apt=$dir/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$dir/debs"
    : >"$apt/status"
    set -- -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::lists="$apt/lists" \
        -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User="$(id -un)"
    apt-get "$@" update >"$dir/apt.log" 2>&1 || true # another repository may fail
    (cd "$dir/debs" && apt-get "$@" download libjansson-dev libpcre2-dev libutf8proc-dev libssl-dev libevent-dev \
        libyaml-dev libcmocka-dev libcmocka0) >>"$dir/apt.log" 2>&1 || return 1
    rm -rf "$dir/sysroot.new"
    for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$dir/sysroot.new" || return 1; done
    mv "$dir/sysroot.new" "$dir/sysroot"
    rm -rf "$apt"
}
mkdir -p "$dir"
[ -d "$dir/sysroot" ] || fetch_libraries || {
    tail -n 3 "$dir/apt.log" >&2
    skip "Debian's arm64 libraries cannot be fetched"
}

[ -f "$dir/build.ninja" ] || cmake -S . -B "$dir" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$root/cmake/aarch64.cmake" \
    -DINVAR_SYSROOT="$dir/sysroot" -DINVAR_STATIC=ON -DINVAR_CUDA=off -DINVAR_MPI=OFF -DINVAR_BENCH=OFF >"$dir/cmake.log" 2>&1 || {
    cat "$dir/cmake.log" >&2
    exit 1
}

# tests/ROOM/test_NAME.c is the group NAME of test_ROOM. Under qemu the elementary functions take minutes and attention half
# a minute.
groups=''
for source in tests/numerics/test_*.c tests/kernels/test_*.c; do
    room=$(basename "$(dirname "$source")")
    name=$(basename "$source" .c)
    case $short$room$name in
    yeskernels* | yes*test_elementary | yes*test_attention) ;;
    *) groups="$groups $room/${name#test_}" ;;
    esac
done
programs="invar test_model test_numerics"
[ $short = yes ] || programs="$programs test_kernels"
# shellcheck disable=SC2086  # a list of words
ninja -C "$dir" $programs

# The cross compiler's C library first: another package's does not match its loader, and threads hang.
libraries=/usr/aarch64-linux-gnu/lib:$dir/sysroot/usr/lib/aarch64-linux-gnu
run() { qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$libraries" "$@"; }
failed=0
threads=2
if [ $short = yes ]; then
    export INVAR_TEST_MODEL=hf/qwen3
    threads=1
fi

# On its own core, while the others run.
run "$dir/tests/test_model" golden >"$dir/golden.log" 2>&1 &
golden=$!
for group in $groups; do
    room=${group%/*}
    log=$dir/${room}_${group#*/}.log
    if ! run "$dir/tests/test_$room" "${group#*/}" >"$log" 2>&1; then
        cat "$log"
        failed=1
    fi
    printf '  %-32s %s\n' "$group" "$(sed -n 's/.*\[  PASSED  \] \(.*\)/\1/p' "$log" | head -n 1)"
    grep 'SKIPPED: ' "$log" || true
done

# An answer of the program must have the digest of x86.
want=6e0d9e4a514b5b2ac56828d05bba36e750afdfe97c140f97097267db55e6bcc7
found=$(run "$dir/invar" generate models/tiny-math --chat -p "What is 17 * 6?" --temperature 0 --threads $threads 2>&1 >/dev/null |
    sed -n 's/^digest sha256://p')
printf '  %-32s %s\n' "generate" "${found:-no digest}"
if [ "$found" != "$want" ]; then
    echo "aarch64: generate: wanted digest $want, found ${found:-none}"
    failed=1
fi

wait $golden || failed=1
cat "$dir/golden.log"
exit $failed
