#!/bin/sh
# Our data planes beside the best public programs of their kind. Run as root, alone: bench/peers.sh DIRECTORY [SECONDS]
# DIRECTORY has the peers' objects, by the names that bench/README.md gives; planes without one are left out. Exit code 1
# says that one of ours takes more than 1.10 of its peer's time, 3 that the machine was too busy to tell.
set -eu
directory=$(cd "${1:?usage: bench/peers.sh DIRECTORY [SECONDS]}" && pwd)
seconds=${2:-40}
cd "$(dirname "$0")/.."
if [ -z "${PEERS:-}" ]; then
	cargo build --release --quiet -p millstream-specialize --example peers
	PEERS=${CARGO_TARGET_DIR:-target}/release/examples/peers
fi
mkdir -p bench/results
answer=0

# $1: comparison; $2: the peer's object; then its program, if it has several. A figure is kept whatever it says.
take() {
	if [ ! -e "$directory/$2" ]; then
		echo "$1: no $2" >&2
		return 0
	fi
	file=bench/results/peer-$1.json
	code=0
	"$PEERS" "$1" "$directory/$2" ${3:+--prog "$3"} --seconds "$seconds" >"$file.new" || code=$?
	if [ "$code" -ne 0 ] && [ "$code" -ne 1 ] && [ "$code" -ne 3 ]; then
		rm -f "$file.new"
		exit 2
	fi
	mv "$file.new" "$file"
	echo "$file"
	[ "$code" -le "$answer" ] || answer=$code
}

take router xdp_router_ipv4.o
take router-fib xdp_forward.o xdp_fwd_fib_full
take switch pcn-bridge.o
take firewall xdp_acl.o
take nat pcn-nat.o
take balancer katran.o
exit "$answer"
