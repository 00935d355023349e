#!/usr/bin/env bash
# Write the hashed requirements of every installation (make requirements). Arguments go to uv, for example --upgrade.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-uv}

write() {  # write NAME ARGUMENT...: requirements/NAME.txt
  local target="requirements/$1.txt"
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-annotate --custom-compile-command "make requirements" \
    --output-file "$target" "${@:2}"
  echo "$target: $(grep -c '==' "$target") packages"
}

newest=("$@")
write test "${newest[@]}" --extra dev pyproject.toml
same=(--constraint requirements/test.txt)  # every other installation has the versions that the tests passed with
write run "${same[@]}" --extra broker --extra client --extra embedded --extra examples pyproject.toml
write image "${same[@]}" --extra broker --extra client --extra embedded --extra operator pyproject.toml
write spark-image "${same[@]}" --extra spark pyproject.toml
write build "${newest[@]}" "${same[@]}" requirements/build.in
write image-tools "${newest[@]}" "${same[@]}" requirements/image-tools.in
