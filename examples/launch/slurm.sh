#!/usr/bin/env bash
# A Ray cluster on the nodes of a Slurm job, and a run of strop on it.
#
#   sbatch examples/launch/slurm.sh skywork_or1.math_7b runs/math
#   sbatch --nodes=8 examples/launch/slurm.sh skywork_or1.math_7b runs/math     # goes on, on more nodes
#   TENSOR_PARALLEL=2 EVALUATORS=0 sbatch examples/launch/slurm.sh scalerl runs/32b \
#       --set model.path=Qwen/Qwen3-32B --set engine=Vllm                       # 8 trainers, 4 servers of 2 GPUs
#   TRAINERS=4 TENSOR_PARALLEL=2 EVALUATORS=0 sbatch --nodes=1 examples/launch/slurm.sh scalerl runs/30b \
#       --set model.path=Qwen/Qwen3-30B-A3B --set engine=Vllm                   # 4 trainers, 2 servers of 2 GPUs
#
# The trainer has the first GPUs of the first node, where the driver runs; Ray has all others, for generators and for the
# evaluation beside training. More trainers than a node has GPUs are placed by Ray, which then has all GPUs.
#
# Needs: strop with the extra ray in STROP_VENV, on a file system that every node sees, where the run folder lies too.
# A run that exists is resumed, with the options of this call and as many generators as the job's nodes hold. What Slurm
# requeues (preemption, a dead node) and what the watchdog ends (exit code 75) goes on from the newest checkpoint by
# itself.

#SBATCH --job-name=strop
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#SBATCH --signal=B:TERM@300

set -euo pipefail

if [[ $# -lt 2 ]]; then
    echo "usage: sbatch $0 RECIPE RUN [strop train options]" >&2
    exit 2
fi
recipe=$1
run=$2
shift 2

: "${STROP_VENV:=$HOME/strop/.venv}"
: "${GPUS_PER_NODE:=8}"
: "${TRAINERS:=8}"        # GPUs that train; all others generate
: "${EVALUATORS:=1}"      # but one, which evaluates beside training; 0 with engine=Vllm or evaluation.asynchronous=false
: "${TENSOR_PARALLEL:=1}" # GPUs of each generator, with engine=Vllm
: "${RAY_PORT:=6379}"
# shellcheck source=/dev/null
source "$STROP_VENV/bin/activate"

# Since Slurm 22.05 srun does not take this from the job: Ray and all its workers would share a core.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head_node=${nodes[0]}
head_address=$(srun --nodes=1 --ntasks=1 --nodelist="$head_node" hostname --ip-address | awk '{ print $1 }')
export RAY_ADDRESS="$head_address:$RAY_PORT"

generators=$(((SLURM_JOB_NUM_NODES * GPUS_PER_NODE - TRAINERS - EVALUATORS) / TENSOR_PARALLEL))
if ((generators < 1)); then
    echo "$SLURM_JOB_NUM_NODES nodes of $GPUS_PER_NODE GPUs leave none to generate beside TRAINERS=$TRAINERS and" \
        "EVALUATORS=$EVALUATORS" >&2
    exit 2
fi
if ((TRAINERS > GPUS_PER_NODE)); then
    more=(--set orchestration.ray.train_in_cluster=true)
    apart=0
else
    more=()
    apart=$TRAINERS # GPUs of the first node that Ray does not have
fi
if ((TENSOR_PARALLEL > 1)); then
    more+=(--set "engine.tensor_parallel=$TENSOR_PARALLEL")
fi
head_gpus=$((GPUS_PER_NODE - apart))

srun --nodes=1 --ntasks=1 --nodelist="$head_node" \
    env CUDA_VISIBLE_DEVICES="$(seq -s, "$apart" $((GPUS_PER_NODE - 1)))" \
    ray start --head --block --node-ip-address="$head_address" --port="$RAY_PORT" --num-gpus="$head_gpus" &
sleep 15
if ((SLURM_JOB_NUM_NODES > 1)); then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head_node" \
        ray start --block --address="$RAY_ADDRESS" --num-gpus="$GPUS_PER_NODE" &
fi
for _ in $(seq 60); do
    joined=$(ray status 2>/dev/null | grep -c '^ 1 node_' || true)
    ((joined >= SLURM_JOB_NUM_NODES)) && break
    sleep 5
done
if ((joined < SLURM_JOB_NUM_NODES)); then
    echo "$joined of $SLURM_JOB_NUM_NODES nodes joined Ray at $RAY_ADDRESS within 5 minutes; what ray start said on the" \
        "others stands above" >&2
    exit 1
fi

settings=(--set orchestration.executor=ray --set "orchestration.generators=$generators"
    --set "orchestration.trainers=$TRAINERS")
if [[ -f "$run/run.json" ]]; then
    command=(strop train --resume "$run" "${settings[@]}")
    for option in "$@"; do # a run that began with --tiny stays tiny, and --resume refuses it
        [[ $option == --tiny ]] || command+=("$option")
    done
else
    command=(strop train "$recipe" --out "$run" "${settings[@]}" "$@")
fi
command+=("${more[@]}") # after the engine has been chosen

# Slurm's TERM, five minutes before the end, goes to the driver: it saves the last finished step and ends with 130.
"${command[@]}" --plain &
driver=$!
trap 'kill -TERM "$driver"' TERM
status=0
wait "$driver" || status=$?
if kill -0 "$driver" 2>/dev/null; then # the trap cut the wait short
    status=0
    wait "$driver" || status=$?
fi
trap - TERM

if ((status == 75 || status == 130)); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
