package grpcapi

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// play makes the calls of a script: a line is a method, its request in the text form of protobuf, "=>", and the response. In requests
// (ann) stands for the check of a user, and what follows the name is in it too. In responses decisions are short: the verdict, what is left of the
// limit, and the time to a retry. An error is its code and message, which begins with the field at fault.
func (d *api) play(t *testing.T, script string) {
	t.Helper()
	d.playAs(t.Context(), t, script)
}

func (d *api) playAs(ctx context.Context, t *testing.T, script string) {
	t.Helper()
	var got, want strings.Builder
	for line := range strings.Lines(script) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		call, answer, _ := strings.Cut(line, " =>")
		fmt.Fprintf(&want, "%s =>%s\n", call, answer)
		fmt.Fprintf(&got, "%s => %s\n", call, d.do(ctx, t, call))
	}
	if g, w := strings.ReplaceAll(got.String(), "=> \n", "=>\n"), want.String(); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

// userCheck is "(name and more)".
var userCheck = regexp.MustCompile(`\((\w+)([^()]*)\)`)

func (d *api) do(ctx context.Context, t *testing.T, call string) string {
	t.Helper()
	name, text, _ := strings.Cut(call, " ")
	service := sluicev1.File_sluice_v1_sluice_proto.Services().ByName("RateLimitService")
	m := service.Methods().ByName(protoreflect.Name(name))
	req := parse(t, m.Input(), userCheck.ReplaceAllString(text, `checks {domain: "shop" descriptor {key: "user" value: "$1"} $2}`))
	res := parse(t, m.Output(), "")
	if m.IsStreamingServer() {
		s := openStream(t, d)
		if err := s.Send(req.(*sluicev1.CheckRequest)); err != nil {
			t.Fatal(err)
		}
		res = recv(t, s)
	} else if err := d.conn.Invoke(ctx, fmt.Sprintf("/%s/%s", service.FullName(), m.Name()), req, res); err != nil {
		st := status.Convert(err)
		for _, detail := range st.Details() {
			if e, ok := detail.(*sluicev1.Error); ok && !strings.HasPrefix(st.Message(), e.GetField()) {
				t.Errorf("%s: field %q of %v", call, e.GetField(), err)
			}
		}
		return st.Code().String() + " " + st.Message()
	}
	return short(res)
}

// parse makes a message of its text form.
func parse(t *testing.T, d protoreflect.MessageDescriptor, text string) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	m := kind.New().Interface()
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

// short is a response in short.
func short(m proto.Message) string {
	m = proto.Clone(m)
	var parts []string
	if r, ok := m.(interface{ GetDecisions() []*sluicev1.Decision }); ok {
		for _, d := range r.GetDecisions() {
			parts = append(parts, shortDecision(d))
		}
		m.ProtoReflect().Clear(m.ProtoReflect().Descriptor().Fields().ByName("decisions"))
	}
	rest := strings.Join(strings.Fields(prototext.MarshalOptions{}.Format(m)), " ") // the number of spaces is random
	return strings.TrimSpace(strings.Join(parts, " | ") + " " + rest)
}

func shortDecision(d *sluicev1.Decision) string {
	if e := d.GetError(); e != nil {
		return strings.TrimSpace(strings.TrimPrefix(e.GetCode().String(), "ERROR_CODE_") + " " + e.GetField())
	}
	out := strings.TrimPrefix(d.GetVerdict().String(), "VERDICT_")
	if d.Limit != nil {
		out += fmt.Sprintf(" %d/%d", d.GetRemaining(), d.GetLimit())
	}
	if s := d.GetSource(); s != sluicev1.Source_SOURCE_OWNED {
		out += " " + strings.TrimPrefix(s.String(), "SOURCE_")
	}
	if d.RetryAfterNs != nil {
		out += " in " + time.Duration(d.GetRetryAfterNs()).String()
	}
	return out
}
