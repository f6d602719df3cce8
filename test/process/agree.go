package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
)

// Peer is a node that is asked how it stands among the others.
type Peer struct {
	Name string
	Conn *grpc.ClientConn
}

// Members asks the node for its members.
func (p Peer) Members(ctx context.Context) (*adminv1alpha1.MembersResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	m, err := adminv1alpha1.NewAdminServiceClient(p.Conn).Members(ctx, &adminv1alpha1.MembersRequest{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return m, nil
}

// Agree returns what the nodes answer if each lists exactly all of them as serving, with one ring.
func Agree(nodes []Peer) (all []*adminv1alpha1.MembersResponse, err error) {
	for _, n := range nodes {
		m, err := n.Members(context.Background())
		if err != nil {
			return nil, err
		}
		var serving []string
		for _, member := range m.Members {
			if member.State == "serving" {
				serving = append(serving, member.Name)
			}
		}
		if len(serving) != len(nodes) {
			return nil, fmt.Errorf("%s lists %v, may decide: %v %s", n.Name, serving, m.MayDecide, m.Reason)
		}
		if all = append(all, m); m.Ring != all[0].Ring {
			return nil, fmt.Errorf("%s has ring %s, want %s", n.Name, m.Ring, all[0].Ring)
		}
	}
	return all, nil
}

// Whole reports why the nodes are not one cluster in which all are counted, each partition has an
// owner and its replicas, and nothing is under way.
func Whole(nodes []Peer) error {
	all, err := Agree(nodes)
	if err != nil {
		return err
	}
	owned := int32(0)
	for i, m := range all {
		h := m.GetPartitionCounts()
		if owned += h.GetOwned(); !m.MayDecide || len(m.VoterSet.GetMembers()) != len(nodes) ||
			h.GetUnprotected()+h.GetBelowReplicas()+h.GetHandingOver()+h.GetTakingOver()+h.GetDivergent() > 0 {
			return fmt.Errorf("%s: may decide: %v %s, set %v, %v", nodes[i].Name, m.MayDecide, m.Reason, m.VoterSet, h)
		}
	}
	if owned != all[0].Partitions {
		return errors.New("some partition has no owner, or two")
	}
	return nil
}
