package millstream

/*
#include <millstream.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Adoption says which program's place a session may take.
type Adoption uint32

// Programs that may be adopted.
const (
	AdoptNone Adoption = C.MILLSTREAM_ADOPT_NONE
	AdoptSame Adoption = C.MILLSTREAM_ADOPT_SAME
	AdoptAny  Adoption = C.MILLSTREAM_ADOPT_ANY
)

// SessionOptions are options of a session. The zero value has the defaults.
type SessionOptions struct {
	Program, Pins   string
	Adopt           Adoption
	Egress, Generic bool
	// Milliseconds between two samples of the traffic; 0 for 2,000.
	Milliseconds uint32
}

// Session is a program on interfaces that is specialized while it runs, by a thread of the library.
type Session struct{ handle *C.struct_millstream_session }

// StartSession attaches a program of an object to interfaces, and keeps it specialized. Options may be nil.
func StartSession(object []byte, interfaces []string, options *SessionOptions) (*Session, error) {
	if len(interfaces) == 0 {
		return nil, &Error{Input, "no interface is named"}
	}
	if options == nil {
		options = &SessionOptions{}
	}
	names := (**C.char)(C.calloc(C.size_t(len(interfaces)), C.size_t(unsafe.Sizeof((*C.char)(nil)))))
	defer C.free(unsafe.Pointer(names))
	for i, name := range interfaces {
		c := C.CString(name)
		defer C.free(unsafe.Pointer(c))
		unsafe.Slice(names, len(interfaces))[i] = c
	}
	program, releaseProgram := text(options.Program)
	defer releaseProgram()
	pins, releasePins := text(options.Pins)
	defer releasePins()
	request := (*C.struct_millstream_session_options)(C.calloc(1, C.sizeof_struct_millstream_session_options))
	defer C.free(unsafe.Pointer(request))
	request.size, request.program, request.pins = C.sizeof_struct_millstream_session_options, program, pins
	request.adopt, request.egress, request.generic = C.uint32_t(options.Adopt), flag(options.Egress), flag(options.Generic)
	request.milliseconds = C.uint32_t(options.Milliseconds)
	session := &Session{}
	err := call(func() C.int {
		return C.millstream_session_start(pointer(object), C.size_t(len(object)), names, C.size_t(len(interfaces)),
			request, &session.handle)
	})
	if err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	return session, nil
}

func flag(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}

// FD returns the descriptor to poll; it is readable while Next has something. The session owns it.
func (s *Session) FD() int { return int(C.millstream_session_fd(s.handle)) }

// Next returns the next report, a line of JSON; an empty one if there is none now. An error says that the session
// has ended by itself, and why; it has yet to be stopped.
func (s *Session) Next() (string, error) {
	var report *C.char
	err := call(func() C.int { return C.millstream_session_next(s.handle, &report) })
	var failure *Error
	if errors.As(err, &failure) && failure.Code == No {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer C.millstream_free(unsafe.Pointer(report))
	return C.GoString(report), nil
}

// Stop ends a session. The interfaces get back what they had before, or keep the unspecialized program.
func (s *Session) Stop(keepOriginal bool) error {
	handle := s.handle
	s.handle = nil
	return call(func() C.int { return C.millstream_session_stop(handle, C.int(flag(keepOriginal))) })
}
