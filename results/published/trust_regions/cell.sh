#!/usr/bin/env bash
# One cell: tune every arm in it, then train six fresh seeds. Run it again after a stop: it goes on where it was.
#   cell.sh 8 0.2 results/trust-regions            mini-batches, router noise, folder
#   SMOKE=1 cell.sh 8 0.2 /tmp/smoke               two batches, seeds of its own: does everything work?
set -euo pipefail
parts=$1 noise=$2 out=$3/$1-$2
arms=grpo,grpo_dual,gspo,cispo,dppo_tv,ipo,vespo,reinforce
cell=(--set "train.minibatches=$parts" --set "noise.experts=$noise" --set "arms.reinforce.minibatches=$parts")
stages=10,30 tuning=100-101 final=0-5 steps=40
lowest=2.5e-5
[ "$parts" = 1 ] && lowest=1e-4 # one step a batch: larger ones
[ -n "${SMOKE:-}" ] && stages=1,2 tuning=900,903 final=906,909 steps=2 &&
    cell+=(--set rollout.prompts=8 --set rollout.samples=4 --set eval.limit=8)

rates() { # octaves below and above the four rates, values in an octave
    python3 -c 'import sys
low, below, above, each = float(sys.argv[1]), *map(int, sys.argv[2:])
inside = [low * 2 ** (k / each) for k in range(4 * each)]
more = [low / 2 ** (k / each) for k in range(1, below * each + 1)]
more += [low * 2 ** (k / each) for k in range(4 * each, (4 + above) * each)]
print(",".join(f"{rate:.3g}" for rate in inside + more))' "$lowest" "$@"
}

tune() { # octaves more at either end
    local grid=() arm
    for arm in ${arms//,/ }; do
        if [ "$arm" = reinforce ] && varies; then
            grid+=(--grid "arms.$arm.lr=$(rates "$@" 2)") # it has nothing else to tune, so twice as many
        else
            grid+=(--grid "arms.$arm.lr=$(rates "$@" 1)")
        fi
    done
    if varies; then
        grid+=(
            --grid 'arms.grpo.clip={low=0.2,high=0.27},{low=0.5,high=0.8}'
            --grid 'arms.grpo_dual.clip={low=0.2,high=0.27},{low=0.5,high=0.8}'
            --grid 'arms.gspo.clip={low=0.02,high=0.027},{low=0.2,high=0.27}'
            --grid 'arms.cispo.cap=2,5'
            --grid 'arms.dppo_tv={delta_low=0.15,delta_high=0.15},{delta_low=0.3,delta_high=0.3}'
            --grid 'arms.ipo.eps=0.1,0.3'
            --grid 'arms.vespo={k_pos=2,lambda_pos=3,k_neg=3,lambda_neg=2},{k_pos=1,lambda_pos=1.5,k_neg=1.5,lambda_neg=1}'
        )
    fi
    gspo train claims/trust-regions --algo "$arms" "${cell[@]}" --out "$out" --name tuning \
        --seeds "$tuning" --halving "$stages" --set 'eval.bench=[]' "${grid[@]}"
}

varies() { [ "$parts" != 1 ] || [ "$noise" != 0 ]; } # else every ratio is 1, and the rate is all there is to tune

at_edge() { # 1 or 0 for the lowest and the highest octave: did an arm choose a rate there?
    python3 - "$out/tuning/tuning.json" "$lowest" << 'PYTHON'
import json, sys
low, found = float(sys.argv[2]), json.load(open(sys.argv[1]))["arms"]
chosen = [arm["chosen"]["lr"] for arm in found.values()]
print(int(any(rate < 1.01 * low for rate in chosen)), int(any(rate > 7.9 * low for rate in chosen)))
PYTHON
}

if [ ! -f "$out/final/study.json" ]; then
    if [ ! -f "$out/octaves" ]; then # how far the grid was widened, also for a cell that was stopped then
        tune 0 0
        at_edge > "$out/octaves"
    fi
    read -r below above < "$out/octaves"
    tune "$below" "$above"
    gspo train claims/trust-regions --algo "$arms" "${cell[@]}" --out "$out" --name final --steps "$steps" \
        --tuned "$out/tuning" --seeds "$final"
else
    gspo train --resume "$out/final"
fi
