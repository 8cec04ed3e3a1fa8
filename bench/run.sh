#!/bin/sh
# Takes the measurements that bench/README.md lists, each into a file of bench/results, and says which bars are met. Run as
# root, alone: bench/run.sh [WHAT...], where WHAT is one of the names below; all of them if none is given.
#
# What needs files that are not part of this repository is left out, with a word, unless told where they are:
#   CORPUS=DIRECTORY                  public objects (bench/README.md)              corpus, loaders, exec_with, compiler, modern, prove, kernels
#   GO_LOADER=PATH                    loads an object by cilium/ebpf                exec_with, one of its loaders
#   MILLSTREAM_KERNELS=DIRECTORY      kernels (scripts/kernels --unpack)              kernels, those but this machine's
#   OLD="GLOB GLOB..."                those made by compilers before clang 16       corpus
#   PEERS_DIRECTORY=DIRECTORY         public programs like ours                     peers, public, gain
#   K2=DIRECTORY                      K2's inputs (bench/k2.py)                       k2, ablation
#   MUTANT_OBJECTS=DIRECTORY          public objects, in one folder                   mutants
#   FASTCLICK=PATH                    FastClick's click, userlevel, with the element ReplayUnqueue    userspace, the peer's part
#   MILLSTREAM_DPDK=PATH              millstream built with feature dpdk                dpdk, and with userspace
#   L2FWD=PATH, L3FWD=PATH            DPDK's examples (bench/dpdk.py)                   dpdk, their part
#   FASTCLICK_DPDK=PATH, FASTCLICK_EMBEDDED=DIRECTORY   FastClick with DPDK, and after PacketMill's source passes    dpdk, their part
#   ROUTES=FILE.gz                    prefixes of the Internet, one a line            userspace, one case; tables
#   ROUTES=FILE.gz                    IPv4 prefixes, one a line                       p4, one application; generated ones otherwise
#   TUNE_ROUTES=FILE                  routes, one a line that begins with a prefix    tune
#   CONFORMANCE="RUNNER TESTS"        the public bpf_conformance suite              conformance
# SAMPLE=N is how many objects -O super is tried on in `modern` (20). SECONDS_EACH=N is the length of each measurement in time (30). P4_ARGUMENTS is given to bench/p4.py: --full, --parts PART,...
set -eu
cd "$(dirname "$0")/.."
seconds=${SECONDS_EACH:-30}
results=$PWD/bench/results
mkdir -p "$results"
cargo build --release --quiet -p millstream-cli
millstream=${CARGO_TARGET_DIR:-target}/release/millstream
failed=0

# $1: file, without its ending; the rest: a command that writes it to standard output. A negative answer (exit code 1) is an
# answer; a doubtful one (3) says so itself.
take() {
	file=$results/$1.json
	shift
	code=0
	"$@" >"$file.new" || code=$?
	if [ "$code" -gt 1 ] && [ "$code" -ne 3 ]; then
		rm -f "$file.new"
		echo "$file: exit code $code" >&2
		failed=1
		return 0
	fi
	mv "$file.new" "$file"
	echo "$file"
}

# A script of this directory that keeps its results itself.
script() {
	file=$results/$1.json
	shift
	"$@" --millstream "$millstream" --output "$file" >/dev/null || failed=1
	echo "$file"
}

# Tests that keep figures where they are told to; a failed one has failed its bar.
tests() {
	MILLSTREAM_RESULTS=$results cargo test --release --quiet "$@" >&2 || failed=1
}

conformance() {
	[ -n "${CONFORMANCE:-}" ] || { echo "conformance: CONFORMANCE names no runner" >&2; return 0; }
	# shellcheck disable=SC2086 # two words
	script conformance bench/conformance.py $CONFORMANCE
}

equivalence() {
	MILLSTREAM_PACKETS=${MILLSTREAM_PACKETS:-1000000} tests -p millstream-opt --test equivalence
}

corpus() {
	[ -n "${CORPUS:-}" ] || { echo "corpus: CORPUS names no directory" >&2; return 0; }
	old=
	set -f
	for glob in ${OLD:-}; do
		old="$old --old $glob"
	done
	# shellcheck disable=SC2086 # a list of words
	script corpus bench/corpus.py "$CORPUS" $old
	set +f
}

