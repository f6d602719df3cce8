package limiter

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/internal/member"
)

func TestForget(t *testing.T) {
	var left VoterSet
	for _, c := range []struct {
		name   string
		forget func(context.Context, string) error
		code   Code
		want   string
	}{
		{"", fails(nil), Invalid, "name: empty"},
		{strings.Repeat("n", MaxText+1), fails(nil), Invalid, "name: 1025 bytes; want at most 1024"},
		{"n3", fails(member.ErrNoSet), Rejected, `cannot forget "n3": this node knows no voter set; call one that does`},
		{"n3", fails(member.ErrNotVoter), NotFound, `cannot forget "n3": it is not in the voter set`},
		{"n3", fails(member.ErrAlive), Rejected, `cannot forget "n3": it is alive; stop it first`},
		{"n3", fails(fmt.Errorf("heard from 40ms ago: %w", member.ErrAlive)), Rejected, `cannot forget "n3": heard from 40ms ago: it is alive; stop it first`},
		{"n1", fails(member.ErrThisNode), Rejected, `cannot forget "n1": it is the node that received the call; stop it, and call another`},
		{"n3", fails(member.ErrLastVoter), Rejected, `cannot forget "n3": it is the only member of the voter set`},
		{"a\nb", fails(member.ErrNotVoter), NotFound, `cannot forget "a\nb": it is not in the voter set`},
		{"n3", fails(errors.New("the node does not run")), Unavailable, `cannot forget "n3": the node does not run`},
		{"n3", func(_ context.Context, name string) error {
			left = VoterSet{ClusterID: "b1", Version: 3, Members: []string{"n1", "not " + name}}
			return nil
		}, 0, ""},
	} {
		left = VoterSet{}
		s := newService(t, newNode(t), func(config *Config) {
			config.Cluster.(*fakeCluster).forget = c.forget
			config.Cluster.(*fakeCluster).overview = func(context.Context) Overview { return Overview{State: State{Set: left}} }
		})
		set, err := s.Forget(t.Context(), c.name)
		e, _ := errors.AsType[*Error](err)
		switch {
		case c.code == 0 && (err != nil || set.Version != 3 || set.Members[1] != "not n3"):
			t.Errorf("%s: %+v, %v", c.name, set, err)
		case c.code != 0 && (e == nil || e.Code != c.code || e.Error() != c.want || !reflect.DeepEqual(set, VoterSet{})):
			t.Errorf("%s: %+v, %v\nwant %v: %s", c.name, set, err, c.code, c.want)
		}
	}
}

func fails(err error) func(context.Context, string) error {
	return func(context.Context, string) error { return err }
}
