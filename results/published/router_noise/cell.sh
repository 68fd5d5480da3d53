#!/usr/bin/env bash
# One cell: tune every arm in it, then train ten fresh seeds. Run it again after a stop: it goes on where it was.
#   cell.sh short 0.2 results/router-noise
set -euo pipefail
rows=$1 noise=$2 out=$3/$1-$2
arms=grpo,gspo,grpo_published,gspo_published,reinforce
recipe=claims/router-noise
[ "$rows" = long ] && recipe=claims/router-noise-long

tune() { # its learning rates
    gspo train "$recipe" --algo "$arms" --set "noise.experts=$noise" --out "$out" --name tuning \
        --seeds 100-102 --halving 30,60,120 --grid "algo.lr=$1" \
        --grid 'arms.grpo.clip={low=0.2,high=0.27},{low=0.5,high=0.8}' --grid 'arms.grpo={},{dual_clip=3}' \
        --grid 'arms.gspo.clip={low=3e-4,high=4e-4},{low=0.02,high=0.027},{low=0.2,high=0.27},{low=0.6,high=0.8}'
}

wider() { # the rates with one more octave at each end that an arm chose; nothing if none did
    python3 - "$out/tuning/tuning.json" "$1" << 'PYTHON'
import json, sys
tried = sys.argv[2].split(",")
rates = sorted(map(float, tried))
chosen = {arm["chosen"]["lr"] for arm in json.load(open(sys.argv[1]))["arms"].values()}
more = [rates[0] / 2] * (rates[0] in chosen) + [rates[-1] * 2] * (rates[-1] in chosen)
print(",".join([*tried, *(f"{rate:g}" for rate in more)]) if more else "")
PYTHON
}

rates=2.5e-5,5e-5,1e-4,2e-4
tune "$rates"
for _ in 1 2; do # at most two octaves beyond either end
    more=$(wider "$rates")
    [ -n "$more" ] || break
    rates=$more
    tune "$rates"
done
if [ -f "$out/final/study.json" ]; then
    gspo train --resume "$out/final"
else
    gspo train "$recipe" --algo "$arms" --set "noise.experts=$noise" --out "$out" --name final \
        --tuned "$out/tuning" --seeds 0-9
fi
