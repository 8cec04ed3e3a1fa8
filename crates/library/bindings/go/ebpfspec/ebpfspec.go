// Package ebpfspec gives collection specifications of cilium/ebpf whose programs are optimized.
package ebpfspec

import (
	"bytes"
	"fmt"

	"github.com/cilium/ebpf"
	"millstream.example/go/millstream"
)

// Load reads an object as ebpf.LoadCollectionSpecFromReader does, optimized. If the object cannot be optimized, the
// specification is that of the object as it is, and the error of the optimizer is the second result.
func Load(object []byte, options *millstream.Options) (*ebpf.CollectionSpec, error, error) {
	made, optimizing := millstream.Optimize(object, options)
	if optimizing == nil {
		if spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(made)); err == nil {
			return spec, nil, nil
		} else {
			optimizing = fmt.Errorf("reading the optimized object: %w", err)
		}
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	return spec, optimizing, err
}

// NewCollection loads the maps and programs of an object into the kernel, optimized if the kernel takes that, else as
// they are.
func NewCollection(object []byte, options *millstream.Options) (*ebpf.Collection, error) {
	spec, optimizing, err := Load(object, options)
	if err != nil {
		return nil, err
	}
	collection, err := ebpf.NewCollection(spec)
	if err == nil || optimizing != nil {
		return collection, err
	}
	spec, err = ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	return ebpf.NewCollection(spec)
}
