#!/bin/sh
# reproduce_smollm2.sh: the runs of bench/REPRODUCTION.md with real weights, SmolLM2-135M-Instruct (./run get smollm2), on a
# CPU or on GPUs: three methods in twelve configurations each on GSM8K and AMC23, then GRPO on generated sums whose sampler has two
# tensor-parallel ranks and whose learner has one. Usage: bench/reproduce_smollm2.sh [OUT] [SHARED]. Stopped evaluations are
# resumed by the next call.
#
# GSM8K, AMC23, TOKENS: problems of each and tokens of an answer; STEPS: of GRPO; INVAR: the program; MODEL: the weights;
# FLAGS: further flags of eval, such as --kv-cache-memory 4G.
set -eu
cd -- "$(dirname -- "$0")/.."
out=${1:-reproduction-smollm2}
shared=${2:-../shared}
invar=${INVAR:-build/invar}
model=${MODEL:-build/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf}
[ -e "$model" ] || { echo "reproduce_smollm2: $model is missing: ./run get smollm2 fetches it" >&2; exit 1; }
mkdir -p "$out"

# one NAME PROBLEMS: greedy answers; the configurations differ in requests in flight, ranks and tokens of a step
one() {
    [ "$2" -gt 0 ] || return 0
    "$invar" eval "$model" --dataset "$shared/data/$3" --limit "$2" --temperature 0 --no-enable-prefix-caching \
        --max-tokens "${TOKENS:-32}" --configs 'numerics=vanilla,bio,invar bs=1,2,4 tp=1,2 chunk=64,512' \
        ${FLAGS:-} --title "SmolLM2-135M-Instruct on $1" --out "$out/$1" >/dev/null
    sed -n '/^| method/,/^$/p' "$out/$1/report.md"
}

one gsm8k "${GSM8K:-8}" gsm8k_test.jsonl
one amc23 "${AMC23:-4}" amc23.jsonl

[ "${STEPS:-100}" -gt 0 ] || exit 0
python3 - "$out/sums.jsonl" <<'PY'
import json, random, sys
draw = random.Random(1)
with open(sys.argv[1], "w") as f:
    for _ in range(512):
        a, b = draw.randrange(2, 50), draw.randrange(2, 50)
        f.write(json.dumps({"prompt": [{"role": "user", "content": f"What is {a} + {b}? Answer with the number."}], "answer": str(a + b)}) + "\n")
PY
[ -d "$out/expanded" ] || "$invar" export "$model" "$out/expanded" >/dev/null
for numerics in ${NUMERICS:-invar bio vanilla}; do
    "$invar" train rl "$out/expanded" --data "$out/sums.jsonl" --output "$out/rl-$numerics" --reward numeric --batch-size 2 --group-size 4 \
        --steps "${STEPS:-100}" --lr 1e-6 --max-new-tokens 8 --seed 5 --rollout-tp 2 --rollout-numerics "$numerics" \
        --on-mismatch report >"$out/rl-$numerics.log" 2>&1
    tail -n 3 "$out/rl-$numerics.log"
done
