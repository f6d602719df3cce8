package limiter

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
)

// Vectors of the SipHash reference implementation, 128-bit results for the key
// 00 01 … 0f and the inputs "", 00 and 00 01 … 0e. Nodes on every architecture must agree.
func TestSipHashVectors(t *testing.T) {
	h := Hasher{k0: 0x0706050403020100, k1: 0x0f0e0d0c0b0a0908}
	input := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}
	for _, c := range []struct {
		n    int
		want bucket.Key
	}{
		{0, bucket.Key{Lo: 0xe6a825ba047f81a3, Hi: 0x930255c71472f66d}},
		{1, bucket.Key{Lo: 0x44af996bd8c187da, Hi: 0x45fc229b11597634}},
		{15, bucket.Key{Lo: 0x11a8b03399e99354, Hi: 0xd9c3cf970fec087e}},
	} {
		if got := h.Key(input[:c.n]); got != c.want {
			t.Errorf("%d bytes: %x, want %x", c.n, got, c.want)
		}
	}
}

// What is derived from a secret must not change between versions: nodes of two
// versions share one cluster while it is being upgraded.
func TestDerivation(t *testing.T) {
	secret := []byte("an example secret of 32 bytes, ok")
	h, err := NewHasher(secret)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Fingerprint(secret)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Hasher{k0: 0xf1b5282be9227f76, k1: 0xaf4d355a24ff37ec, private: [2]uint64{0xd0c8316968b5b64, 0x37904e819cdc2a00}}); h != want {
		t.Errorf("hasher %#x, want %#x", h, want)
	}
	if got := hex.EncodeToString(f); got != "5d4fec8ae84ff530cb1aa940ebf3bd0a" {
		t.Errorf("fingerprint %s", got)
	}
}

func TestSecretsApart(t *testing.T) {
	a, b := []byte(strings.Repeat("a", MinSecret)), []byte(strings.Repeat("b", MinSecret))
	ha, _ := NewHasher(a)
	hb, _ := NewHasher(b)
	if name := []byte("domain"); ha.Key(name) == hb.Key(name) {
		t.Error("two secrets give one counter key")
	}
	fa, _ := Fingerprint(a)
	fb, _ := Fingerprint(b)
	if string(fa) == string(fb) {
		t.Error("two secrets have one fingerprint")
	}
	for _, short := range [][]byte{nil, a[:MinSecret-1]} {
		if _, err := NewHasher(short); err == nil || !strings.Contains(err.Error(), "cluster secret") {
			t.Errorf("a secret of %d bytes: error %v", len(short), err)
		}
		if _, err := Fingerprint(short); err == nil {
			t.Errorf("a secret of %d bytes has a fingerprint", len(short))
		}
	}
}

func BenchmarkKey(b *testing.B) {
	h, err := NewHasher(make([]byte, MinSecret))
	if err != nil {
		b.Fatal(err)
	}
	name := (*rules.Rule)(nil).AppendKey(nil, "auth", []rules.Entry{{Key: "auth_type", Value: "login"}, {Key: "user", Value: "0123456789"}})
	b.ReportAllocs()
	for b.Loop() {
		h.Key(name)
	}
}
