#!/usr/bin/env bash
# One GPU, in ten minutes after building: the equivalence suite, then one table of measurements.
#
#   benches/gpu/run.sh [--backend cuda|wgpu|flex] [arguments of the `gpu` program, see --help]
#
# With BIN=FOLDER it runs the programs `it` and `gpu` found there (built elsewhere with the same command)
# instead of building them. The suite's failure is the script's; the table is printed all the same.
set -uo pipefail
[ -n "${BIN:-}" ] && BIN="$(cd "$BIN" && pwd)"
cd "$(dirname "$0")"

backend=cuda
if [ "${1:-}" = "--backend" ]; then
  backend="$2"
  shift 2
fi
export SPECDEC_DEVICE="${SPECDEC_DEVICE:-$backend}"
export CARGO_INCREMENTAL=0
features=()
if [ "$backend" != flex ]; then
  features=(--features "$backend")
fi
# Mesa wants a folder of its own.
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-$(mktemp -d)}"

model=()
smol="${SPECDEC_MODEL:-${XDG_CACHE_HOME:-$HOME/.cache}/specdec/SmolLM2-135M-Instruct.Q4_1.gguf}"
case " $* " in
  *" --model"*) ;;
  # Without a --model of its own the program gets the file that the other tests use.
  *) [ -f "$smol" ] && model=(--model "$smol") ;;
esac

if [ -n "${BIN:-}" ]; then
  suite=("$BIN/it")
  table=("$BIN/gpu")
else
  suite=(cargo test --release "${features[@]}" --test it --)
  table=(cargo run --release "${features[@]}" --bin gpu --)
fi

if [ -z "${BIN:-}" ]; then
  cargo build --release "${features[@]}" --all-targets || exit
fi
status=0
timeout 240 "${suite[@]}" || status=$?
timeout 360 "${table[@]}" "${model[@]}" "$@" || status=$?
exit "$status"
