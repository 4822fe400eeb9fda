#!/bin/sh
# bench/gpu/all.sh BUILD OUT [PEERS]: everything that bench/RESULTS.md says of one GPU, in one run of under ten minutes, each
# part under its own limit; then whatever more GPUs there are. Records go to OUT/*.jsonl, tables to OUT/log. A part that
# fails is named and the rest goes on.
set -u
build=$1
out=$2
peers=${3:-none}
here=$(dirname -- "$0")
ops=$build/bench/gpu/libinvar_gpu_ops.so
steps=$build/bench/gpu/bench_steps
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
mkdir -p "$out"

part() { # part NAME SECONDS COMMAND...
    name=$1
    limit=$2
    shift 2
    echo "== $name: $*"
    timeout "$limit" "$@" 2>&1 || echo "FAILED or over $limit s: $name ($?)"
}

{
    date -u
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    # Bits first: figures of wrong kernels are worth nothing.
    for test in linear linear_wgmma attention rows route sample join device; do
        [ ! -x "$build/tests/test_cuda_$test" ] || part "test $test" 60 env INVAR_DEVICES=cuda "$build/tests/test_cuda_$test"
    done
    part linear 120 python3 "$here/linear.py" --ops "$ops" --peers "$peers" --json "$out/linear.jsonl"
    part attention 60 python3 "$here/attention_peers.py" "$ops"
    part torch 100 python3 "$here/torch_loop.py" --json "$out/torch_loop.jsonl"
    part steps 60 "$steps" "$here/configs/qwen3-8b" --device cuda --numerics invar,vanilla-blas \
        --cases decode:1:1024,decode:64:1024,decode:256:1024,prefill:8192 --json "$out/steps.jsonl"
    part components 40 python3 "$here/components.py" --ops "$ops" --json "$out/components.jsonl"
    part latency 60 "$steps" "$here/configs/qwen3-8b" --device cuda --numerics invar,bio,vanilla-blas --json "$out/latency.jsonl" \
        --cases latency:64:128:128,latency:64:1024:128,latency:64:128:512,latency:64:1024:512
    part same 40 "$steps" "$here/configs/qwen3-8b" --device cuda --numerics invar,vanilla-blas --cases same:1000:100:100
    part serve 90 python3 "$here/serve.py" "$build/invar" --turns 1
    part moe 60 "$steps" "$here/configs/qwen3-30b-a3b" --device cuda \
        --cases decode:1:1024,decode:64:1024,prefill:8192 --json "$out/steps.jsonl"
    ranks=2
    while [ "$ranks" -le "$gpus" ]; do
        part "steps of $ranks" 60 "$steps" "$here/configs/qwen3-8b" --device cuda --tp "$ranks" \
            --numerics invar,vanilla-blas --cases decode:1:1024,decode:64:1024,prefill:8192 --json "$out/steps.jsonl"
        part "join of $ranks" 60 python3 "$here/join_peers.py" "$ranks" "$build/bench/gpu/bench_join" 4096 "$out/join_$ranks.jsonl"
        ranks=$((ranks * 2))
    done
} | tee "$out/log"
