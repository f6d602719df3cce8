package gossip

import (
	"fmt"

	"github.com/hashicorp/memberlist"

	"github.com/sluice-project/sluice/internal/member"
)

// admit returns the member that a node of memberlist stands for, or why it is
// refused. The error names the peer's value and ours.
func admit(c Config, node *memberlist.Node) (member.Member, error) {
	meta, err := decodeMeta(node.Meta)
	if err != nil {
		return member.Member{}, err
	}
	m := meta.member
	if want := fullName(m.Name, m.Boot); node.Name != want {
		return member.Member{}, fmt.Errorf("it is called %q but its metadata says %q", node.Name, want)
	}
	if meta.placement != uint32(c.Placement) {
		return member.Member{}, fmt.Errorf("its placement is %d, ours is %d: they would send keys to different owners; run versions with the same placement", meta.placement, c.Placement)
	}
	m.Gossip = node.Address()
	return m, nil
}
