#!/bin/bash
# A Mixtral 8x7B on 8 nodes.
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=${TP:-2}
EP=4
NNODES=8   # of 8 GPUs
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096   # and so on
    --ffn-hidden-size=14336
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --max-position-embeddings 4096 --seq-length 4096
    --position-embedding-type rope --normalization RMSNorm --swiglu
    --disable-bias-linear --untie-embeddings-and-output-weights
    --tokenizer-model mistralai/Mixtral-8x7B-v0.1
)
MOE="--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm \
     --moe-token-dispatcher-type alltoall --moe-router-load-balancing-type aux_loss"
torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py \
    "${MODEL_ARGS[@]}" $MOE \
    --tensor-model-parallel-size $TP --sequence-parallel \
    --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1 \
    --expert-model-parallel-size ${EP} --expert-tensor-parallel-size 1 \
    --micro-batch-size 1 --global-batch-size "${GBS}" \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --bf16 --lr 1e-4 > run.log 2>&1
