#!/bin/sh
# Takes the measurements that bench/README.md lists. Run as root, alone: bench/run.sh [SECONDS]
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-30}
cargo build --release --quiet -p millstream
millstream=${CARGO_TARGET_DIR:-target}/release/millstream
results=bench/results
mkdir -p "$results"

# $1: file; the rest: arguments. A negative answer (exit code 1) is an answer; a doubtful one (3) says so itself.
take() {
	file=$results/$1.json
	shift
	code=0
	"$millstream" lab "$@" --seconds "$seconds" --json >"$file.new" || code=$?
	if [ "$code" -gt 1 ] && [ "$code" -ne 3 ]; then
		rm -f "$file.new"
		exit "$code"
	fi
	mv "$file.new" "$file"
	echo "$file"
}

take aa-test-run compare builtin:router builtin:router
take aa-live compare builtin:router builtin:router --live
for name in router switch firewall nat balancer; do
	take "run-$name" run "builtin:$name"
done

# The last line has the figures; a packet that is stale or lost makes it fail.
file=$results/demo.json
"$millstream" demo --json --measure "$seconds" >"$file.new"
tail -n 1 "$file.new" >"$file"
rm -f "$file.new"
echo "$file"
