package transport

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestForget(t *testing.T) {
	var left StableSet
	for _, c := range []struct {
		name   string
		forget func(context.Context, string) error
		code   Code
		want   string
	}{
		{"", nil, Invalid, "name: empty"},
		{strings.Repeat("n", MaxText+1), nil, Invalid, "name: 1025 bytes; want at most 1024"},
		{"n3", nil, Refused, `cannot forget "n3": this node knows no stable set; ask one that does`},
		{"n3", fails(ErrNoSet), Refused, `cannot forget "n3": this node knows no stable set; ask one that does`},
		{"n3", fails(ErrNotCounted), NotFound, `cannot forget "n3": it is not in the stable set`},
		{"n3", fails(ErrLives), Refused, `cannot forget "n3": it lives; stop it first`},
		{"n3", fails(fmt.Errorf("heard from 40ms ago: %w", ErrLives)), Refused, `cannot forget "n3": heard from 40ms ago: it lives; stop it first`},
		{"n1", fails(ErrThisNode), Refused, `cannot forget "n1": it is the node that was asked; stop it, and ask another`},
		{"n3", fails(ErrLastCounted), Refused, `cannot forget "n3": nobody else is in the stable set`},
		{"a\nb", fails(ErrNotCounted), NotFound, `cannot forget "a\nb": it is not in the stable set`},
		{"n3", fails(errors.New("the node does not run")), Unavailable, `cannot forget "n3": the node does not run`},
		{"n3", func(_ context.Context, name string) error {
			left = StableSet{Lineage: "b1", Version: 3, Members: []string{"n1", "not " + name}}
			return nil
		}, 0, ""},
	} {
		left = StableSet{}
		s := newService(t, newNode(t), func(config *Config) {
			config.Forget = c.forget
			config.Cluster = func(context.Context) Overview { return Overview{Set: left} }
		})
		set, err := s.Forget(t.Context(), c.name)
		e, _ := errors.AsType[*Error](err)
		switch {
		case c.code == 0 && (err != nil || set.Version != 3 || set.Members[1] != "not n3"):
			t.Errorf("%s: %+v, %v", c.name, set, err)
		case c.code != 0 && (e == nil || e.Code != c.code || e.Error() != c.want || !reflect.DeepEqual(set, StableSet{})):
			t.Errorf("%s: %+v, %v\nwant %v: %s", c.name, set, err, c.code, c.want)
		}
	}
}

func fails(err error) func(context.Context, string) error {
	return func(context.Context, string) error { return err }
}

func TestLocalOnly(t *testing.T) {
	far := func(addr string) string {
		return "answered on loopback only, and this call came from " + addr + "; make it on the node's own machine"
	}
	passed := func(header string) string {
		return "answered on loopback only, and this call was passed on by a proxy or a web page (it has " + header + "); make it on the node's own machine"
	}
	for _, c := range []struct{ addr, header, want string }{
		{"127.0.0.1:5000", "", ""},
		{"127.9.9.9:1", "", ""},
		{"[::1]:5000", "", ""},
		{"[::ffff:127.0.0.1]:5000", "", ""},
		{"127.0.0.1:5000", "User-Agent", ""},
		{"192.0.2.7:5000", "", far("192.0.2.7:5000")},
		{"0.0.0.0:5000", "", far("0.0.0.0:5000")},
		{"[fe80::1%eth0]:5000", "", far("[fe80::1%eth0]:5000")},
		{"[::ffff:192.0.2.7]:5000", "", far("[::ffff:192.0.2.7]:5000")},
		{"127.0.0.1", "", far("127.0.0.1")},
		{"localhost:5000", "", far("localhost:5000")},
		{"", "", far("")},
		{"127.0.0.1:5000", "X-Forwarded-For", passed("X-Forwarded-For")},
		{"127.0.0.1:5000", "Forwarded", passed("Forwarded")},
		{"127.0.0.1:5000", "Via", passed("Via")},
		{"[::1]:5000", "Origin", passed("Origin")},
		{"192.0.2.7:5000", "Via", far("192.0.2.7:5000")},
	} {
		e := LocalOnly(c.addr, func(header string) bool { return header == c.header })
		switch {
		case c.want == "" && e != nil:
			t.Errorf("%q with %q: %v", c.addr, c.header, e)
		case c.want != "" && (e == nil || e.Code != Forbidden || e.Error() != c.want):
			t.Errorf("%q with %q: %v\nwant %s", c.addr, c.header, e, c.want)
		}
	}
}
