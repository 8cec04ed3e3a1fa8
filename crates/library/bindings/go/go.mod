module millstream.example/go/millstream

go 1.22

require github.com/cilium/ebpf v0.17.3

require golang.org/x/sys v0.30.0 // indirect
