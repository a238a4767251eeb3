#!/bin/bash
# ReTool, fully asynchronous, on one node of eight GPUs: four train while four sample. Of these, one computes
# prompts and three decode.
#
#   apt-get install --no-install-recommends bubblewrap libseccomp2
#   pip install 'rollhook[sandbox]' rollhook-retool
#   SLIME_DIR=~/slime MODEL=~/Qwen3-4B DATA=problems.jsonl bash fully_async.sh
#
# A container needs --security-opt seccomp=unconfined --security-opt apparmor=unconfined for the sandbox.
#
# docs/slime.md explains every flag.
set -euo pipefail

HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
EXAMPLES="${HERE}/../../plugins/retool/examples"
SLIME_DIR="${SLIME_DIR:-${HOME}/slime}"
MEGATRON_DIR="${MEGATRON_DIR:-${HOME}/Megatron-LM}"
MODEL="${MODEL:-${HOME}/Qwen3-4B}"
DATA="$(realpath -m "${DATA:-${EXAMPLES}/problems.jsonl}")"
EVAL_DATA="$(realpath -m "${EVAL_DATA:-${EXAMPLES}/problems.jsonl}")"
CONFIG="$(realpath -m "${CONFIG:-${HERE}/fully_async.yaml}")"
ENGINES="${HERE}/fully_async_engines.yaml"

source "${SLIME_DIR}/scripts/models/qwen3-4B.sh" # MODEL_ARGS

CKPT_ARGS=(
   --hf-checkpoint "${MODEL}"
   --ref-load "${MODEL}_torch_dist"
   --load "${MODEL}_fully_async"
   --save "${MODEL}_fully_async"
   --save-interval 20
)

ROLLOUT_ARGS=(
   --custom-generate-function-path rollhook.generate
   --custom-rm-path rollhook.reward
   --custom-reward-post-process-path rollhook.slime.normalize_rewards
   --custom-config-path "${CONFIG}"
   --rollout-function-path rollhook.slime.fully_async_rollout
   --dynamic-sampling-filter-path rollhook.slime.keep_informative

   --prompt-data "${DATA}"
   --input-key prompt
   --label-key label
   --metadata-key metadata
   --rollout-shuffle

   --num-rollout 1000
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --global-batch-size 256
   --balance-data

   --rollout-temperature 1.0
   --rollout-max-response-len 4096
   --rollout-max-context-len 16384
)

EVAL_ARGS=(
   --eval-interval 20
   --eval-prompt-data problems "${EVAL_DATA}"
   --n-samples-per-eval-prompt 4
   --eval-max-response-len 4096
   --eval-max-context-len 16384
)

GRPO_ARGS=(
   --advantage-estimator grpo
   --use-kl-loss
   --kl-loss-coef 0.001
   --kl-loss-type low_var_kl
   --entropy-coef 0.0
   --eps-clip 0.2
   --eps-clip-high 0.28
   --use-tis
)

OPTIMIZER_ARGS=(
   --optimizer adam
   --lr 1e-6
   --lr-decay-style constant
   --weight-decay 0.1
   --adam-beta1 0.9
   --adam-beta2 0.98
)

PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --context-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 16384
)

SGLANG_ARGS=(
   --sglang-config "${ENGINES}"
   --rollout-num-gpus 4
   --rollout-num-gpus-per-engine 1
   --sglang-mem-fraction-static 0.7
   --sglang-server-concurrency 64
   --router-policy consistent_hashing
)

MISC_ARGS=(
   --attention-dropout 0.0
   --hidden-dropout 0.0
   --accumulate-allreduce-grads-in-fp32
   --attention-softmax-in-fp32
   --attention-backend flash
)

rollhook check "${DATA}" --config "${CONFIG}"
rollhook check "${EVAL_DATA}" --config "${CONFIG}"

cd "${SLIME_DIR}"
ray start --head --num-gpus 8 --disable-usage-stats --dashboard-port 8265
trap 'ray stop' EXIT
ray job submit --address http://127.0.0.1:8265 \
   --runtime-env-json "{\"env_vars\": {\"PYTHONPATH\": \"${MEGATRON_DIR}\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\"}}" \
   -- python3 train_async.py \
   --actor-num-nodes 1 \
   --actor-num-gpus-per-node 4 \
   "${MODEL_ARGS[@]}" \
   "${CKPT_ARGS[@]}" \
   "${ROLLOUT_ARGS[@]}" \
   "${EVAL_ARGS[@]}" \
   "${GRPO_ARGS[@]}" \
   "${OPTIMIZER_ARGS[@]}" \
   "${PERF_ARGS[@]}" \
   "${SGLANG_ARGS[@]}" \
   "${MISC_ARGS[@]}"
