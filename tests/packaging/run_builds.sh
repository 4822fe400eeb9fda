#!/bin/sh
# run_builds.sh: how ./run configures and what it builds, with programs that only record their arguments in place of
# cmake, ninja and the compilers.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/tree"
cp "$here/../../run" "$here/../../CMakePresets.json" "$work/tree"
cat >"$work/bin/cmake" <<'SH'
#!/bin/sh
echo "cmake $*" >>"$LOG"
mkdir -p build && echo libinvar_mpi.so >build/build.ninja
SH
cat >"$work/bin/ninja" <<'SH'
#!/bin/sh
echo "ninja $*" >>"$LOG"
printf '#!/bin/sh\necho "digest sha256:%064d" >&2\n' 7 >build/invar && chmod +x build/invar
SH
for name in nvcc cc gcc pkg-config clang; do printf '#!/bin/sh\nexit 0\n' >"$work/bin/$name"; done
chmod +x "$work/bin/"*
export LOG="$work/log" PATH="$work/bin:$PATH"
unset INVAR_CUDA INVAR_PRESET CC CFLAGS LDFLAGS
cd "$work/tree"

# check WORDS WANTED COMMAND...: the log of the command.
check() {
    words=$1 wanted=$2
    shift 2
    : >"$LOG"
    "$@" >"$work/out" 2>&1 || { cat "$work/out"; echo "$words: exit code $?"; exit 1; }
    found=$(grep -v -- --version "$LOG" | tr '\n' ';')
    [ "$found" = "$wanted" ] || { echo "$words:
  wanted $wanted
  found  $found"; exit 1; }
}
off='cmake --preset release -DINVAR_CUDA=off;'
auto='cmake --preset release -DINVAR_CUDA=auto;'
program='ninja -C build invar;'
all='ninja -C build;'

check 'a demo without a GPU' "$off$program" env INVAR_RUN_GPU=no ./run demo
check 'a second one' "$program" env INVAR_RUN_GPU=no ./run demo
: >build/build.ninja
printf '#!/bin/sh\n' >"$work/bin/mpicc" && chmod +x "$work/bin/mpicc"
check 'MPI was installed since' "cmake build;$program" env INVAR_RUN_GPU=no ./run demo
echo libinvar_mpi.so >build/build.ninja
check 'and is known' "$program" env INVAR_RUN_GPU=no ./run demo
: >build/kept
check 'the whole build after it' "$auto$all" env INVAR_RUN_GPU=no ./run build
[ -e build/kept ] || { echo 'another INVAR_CUDA: the folder was rebuilt from nothing'; exit 1; }
check 'a demo after the whole build keeps its program' "$program" env INVAR_RUN_GPU=no ./run demo
check 'INVAR_CUDA=off' "$off$all" env INVAR_CUDA=off ./run build
check 'a demo with a GPU' "$auto$program" env INVAR_RUN_GPU=yes ./run demo
CFLAGS=-g check 'other flags' "$auto$all" env CFLAGS=-g ./run build
[ ! -e build/kept ] || { echo 'other flags: the folder was kept'; exit 1; }
rm -rf build
check 'INVAR_CUDA=on for a demo' "cmake --preset release -DINVAR_CUDA=on;$program" env INVAR_RUN_GPU=no INVAR_CUDA=on ./run demo
rm -rf build && mkdir build && echo libinvar_mpi.so >build/build.ninja
check 'a folder configured by hand keeps its choice' "cmake --preset release;$program" env INVAR_RUN_GPU=no ./run demo
check 'and again' "$all" env INVAR_RUN_GPU=no ./run build
if INVAR_CUDA=maybe ./run build >"$work/out" 2>&1 || ! grep -q "INVAR_CUDA: wanted auto, on or off, found 'maybe'" "$work/out"; then
    cat "$work/out"
    echo 'INVAR_CUDA=maybe was taken'
    exit 1
fi
./run help | grep -q 'INVAR_CUDA=off' || { echo './run help does not name INVAR_CUDA'; exit 1; }


# ./run test: what it installs, and its closing lines.
for name in apt-get sudo mpicc mpirun; do printf '#!/bin/sh\necho "%s $*" >>"$LOG"\n' $name >"$work/bin/$name"; done
for name in python3 ldconfig; do printf '#!/bin/sh\nexit 1\n' >"$work/bin/$name"; done
cat >"$work/bin/sudo" <<'SH'
#!/bin/sh
[ "$1" != -n ] || shift
exec "$@"
SH
cat >"$work/bin/ctest" <<'SH'
#!/bin/sh
mkdir -p build/Testing/Temporary
cat >build/Testing/Temporary/LastTest.log <<'LOG'
Command: "/bin/sh" "-c" "echo 'SKIPPED: this build has no CUDA'; exit 77"
SKIPPED: this build has no CUDA
SKIPPED: 5 cases need a GPU; they run emulated in cuda_emulated_rows
SKIPPED: 7 cases need a GPU; no emulated group has them
SKIPPED: models/x is missing (set INVAR_SHARED)
SKIPPED: models/x is missing (set INVAR_SHARED)
[  PASSED  ] 3 test(s).
[  SKIPPED ] 2 test(s), listed below:
LOG
echo '100% tests passed, 0 tests failed out of 2'
SH
chmod +x "$work/bin/"*
rm -rf build
: >"$LOG"
env -u PYTHON INVAR_CHROMIUM=/here ./run test >"$work/out" 2>&1 || { cat "$work/out"; echo './run test failed'; exit 1; }
says() {
    grep -qF -- "$1" "$2" || { cat "$2"; echo "./run test: wanted '$1'"; exit 1; }
}
says ' libopenblas0-pthread' "$LOG"
says 'Cases inside the programs: 3 passed, 2 skipped' "$work/out"
says 'Cases that need a GPU, in 2 groups: 12 not run' "$work/out"
says '  SKIPPED: models/x is missing (set INVAR_SHARED) (2 times)' "$work/out"
says '  Published tokenizers, chat templates and stories15m are not in the repository: set INVAR_SHARED' "$work/out"
says '  GPUs: run the tests on a machine with an NVIDIA GPU' "$work/out"
[ "$(grep -c 'no CUDA' "$work/out")" = 1 ] && ! grep -q 'no CUDA (' "$work/out" || { cat "$work/out"; echo 'a command was counted'; exit 1; }
echo 'PASSED: ./run builds what it is asked for, and says what its tests left out'
