#!/bin/sh
# Records again what PyTorch, transformers, TRL and verl compute: the JSON files of tests/data/train. CTest does not run it;
# the C tests read the recorded files. Needs Python 3.10 or newer and PyPI. Usage: tests/scripts/record_training.sh [VENV]
set -eu
cd "$(dirname "$0")/../.."
venv=${1:-build/venv-train}
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet torch==2.11.0 numpy==2.4.6 transformers==5.24.0 datasets psutil omegaconf tensordict
    # Only their loss functions are called, so most of what they depend on is left out.
    "$venv/bin/pip" install --quiet --no-deps trl==1.16.0 verl==0.9.1 accelerate==1.15.0
fi
mkdir -p tests/data/train
for noun in optimizer schedules algorithms; do
    "$venv/bin/python" "tests/scripts/record_$noun.py" tests/data/train
done
"$venv/bin/python" tests/scripts/record_routes.py tests/data/train tests/data/gradients/qwen3_moe
