package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// oneOf is a flag with one of these values, the first by default.
type oneOf struct {
	value  *string
	values []string
}

func (o oneOf) String() string {
	if o.value == nil {
		return ""
	}
	return *o.value
}

func (o oneOf) Type() string { return "" }

// Set implements pflag.Value.
func (o oneOf) Set(text string) error {
	if !slices.Contains(o.values, text) {
		return fmt.Errorf("want %s", strings.Join(o.values, ", "))
	}
	*o.value = text
	return nil
}

// registerOutput adds --output. Commands that list have wide too.
func registerOutput(flags *pflag.FlagSet, output *string, formats ...string) {
	if formats == nil {
		formats = []string{"text", "json"}
	}
	*output = formats[0]
	flags.VarP(oneOf{output, formats}, "output", "o", "output `format`: "+strings.Join(formats, ", "))
}

// write prints text or, if format is json, v. An error ends the process with exitDenied.
func write(out io.Writer, format, text string, v any) error {
	if format == "json" {
		return withCode(exitDenied, json.NewEncoder(out).Encode(v))
	}
	return withCode(exitDenied, fprint(out, text))
}

// jsonOf is m in the form that is printed. A field x_ns is x in seconds, and x_address is x. An optional field that is not set is left out.
func jsonOf(m proto.Message) map[string]any { return objectOf(m.ProtoReflect()) }

func objectOf(m protoreflect.Message) map[string]any {
	out := map[string]any{}
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		one := func(v protoreflect.Value) any {
			if f.Message() != nil {
				return objectOf(v.Message())
			}
			return v.Interface()
		}
		name, v := strings.TrimSuffix(string(f.Name()), "_address"), m.Get(f)
		if inSeconds, ok := strings.CutSuffix(name, "_ns"); ok {
			out[inSeconds] = seconds(v.Int())
		} else if f.IsList() {
			list := make([]any, v.List().Len())
			for i := range list {
				list[i] = one(v.List().Get(i))
			}
			out[name] = list
		} else {
			out[name] = one(v)
		}
	}
	return out
}

func seconds(ns int64) float64 { return time.Duration(ns).Seconds() }
