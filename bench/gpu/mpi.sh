#!/bin/sh
# mpi.sh: several processes with a GPU each give the digests of one CPU process. From the top folder, after a build:
#     bench/gpu/mpi.sh [PROCESSES...]       by default 2 and 4
# Prints PASS, or FAIL and the reason, for every model, number of processes and transport; SKIP with fewer GPUs than
# processes. Exit code 1 if anything failed.
set -u
invar=${INVAR:-build/invar}
gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ $# -gt 0 ] || set -- 2 4
failed=0

generate() { # $start: the command before the program
    $start "$invar" generate $model --max-tokens 24 --ignore-eos --seed 3 --json --arithmetic tc16 --max-model-len 1024 "$@" 2>&1
}
digest() { sed -n 's/.*"digest": "\(sha256:[0-9a-f]*\)".*/\1/p'; }

long=$(seq -s , 1 300)
for model in "models/tiny-math --ids 5,6,7" "tests/data/hf/qwen3 --ids ${long%,300}" "tests/data/hf/qwen3_moe --ids 9,8,7" \
    "tests/data/hf/llama31 --ids 9,8,7" "tests/data/shapes/wide --load-format dummy --ids 9,8,7" \
    "tests/data/shapes/moe --load-format dummy --ids 9,8,7" "tests/data/shapes/window --load-format dummy --ids 9,8,7"; do
    name=${model%% *}
    start=''
    want=$(generate --device cpu | digest)
    for n in "$@"; do
        for way in nccl "nccl --enforce-eager" host; do
            what="$name: $n processes, $way"
            if [ "$n" -gt "$gpus" ]; then
                echo "SKIP $what: $gpus GPUs here"
                continue
            fi
            start="mpirun --quiet --oversubscribe -np $n"
            out=$(generate --device cuda --rank-transport $way)
            got=$(printf '%s\n' "$out" | digest)
            if [ -n "$want" ] && [ "$got" = "$want" ]; then
                echo "PASS $what: $got"
            else
                echo "FAIL $what: wanted ${want:-a digest of the CPU}, found ${got:-$out}"
                failed=1
            fi
        done
    done
done
exit $failed
