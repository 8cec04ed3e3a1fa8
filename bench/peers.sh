#!/bin/sh
# Our data planes beside the best public programs of their kind, which bench/README.md names. Run as root, alone:
#   PEER_ROUTER=xdp_router_ipv4.o PEER_BALANCER=katran.o ... bench/peers.sh [SECONDS]
# Each variable is an object file; planes without one are left out.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
if [ -z "${PEERS:-}" ]; then
	cargo build --release --quiet -p millstream-lab --example peers
	PEERS=${CARGO_TARGET_DIR:-target}/release/examples/peers
fi
mkdir -p bench/results

# $1: plane; $2: object file, may be empty.
take() {
	[ -n "$2" ] || return 0
	file=bench/results/peer-$1.json
	if ! "$PEERS" "$1" "$2" --seconds "$seconds" >"$file.new"; then
		rm -f "$file.new"
		exit 2
	fi
	mv "$file.new" "$file"
	echo "$file"
}

take router "${PEER_ROUTER:-}"
take switch "${PEER_SWITCH:-}"
take firewall "${PEER_FIREWALL:-}"
take nat "${PEER_NAT:-}"
take balancer "${PEER_BALANCER:-}"
