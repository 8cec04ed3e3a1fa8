package millstream

import (
	"bytes"
	"errors"
	"os"
	"testing"
)

func read(t *testing.T, variable string) []byte {
	path := os.Getenv(variable)
	if path == "" {
		t.Skip("the variable " + variable + " names no file")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestOptimizeGivesTheSameBytesAsRust(t *testing.T) {
	object, expected := read(t, "OBJECT"), read(t, "EXPECTED")
	made, err := Optimize(object, nil)
	if err != nil || !bytes.Equal(made, expected) {
		t.Fatal(err, len(made), len(expected))
	}
	if _, err := Optimize(object, &Options{Kernel: "6.1", Goal: Size}); err != nil {
		t.Fatal(err)
	}
	before, err := Programs(object)
	if err != nil || len(before) == 0 || before[0].Name == "" {
		t.Fatal(before, err)
	}
	if verdicts, err := Prove(object, object, 0); err != nil || len(verdicts) != len(before) {
		t.Fatal(verdicts, err)
	}
}

func TestErrorsHaveCodes(t *testing.T) {
	object := read(t, "OBJECT")
	calls := map[string]func() error{
		"not ELF":   func() error { _, err := Optimize([]byte("not ELF"), nil); return err },
		"empty":     func() error { _, err := Programs(nil); return err },
		"kernel":    func() error { _, err := Optimize(object, &Options{Kernel: "one"}); return err },
		"interface": func() error { _, err := StartSession(object, []string{"no-such-if0"}, nil); return err },
		"none":      func() error { _, err := StartSession(object, nil, nil); return err },
	}
	for name, function := range calls {
		var failure *Error
		if err := function(); !errors.As(err, &failure) || failure.Code != Input || failure.Text == "" {
			t.Error(name, err)
		}
	}
}