kernels() {
	[ -n "${CORPUS:-}" ] || { echo "kernels: CORPUS names no directory" >&2; return 0; }
	asked=here
	[ -z "${MILLSTREAM_KERNELS:-}" ] || asked=here,5.10,6.1,6.12,7.2
	script corpus-kernels bench/corpus_kernels.py "$CORPUS" --state "${CARGO_TARGET_DIR:-target}/corpus-kernels" --kernels $asked --stats
}

loaders() {
	[ -n "${CORPUS:-}" ] || { echo "loaders: CORPUS names no directory" >&2; return 0; }
	script loaders bench/loaders.py "$CORPUS"
}

exec_with() {
	[ -n "${CORPUS:-}" ] || { echo "exec_with: CORPUS names no directory" >&2; return 0; }
	set --
	[ -z "${GO_LOADER:-}" ] || set -- --go-loader "$GO_LOADER"
	script exec-with bench/exec_with.py "$CORPUS" "$@"
}

k2() {
	[ -n "${K2:-}" ] || { echo "k2: K2 names no directory" >&2; return 0; }
	script k2-o2 bench/k2.py "$K2" --level O2
	script k2-super bench/k2.py "$K2" --level super
	script k2-super-size bench/k2.py "$K2" --level super --goal size
}

modern() {
	[ -n "${CORPUS:-}" ] || { echo "modern: CORPUS names no directory" >&2; return 0; }
	script modern-o2 bench/modern.py "$CORPUS" --level O2
	script modern-super bench/modern.py "$CORPUS" --level super --budget 60s --sample "${SAMPLE:-20}"
}

prove() {
	[ -n "${CORPUS:-}" ] || { echo "prove: CORPUS names no directory" >&2; return 0; }
	script prove bench/prove.py "$CORPUS"
}

ablation() {
	[ -n "${K2:-}" ] || { echo "ablation: K2 names no directory" >&2; return 0; }
	script prove-ablation bench/ablation.py "$K2"
	script search-ablation bench/parts.py "$K2"
}

compiler() {
	[ -n "${CORPUS:-}" ] || { echo "compiler: CORPUS names no directory" >&2; return 0; }
	script compiler bench/compiler.py "$CORPUS"
}

cost() {
	[ -n "${CORPUS:-}" ] || { echo "cost: CORPUS names no directory" >&2; return 0; }
	cargo build --release --quiet -p millstream-lab --example predict
	python3 bench/cost.py "${CARGO_TARGET_DIR:-target}/release/examples/predict" "$millstream" "$CORPUS" \
		--seconds 120 --json "$results/cost.json" >/dev/null || failed=1
	echo "$results/cost.json"
}

verifier() {
	[ -n "${CORPUS:-}" ] || { echo "verifier: CORPUS names no directory" >&2; return 0; }
	cargo build --release --quiet -p millstream-search --example verification_effort
	python3 bench/verifier_model.py "${CARGO_TARGET_DIR:-target}/release/examples/verification_effort" "$millstream" \
		"$CORPUS" --json "$results/verifier.json" >/dev/null || failed=1
	echo "$results/verifier.json"
}

lab() {
	take aa-test-run "$millstream" lab compare builtin:router builtin:router --seconds "$seconds" --json
	take aa-live "$millstream" lab compare builtin:router builtin:router --live --seconds "$seconds" --json
	for name in router switch firewall nat balancer; do
		take "run-$name" "$millstream" lab run "builtin:$name" --seconds "$seconds" --json
	done
}

