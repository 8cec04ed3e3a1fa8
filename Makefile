# `make demo` and `make test` are the two commands; both install what is missing. The rest is for those who work here.

CARGO ?= cargo
PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
VERSION := $(shell sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)

.PHONY: help
help: ## Say what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: demo
demo: ## Run the main job on a built-in default: a router made faster on live traffic (needs root)
	@scripts/demo

.PHONY: test
test: ## Check format, lints, documentation and dependencies, and run all tests
	@scripts/test

.PHONY: test-kernels
test-kernels: ## Try everything that asks the kernel on Debian's kernels 5.10, 6.1, 6.12 and sid, in virtual machines; write docs/kernels.md
	@scripts/kernels

.PHONY: book
book: ## Make the book of all pages in target/book
	@scripts/book

.PHONY: build
build: ## Build the release binary
	$(CARGO) build --release --locked -p millstream-cli

.PHONY: library
library: ## Build the libraries: libmillstream for loaders, and what programs in C link with `millstream build --emit obj`
	$(CARGO) build --release --locked -p millstream-embed -p millstream-library

.PHONY: bench-userspace
bench-userspace: ## Take the measurements of PacketMill's evaluation (FASTCLICK=PATH, ROUTES=FILE.gz, MILLSTREAM_DPDK=PATH ...: bench/run.sh says which)
	@bench/run.sh userspace

.PHONY: bench-tune
bench-tune: ## Tune NFMorph's pipeline for two workloads, and measure each plan on both (TUNE_ROUTES=FILE: lines that begin with a prefix; alone)
	bench/run.sh tune

.PHONY: bench-p4
bench-p4: ## Take the measurements of the performance model's paper on P4 programs, about ten minutes (P4_ARGUMENTS="--full", ROUTES=FILE.gz; alone)
	bench/run.sh p4

.PHONY: bless
bless: ## Write what the file tests and the page of Click classes are now as what is expected (read it before you commit it)
	MILLSTREAM_BLESS=1 $(CARGO) test --locked -p millstream-filetests
	MILLSTREAM_BLESS=1 $(CARGO) test --locked -p millstream-click-elements reference

.PHONY: advisories
advisories: ## Look for known vulnerabilities in the dependencies (needs the network)
	@scripts/deny advisories

.PHONY: bench-specialize
bench-specialize: ## Take the measurements of Morpheus's evaluation on our data planes (needs root; SPECIALIZE="throughput ...": parts of it)
	bench/run.sh specialize

.PHONY: release
release: ## Make the Debian package, the archive, the bill of materials and the checksums, in target/dist (SIGN=KEY signs them)
	scripts/release $(if $(SIGN),--sign $(SIGN))

.PHONY: image
image: ## Make an OCI image of the Debian package that `make release` has made, in target/dist (MIRROR=URL: another mirror of Debian)
	scripts/image

.PHONY: install
install: build library install-files ## Install the binary, the wrappers for Click, the libraries, manual pages, shell completions and systemd unit under PREFIX

# What `install` puts there, for scripts/release, which has built it in its own way.
.PHONY: install-files
install-files:
	install -D $(TARGET)/release/millstream $(DESTDIR)$(PREFIX)/bin/millstream
	for name in dist/click/*; do install -D $$name $(DESTDIR)$(PREFIX)/bin/$${name##*/}; done
	for name in simple_switch simple_switch_grpc simple_switch_CLI; do ln -sf millstream $(DESTDIR)$(PREFIX)/bin/$$name; done
	install -D -m 644 $(TARGET)/release/libmillstream_embed.a $(DESTDIR)$(PREFIX)/lib/libmillstream_embed.a
	install -D -m 644 $(TARGET)/release/libmillstream_c.so $(DESTDIR)$(PREFIX)/lib/libmillstream.so.0
	ln -sf libmillstream.so.0 $(DESTDIR)$(PREFIX)/lib/libmillstream.so
	install -D -m 644 crates/library/include/millstream.h $(DESTDIR)$(PREFIX)/include/millstream.h
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' crates/library/millstream.pc.in >$(DESTDIR)$(PREFIX)/lib/pkgconfig/millstream.pc
	for file in $$(cd crates/library/bindings && find python go -name '__pycache__' -prune -o -type f -print); do \
		install -D -m 644 crates/library/bindings/$$file $(DESTDIR)$(PREFIX)/share/millstream/$$file; done
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	$(TARGET)/release/millstream man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	$(TARGET)/release/millstream completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/millstream
	$(TARGET)/release/millstream completions zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_millstream
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|@PREFIX@|$(PREFIX)|' dist/systemd/millstream.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/millstream.service

.PHONY: clean
clean: ## Remove what was built
	$(CARGO) clean
