package gossip

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/sluicecluster/sluice/internal/member"
)

func someMeta() metadata {
	return metadata{
		member: member.Member{
			Name: "pod-1", Boot: NewBoot(time.Unix(1, 2), 3), State: member.Leaving,
			Peer: "10.0.0.1:7462", GRPC: "[fd00::1]:7460", HTTP: "", Version: "v0.1.0",
		},
		placement: 0x01020304,
	}
}

func TestMetaComesBack(t *testing.T) {
	want := someMeta()
	b, err := encodeMeta(want)
	must(t, err)
	if got, err := decodeMeta(b); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	want.member.Zone = "eu-central-1a"
	with, err := encodeMeta(want)
	must(t, err)
	if got, err := decodeMeta(with); err != nil || got != want || !bytes.HasPrefix(with, b) {
		t.Errorf("with a zone: got %+v, %v, want %+v", got, err, want)
	}
	for _, zone := range []string{"", "z"} {
		want.member.Zone, want.region = zone, "eu"
		b, err := encodeMeta(want)
		must(t, err)
		if got, err := decodeMeta(b); err != nil || got != want {
			t.Errorf("with a region: got %+v, %v, want %+v", got, err, want)
		}
	}
	if got, want := b[:6], []byte{2, 2, 4, 3, 2, 1}; !bytes.Equal(got, want) {
		t.Errorf("metadata starts with %v, want %v", got, want)
	}
}

func TestDecodeMetaIsStrict(t *testing.T) {
	good, err := encodeMeta(someMeta())
	must(t, err)
	for n := range good {
		if _, err := decodeMeta(good[:n]); err == nil {
			t.Errorf("the first %d of %d bytes are accepted", n, len(good))
		}
	}
	for name, c := range map[string]struct {
		change func([]byte) []byte
		want   string
	}{
		"a byte more":     {func(b []byte) []byte { return append(b, 0) }, "1 bytes too many"},
		"another format":  {func(b []byte) []byte { b[0] = 1; return b }, "format 1, ours is 2"},
		"unknown state":   {func(b []byte) []byte { b[1] = 3; return b }, "state 3"},
		"slash in name":   {func(b []byte) []byte { return bytes.Replace(b, []byte("pod-1"), []byte("pod/1"), 1) }, `"pod/1"`},
		"strange boot id": {func(b []byte) []byte { return bytes.Replace(b, []byte("-0000"), []byte("_0000"), 1) }, "boot id"},
	} {
		if _, err := decodeMeta(c.change(bytes.Clone(good))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestMetaTooLong(t *testing.T) {
	for _, change := range []func(*metadata){
		func(m *metadata) { m.member.Peer = strings.Repeat("p", 256) },
		func(m *metadata) { m.member.Peer, m.member.GRPC = strings.Repeat("p", 255), strings.Repeat("g", 255) },
	} {
		m := someMeta()
		change(&m)
		if _, err := encodeMeta(m); err == nil {
			t.Error("too long, yet encoded")
		}
	}
	c := valid()
	c.Peer, c.GRPC = strings.Repeat("p", 245)+":1", strings.Repeat("g", 245)+":1"
	c.Bind = "127.0.0.1:0"
	if _, err := Open(t.Context(), c); err == nil || !strings.Contains(err.Error(), "Peer, GRPC") {
		t.Errorf("Open: %v", err)
	}
}

func FuzzDecodeMeta(f *testing.F) {
	good, err := encodeMeta(someMeta())
	must(f, err)
	f.Add(good)
	f.Add([]byte{})
	f.Add([]byte{metaFormat})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err != nil {
			return
		}
		again, err := encodeMeta(m)
		if len(b) <= memberlist.MetaMaxSize && (err != nil || !bytes.Equal(again, b)) {
			t.Errorf("%x decodes to %+v, which encodes to %x, %v", b, m, again, err)
		}
	})
}

func TestAdmit(t *testing.T) {
	good := someMeta()
	c := Config{Placement: int(good.placement)}
	b, err := encodeMeta(good)
	must(t, err)
	node := &memberlist.Node{Name: fullName(good.member.Name, good.member.Boot), Addr: []byte{10, 0, 0, 1}, Port: 7463, Meta: b}
	want := good.member
	want.Gossip = "10.0.0.1:7463"
	if got, err := admit(c, node); err != nil || got != want {
		t.Errorf("admit = %+v, %v", got, err)
	}
	node.Name = "pod-2/" + good.member.Boot
	if _, err := admit(c, node); err == nil || !strings.Contains(err.Error(), "pod-2") {
		t.Errorf("a name unlike the metadata's: %v", err)
	}
	node.Meta = nil
	if _, err := admit(c, node); err == nil {
		t.Error("no metadata, yet admitted")
	}
}