# What public programs gain from a session that specialises them.
public() {
	[ -n "${PEERS_DIRECTORY:-}" ] || { echo "public: PEERS_DIRECTORY names no directory" >&2; return 0; }
	cargo build --release --quiet -p millstream-specialize --example peers
	for which in ${PUBLIC:-"balancer:katran.o router:xdp_router_ipv4.o switch:pcn-bridge.o firewall:xdp_acl.o nat:pcn-nat.o"}; do
		object=$PEERS_DIRECTORY/${which#*:}
		[ -e "$object" ] || { echo "public: no $object" >&2; continue; }
		for locality in high low none; do
			take "public-${which%%:*}-$locality" "${CARGO_TARGET_DIR:-target}/release/examples/peers" "${which%%:*}" "$object" \
				--specialised "$locality" --seconds "$seconds"
		done
	done
}

# Of -O super, at run time.
gain() {
	set --
	katran=${PEERS_DIRECTORY:-/nonexistent}/katran.o
	if [ -e "$katran" ]; then
		cargo build --release --quiet -p millstream-specialize --example peers
		set -- --peers "${CARGO_TARGET_DIR:-target}/release/examples/peers" --katran "$katran"
	fi
	script super-gain bench/gain.py "$@"
}

native() {
	script native bench/native.py
}

tables() {
	cargo build --release --quiet -p millstream-native --example tables
	example=${CARGO_TARGET_DIR:-target}/release/examples/tables
	take tables-cuckoo "$example" cuckoo
	[ -n "${ROUTES:-}" ] || { echo "tables: ROUTES names no prefixes" >&2; return 0; }
	prefixes=$(mktemp)
	gunzip -c "$ROUTES" >"$prefixes"
	take tables-prefixes "$example" prefixes "$prefixes"
	rm -f "$prefixes"
}

classifiers() {
	cargo build --release --quiet -p millstream-click-elements --example classifiers
	bench/classifiers.py --example "${CARGO_TARGET_DIR:-target}/release/examples/classifiers" \
		--output "$results/classifiers.json" >/dev/null || failed=1
	echo "$results/classifiers.json"
}

# The evaluation of PacketMill: beside FastClick where that is told, what each optimisation is worth, latency; ROUNDS=N says how often
# each is measured (3).
userspace() {
	rounds=${ROUNDS:-3}
	set -- --rounds "$rounds"
	if [ -n "${FASTCLICK:-}" ]; then
		set -- "$@" --peer "$FASTCLICK"
	else
		echo "userspace: FASTCLICK names no program: ours alone" >&2
	fi
	[ -z "${ROUTES:-}" ] || set -- "$@" --routes "$ROUTES"
	script userspace bench/userspace.py "$@"
	bench/optimisations.py --millstream "$millstream" --rounds "$rounds" --code "$results/userspace-code.json" >/dev/null || failed=1
	bench/optimisations.py --millstream "$millstream" --rounds "$rounds" --case "router, one route" \
		--latency "$results/userspace-latency.json" >/dev/null || failed=1
	[ -z "${MILLSTREAM_DPDK:-}" ] || dpdk
	bench/plots.py "$results" || failed=1
}

dpdk() {
	[ -n "${MILLSTREAM_DPDK:-}" ] || { echo "dpdk: MILLSTREAM_DPDK names no program" >&2; return 0; }
	bench/dpdk.py --millstream "$MILLSTREAM_DPDK" --output "$results/dpdk.json" >/dev/null || failed=1
	echo "$results/dpdk.json"
}

peers() {
	[ -n "${PEERS_DIRECTORY:-}" ] || { echo "peers: PEERS_DIRECTORY names no directory" >&2; return 0; }
	bench/peers.sh "$PEERS_DIRECTORY" "$seconds" || [ $? -ne 2 ] || failed=1
}

# The last line has all figures.
conclusion() {
	code=0
	lines=$("$millstream" demo --json) || code=$?
	printf '%s\n' "$lines" | tail -n 1
	return "$code"
}

demo() {
	take demo conclusion
}

# A million of them come in a flood.
updates() {
	MILLSTREAM_UPDATES=${MILLSTREAM_UPDATES:-10000} tests -p millstream-specialize --test kernel no_packet_is_stale
}

swaps() {
	MILLSTREAM_SWAPS=${MILLSTREAM_SWAPS:-10000} tests -p millstream-specialize --test kernel no_packet_is_lost
}

# Original beside specialised, an hour.
shadow() {
	MILLSTREAM_SHADOW=${MILLSTREAM_SHADOW:-100000000} tests -p millstream-specialize --test kernel shadow::
}

shifts() {
	MILLSTREAM_SHIFTS=${MILLSTREAM_SHIFTS:-20} tests -p millstream-specialize --test kernel a_shift_of_the_hot_flows
}

# Half an hour.
slower() {
	MILLSTREAM_SCENARIOS=${MILLSTREAM_SCENARIOS:-200} tests -p millstream-specialize --test kernel what_is_installed_is_not_slower
}

# A quarter of an hour.
offers() {
	MILLSTREAM_OFFERS=${MILLSTREAM_OFFERS:-80} tests -p millstream-specialize --test kernel what_gains_is_installed
}

overhead() {
	MILLSTREAM_SLICES=${MILLSTREAM_SLICES:-120} tests -p millstream-specialize --test kernel looking_after_a_variant
}

daemon() {
	MILLSTREAM_STEADY=${MILLSTREAM_STEADY:-60} tests -p millstream-cli --test run what_a_daemon_costs
}

# Packets chosen to make a session's work useless.
attacks() {
	MILLSTREAM_SLICES=${MILLSTREAM_SLICES:-10} tests -p millstream-specialize --test kernel attacks::
}

# The evaluation of Morpheus on our data planes, half an hour; SPECIALIZE names parts of it.
specialize() {
	export MILLSTREAM_PLANES="${MILLSTREAM_PLANES:-router switch firewall nat balancer}"
	export MILLSTREAM_POINT_SECONDS="${MILLSTREAM_POINT_SECONDS:-6}" MILLSTREAM_ROUNDS="${MILLSTREAM_ROUNDS:-4}" MILLSTREAM_SLICES="${MILLSTREAM_SLICES:-12}"
	export MILLSTREAM_WRITES="${MILLSTREAM_WRITES:-40}"
	for part in ${SPECIALIZE:-throughput responses latency over_time profiling cores churn}; do
		tests -p millstream-specialize --test kernel "paper::$part::"
	done
	bench/plots.py "$results" || failed=1
}

# At random moments, and after each of the first 300 system calls that change something: ten minutes.
kills() {
	MILLSTREAM_KILLS=${MILLSTREAM_KILLS:-100} MILLSTREAM_STEPS=${MILLSTREAM_STEPS:-300} tests -p millstream-cli --test run kill
}

# NFMorph's pipeline, tuned for two workloads; BUDGET is the time of each search (60s).
tune() {
	[ -n "${TUNE_ROUTES:-}" ] || { echo "tune: TUNE_ROUTES names no file" >&2; return 0; }
	script tune bench/tune.py --routes "$TUNE_ROUTES" --budget "${BUDGET:-60s}"
}

# The evaluation of APSys'17 on our P4 programs: figures and plots beside the paper's. What is known already is kept.
p4() {
	set -- --millstream "$millstream" --output "$results"
	[ -z "${ROUTES:-}" ] || set -- "$@" --routes "$ROUTES"
	# shellcheck disable=SC2086 # a list of words
	bench/p4.py "$@" ${P4_ARGUMENTS:-} || failed=1
}

# Each instruction's terms against the kernel.
semantics() {
	MILLSTREAM_CASES=${MILLSTREAM_CASES:-1000000} tests -p millstream-prove --test semantics
}

# Mutants of programs that the kernel accepts and the prover models; MUTANTS of each program, an hour for all of them.
mutants() {
	[ -n "${MUTANT_OBJECTS:-}" ] || { echo "mutants: MUTANT_OBJECTS names no directory" >&2; return 0; }
	cargo build --release --quiet -p millstream-prove --example mutants
	program=${CARGO_TARGET_DIR:-target}/release/examples/mutants
	list=$(mktemp)
	"$program" list "${MUTANTS:-72}" "$MUTANT_OBJECTS"/*.o >"$list"
	take mutants "$program" judge "$list" 3 60 "$MUTANT_OBJECTS"/*.o
	rm -f "$list"
}

all="semantics mutants conformance equivalence corpus kernels loaders exec_with compiler prove ablation k2 modern cost verifier lab gain native classifiers tables userspace dpdk peers public demo updates swaps shadow shifts slower offers overhead daemon attacks specialize tune p4 kills"
# shellcheck disable=SC2086 # a list of words
[ $# -gt 0 ] || set -- $all
for what in "$@"; do
	case " $all " in
	*" $what "*) "$what" ;;
	*)
		echo "usage: bench/run.sh [WHAT...], of: $all" >&2
		exit 2
		;;
	esac
done
bench/bars.py "$results" || failed=1
exit "$failed"
