#!/usr/bin/env bash
# Answers and features on a Ray cluster:  RAY_ADDRESS=http://HEAD:8265 RUN_DIR=gs://BUCKET/run deploy/ray/submit.sh
# ACTORS is how many targets work at once. The run folder must be one that every node can reach. Lost nodes are made up
# for by the others; submitting again goes on where a lost cluster stopped.
set -euo pipefail

: "${RAY_ADDRESS:?address of the dashboard}"
: "${RUN_DIR:?folder or URL of the run, reachable from every node}"
recipe=${1:-demo}

for stage in respond features; do
    ray job submit --runtime-env-json '{"pip": ["fledge[gcs,s3,ray]"]}' -- \
        fledge "$stage" "$recipe" --run-dir "$RUN_DIR" --ray auto --actors "${ACTORS:-2}"
done
