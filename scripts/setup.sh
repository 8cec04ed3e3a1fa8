# Installs what building and testing need and this machine lacks. Sourced by the other scripts, from the repository's
# root: it may set PATH and RUSTUP_TOOLCHAIN. Tried on Debian 12; elsewhere it only says what is missing.

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 2; }

# Debian's packages. clang compiles the data planes and the fixtures, for which libbpf-dev has headers; llvm's readelf and
# bpftool judge what we write; QEMU runs other kernels; cvc5 is one of the prover's solvers, pip brings the other, redis-server shares their answers;
# docker-registry holds bundles; the rest is what the crate
# libbpf-sys needs to build libbpf.
packages() {
    missing=""
    need() { # PACKAGE TEST...
        package=$1
        shift
        "$@" >/dev/null 2>&1 || missing="$missing $package"
    }
    need clang-19 command -v "${MILLSTREAM_CLANG:-clang-19}"
    need llvm-19 command -v llvm-readelf-19
    need gcc command -v cc
    need make command -v make
    need pkg-config command -v pkg-config
    need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
    need curl command -v curl
    need libc6-dev test -e /usr/include/stdio.h
    need linux-libc-dev test -e /usr/include/linux/bpf.h
    need bpftool command -v bpftool
    need python3-pip python3 -m pip --version
    need cvc5 command -v cvc5
    need redis-server command -v redis-server
    need docker-registry command -v docker-registry
    need libbpf-dev test -e /usr/include/bpf/bpf_helpers.h
    need libelf-dev test -e /usr/include/libelf.h
    need zlib1g-dev test -e /usr/include/zlib.h
    # For other kernels in virtual machines: scripts/vmrun.
    need qemu-system-x86 command -v qemu-system-x86_64
    need busybox-static busybox cpio --help
    need kmod command -v kmod
    need iproute2 command -v ip
    [ -z "$missing" ] && return

    command -v apt-get >/dev/null 2>&1 || die "these are missing, under their Debian names:$missing"
    as_root=""
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || die "not root, and no sudo to install:$missing"
        as_root="sudo"
    fi
    say "installing$missing"
    $as_root apt-get update -q >&2
    # shellcheck disable=SC2086 # a list of words
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing >&2 ||
        die "apt-get could not install:$missing"
}

# A z3 of today: with Debian's, of 2020, proofs run out of time that take it a second. One on the PATH that is as new will do.
solver() {
    tools="$PWD/${CARGO_TARGET_DIR:-target}/tools"
    case "${CARGO_TARGET_DIR:-}" in /*) tools="$CARGO_TARGET_DIR/tools" ;; esac
    [ -x "$tools/bin/z3" ] && PATH="$tools/bin:$PATH"
    wanted=5.4
    have=$(z3 --version 2>/dev/null | sed -n 's/^Z3 version \([0-9.]*\).*/\1/p') || have=""
    [ -n "$have" ] && [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n1)" = "$wanted" ] && return
    say "installing z3 from the wheel z3-solver, into $tools"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$tools" --upgrade \
        "z3-solver==5.4.1.0" >&2 ||
        die "pip could not install z3-solver: put a z3 of at least $wanted on the PATH"
    PATH="$tools/bin:$PATH"
    export PATH
}

# Rustup as its own site gives it, since Debian 12 has no package of it. It installs for this user only, and no toolchain:
# the one that rust-toolchain.toml names comes with the first command.
rustup_from_its_site() {
    # It goes by its own name.
    installer=$(mktemp -d)/rustup-init
    say "installing rustup into ${CARGO_HOME:-$HOME/.cargo}"
    if curl --proto '=https' --tlsv1.2 -sSf --retry 3 -o "$installer" \
        "${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}/dist/$(uname -m)-unknown-linux-gnu/rustup-init" >&2; then
        chmod +x "$installer"
        "$installer" -y -q --no-modify-path --profile minimal --default-toolchain none >&2 || true
    fi
    rm -rf "$(dirname "$installer")"
    [ -d "${CARGO_HOME:-$HOME/.cargo}/bin" ] && PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    export PATH
}

# The release in rust-toolchain.toml. A toolchain of the same release under another name (`stable`) will do, so that
# nothing is downloaded twice.
toolchain() {
    wanted=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
    [ -d "$HOME/.cargo/bin" ] && PATH="$PATH:$HOME/.cargo/bin"
    export PATH
    command -v cargo >/dev/null 2>&1 || rustup_from_its_site
    if command -v rustup >/dev/null 2>&1; then
        rustup toolchain list | grep -q "^$wanted-" && return
        for name in $(rustup toolchain list | sed 's/ .*//'); do
            if rustc "+$name" --version 2>/dev/null | grep -q "^rustc $wanted " &&
                cargo "+$name" clippy --version >/dev/null 2>&1; then
                export RUSTUP_TOOLCHAIN="$name"
                return
            fi
        done
        say "installing Rust $wanted"
        rustup toolchain install "$wanted" --no-self-update --profile minimal --component rustfmt --component clippy >&2 ||
            die "rustup could not install Rust $wanted"
        return
    fi
    command -v cargo >/dev/null 2>&1 ||
        die "no cargo: Debian 12's is too old, and rustup could not be fetched: install Rust $wanted (https://rustup.rs)"
    have=$(cargo --version | cut -d' ' -f2)
    [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n1)" = "$wanted" ] ||
        die "cargo is of Rust $have, and $wanted or later is needed: install it with rustup (https://rustup.rs)"
}

# Where maps and programs are pinned. Debian's init mounts it; containers and machines without one lack it.
bpf_filesystem() {
    [ "$(id -u)" = 0 ] && [ -d /sys/fs/bpf ] && ! grep -q ' bpf ' /proc/self/mounts || return 0
    say "mounting the BPF file system"
    mount -t bpf -o mode=0700 bpf /sys/fs/bpf || say "not permitted: what pins maps will not work"
}

packages
solver
toolchain
bpf_filesystem
