#!/usr/bin/env bash
# Answers and features on a Ray cluster:
#
#   RAY_ADDRESS=http://HEAD:8265 RUN_DIR=gs://BUCKET/run FLEDGE="fledge[gcs,s3,ray,train] @ git+https://..." \
#       deploy/ray/submit.sh recipe.yaml
#
# FLEDGE is what the nodes install: this repository or a wheel of it. ACTORS is how many targets work at once, each on a
# GPU of its own if the recipe's target.device is cuda. The run folder must be one that every node can reach. Lost nodes
# are made up for by the others; submitting again goes on where a lost cluster stopped.
set -euo pipefail

: "${RAY_ADDRESS:?address of the dashboard}"
: "${RUN_DIR:?folder or URL of the run, reachable from every node}"
: "${FLEDGE:?what the nodes install, such as fledge[gcs,s3,ray,train] @ git+https://...}"
recipe=${1:-demo}

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
if [ -f "$recipe" ]; then
    cp "$recipe" "$folder/recipe.yaml"
    recipe=recipe.yaml
fi

for stage in respond features; do
    ray job submit --working-dir "$folder" --runtime-env-json "{\"pip\": [\"$FLEDGE\"]}" -- \
        fledge "$stage" "$recipe" --run-dir "$RUN_DIR" --ray auto --actors "${ACTORS:-2}"
done
