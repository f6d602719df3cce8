package peer

import (
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// FuzzGreeting reads the first frame of a stream, which comes from whoever reaches the peer port.
func FuzzGreeting(f *testing.F) {
	own := (&network{}).config("b")
	said := transcript{dialer: own.hello(), accepter: own.hello()}
	for _, g := range []*peerv1.Greeting{{Hello: own.hello()}, {Proof: own.prove(accepter, said)}} {
		b, err := proto.Marshal(g)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{})
	codec := newFrameCodec()
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(peerv1.Greeting)
		err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, m)
		if len(data) > maxGreeting {
			if err == nil {
				t.Error("a long one is read")
			}
			return
		}
		if err != nil {
			return
		}
		_ = own.compatible(m.Hello)
		if own.verify(dialer, said, m.Proof) == nil {
			t.Errorf("%v proves that it knows the secret", m.Proof)
		}
	})
}
