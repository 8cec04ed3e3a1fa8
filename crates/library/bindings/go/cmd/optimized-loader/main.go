// Optimized-loader loads an object by cilium/ebpf, optimized, and prints the instructions of its programs.
package main

import (
	"fmt"
	"os"
	"sort"

	"github.com/cilium/ebpf"
	"millstream.example/go/millstream"
	"millstream.example/go/millstream/ebpfspec"
)

func run(path string) error {
	object, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	original, err := ebpf.LoadCollectionSpec(path)
	if err != nil {
		return err
	}
	spec, optimizing, err := ebpfspec.Load(object, &millstream.Options{Kernel: "here"})
	if err != nil {
		return err
	}
	if optimizing != nil {
		fmt.Fprintln(os.Stderr, "not optimized:", optimizing)
	}
	names := make([]string, 0, len(spec.Programs))
	for name := range spec.Programs {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Printf("%s: %d instructions before, %d after\n", name, len(original.Programs[name].Instructions),
			len(spec.Programs[name].Instructions))
	}
	collection, err := ebpfspec.NewCollection(object, &millstream.Options{Kernel: "here"})
	if err != nil {
		return err
	}
	defer collection.Close()
	fmt.Printf("loaded: %d programs, %d maps\n", len(collection.Programs), len(collection.Maps))
	return nil
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: optimized-loader OBJECT")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
