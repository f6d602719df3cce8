package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/memberlist"

	"github.com/sluice-project/sluice/internal/member"
)

// metaFormat is the first byte of the metadata. Nodes that write another one
// refuse each other, so it is raised only when the two cannot be kept apart
// otherwise.
const metaFormat = 2

// metadata is what a node tells about itself through memberlist. The gossip
// address is not in it: memberlist carries that itself.
type metadata struct {
	member    member.Member // without Gossip
	placement uint32
}

// encodeMeta writes: format, state, placement as 4 bytes little endian,
// then name, boot, peer, gRPC, HTTP and version, each with its
// length in one byte before it. The zone follows only where there is one: nodes that do not know zones refuse
// metadata that goes on.
func encodeMeta(m metadata) ([]byte, error) {
	b := make([]byte, 0, memberlist.MetaMaxSize)
	b = append(b, metaFormat, byte(m.member.State))
	b = binary.LittleEndian.AppendUint32(b, m.placement)
	texts := m.texts()
	if m.member.Zone != "" {
		texts = append(texts, &m.member.Zone)
	}
	for _, s := range texts {
		if len(*s) > 255 {
			return nil, fmt.Errorf("%q is %d bytes long: want at most 255", *s, len(*s))
		}
		b = append(b, byte(len(*s)))
		b = append(b, *s...)
	}
	if len(b) > memberlist.MetaMaxSize {
		return nil, fmt.Errorf("%d bytes of metadata: want at most %d: use shorter names", len(b), memberlist.MetaMaxSize)
	}
	return b, nil
}

// decodeMeta reads what encodeMeta writes and nothing else.
func decodeMeta(b []byte) (metadata, error) {
	var m metadata
	if len(b) == 0 {
		return m, errors.New("metadata is empty")
	}
	if b[0] != metaFormat {
		return m, fmt.Errorf("metadata has format %d, ours is %d", b[0], metaFormat)
	}
	if len(b) < 2+4 {
		return m, errors.New("metadata is cut short")
	}
	m.member.State = member.State(b[1])
	if m.member.State > member.Leaving {
		return m, fmt.Errorf("metadata has state %d: want 0 to %d", b[1], member.Leaving)
	}
	m.placement = binary.LittleEndian.Uint32(b[2:])
	b = b[6:]
	for i, s := range append(m.texts(), &m.member.Zone) {
		if i == len(m.texts()) && (len(b) == 0 || b[0] == 0) {
			break // no zone
		}
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			return m, errors.New("metadata is cut short")
		}
		*s = string(b[1 : 1+int(b[0])])
		b = b[1+len(*s):]
	}
	if len(b) != 0 {
		return m, fmt.Errorf("metadata has %d bytes too many", len(b))
	}
	if err := ValidateName(m.member.Name); err != nil {
		return m, fmt.Errorf("name in metadata: %w", err)
	}
	if err := ValidateZone(m.member.Zone); err != nil {
		return m, fmt.Errorf("zone in metadata: %w", err)
	}
	if !validBoot(m.member.Boot) {
		return m, fmt.Errorf("boot id in metadata: %q", m.member.Boot)
	}
	return m, nil
}

// texts lists the fields of text in their order on the wire.
func (m *metadata) texts() []*string {
	p := &m.member
	return []*string{&p.Name, &p.Boot, &p.Peer, &p.GRPC, &p.HTTP, &p.Version}
}
