// Package millstream optimizes, proves and specializes BPF programs, by libmillstream.
//
// Every function may be called from any goroutine. A Session is used by one goroutine at a time.
package millstream

/*
#cgo pkg-config: millstream
#include <millstream.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"
)

// Code is the reason of an Error: enum millstream_code.
type Code int

// Reasons of errors.
const (
	No          Code = C.MILLSTREAM_NO
	Input       Code = C.MILLSTREAM_INPUT
	Undecided   Code = C.MILLSTREAM_UNDECIDED
	Unsupported Code = C.MILLSTREAM_UNSUPPORTED
	Bug         Code = C.MILLSTREAM_BUG
)

// Error is an error of the library.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string { return e.Text }

// Goal of an optimization.
type Goal uint32

// Goals of optimizations.
const (
	Balanced Goal = C.MILLSTREAM_BALANCED
	Size     Goal = C.MILLSTREAM_SIZE
	Latency  Goal = C.MILLSTREAM_LATENCY
	Verify   Goal = C.MILLSTREAM_VERIFY
)

// Options of an optimization. The zero value is for all kernels.
type Options struct {
	// Kernel is "any" or empty, "here" for the running one, or a version such as "6.1".
	Kernel string
	Goal   Goal
}

// Program is a program of an object, and its predicted cost.
type Program struct {
	Name, Section string
	Slots         int
	MachineBytes  int
	Cycles        float64
}

// Version returns the version of the library.
func Version() string { return C.GoString(C.millstream_version()) }

// call runs a function of the library. The text of an error belongs to the thread, which must not change between.
func call(function func() C.int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	code := function()
	if code == C.MILLSTREAM_DONE {
		return nil
	}
	return &Error{Code(code), C.GoString(C.millstream_last_error())}
}

// text returns a C string for a text, NULL for an empty one, and a function that releases it.
func text(s string) (*C.char, func()) {
	if s == "" {
		return nil, func() {}
	}
	c := C.CString(s)
	return c, func() { C.free(unsafe.Pointer(c)) }
}

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// Optimize optimizes an object, and returns the object file. Options may be nil.
func Optimize(object []byte, options *Options) ([]byte, error) {
	if options == nil {
		options = &Options{}
	}
	kernel, release := text(options.Kernel)
	defer release()
	request := (*C.struct_millstream_options)(C.calloc(1, C.sizeof_struct_millstream_options))
	defer C.free(unsafe.Pointer(request))
	request.size, request.kernel, request.goal = C.sizeof_struct_millstream_options, kernel, C.uint32_t(options.Goal)
	var made unsafe.Pointer
	var length C.size_t
	err := call(func() C.int {
		return C.millstream_optimize(pointer(object), C.size_t(len(object)), request, &made, &length)
	})
	if err != nil {
		return nil, fmt.Errorf("optimize: %w", err)
	}
	defer C.millstream_free(made)
	return append([]byte(nil), unsafe.Slice((*byte)(made), int(length))...), nil
}

// Programs lists the programs of an object with their predicted costs.
func Programs(object []byte) ([]Program, error) {
	var list *C.struct_millstream_program
	var count C.size_t
	err := call(func() C.int {
		return C.millstream_programs(pointer(object), C.size_t(len(object)), &list, &count)
	})
	if err != nil {
		return nil, fmt.Errorf("programs: %w", err)
	}
	defer C.millstream_free(unsafe.Pointer(list))
	programs := make([]Program, 0, int(count))
	for _, p := range unsafe.Slice(list, int(count)) {
		programs = append(programs, Program{
			Name: C.GoString(p.name), Section: C.GoString(p.section), Slots: int(p.slots),
			MachineBytes: int(p.machine_bytes), Cycles: float64(p.millicycles) / 1000,
		})
	}
	return programs, nil
}

// Prove proves that the programs of two objects behave alike. The error has code No if one differs, Undecided if
// neither was found; the verdicts have a line for each program in both cases. 0 milliseconds are 20 seconds.
func Prove(before, after []byte, milliseconds uint32) ([]string, error) {
	var lines *C.char
	err := call(func() C.int {
		return C.millstream_prove(pointer(before), C.size_t(len(before)), pointer(after), C.size_t(len(after)),
			C.uint32_t(milliseconds), &lines)
	})
	var failure *Error
	if errors.As(err, &failure) && failure.Code != No && failure.Code != Undecided {
		return nil, fmt.Errorf("prove: %w", err)
	}
	defer C.millstream_free(unsafe.Pointer(lines))
	return strings.Split(strings.TrimSuffix(C.GoString(lines), "\n"), "\n"), err
}
