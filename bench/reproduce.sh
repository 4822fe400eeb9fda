#!/bin/sh
# reproduce.sh: the runs behind bench/REPRODUCTION.md: three methods in twelve configurations each, on three sets of
# prompts. Usage: bench/reproduce.sh [OUT] [SHARED]. It can be stopped; the next call resumes.
#
# OUT (reproduction) receives one folder per run; SHARED (../shared) holds data/gsm8k_test.jsonl and models/stories15m;
# runs with missing files are skipped. SIZE multiplies the number of problems (default 1: about ten minutes on two cores).
set -eu
cd -- "$(dirname -- "$0")/.."
out=${1:-reproduction}
shared=${2:-../shared}
size=${SIZE:-1}
axes='numerics=vanilla,bio,invar bs=8,16,32 tp=1,2,4,8'
mkdir -p "$out"

# one NAME PROBLEMS MODEL DATASET TITLE FLAGS...
one() {
    name=$1 problems=$2 model=$3 dataset=$4 title=$5
    shift 5
    if [ ! -e "$dataset" ] || { [ "${model#*/}" != "$model" ] && [ ! -d "$model" ]; }; then
        echo "$name: skipped: $dataset or $model is missing" >&2
        return
    fi
    build/invar eval "$model" --dataset "$dataset" --limit $((problems * size)) --seed 42 --no-enable-prefix-caching \
        --configs "$axes" --title "$title" --out "$out/$name" "$@" >/dev/null
    sed -n '/^| method/,/^$/p' "$out/$name/report.md"
}

one arithmetic 40 tiny-math models/tiny-math/problems.jsonl 'tiny-math on its held-out problems' --max-tokens 96
one gsm8k 24 tiny-math "$shared/data/gsm8k_test.jsonl" 'tiny-math on gsm8k' --max-tokens 192 --ignore-eos
one stories 24 "$shared/models/stories15m" bench/story_beginnings.jsonl 'stories15m on beginnings of stories' \
    --no-chat --max-tokens 160 --temperature 0.7 --top-p 0.8 --top-k 20
